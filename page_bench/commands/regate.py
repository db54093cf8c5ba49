"""`page-bench regate`: the outcome of any gate at any τ, from stored plain and full runs."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from page_bench.analysis import notes as say
from page_bench.analysis import report, tau_sweep
from page_bench.analysis.ablation import Ablation
from page_bench.analysis.kappa import Margins, margins
from page_bench.analysis.left_out import with_metric
from page_bench.analysis.outcomes import Outcomes, Row, summarise
from page_bench.analysis.pairs import Family, Pair, families, pair_runs
from page_bench.analysis.regate import decide, find_decision, is_task, pilot_of
from page_bench.analysis.stored_signals import signal_of
from page_bench.commands.gate_arguments import check_mode, gate_options, parser, tau_of
from page_bench.engine.decision import Decision
from page_bench.gating.gate import Gate
from page_bench.gating.gates import GATES, make_gate
from page_bench.gating.rules import CAPACITY_BOUND
from page_bench.gating.signal_gates import ThresholdGate
from page_bench.gating.threshold import Threshold
from page_bench.inputs.errors import UsageError
from page_bench.records.finished_runs import Arm, read_runs


@dataclasses.dataclass(frozen=True)
class Decided:
    """A gate applied to the inputs of a family of arms.

    Attributes:
        family: arms that differ in their budget alone.
        threshold: τ; None where the gate reads none.
        takes_plain: by budget, the decisions on its pairs.
    """

    family: Family
    threshold: Threshold | None
    takes_plain: dict[float, list[bool]]

    def pooled(self, budgets: Iterable[float]) -> tuple[list[Pair], list[bool]]:
        """The pairs of some budgets together, and the decisions on them."""
        pairs: list[Pair] = []
        taken: list[bool] = []
        for budget in budgets:
            pairs += self.family.budgets[budget]
            taken += self.takes_plain[budget]
        return pairs, taken


def run(argv: Sequence[str]) -> int:
    """Run the command with its arguments; prints tables, or one JSON object."""
    args = parser().parse_args(list(argv))
    check_mode(args)
    gate = make_gate(args.gate, gate_options(args.gate_args))
    path = None if args.figure is None else tau_sweep.figure_path(args.figure)
    arms, notes = pair_runs(read_runs(args.runs))
    arms, left_out = with_metric(arms, args.metric)
    notes += left_out
    found = families(arms)
    tasks = {pair.sample.task for own in arms.values() for pair in own}
    if args.capacity_bound is not None:
        notes += say.unknown_tasks("--capacity_bound", args.capacity_bound, tasks)
    if args.ablate:
        result, lines = _ablate(found, args, notes)
    elif args.sweep:
        if path is not None and len(found) > 1:
            raise UsageError(
                f"--figure holds one sweep, but the runs hold {len(found)} arms; give the runs of "
                f"one of them and of its full cache."
            )
        result, lines = _sweep(found, gate, args, notes)
        if path is not None:
            tau_sweep.draw(result["sweeps"][0]["sweep"], path, found[0].label)
            lines.append(f"figure written to {path}")
    elif args.k_sweep:
        notes += say.gate_notes(gate, args.metric, tasks)
        result, lines = _k_sweep(found, gate, args, notes)
    else:
        notes += say.gate_notes(gate, args.metric, tasks)
        result, lines = _regate(found, gate, args, notes)
    if args.json:
        print(report.to_json({**_setting(gate, args), **result, "notes": notes}))
    else:
        print("\n".join([*lines, *(f"note: {note}" for note in notes)]))
    return 0


def _regate(
    found: Sequence[Family], gate: Gate, args: argparse.Namespace, notes: list[str]
) -> tuple[dict[str, Any], list[str]]:
    results, lines = [], report.legend(args.metric, args.draws, args.seed)
    pilot = pilot_of(gate, tau_of(args))
    for family in found:
        decided = _decide(family, gate, args, notes)
        rows: dict[report.Budget, list[Row]] = {
            budget: summarise(
                own, decided.takes_plain[budget], args.metric, args.draws, args.seed, gate
            )
            for budget, own in family.budgets.items()
        }
        if len(rows) > 1:
            pairs, flat = decided.pooled(family.pooled)
            rows["all"] = summarise(pairs, flat, args.metric, args.draws, args.seed, gate)
        notes += say.extremes(family.label, rows)
        lines += ["", f"{family.label}: {report.describe(gate, decided.threshold, pilot)}"]
        lines += report.outcome_table(rows)
        results.append(
            {
                "arm": family.arm,
                "threshold": decided.threshold,
                "pilot": pilot,
                "results": [{"budget": budget, "rows": own} for budget, own in rows.items()],
            }
        )
    return {"arms": results}, lines


def _sweep(
    found: Sequence[Family], gate: Gate, args: argparse.Namespace, notes: list[str]
) -> tuple[dict[str, Any], list[str]]:
    if not isinstance(gate, ThresholdGate):
        names = ", ".join(name for name, cls in GATES.items() if issubclass(cls, ThresholdGate))
        raise UsageError(f"gate={gate.name} compares no input with τ; --sweep takes {names}.")
    results, lines = [], report.legend(args.metric, args.draws, args.seed)
    closed, pilot = args.capacity_bound, pilot_of(gate, tau_of(args))
    for family in found:
        threshold = _find(family, gate, args, notes).threshold
        assert threshold is not None
        pairs = [pair for own in family.pooled.values() for pair in own]
        values = [signal_of(pair.plain, str(gate.signal), gate) for pair in pairs]
        result = tau_sweep.sweep(
            Outcomes.of(pairs, args.metric),
            values,
            threshold.tau,
            signal=str(gate.signal),
            side=gate.side,
            taus=args.taus,
            is_capacity=None if closed is None else [is_task(closed, p.sample.task) for p in pairs],
            draws=args.draws,
            seed=args.seed,
        )
        lines += ["", f"{family.label}: {report.describe(gate, threshold, pilot)}"]
        lines += report.sweep_table(result)
        notes += say.plateau_notes(result)
        results.append(
            {
                "arm": family.arm,
                "threshold": threshold,
                "pilot": pilot,
                "capacity_bound": closed,
                "sweep": result,
            }
        )
    return {"sweeps": results}, lines


def _k_sweep(
    found: Sequence[Family], gate: Gate, args: argparse.Namespace, notes: list[str]
) -> tuple[dict[str, Any], list[str]]:
    series: dict[Arm, list[Family]] = {}
    for family in found:
        series.setdefault(dataclasses.replace(family.arm, top_k=0, budget=0), []).append(family)
    several = {arm.label(series): own for arm, own in series.items() if len(own) > 1}
    if not several:
        raise UsageError(
            f"--k_sweep compares runs of different top_k, but each arm has one only "
            f"({', '.join(sorted({str(f.arm.top_k) for f in found}))}); add plain runs with others."
        )
    results, lines = [], report.legend(args.metric, args.draws, args.seed)
    pilot = pilot_of(gate, tau_of(args))
    for label, own in several.items():
        common = set.intersection(*(set(family.budgets) for family in own))
        if any(set(family.budgets) != common for family in own):
            shown = ", ".join(f"{budget:g}" for budget in sorted(common)) or "none"
            notes.append(f"{label}: compared at the budgets that every top_k has ({shown}).")
        if not common:
            continue
        pooled = sorted(budget for budget in common if budget < 1) or sorted(common)
        points = []
        for family in sorted(own, key=lambda one: one.arm.top_k):
            decided = _decide(family, gate, args, notes)
            pairs, flat = decided.pooled(pooled)
            row = summarise(pairs, flat, args.metric, args.draws, args.seed, gate)[-1]
            points.append((family.arm.top_k, decided.threshold, row))
        notes += say.k_notes(label, points)
        lines += ["", f"{label} over top_k: {report.describe(gate, None, pilot)}"]
        lines += report.k_table(points)
        results.append(
            {
                "arm": own[0].arm,
                "pilot": pilot,
                "points": [{"top_k": k, "threshold": t, "row": row} for k, t, row in points],
            }
        )
    return {"k_sweeps": results}, lines


def _ablate(
    found: Sequence[Family], args: argparse.Namespace, notes: list[str]
) -> tuple[dict[str, Any], list[str]]:
    results, lines = [], report.legend(args.metric, args.draws, args.seed)
    closed = CAPACITY_BOUND if args.capacity_bound is None else args.capacity_bound
    for family in found:
        for budget, pairs in family.budgets.items():
            ablation = Ablation(pairs, closed, args.metric, args.draws, args.seed)
            kappa: Margins | None = None
            label = f"{family.label} budget={budget:g}"
            lines += ["", f"{label}: {args.ablate}, n = {len(pairs)}"]
            rows: Sequence[Any]
            if args.ablate == "head_pairs":
                rows = ablation.head_pairs()
                lines += report.head_pair_table(rows)
            else:
                missing: list[str] = []
                if args.ablate == "signals":
                    rows, missing = ablation.signals()
                    kappa = margins(ablation)
                    missing += ["κ"] if kappa is None else []
                else:
                    rows = ablation.bins() if args.ablate == "bins" else ablation.layers()
                if missing:
                    notes.append(
                        f"{label}: {', '.join(missing)} not in the traces; run with signals=all."
                    )
                lines += report.contrast_table(rows if kappa is None else [*rows, kappa.contrast])
                lines += [] if kappa is None else report.kappa_lines(kappa)
            notes += say.class_notes(label, ablation.closed_tasks, ablation.n_harmed, closed)
            results.append({"arm": family.arm, "budget": budget, args.ablate: rows, "kappa": kappa})
    return {"ablations": results}, lines


def _decide(family: Family, gate: Gate, args: argparse.Namespace, notes: list[str]) -> Decided:
    found = _find(family, gate, args, notes)
    return Decided(
        family,
        found.threshold,
        {budget: decide(own, found, args.metric) for budget, own in family.budgets.items()},
    )


def _find(family: Family, gate: Gate, args: argparse.Namespace, notes: list[str]) -> Decision:
    found, warnings = find_decision(gate, tau_of(args), family.pairs)
    warnings += say.family_notes(family, pilot_of(gate, tau_of(args)))
    notes += [warning for warning in warnings if warning not in notes]
    return found


def _setting(gate: Gate, args: argparse.Namespace) -> dict[str, Any]:
    return {
        "gate": gate.name,
        "gate_args": dataclasses.asdict(gate),
        "metric": args.metric,
        "draws": args.draws,
        "seed": args.seed,
    }
