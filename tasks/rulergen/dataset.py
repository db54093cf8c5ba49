"""Generated samples as lm-eval's data set: each is made when it is first read.

lm-eval takes the length, the field names and the first document of every task it constructs, and
walks over all documents to reach those that `--limit` or `--samples` ask for. So the rows exist
from the start, and are empty until somebody looks into them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, overload

from page_bench.config import check_integer
from page_bench.inputs.errors import UsageError
from page_bench.tasks import protocols
from page_bench.tasks.metadata import check_names, check_path
from page_bench.tasks.ruler import RULES, doc_of
from page_bench.tasks.rulergen.meter import meter_of
from page_bench.tasks.rulergen.samples import Generator, Settings

SAMPLES = 500
MOST = 100_000
"""Samples of a set, at most."""

FIELDS = (
    *("system", "prompt", "answer_prefix", "context", "question", "answers"),
    *("match", "match_paper", "max_new_tokens", "task", "protocol", "index", "seed", "length"),
    *("prompt_tokens", "fill", "shortfall", "units", "haystack", "near_tie_keys"),
)
"""The fields of a document; see `load`."""


def load(ruler_length: int, ruler_task: str, **metadata: Any) -> dict[str, Rows]:
    """The data set of one task at one length, as lm-eval's `custom_dataset` wants it.

    Args:
        ruler_length: tokens of prompt and answer together.
        ruler_task: one of RULER's 13 tasks.
        metadata: what lm-eval passes: the model arguments, which name the tokenizer, and
            `--metadata`. Read are

            - `protocol`: see `protocols`. It changes a sample's wording, not its content: a sample
              is sized so that its prompt fits under each of them.
            - `num_samples` (500): how many samples the set has.
            - `ruler_seed` (42): another seed, other samples.
            - `draw_seed`: an order of the set, so that `--limit` draws others than the first.
            - `near_tie_keys`: see `needles.form_of`.
            - `essays`, or the environment variable `PAGE_BENCH_ESSAYS`: see `essays.load`.
            - `squad`, `hotpotqa`, or `PAGE_BENCH_SQUAD`, `PAGE_BENCH_HOTPOTQA`: see
              `questions.load`.

    Returns:
        {"test": documents}. Besides the fields of `ruler.doc_of` a document has those of
        `samples.Generator.sample`, `seed` and `near_tie_keys`.

    Raises:
        UsageError: a value that is not allowed.
    """
    if ruler_task not in RULES:
        raise UsageError(f"RULER has no task {ruler_task!r}; its tasks are {', '.join(RULES)}.")
    check_names(metadata)
    protocol = protocols.protocol_of(metadata)
    count = _number(metadata, "num_samples", SAMPLES, at_least=1)
    if count > MOST:
        raise UsageError(f"num_samples={count} is more than the {MOST:,} that a set may have.")
    seed = _number(metadata, "ruler_seed", Settings.seed, at_least=0)
    near_tie_keys = None
    if metadata.get("near_tie_keys") is not None and ruler_task.startswith("niah_multikey"):
        near_tie_keys = _number(metadata, "near_tie_keys", 1, at_least=1)
    check_integer("ruler_length", ruler_length, at_least=1)
    settings = Settings(
        ruler_task,
        ruler_length,
        seed,
        near_tie_keys,
        *(check_path(metadata, key) for key in ("essays", "squad", "hotpotqa")),
    )
    order = list(range(count))
    if metadata.get("draw_seed") is not None:
        draw_seed = _number(metadata, "draw_seed", 0, at_least=0)
        random.Random(f"draw {draw_seed}").shuffle(order)
    generator = Generator(settings, meter_of(metadata))

    def document(place: int) -> dict[str, Any]:
        row = generator.sample(order[place])
        doc = doc_of(row, ruler_task, ruler_length, protocol)
        doc |= {"seed": seed, "near_tie_keys": near_tie_keys}
        # The sample is sized to RULER's own answer length, whatever the protocol.
        doc["max_new_tokens"] = RULES[ruler_task].max_new_tokens
        return {field: doc[field] for field in FIELDS}

    return {"test": Rows(document, count)}


class Row(dict[str, Any]):
    """A document whose values are made when one of them is first read.

    A dict of `FIELDS` to everybody who uses it as one: templates, JSON, pickle and copies.

    Args:
        make: returns the document.
    """

    def __init__(self, make: Callable[[], dict[str, Any]]) -> None:
        super().__init__(dict.fromkeys(FIELDS))
        self._make: Callable[[], dict[str, Any]] | None = make

    @property
    def made(self) -> bool:
        """Whether the values are there."""
        return self._make is None

    def _filled(self) -> dict[str, Any]:
        if self._make is not None:
            super().update(self._make())
            self._make = None
        return {key: super(Row, self).__getitem__(key) for key in FIELDS}

    def __getitem__(self, key: str) -> Any:
        if self._make is not None:
            self._filled()
        return super().__getitem__(key)

    # With an `__iter__` of its own, a dict is copied by `__getitem__` and not by its slots.
    def __iter__(self) -> Iterator[str]:
        return super().__iter__()

    def get(self, key: str, default: Any = None) -> Any:
        self._filled()
        return super().get(key, default)

    def items(self) -> Any:
        return self._filled().items()

    def values(self) -> Any:
        return self._filled().values()

    def copy(self) -> dict[str, Any]:
        return self._filled()

    def __or__(self, other: Any) -> Any:
        return self._filled() | other

    def __ror__(self, other: Any) -> Any:
        return other | self._filled()

    def __eq__(self, other: object) -> bool:
        return self._filled() == (other._filled() if isinstance(other, Row) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __repr__(self) -> str:
        return repr(self._filled())

    def __reduce__(self) -> Any:
        return dict, (self._filled(),)


class Rows(Sequence[Row]):
    """The documents of a set, in order.

    Args:
        document: place → document.
        count: how many there are.
    """

    def __init__(self, document: Callable[[int], dict[str, Any]], count: int) -> None:
        self._rows = [Row(partial(document, place)) for place in range(count)]

    @property
    def features(self) -> dict[str, None]:
        """The names of the fields, as the keys of a dict: all that lm-eval looks at."""
        return dict.fromkeys(FIELDS)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> list[Row]: ...
    def __getitem__(self, place: int | slice) -> Row | list[Row]:
        return self._rows[place]

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)


def _number(metadata: dict[str, Any], name: str, default: int, at_least: int) -> int:
    value = metadata.get(name)
    if value is None:
        return default
    check_integer(name, value, at_least)
    return int(value)
