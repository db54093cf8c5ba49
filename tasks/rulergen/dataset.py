"""Generated samples as lm-eval's data set: each is made when it is first read."""

from __future__ import annotations

import random
from typing import Any

from page_bench.config import check_integer
from page_bench.inputs.errors import UsageError
from page_bench.tasks.lazy_docs import LazyDocs
from page_bench.tasks.metadata import check_names, number_in, path_in, protocol_in
from page_bench.tasks.protocols import PROTOCOLS
from page_bench.tasks.ruler import RULES, doc_of
from page_bench.tasks.rulergen.meter import meter_of
from page_bench.tasks.rulergen.samples import Generator, SampleSettings

SAMPLES = 500
MOST = 100_000
"""Samples of a set, at most."""

FIELDS = (
    *("system", "prompt", "answer_prefix", "context", "question", "answers"),
    *("match", "match_paper", "max_new_tokens", "task", "protocol", "index", "seed", "length"),
    *("prompt_tokens", "fill", "shortfall", "units", "haystack", "near_tie_keys"),
)
"""The fields of a document; see `load`."""


def load(ruler_length: int, ruler_task: str, **metadata: Any) -> dict[str, LazyDocs]:
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
    protocol = protocol_in(metadata, PROTOCOLS, "RULER")
    count = number_in(metadata, "num_samples", at_most=MOST) or SAMPLES
    seed = number_in(metadata, "ruler_seed", at_least=0)
    seed = SampleSettings.seed if seed is None else seed
    near_tie_keys = None
    if ruler_task.startswith("niah_multikey"):
        near_tie_keys = number_in(metadata, "near_tie_keys")
    check_integer("ruler_length", ruler_length, at_least=1)
    sources = (path_in(metadata, key) for key in ("essays", "squad", "hotpotqa"))
    settings = SampleSettings(ruler_task, ruler_length, seed, near_tie_keys, *sources)
    order = list(range(count))
    draw_seed = number_in(metadata, "draw_seed", at_least=0)
    if draw_seed is not None:
        random.Random(f"draw {draw_seed}").shuffle(order)
    generator = Generator(settings, meter_of(metadata))

    def document(index: int) -> dict[str, Any]:
        doc = doc_of(generator.sample(index), ruler_task, ruler_length, protocol)
        doc |= {"seed": seed, "near_tie_keys": near_tie_keys}
        # The sample is sized to RULER's own answer length, whatever the protocol.
        doc["max_new_tokens"] = RULES[ruler_task].max_new_tokens
        return {field: doc[field] for field in FIELDS}

    return {"test": LazyDocs(FIELDS, document, order)}
