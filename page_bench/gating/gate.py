"""What a gate is: facts about an input in, the decision to evict or to keep the full cache out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from page_bench.gating.threshold import Side, Threshold
from page_bench.inputs.errors import UsageError

Wanted = Literal["plain", "full"]


@dataclass(frozen=True)
class Facts:
    """What a gate may know of an input before anything is decoded.

    Attributes:
        task, doc_id: the sample; `task` is lm-eval's name.
        prompt_seed: a number that depends on the prompt's text alone.
        signals: by name, what the prefill showed.
        threshold: τ; None where the gate reads none.
        task_mean: mean of the gate's signal over the pilot prompts of this task; only `static`
            reads it.
    """

    task: str
    doc_id: int
    prompt_seed: int
    signals: Mapping[str, float]
    threshold: Threshold | None = None
    task_mean: float | None = None


@dataclass(frozen=True)
class AnswerFacts:
    """What a gate may know of an answer.

    Attributes:
        mean_token_entropy: mean over the answer's tokens of the entropy of the distribution that
            each was chosen from, in nats.
        repetition: see `distress.repetition`.
        score: the task's score; None where the answer has not been scored.
    """

    mean_token_entropy: float
    repetition: float
    score: float | None = None


@dataclass(frozen=True)
class Gate(ABC):
    """A rule that admits an input to eviction, or not.

    Attributes:
        name: as on the command line.
        signal: what it compares with τ; None where it reads none.
        labels: which labels it needs to decide; τ may need some of its own (see
            `rules.LABEL_NEEDS`).
        needs_answers: which answers `accepts` must be shown.
    """

    name: ClassVar[str]
    signal: ClassVar[str | None] = None
    labels: ClassVar[str] = "none"
    needs_answers: ClassVar[tuple[Wanted, ...]] = ()

    @abstractmethod
    def opens(self, facts: Facts) -> bool:
        """Whether the input's cache is evicted; where answers decide, whether that is tried."""

    def accepts(self, plain: AnswerFacts, full: AnswerFacts | None = None) -> bool:
        """Whether the answer under eviction stands; else the full cache's takes its place.

        Args:
            plain: the answer under eviction.
            full: the full cache's, where `needs_answers` asks for it.
        """
        raise ValueError(f"gate={self.name} decides before anything is answered")

    @property
    def side(self) -> Side | None:
        """On which side of τ it opens; None where it reads none."""
        return None


def check_option(option: str, value: object, allowed: bool, wanted: str) -> None:
    """Raise UsageError unless the value of a gate's option is allowed."""
    if not allowed:
        raise UsageError(f"gate.{option}={value} is not allowed; give {wanted}.")
