"""One prompt under one run: what is known of it, from the store or from the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from page_bench.config import PageConfig
from page_bench.engine.decode_batches import DECODE_ROWS
from page_bench.engine.keys import Key, StoredModel, answer_key, seen_key
from page_bench.engine.prefilled_prompt import GATE_CLOSED, ArmAnswer, PromptPass
from page_bench.engine.prompt import Prompt
from page_bench.records.store.store import RunStore
from page_bench.records.trace import KNOWN_LATER, Seen


class Memory:
    """A store, seen from one model: what was computed before is not computed again.

    Attributes:
        store: where facts stand.
        model: the model they belong to.
        sampling_seed: enters the random numbers of every prompt when sampling.
        decode_rows: answers to one prompt that are decoded together, at most.
    """

    def __init__(
        self,
        store: RunStore,
        model: StoredModel,
        sampling_seed: int,
        decode_rows: int = DECODE_ROWS,
    ) -> None:
        self.store, self.model, self.sampling_seed = store, model, sampling_seed
        self.decode_rows = decode_rows

    def seen(self, prompt: Prompt, config: PageConfig) -> Seen | None:
        """What a prefill showed, if it stands in the store."""
        found = self.store.seen(self.seen_key(prompt, config))
        return None if found is None else Seen(**found)

    def answer(self, prompt: Prompt, eviction: PageConfig | None) -> ArmAnswer | None:
        """An answer, if it stands in the store."""
        found = self.store.answer(self.answer_key(prompt, eviction))
        if found is None:
            return None
        answer = ArmAnswer(**found)
        if answer.evidence_sha256 == prompt.evidence_sha256:
            return answer
        unknown = dict.fromkeys(KNOWN_LATER)
        return replace(answer, **unknown)  # type: ignore[arg-type]

    def keep(
        self,
        prompt: Prompt,
        seen: Sequence[tuple[PageConfig, Seen]],
        answers: Sequence[tuple[PageConfig | None, ArmAnswer]],
    ) -> None:
        """Write what was computed of one prompt, all of it or nothing."""
        self.store.put_all(
            [
                *((self.seen_key(prompt, config), asdict(one)) for config, one in seen),
                *((self.answer_key(prompt, eviction), asdict(one)) for eviction, one in answers),
            ]
        )

    def seen_key(self, prompt: Prompt, config: PageConfig) -> Key:
        return seen_key(self.model, prompt, config)

    def answer_key(self, prompt: Prompt, eviction: PageConfig | None) -> Key:
        return answer_key(self.model, prompt, eviction, self.sampling_seed, self.decode_rows)


class Case:
    """A prompt under one arm.

    Args:
        prompt: the sample.
        config: the arm.
        prefilled: runs the prompt through the model.
        memory: None where nothing is stored.
    """

    def __init__(
        self,
        prompt: Prompt,
        config: PageConfig,
        prefilled: Callable[[], PromptPass],
        memory: Memory | None,
    ) -> None:
        self.prompt, self.config = prompt, config
        self._prefilled, self._memory = prefilled, memory
        self._pass: PromptPass | None = None
        self._whole: ArmAnswer | None = None
        self._is_new = False
        self._seen: Seen | None = None if memory is None else memory.seen(prompt, config)

    @property
    def seen(self) -> Seen:
        """What the prefill showed."""
        if self._seen is None:
            self._seen = self._at_hand().seen(self.config)
            self._is_new = True
        return self._seen

    def answer(self, evicted: bool, last: bool = True) -> ArmAnswer:
        """The arm's plain answer, or the full cache's.

        Args:
            evicted: which of them.
            last: whether no other answer will be asked for.
        """
        eviction = self.config if evicted else None
        if self._memory is not None:
            found = self._memory.answer(self.prompt, eviction)
            if found is not None:
                self._keep([])
                return self._known(found)
        if not evicted and self._whole is not None:
            made = replace(self._whole, kept_all_because=GATE_CLOSED, must_keep=None)
        else:
            (made,) = self._at_hand().answers([eviction], last)
        self._keep([(eviction, made)])
        return self._known(made)

    def _keep(self, answers: Sequence[tuple[PageConfig | None, ArmAnswer]]) -> None:
        """Store what is new, signals that were measured included."""
        seen = [(self.config, self.seen)] if self._is_new or answers else []
        if self._memory is not None and (seen or answers):
            self._memory.keep(self.prompt, seen, answers)
        self._is_new = False

    def _known(self, answer: ArmAnswer) -> ArmAnswer:
        """The answer; one that came from the full cache, and used it up, is not made again."""
        if answer.kept_all_because is not None:
            self._whole = answer
        return answer

    def _at_hand(self) -> PromptPass:
        if self._pass is None:
            self._pass = self._prefilled()
        return self._pass


def missing(
    memory: Memory, prompt: Prompt, configs: Sequence[PageConfig]
) -> tuple[list[PageConfig], list[PageConfig | None]]:
    """What of a grid is not stored yet: configurations whose signals, evictions whose answers.

    Those that have one key stand once. The full cache is wanted where some gate may close, an
    eviction where its gate may open.
    """
    wanted: list[PageConfig | None] = [config for config in configs if config.gate != "closed"]
    if any(config.gate != "open" for config in configs):
        wanted.append(None)
    signals: dict[Any, PageConfig] = {}
    answers: dict[Any, PageConfig | None] = {}
    for config in configs:
        key = memory.seen_key(prompt, config)
        if key.digest not in signals and memory.store.seen(key) is None:
            signals[key.digest] = config
    for eviction in wanted:
        key = memory.answer_key(prompt, eviction)
        if key.digest not in answers and memory.store.answer(key) is None:
            answers[key.digest] = eviction
    return list(signals.values()), list(answers.values())
