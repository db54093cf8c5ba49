"""All gates: the decision, input by input, to evict or to keep the full cache.

A gate is a frozen dataclass; its fields are its options, `gate.FIELD=VALUE` on the command line.
Most compare one number of the prefill with τ (`signal_gates`). Those here are controls: they read
no signal, and two look at answers: `retry` at the plain one, `oracle` at the scores of both.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from page_bench.gating.gate import AnswerFacts, Facts, Gate, Wanted, check_option
from page_bench.gating.signal_gates import (
    EntropyDrop,
    EntropyNorm,
    KeynormDisp,
    LatePlateau,
    MaxShare,
    Monotonicity,
    Page,
    Slope,
    Static,
    TopkMassShare,
)
from page_bench.gating.threshold import Threshold
from page_bench.inputs import options as checks
from page_bench.inputs.errors import UsageError


@dataclass(frozen=True)
class Open(Gate):
    """Always opens: plain eviction."""

    name: ClassVar[str] = "open"

    def opens(self, facts: Facts) -> bool:
        return True


@dataclass(frozen=True)
class Closed(Gate):
    """Never opens: the full cache."""

    name: ClassVar[str] = "closed"

    def opens(self, facts: Facts) -> bool:
        return False


@dataclass(frozen=True)
class Random(Gate):
    """Opens by chance, always the same way for the same prompt and seed.

    Attributes:
        rate: share of prompts on which it opens.
        seed: another seed, another choice.
    """

    name: ClassVar[str] = "random"

    rate: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        check_option("rate", self.rate, 0 <= self.rate <= 1, "a number in [0, 1]")

    def opens(self, facts: Facts) -> bool:
        digest = hashlib.sha256(f"{self.seed}/{facts.prompt_seed}".encode()).digest()
        # 53 bits, so that the quotient is exact and below 1.
        return (int.from_bytes(digest[:7]) >> 3) / 2**53 < self.rate


@dataclass(frozen=True)
class TaskOracle(Gate):
    """Closed on named tasks, open on all others.

    Attributes:
        closed: names or patterns (`*`, `?`, `[…]`), separated by `+` or `|`. Each is compared with
            lm-eval's whole name of the task, and with what follows any underscore in it:
            `niah_multikey_3` is also `page_ruler_4k_niah_multikey_3`. Case matters.
    """

    name: ClassVar[str] = "task_oracle"
    labels: ClassVar[str] = "task of each input, and which tasks eviction ruins"

    closed: str = "niah_multikey_3"

    def __post_init__(self) -> None:
        check_option(
            "closed", self.closed, bool(self.patterns), "names of tasks, separated by + or |"
        )

    @property
    def patterns(self) -> list[str]:
        """The names, one by one."""
        return [part for part in re.split(r"\s*[+|]\s*", self.closed.strip()) if part]

    def opens(self, facts: Facts) -> bool:
        return not any(_names(pattern, facts.task) for pattern in self.patterns)

    def unused(self, tasks: Iterable[str]) -> list[str]:
        """Patterns that name none of these tasks."""
        known = list(tasks)
        return [p for p in self.patterns if not any(_names(p, task) for task in known)]


@dataclass(frozen=True)
class Retry(Gate):
    """Always evicts, and answers again from the full cache where the answer shows distress.

    The paper's alternative to a gate (appendix A.4.5); the second answer costs another prefill.

    Attributes:
        distress: `entropy`, the mean entropy of the answer's tokens in nats, or `repetition`, the
            share of repeated 4-grams.
        limit: the answer stands up to this distress; None for 1 nat, or for a share of 0.5. Both
            are round numbers, not calibrated.
    """

    name: ClassVar[str] = "retry"
    needs_answers: ClassVar[tuple[Wanted, ...]] = ("plain",)

    distress: Literal["entropy", "repetition"] = "entropy"
    limit: float | None = None

    @property
    def applied_limit(self) -> float:
        """The limit, the default filled in."""
        if self.limit is not None:
            return self.limit
        return 1.0 if self.distress == "entropy" else 0.5

    def opens(self, facts: Facts) -> bool:
        return True

    def accepts(self, plain: AnswerFacts, full: AnswerFacts | None = None) -> bool:
        seen = plain.mean_token_entropy if self.distress == "entropy" else plain.repetition
        return seen <= self.applied_limit  # what is not a number is distress


@dataclass(frozen=True)
class Oracle(Gate):
    """Gives the better of the plain and the full answer, the plain one where they are equal."""

    name: ClassVar[str] = "oracle"
    labels: ClassVar[str] = "accuracy: the score of both answers"
    needs_answers: ClassVar[tuple[Wanted, ...]] = ("plain", "full")

    def opens(self, facts: Facts) -> bool:
        return True

    def accepts(self, plain: AnswerFacts, full: AnswerFacts | None = None) -> bool:
        if full is None or plain.score is None or full.score is None:
            raise ValueError("gate=oracle needs the scores of both answers")
        return plain.score >= full.score


_ALL: tuple[type[Gate], ...] = (
    *(Page, EntropyNorm, TopkMassShare, MaxShare, KeynormDisp, EntropyDrop),
    *(LatePlateau, Slope, Monotonicity, Static),
    *(Open, Closed, Random, TaskOracle, Retry, Oracle),
)

GATES: Mapping[str, type[Gate]] = {cls.name: cls for cls in _ALL}
"""All gates, by name."""


def make_gate(name: str, options: Mapping[str, object] | None = None) -> Gate:
    """A gate with its options checked against the fields of its class.

    Args:
        name: a key of `GATES`.
        options: by field.

    Raises:
        UsageError: unknown gate or option, or a value that is not allowed.
    """
    if not isinstance(name, str) or name not in GATES:
        raise UsageError(
            f"gate={name} does not exist{checks.nearest(str(name), GATES)}; allowed are "
            f"{', '.join(GATES)}."
        )
    cls = GATES[name]
    values: dict[str, Any] = checks.checked(options or {}, checks.option_types(cls), "gate", name)
    return cls(**values)


def opens(gate: str, drop: float, threshold: Threshold | None) -> bool:
    """Whether the gate of that name opens at this D."""
    return make_gate(gate).opens(Facts("", 0, 0, {"drop": drop}, threshold))


def _names(pattern: str, task: str) -> bool:
    return fnmatch.fnmatchcase(task, pattern) or fnmatch.fnmatchcase(task, f"*_{pattern}")
