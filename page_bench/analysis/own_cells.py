"""The cells of our own traces: plain and full answers put together, and a gate over them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from page_bench.analysis.arm_names import ArmNames
from page_bench.analysis.cells import Cell
from page_bench.analysis.costs import cost_columns
from page_bench.analysis.gate_choice import Choice
from page_bench.analysis.left_out import with_metric
from page_bench.analysis.outcomes import METRICS, metric_of
from page_bench.analysis.pairs import Family, Pair, families, pair_runs
from page_bench.analysis.regate import Tau, decide, find_decision
from page_bench.analysis.run_gates import RunGate, decisions_of
from page_bench.analysis.stored_signals import signal_of
from page_bench.gating.gate import Gate
from page_bench.gating.gates import make_gate
from page_bench.gating.signal_gates import Page
from page_bench.inputs.errors import UsageError
from page_bench.records.finished_runs import Arm, Record, Sample
from page_bench.records.suites import split
from page_bench.records.trace import Trace

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class _Group:
    """Pairs of arms that differ in their budget alone, of one suite."""

    family: Family
    suite: str
    pairs: dict[float, list[Pair]]

    @property
    def flat(self) -> list[Pair]:
        return [pair for own in self.pairs.values() for pair in own]


def cells_of(
    records: Sequence[Record], choice: Choice, seed: int | None = None
) -> tuple[list[Cell], list[str]]:
    """Cells of stored runs: one for each evictor, suite and gate.

    Where runs hold a gated record of an input that has a plain and a full one, the gate's own
    decisions and its τ are taken. Where they hold none, or a gate was asked for, the gate is
    decided anew on the inputs of the suite, as `page-bench regate` does.

    Args:
        records: of runs with any gate.
        choice: gate and metric.
        seed: of the replicate that these runs are.

    Returns:
        Cells, those with more rows first, and sentences on what does not fit.

    Raises:
        UsageError: see `pair_runs` and `regate.find_decision`, or a metric that no record has.
    """
    arms, notes = pair_runs(records)
    notes += _chosen_by_gates(records, arms)
    arms, left_out = with_metric(arms, choice.metric or METRICS[0])
    notes += left_out
    decisions = {} if choice.is_given else decisions_of(records)
    names = ArmNames(arms)
    cells, anew = [], 0
    for group in _groups(families(arms)):
        _check_documents(group)
        own = [_as_run(group, gate, taken) for gate, taken in decisions.items()]
        found = [run for run in own if run is not None]
        if not found:
            made, said = _anew(group, choice)
            found, notes = [made], notes + [note for note in said if note not in notes]
            anew += 1
        for label, tau, gate, pairs, opened in _told_apart(found):
            whole, said = _whole_grids(pairs, opened)
            notes += [f"{group.suite} {names.evictor(group.family.arm)}, {s}" for s in said]
            cells.append(_cell(group, names, (label, tau, seed), choice, gate, *whole))
    if anew and not choice.is_given:
        notes.append(
            f"{anew} of {len(cells)} cells hold no run with a gate, so that gate=page is decided "
            f"anew, with τ by z-score on their own inputs; --gate and --tau choose another."
        )
    cells.sort(key=lambda cell: (cell.model, cell.suite, cell.evictor, -len(cell.rows)))
    return cells, notes


def _chosen_by_gates(records: Sequence[Record], arms: Mapping[Arm, Sequence[Pair]]) -> list[str]:
    """A sentence where it was gates that decided which inputs have both answers."""
    notes = []
    paired = {pair.sample for pairs in arms.values() for pair in pairs}
    for gate, kind, opened in (("open", "plain", False), ("closed", "full", True)):
        traces = [record.trace for record in records]
        if any(trace.gate == gate for trace in traces):
            continue
        lost = {Sample.of(trace) for trace in traces if trace.gate_open == opened} - paired
        if lost:
            notes.append(
                f"{len(lost)} inputs have no {kind} answer, since no run has gate={gate}: what is "
                f"left was chosen by the gate's own decisions, so that ρ, harm and Δ are of a "
                f"biased sample; add a run with gate={gate}."
            )
    return notes


def _told_apart(found: Sequence[_Found]) -> list[_Found]:
    """The same, gates of one name that differ in τ named by it."""
    labels = Counter(one[0] for one in found)
    return [
        (f"{one[0]} τ={one[1]:.4g}", *one[1:]) if labels[one[0]] > 1 and one[1] is not None else one
        for one in found
    ]


def _whole_grids(
    pairs: Sequence[tuple[float, Pair]], opened: Sequence[bool]
) -> tuple[tuple[list[tuple[float, Pair]], list[bool]], list[str]]:
    """The rows of inputs that have all budgets, or else budgets would be of different inputs."""
    budgets: dict[Sample, set[float]] = defaultdict(set)
    for budget, pair in pairs:
        budgets[pair.sample].add(budget)
    every = set().union(*budgets.values())
    whole = {sample for sample, own in budgets.items() if own == every}
    if len(whole) == len(budgets):
        return (list(pairs), list(opened)), []
    said = f"{len(budgets) - len(whole)} of {len(budgets)} inputs lack some of its budgets"
    prompts = Counter((sample.task, sample.doc_id, sample.repeat) for sample in budgets)
    if not whole and len(prompts) < len(budgets):
        several = next(
            sample for sample in sorted(budgets) if prompts[dataclasses.astuple(sample)[:3]] > 1
        )
        raise UsageError(
            f"no input has the same prompt at all budgets: {several} has several, as where a "
            f"chat template prints the time; report the budgets apart, or run them again in one "
            f"page-bench sweep."
        )
    if not whole:
        return (list(pairs), list(opened)), [f"{said}, so that these are of different inputs."]
    kept = [i for i, (_, pair) in enumerate(pairs) if pair.sample in whole]
    rows = [pairs[i] for i in kept], [opened[i] for i in kept]
    return rows, [f"{said} and were left out."]


_Found = tuple[str, float | None, Gate, list[tuple[float, Pair]], list[bool]]


def _groups(found: Iterable[Family]) -> list[_Group]:
    groups: dict[tuple[int, str], _Group] = {}
    for number, family in enumerate(found):
        for budget, pairs in family.budgets.items():
            for pair in pairs:
                suite = split(pair.sample.task)[0]
                group = groups.setdefault((number, suite), _Group(family, suite, {}))
                group.pairs.setdefault(budget, []).append(pair)
    return list(groups.values())


def _check_documents(group: _Group) -> None:
    """Refuse replicates of other data that nobody has told apart."""
    for own in group.pairs.values():
        known: dict[tuple[str, int, int], Sample] = {}
        for pair in own:
            sample = pair.sample
            other = known.setdefault((sample.task, sample.doc_id, sample.repeat), sample)
            if other != sample:
                raise UsageError(
                    f"{sample} has two different prompts, as in runs with other data seeds; write "
                    f"seed=NUMBER:PATH for each of them, or report them apart."
                )


def _anew(group: _Group, choice: Choice) -> tuple[_Found, list[str]]:
    gate, tau = choice.used_gate, choice.tau or Tau()
    decided, notes = find_decision(gate, tau, group.flat)
    rows = [(budget, pair) for budget, own in group.pairs.items() for pair in own]
    opened = decide([pair for _, pair in rows], decided, choice.metric or METRICS[0])
    threshold = decided.threshold
    label = gate_label(gate, "" if threshold is None else threshold.rule)
    tau_used = None if threshold is None else threshold.tau
    return (label, tau_used, gate, rows, opened), notes


def _as_run(
    group: _Group, run_gate: RunGate, taken: dict[tuple[Arm, Sample], bool]
) -> _Found | None:
    """The rows on which a run with this gate has decided; None if there is none."""
    rows, opened = [], []
    for budget, own in group.pairs.items():
        arm = dataclasses.replace(group.family.arm, budget=budget)
        for pair in own:
            decision = taken.get((arm, pair.sample))
            if decision is not None:
                rows.append((budget, pair))
                opened.append(decision)
    if not rows:
        return None
    gate = make_gate(run_gate.name, json.loads(run_gate.args))
    tau = None if math.isnan(run_gate.tau) else run_gate.tau
    return gate_label(gate, run_gate.rule), tau, gate, rows, opened


def gate_label(gate: Gate, rule: str) -> str:
    """Name of a gate with the options that are not its defaults, and the rule for τ."""
    options = [
        f"{f.name}={getattr(gate, f.name)}"
        for f in dataclasses.fields(gate)
        if getattr(gate, f.name) != f.default
    ]
    return " ".join([gate.name, *options, *filter(None, [rule])])


def _cell(
    group: _Group,
    names: ArmNames,
    told: tuple[str, float | None, int | None],
    choice: Choice,
    gate: Gate,
    pairs: Sequence[tuple[float, Pair]],
    opened: Sequence[bool],
) -> Cell:
    import pandas as pd

    label, tau, seed = told
    metric = choice.metric or METRICS[0]
    order = {pair.sample: pair for _, pair in reversed(pairs)}
    numbers = {sample: i for i, sample in enumerate(sorted(order))}
    page = gate if isinstance(gate, Page) else None
    plain, full = [p.plain for _, p in pairs], [p.full for _, p in pairs]
    samples = [pair.sample for _, pair in pairs]
    tasks = {name: split(name)[1] for name in {sample.task for sample in samples}}
    rows: pd.DataFrame = pd.DataFrame(
        {
            "task": [tasks[sample.task] for sample in samples],
            "doc_id": [sample.doc_id for sample in samples],
            "repeat": [sample.repeat for sample in samples],
            "input": [numbers[sample] for sample in samples],
            "budget": [budget for budget, _ in pairs],
            "prompt_tokens": [sample.prompt_tokens for sample in samples],
            "drop": [t.drop if page is None else signal_of(t, "drop", page) for t in plain],
            "open": np.array(opened, dtype=bool),
            "plain": [metric_of(trace, metric) for trace in plain],
            "full": [metric_of(trace, metric) for trace in full],
            "plain_score": [_or_nan(trace.score) for trace in plain],
            "full_score": [_or_nan(trace.score) for trace in full],
            "evidence": [_or_nan(trace.evidence_kept) for trace in plain],
            **cost_columns(plain, full),
        }
    )
    return Cell(
        model=names.model(group.family.arm),
        suite=group.suite,
        evictor=names.evictor(group.family.arm),
        gate=label,
        tau=tau,
        seed=seed,
        metric=metric,
        rows=rows.sort_values(["input", "budget"], ignore_index=True),
        agreement=_agreement([order[sample].plain for sample in numbers]),
    )


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _agreement(traces: Sequence[Trace]) -> NDArray[np.float64] | None:
    sizes = {len(trace.agreement) for trace in traces}
    if len(sizes) != 1 or 0 in sizes:
        return None
    return np.array([trace.agreement for trace in traces], dtype=np.float64)
