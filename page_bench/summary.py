"""What a run amounts to, beyond its samples: the threshold used, counts and warnings."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from page_bench.budget import FREE_MINIMUM, budget_share
from page_bench.config import PageConfig
from page_bench.decision import Decision
from page_bench.gating.gates import TaskOracle
from page_bench.gating.rules import LABEL_NEEDS
from page_bench.gating.threshold import SMALL_PILOT, Threshold
from page_bench.trace import Trace

NOTHING = 0.05
"""A full cache this rarely right leaves nothing that eviction could cost."""
MANY = 5
"""From so many samples of a task on, answers that are all alike come with a warning."""
LENGTH_SPREAD = 2.0
"""One τ over tasks whose typical prompt lengths differ by more than this comes with a warning."""


@dataclass(frozen=True)
class RunSummary:
    """Facts about one run of requests.

    Attributes:
        threshold: τ and its origin; None where no gate read one.
        samples: prompts answered.
        gates_open: prompts whose gate opened.
        evicted: prompts of which something was evicted.
        warnings: sentences for the log and the results.
        pilot: where the pilot's prompts come from; None without one.
    """

    threshold: Threshold | None = None
    samples: int = 0
    gates_open: int = 0
    evicted: int = 0
    warnings: tuple[str, ...] = ()
    pilot: str | None = None

    @classmethod
    def of(
        cls,
        config: PageConfig,
        traces: Sequence[Trace],
        decided: Decision,
        known: Sequence[str] = (),
    ) -> RunSummary:
        """The summary of a run.

        Args:
            config: the arm.
            traces: of all its prompts.
            decided: what decided.
            known: warnings so far.
        """
        threshold = decided.threshold
        gates_open = sum(trace.gate_open for trace in traces)
        warnings = [*known]
        if threshold is not None and gates_open in (0, len(traces)):
            never = "never opened: every answer is the full cache's" if gates_open == 0 else None
            warnings.append(
                f"the gate {never or 'always opened: every answer is the plain evictor’s'} "
                f"({gates_open} of {len(traces)} prompts)."
            )
        if threshold is not None and 0 < threshold.pilot_n < SMALL_PILOT:
            warnings.append(
                f"τ was measured on {threshold.pilot_n} prompts; below {SMALL_PILOT} it may lie "
                f"anywhere."
            )
        if threshold is not None and threshold.sigma == 0:
            name = "D" if threshold.signal == "drop" else threshold.signal
            warnings.append(
                f"all {name} of the pilot are equal: the gate cannot tell its prompts apart."
            )
        if threshold is not None and threshold.undecided:
            low, high = threshold.interval or (threshold.tau, threshold.tau)
            warnings.append(
                f"τ = {threshold.tau:.4f} lies in [{low:.4f}, {high:.4f}] (bootstrap, 95 %, n = "
                f"{threshold.pilot_n}), which leaves {threshold.undecided:.0%} of the pilot "
                f"undecided."
            )
        if isinstance(decided.gate, TaskOracle):
            tasks = {trace.task for trace in traces}
            warnings += [
                f"gate.closed={name} is no task of this run." for name in decided.gate.unused(tasks)
            ]
        if threshold is not None:
            warnings += tie_warning(threshold) + length_warning(traces)
        warnings += _budget_warning(config, traces)
        warnings += _truncation_warning(config, traces) + alike_warnings(traces)
        return cls(
            threshold=threshold,
            samples=len(traces),
            gates_open=gates_open,
            evicted=sum(trace.kept_all_because is None for trace in traces),
            warnings=tuple(warnings),
            pilot=_pilot(config, threshold),
        )

    def to_config(self) -> dict[str, Any]:
        """Entries for the results' configuration."""
        threshold = self.threshold
        return {
            "tau_variant": threshold and threshold.rule,
            "tau": threshold and threshold.tau,
            "mu": threshold and threshold.mu,
            "sigma": threshold and threshold.sigma,
            "pilot_n": threshold.pilot_n if threshold else 0,
            "tau_interval": threshold and threshold.interval,
            "undecided": threshold and threshold.undecided,
            "pilot_open": threshold and threshold.pilot_open,
            "tau_labels": str(LABEL_NEEDS[threshold.rule]) if threshold else None,
            "pilot": self.pilot,
            "samples": self.samples,
            "gates_open": self.gates_open,
            "evicted": self.evicted,
            "warnings": list(self.warnings),
        }


def tie_warning(threshold: Threshold) -> list[str]:
    """A warning where equal values made more of the pilot open than `quantile` was asked for."""
    asked, achieved = threshold.open_rate, threshold.pilot_open
    # Rounded up to whole prompts, the share asked for is exceeded by less than one of them.
    if asked is None or achieved is None or (achieved - asked) * threshold.pilot_n < 1 - 1e-6:
        return []
    name = "D" if threshold.signal == "drop" else threshold.signal
    return [
        f"τ opens {achieved:.2f} of the pilot where open_rate={asked:g} was asked for: prompts of "
        f"equal {name} open together."
    ]


def _pilot(config: PageConfig, threshold: Threshold | None) -> str | None:
    if not config.reads_pilot:
        return None
    return config.calibration or "prompts of this run: pilot = test inputs"


def length_warning(traces: Sequence[Trace]) -> list[str]:
    """A warning where tasks are of very different length: D moves with length, τ does not."""
    lengths = defaultdict(list)
    for trace in traces:
        lengths[trace.task].append(trace.prompt_tokens)
    typical = {task: statistics.median(values) for task, values in lengths.items()}
    shortest, longest = min(typical, key=typical.__getitem__), max(typical, key=typical.__getitem__)
    if typical[longest] <= LENGTH_SPREAD * typical[shortest]:
        return []
    return [
        f"one τ serves prompts of very different length: typically {typical[shortest]:.0f} tokens "
        f"in {shortest} and {typical[longest]:.0f} in {longest}; run lengths apart."
    ]


def alike_warnings(traces: Sequence[Trace]) -> list[str]:
    """A warning per task whose generated answers are all empty, or all the same.

    Args:
        traces: of one run; the answers may be hashes of the texts.
    """
    answers: dict[str, dict[str, str]] = defaultdict(dict)
    for trace in traces:
        if trace.log_likelihoods is None:
            answers[trace.task][trace.prompt_sha256] = trace.answer.strip()
    warnings = []
    for task, by_prompt in answers.items():
        if len(by_prompt) < MANY or len(set(by_prompt.values())) > 1:
            continue
        kind = "the same" if any(by_prompt.values()) else "empty"
        warnings.append(
            f"all {len(by_prompt)} answers to {task} are {kind}: the prompt's format, the stop "
            f"strings or the model are hardly what they should be."
        )
    return warnings


def hardly_right(verdicts: Iterable[tuple[str, float]]) -> str | None:
    """A sentence where even the full cache is hardly ever right; None where it is nowhere so.

    Args:
        verdicts: task, and how right the full cache's answer is, input by input.
    """
    by_task = defaultdict(list)
    for task, value in verdicts:
        by_task[task].append(value)
    low = {k: v for k, v in by_task.items() if statistics.fmean(v) <= NOTHING}
    if not low:
        return None
    said = ", ".join(f"{k} {statistics.fmean(v):.2f} of {len(v)}" for k, v in low.items())
    return (
        f"even the full cache is hardly ever right ({said}): the model cannot do the task, or its "
        f"answers were cut or scored wrongly."
    )


def full_cache_warnings(traces: Sequence[Trace]) -> list[str]:
    """A warning of tasks that the full cache fails, where enough of its answers are in a run.

    Args:
        traces: of one run, scored.
    """
    known = [
        (trace.task, trace.correct)
        for trace in traces
        if trace.kept_all_because is not None and trace.correct is not None
    ]
    counts = Counter(task for task, _ in known)
    warning = hardly_right((task, value) for task, value in known if counts[task] >= MANY)
    return [] if warning is None else [warning]


def _truncation_warning(config: PageConfig, traces: Sequence[Trace]) -> list[str]:
    """A warning where prompts were cut: their answer may have stood in what is gone."""
    lost = [trace.truncated_tokens for trace in traces if trace.truncated_tokens]
    if not lost:
        return []
    return [
        f"{len(lost)} of {len(traces)} prompts were cut by truncation={config.truncation}, of "
        f"{statistics.median(lost):.0f} tokens in the median."
    ]


def _budget_warning(config: PageConfig, traces: Sequence[Trace]) -> list[str]:
    """A warning where prompts are too short for the budget: more was kept than it says."""
    least = config.n_sink + config.n_recent + FREE_MINIMUM
    lengths = [t.context_tokens or t.prompt_tokens for t in traces if t.gate_open]
    short = sum(budget_share(config.budget, length) < min(least, length) for length in lengths)
    if not short or config.evictor == "none":
        return []
    return [
        f"{short} of {len(lengths)} evicted prompts kept more than budget={config.budget} says: at "
        f"least n_sink + recent + {FREE_MINIMUM} = {least} positions stay."
    ]
