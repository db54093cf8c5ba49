"""What a run amounts to, beyond its samples: the threshold used, counts and warnings."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from page_bench.config import TOO_SHORT, PageConfig
from page_bench.engine.decision import Decision
from page_bench.engine.decode_batches import lowered_warning
from page_bench.evictors.base.budget import FREE_MINIMUM, budget_share
from page_bench.gating.gates import TaskOracle
from page_bench.gating.profile import DropOptions, bin_size
from page_bench.gating.rules import LABEL_NEEDS
from page_bench.gating.threshold import SMALL_PILOT, Threshold
from page_bench.records.suites import is_ours
from page_bench.records.trace import Trace

NOTHING = 0.05
"""A full cache this rarely right leaves nothing that eviction could cost."""
MANY = 5
"""From so many samples of a task on, answers that are all alike come with a warning."""
NAMED = 5
"""A warning about single documents names so many."""
FEW_LAYERS = 3
"""D of fewer layers than this in each of its bins comes with a warning."""
MORE_PROMPTS = "measure it on more prompts with `page-bench calibrate`, or give tau a number"
MANY_CUT = 0.1
"""Share of a task's answers cut at their length from which a warning comes: fewer move a mean
score by less than `page-bench compare` takes for a difference."""
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
        drop_layers: layers in each of the two bins whose agreement D compares; None where no prompt
            was seen.
        rotations_changed: answers that go on past the length at which the model's rotation changes.
        generated: answers that were generated, as far as their traces say whether they were cut.
        cut: how many of these the length limit ended, see `Trace.cut`.
    """

    threshold: Threshold | None = None
    samples: int = 0
    gates_open: int = 0
    evicted: int = 0
    warnings: tuple[str, ...] = ()
    pilot: str | None = None
    drop_layers: int | None = None
    rotations_changed: int = 0
    generated: int = 0
    cut: int = 0

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
        evicted = sum(trace.kept_all_because is None for trace in traces)
        warnings = [*known]
        if threshold is not None and gates_open in (0, len(traces)):
            told = "never opened: every answer is the full cache's"
            if gates_open:
                told = "always opened: every answer is the plain evictor’s"
                if evicted < gates_open:
                    told = f"always opened, and {evicted} of the prompts were evicted"
            warnings.append(f"the gate {told} ({gates_open} of {len(traces)} prompts).")
        if threshold is not None and 0 < threshold.pilot_n < SMALL_PILOT:
            warnings.append(
                f"τ was measured on {threshold.pilot_n} prompts; below {SMALL_PILOT} it may lie "
                f"anywhere: {MORE_PROMPTS}."
            )
        elif threshold is not None and threshold.undecided:
            low, high = threshold.interval or (threshold.tau, threshold.tau)
            warnings.append(
                f"τ = {threshold.tau:.4f} lies in [{low:.4f}, {high:.4f}] (bootstrap, 95 %, n = "
                f"{threshold.pilot_n}), which leaves {threshold.undecided:.0%} of the pilot "
                f"undecided: {MORE_PROMPTS}."
            )
        if threshold is not None and threshold.sigma == 0:
            name = "D" if threshold.signal == "drop" else threshold.signal
            warnings.append(
                f"all {name} of the pilot are equal: the gate cannot tell its prompts apart."
            )
        if isinstance(decided.gate, TaskOracle):
            tasks = {trace.task for trace in traces}
            warnings += [
                f"gate.closed={name} is no task of this run." for name in decided.gate.unused(tasks)
            ]
        if threshold is not None:
            warnings += tie_warning(threshold) + length_warning(traces)
        warnings += _rows_warning(traces)
        layers = {bin_size(len(trace.agreement), config.drop_options) for trace in traces}
        if threshold is not None and threshold.signal == "drop":
            warnings += few_layers_warning(min(layers), config.drop_options)
        warnings += _rotation_warning(traces)
        warnings += _budget_warning(config, [t for t in traces if t.must_keep is None])
        warnings += _must_keep_warning(config, traces)
        warnings += _truncation_warning(config, traces) + alike_warnings(traces)
        return cls(
            threshold=threshold,
            samples=len(traces),
            gates_open=gates_open,
            evicted=evicted,
            warnings=tuple(warnings),
            pilot=_pilot(config, threshold),
            drop_layers=min(layers, default=None),
            rotations_changed=sum(bool(trace.rotation_changed) for trace in traces),
            generated=sum(trace.cut is not None for trace in traces),
            cut=sum(trace.cut is True for trace in traces),
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
            "drop_layers": self.drop_layers,
            "rotations_changed": self.rotations_changed,
            "generated": self.generated,
            "cut": self.cut,
            "cut_share": self.cut / self.generated if self.generated else None,
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


def per_bin(layers: int, options: DropOptions) -> str:
    """Such as `10 layers per third`."""
    return f"{layers} layer{'s' * (layers != 1)} per {options.bins}"


def few_layers_warning(layers: int, options: DropOptions) -> list[str]:
    """A warning where D compares so few layers that one of them can turn its sign."""
    if layers >= FEW_LAYERS:
        return []
    return [
        f"D compares {per_bin(layers, options)} of those with full attention; from fewer than "
        f"{FEW_LAYERS} it may point the wrong way: see whether it does on answers of this model "
        f"(page-bench calibrate --answers), or use another gate."
    ]


def _rotation_warning(traces: Sequence[Trace]) -> list[str]:
    """A warning where the model rotates the end of an answer otherwise than its prompt."""
    changed = [trace for trace in traces if trace.rotation_changed]
    if not changed:
        return []
    full = sum(trace.kept_all_because is not None for trace in changed)
    return [
        f"{len(changed)} of {len(traces)} answers go on past the length at which this model's "
        f"rotary embedding changes: {full} from a full cache follow it, as hf does, and "
        f"{len(changed) - full} from an evicted cache keep their prompt's rotation, so what the "
        f"two differ in there is not eviction alone."
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


def cut_warnings(traces: Sequence[Trace]) -> list[str]:
    """A warning per task of which many answers were cut at their length.

    RULER and LongBench set their answers' length and no stop, so that most models run into it; the
    user has no better one to give.

    Args:
        traces: of one run.
    """
    by_task: dict[str, list[Trace]] = defaultdict(list)
    for trace in traces:
        by_design = is_ours(trace.task) and not (trace.asked or {}).get("stop")
        if trace.cut is not None and not by_design:
            by_task[trace.task].append(trace)
    warnings = []
    for task, own in by_task.items():
        lost = [trace for trace in own if trace.cut]
        if len(own) < MANY or len(lost) < MANY_CUT * len(own):
            continue
        limit = max(trace.answer_limit or 0 for trace in lost)
        warnings.append(
            f"{len(lost)} of {len(own)} answers to {task} were cut at {limit} tokens, before "
            f"an end-of-sequence token or a stop string: their scores tell of that limit as well "
            f"as of the cache. Give more by --gen_kwargs max_gen_toks=NUMBER, or the task an "
            f"`until` that ends its answers."
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


def _rows_warning(traces: Sequence[Trace]) -> list[str]:
    """A warning where memory, and not the run, decided how many answers were decoded together."""
    lowered = {t.decode_rows_limit for t in traces if t.decode_rows_lowered}
    return [lowered_warning(limit) for limit in sorted(n for n in lowered if n is not None)]


def unscored_warnings(traces: Sequence[Trace]) -> list[str]:
    """A warning per task whose answers lm-eval does not all score.

    Args:
        traces: of one run, scored.
    """
    answers = Counter(trace.task for trace in traces)
    lacking = Counter(trace.task for trace in traces if trace.score is None)
    return [
        f"{n} of {answers[task]} answers to {task} have no score, so that reports and the "
        f"leaderboard leave them out: its filter passes over them, or its first metric has no "
        f"value for one document."
        for task, n in lacking.items()
    ]


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
    """Warnings where prompts are too short for the budget: all was kept, or more than it says."""
    if config.evictor == "none":
        return []
    least = config.n_sink + config.n_recent + FREE_MINIMUM
    opened = [trace for trace in traces if trace.gate_open]
    whole = sum(trace.kept_all_because == TOO_SHORT for trace in opened)
    lengths = [t.context_tokens or t.prompt_tokens for t in opened if t.kept_all_because is None]
    short = sum(budget_share(config.budget, length) < least for length in lengths)
    stay = f"n_sink + recent + {FREE_MINIMUM} = {least} positions stay"
    warnings = []
    if whole:
        warnings.append(
            f"nothing was evicted of {whole} of {len(opened)} prompts whose gate opened, which are "
            f"too short: {stay}."
        )
    if short:
        warnings.append(
            f"{short} of {len(lengths)} evicted prompts kept more than budget={config.budget} "
            f"says: at least {stay}."
        )
    return warnings


def _must_keep_warning(config: PageConfig, traces: Sequence[Trace]) -> list[str]:
    """A warning that names prompts of which the evictor had to keep more than the budget."""
    forced = [t for t in traces if t.gate_open and t.must_keep is not None]
    if not forced:
        return []
    kept = sorted({t.must_keep for t in forced if t.must_keep is not None})
    amount = f"{kept[0]:g}" + (f" to {kept[-1]:g}" if len(kept) > 1 else "")
    named = [*dict.fromkeys(f"{t.task} {t.doc_id}" for t in forced)]
    more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
    return [
        f"{len(forced)} of {len(traces)} prompts are so short that evictor={config.evictor} kept "
        f"more than budget={config.budget} says, the {amount} positions that it always keeps: "
        f"{', '.join(named[:NAMED])}{more}."
    ]
