"""Which tasks a pilot is drawn from, and how much that matters.

The PAGE paper says that τ holds under four plausible pilots, but names none. These are the
candidates that its tasks suggest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from page_bench.analysis.intervals import Estimate, share
from page_bench.gating.calibration import PilotInput
from page_bench.gating.rules import opens_at, quantile_threshold, with_interval
from page_bench.gating.threshold import Side, Threshold, select_pilot, zscore_threshold
from page_bench.tasks.ruler import RULES

PILOTS: Mapping[str, tuple[str, ...]] = {
    "six": ("niah_multikey_3", "niah_multivalue", "vt", "fwe", "qa_1", "qa_2"),
    "mixed4": ("niah_multikey_3", "vt", "fwe", "qa_1"),
    "no_multivalue": ("niah_multikey_3", "vt", "fwe", "qa_1", "qa_2"),
    "dilution": ("niah_multivalue", "vt", "fwe", "qa_1", "qa_2"),
    "ablation5": ("niah_multikey_3", "niah_multivalue", "vt", "fwe", "qa_1"),
}
"""RULER tasks by pilot: all six of the partition, the main suite, without the task that Llama
models read otherwise, those that are not capacity-bound, and those of the signal ablation."""


@dataclass(frozen=True)
class PilotRow:
    """What one pilot makes of the same inputs.

    Attributes:
        pilot: its name.
        threshold: τ from it, with interval.
        open_rate: share of all inputs that open at that τ.
        open_by_task: the same per task.
    """

    pilot: str
    threshold: Threshold
    open_rate: Estimate
    open_by_task: Mapping[str, Estimate]


def ruler_task(name: str) -> str | None:
    """The RULER task behind a name of lm-eval's, such as `page_ruler_4k_mixed4_vt`; None if none.

    The longest name that fits counts.
    """
    fitting = (task for task in RULES if name == task or name.endswith(f"_{task}"))
    return max(fitting, key=len, default=None)


def members(samples: Sequence[tuple[str, int]], pilot: str | None) -> list[tuple[str, int]]:
    """The (task, doc_id) that a pilot may be drawn from; all of them for None."""
    if pilot is None:
        return list(samples)
    return [one for one in samples if ruler_task(one[0]) in PILOTS[pilot]]


def draw(
    samples: Sequence[tuple[str, int]], pilot: str | None, size: int, seed: int
) -> list[tuple[str, int]]:
    """A pilot's prompts, see `select_pilot`; of overlapping pilots, many are the same."""
    pool = members(samples, pilot)
    return [pool[i] for i in select_pilot(pool, size, seed)]


def compare(
    inputs: Sequence[PilotInput],
    pilots: Sequence[str],
    size: int,
    seed: int,
    *,
    rule: str = "zscore",
    option: float,
    signal: str = "drop",
    side: Side = "above",
) -> list[PilotRow]:
    """τ from each pilot, and what it opens of the same inputs.

    Args:
        inputs: all that was measured; each pilot is drawn from these, as `draw` does.
        pilots: keys of `PILOTS`.
        size: prompts of each pilot, at most.
        seed: of the draws.
        rule: `zscore` or `quantile`.
        option: θ_z or the open rate.
        signal, side: of the gate.
    """
    by_sample = {(one.task, one.doc_id): one.signals[signal] for one in inputs}
    by_task: dict[str, list[float]] = {}
    for one in inputs:
        by_task.setdefault(ruler_task(one.task) or one.task, []).append(one.signals[signal])
    rows = []
    for pilot in pilots:
        values = [by_sample[one] for one in draw(list(by_sample), pilot, size, seed)]
        threshold = (
            zscore_threshold(values, option, signal, side)
            if rule == "zscore"
            else quantile_threshold(values, option, signal, side)
        )
        threshold = with_interval(threshold, values, seed=seed)
        rates = {task: _open_rate(found, threshold) for task, found in by_task.items()}
        overall = _open_rate(list(by_sample.values()), threshold)
        rows.append(PilotRow(pilot, threshold, overall, rates))
    return rows


def _open_rate(values: Sequence[float], threshold: Threshold) -> Estimate:
    opened = sum(opens_at(v, threshold.tau, threshold.side) for v in values)
    return share(opened, len(values))
