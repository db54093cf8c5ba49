"""Gates that compare one number of the prefill with τ, input by input or task by task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from page_bench.gating.gate import Facts, Gate
from page_bench.gating.profile import DEPLOYED, Bins, DropOptions, LateBin
from page_bench.gating.rules import opens_at
from page_bench.gating.signals import Signal
from page_bench.gating.threshold import Side
from page_bench.inputs.errors import UsageError

SIDES: Mapping[str, Side] = {
    "drop": "above",
    "entropy_norm": "above",
    "topk_mass_share": "below",
    "max_share": "above",
    "keynorm_disp": "below",
    "entropy_drop": "below",
    "late_plateau": "below",
    "slope": "below",
    "monotonicity": "above",
}
"""On which side of τ each signal's gate opens by default.

D opens above (paper, Eq. 2). The paper orients its five alternatives per cell and publishes no
direction: they follow the sign of their rank correlation with D (Table 5). Of the profile readings,
a high late plateau marks capacity-bound inputs (appendix A.3.3), and a profile that falls steeply
(slope, negative) or in most steps (monotonicity) has a large D.
"""


@dataclass(frozen=True)
class ThresholdGate(Gate):
    """Opens on one side of τ; what is not a number keeps the full cache.

    Attributes:
        open_when: `above` or `below` τ, τ included.
    """

    open_when: Side

    def opens(self, facts: Facts) -> bool:
        return _passes(self, facts, facts.signals[str(self.signal)])

    @property
    def side(self) -> Side:
        return self.open_when


@dataclass(frozen=True)
class Page(ThresholdGate):
    """Opens where the head agreement drops from early to late layers by τ or more (the paper's).

    Attributes:
        bins, late_bin, layer_stride, head_pairs, seed: how D is taken, see `profile.DropOptions`.
    """

    name: ClassVar[str] = "page"
    signal: ClassVar[str | None] = "drop"

    open_when: Side = SIDES["drop"]
    bins: Bins = DEPLOYED.bins
    late_bin: LateBin = DEPLOYED.late_bin
    layer_stride: int = DEPLOYED.layer_stride
    head_pairs: float = DEPLOYED.head_pairs
    seed: int = DEPLOYED.seed

    def __post_init__(self) -> None:
        self.drop_options(DEPLOYED.top_k)

    def drop_options(self, top_k: int) -> DropOptions:
        """How D is taken, with key sets of that size.

        Raises:
            UsageError: a value that is not allowed.
        """
        return DropOptions(
            top_k, self.bins, self.late_bin, self.layer_stride, self.head_pairs, self.seed
        )


@dataclass(frozen=True)
class EntropyNorm(ThresholdGate):
    """Opens by the entropy of attention, as a share of its maximum."""

    name: ClassVar[str] = "entropy_norm"
    signal: ClassVar[str | None] = "entropy_norm"
    open_when: Side = SIDES["entropy_norm"]


@dataclass(frozen=True)
class TopkMassShare(ThresholdGate):
    """Opens by the share of the SnapKV score that its largest entries hold."""

    name: ClassVar[str] = "topk_mass_share"
    signal: ClassVar[str | None] = "topk_mass_share"
    open_when: Side = SIDES["topk_mass_share"]


@dataclass(frozen=True)
class MaxShare(ThresholdGate):
    """Opens by the share of the SnapKV score that its largest entry holds."""

    name: ClassVar[str] = "max_share"
    signal: ClassVar[str | None] = "max_share"
    open_when: Side = SIDES["max_share"]


@dataclass(frozen=True)
class KeynormDisp(ThresholdGate):
    """Opens by the dispersion of the keys' norms."""

    name: ClassVar[str] = "keynorm_disp"
    signal: ClassVar[str | None] = "keynorm_disp"
    open_when: Side = SIDES["keynorm_disp"]


@dataclass(frozen=True)
class EntropyDrop(ThresholdGate):
    """Opens by the drop of attention's entropy from early to late layers."""

    name: ClassVar[str] = "entropy_drop"
    signal: ClassVar[str | None] = "entropy_drop"
    open_when: Side = SIDES["entropy_drop"]


@dataclass(frozen=True)
class LatePlateau(ThresholdGate):
    """Opens by the head agreement of the late layers alone."""

    name: ClassVar[str] = "late_plateau"
    signal: ClassVar[str | None] = "late_plateau"
    open_when: Side = SIDES["late_plateau"]


@dataclass(frozen=True)
class Slope(ThresholdGate):
    """Opens by the slope of head agreement over depth."""

    name: ClassVar[str] = "slope"
    signal: ClassVar[str | None] = "slope"
    open_when: Side = SIDES["slope"]


@dataclass(frozen=True)
class Monotonicity(ThresholdGate):
    """Opens by the share of steps from layer to layer in which head agreement falls."""

    name: ClassVar[str] = "monotonicity"
    signal: ClassVar[str | None] = "monotonicity"
    open_when: Side = SIDES["monotonicity"]


@dataclass(frozen=True)
class Static(Gate):
    """Decides once per task: by the mean of a signal over the task's pilot prompts.

    Attributes:
        signal: whose mean is compared with τ.
        open_when: `above` or `below` τ; None for the side of the signal's own gate.
    """

    name: ClassVar[str] = "static"
    labels: ClassVar[str] = "task of each input, to route it; none else"

    signal: Signal = "drop"  # type: ignore[misc]
    open_when: Side | None = None

    def opens(self, facts: Facts) -> bool:
        if facts.task_mean is None:
            raise unrouted([facts.task])
        return _passes(self, facts, facts.task_mean)

    @property
    def side(self) -> Side:
        return self.open_when or SIDES[self.signal]


def unrouted(tasks: Iterable[str]) -> UsageError:
    """The error for tasks that `static` cannot decide on."""
    return UsageError(
        f"gate=static has no pilot prompt of {', '.join(sorted(tasks))}, so nothing to decide by; "
        f"take a larger pilot, or one with prompts of every task."
    )


def _passes(gate: Gate, facts: Facts, value: float) -> bool:
    threshold = facts.threshold
    if threshold is None:
        raise ValueError(f"gate={gate.name} needs a threshold")
    if threshold.signal != gate.signal:
        raise ValueError(
            f"gate={gate.name} reads {gate.signal}, but τ is one of {threshold.signal}"
        )
    assert gate.side is not None
    return opens_at(value, threshold.tau, gate.side)
