"""`page-bench compare`: our numbers beside the PAGE paper's."""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from page_bench.analysis.estimates import with_ends
from page_bench.analysis.pairs import pair_runs
from page_bench.analysis.report import table, to_json
from page_bench.commands.gate_arguments import add_bootstrap
from page_bench.commands.shared.argument_types import share
from page_bench.commands.shared.output_formats import print_utf8
from page_bench.inputs.errors import UsageError
from page_bench.leaderboard.compare import (
    MARGIN,
    Comparison,
    Uncompared,
    compare,
    differing,
    false_discoveries,
)
from page_bench.leaderboard.counterpart import Refused, counterparts
from page_bench.leaderboard.difference import VERDICTS
from page_bench.leaderboard.published import Published, read_published
from page_bench.records.finished_runs import read_runs

_EPILOG = """\
Runs hold a plain record (gate=open) and a full one (gate=closed) of each input, under
protocol=page with a chat template; sweeps/paper/ has the files. The gate is decided anew, from D
at the τ of each reported number.

  agrees          the 95 % interval of the difference lies within ±margin
  differs         it does not hold 0
  too few to tell neither; the smallest difference that would be seen stands beside it"""
_SHORT = {
    ("niah_multikey_3", "vt", "fwe", "qa_1"): "mixed4",
    ("vt", "fwe", "qa_1"): "mixed4 without niah_multikey_3",
    ("niah_multikey_3", "vt", "fwe", "qa_1", "qa_2", "niah_multivalue"): "partition6",
}


def run(argv: Sequence[str]) -> int:
    """Run the command with its arguments; prints a table, or one JSON object."""
    args = _parser().parse_args(list(argv))
    print_utf8()
    published = read_published()
    if args.table:
        published = _chosen(published, args.table)
    arms, notes = pair_runs(read_runs(args.runs))
    cells, refused = counterparts(arms, args.any_numerics)
    compared, left = compare(cells, published, args.margin, args.draws, args.seed)
    if args.json:
        print(_json(compared, left, refused, notes))
        return 0
    lines = _table(compared) if compared else []
    lines += ["", *_summary(compared, args.margin), *_left(left, args.all), *_refused(refused)]
    print("\n".join([*lines, *(f"note: {note}" for note in notes)]).lstrip("\n"))
    return 0


def _chosen(published: Sequence[Published], names: Sequence[str]) -> list[Published]:
    wanted = {name.casefold() for name in names}
    found = [row for row in published if row.table.casefold() in wanted]
    known = list(dict.fromkeys(row.table for row in published))
    unknown = wanted - {name.casefold() for name in known}
    if unknown:
        raise UsageError(
            f"--table {', '.join(sorted(unknown))} is not among the reported numbers; there are "
            f"{', '.join(known)}."
        )
    return found


def _table(compared: Sequence[Comparison]) -> list[str]:
    header = ["where", "model", "context", "evictor", "gate", "τ", "tasks", "budgets", "metric"]
    header += ["paper", "n", "ours", "n", "difference", "would be seen", "verdict"]
    lines = [
        [
            row.where,
            row.model,
            row.context,
            " ".join(filter(None, (row.evictor, row.granularity))) or "–",
            row.gate or "–",
            row.tau or "–",
            _SHORT.get(row.tasks, " ".join(row.tasks)),
            _budgets(row),
            row.metric,
            _interval(row.value, row.low, row.high),
            "–" if row.n is None else str(row.n),
            str(one.ours),
            str(one.ours.n),
            _interval(one.difference.value, one.difference.low, one.difference.high, signed=True),
            f"{one.difference.smallest:.3f}",
            one.verdict,
        ]
        for one in compared
        for row in (one.published,)
    ]
    return table([header, *lines])


def _budgets(row: Published) -> str:
    """One budget, or how many of which range."""
    budgets = row.budgets or ()
    if len(budgets) < 2:
        return " ".join(f"{budget:g}" for budget in budgets) or "–"
    return f"{len(budgets)} of {budgets[0]:g}–{budgets[-1]:g}"


def _interval(value: float, low: float | None, high: float | None, signed: bool = False) -> str:
    sign = "+" if signed else ""
    if low is None or high is None:
        return f"{value:{sign}.3f}"
    return with_ends(value, low, high, sign)


def _summary(compared: Sequence[Comparison], margin: float) -> list[str]:
    if not compared:
        return ["No reported number has a counterpart in these runs."]
    counts = Counter(one.verdict for one in compared)
    expected, found = false_discoveries(compared)
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    lines = [
        f"{len(compared)} cells compared, margin ±{margin:g} (D: ±0.01): {told}.",
        f"By chance alone {expected:.1f} would differ at 5 %; {found} do after Benjamini-Hochberg.",
    ]
    worst = differing(compared)[:5]
    for one in worst:
        row = one.published
        lines.append(
            f"differs: {row.where}, {row.model} {row.context} {row.evictor} {row.gate} "
            f"{_SHORT.get(row.tasks, ' '.join(row.tasks))}, {row.metric}: {one.ours.value:.3f} "
            f"(n={one.ours.n}) for {row.value:.3f} (n={row.n})."
        )
    return lines


def _left(left: Sequence[Uncompared], every: bool) -> list[str]:
    """Reported numbers without ours, counted by reason or each by itself."""
    if not left:
        return []
    lines = ["", f"{len(left)} reported numbers without a counterpart:"]
    if every:
        return lines + [
            f"  {one.published.where}, {one.published.model} {one.published.context} "
            f"{one.published.evictor} {one.published.gate} {' '.join(one.published.tasks)} "
            f"{one.published.metric}: {one.reason}"
            for one in left
        ]
    counts = Counter(one.reason for one in left)
    return lines + [f"  {count:>5}  {reason}" for reason, count in counts.most_common()]


def _refused(refused: Sequence[Refused]) -> list[str]:
    if not refused:
        return []
    lines = ["", "Ours that no reported number is about:"]
    return lines + [f"  {one.what}, {one.n} prompts: {one.reason}" for one in refused]


def _json(
    compared: Sequence[Comparison],
    left: Sequence[Uncompared],
    refused: Sequence[Refused],
    notes: Sequence[str],
) -> str:
    expected, found = false_discoveries(compared)
    whole: dict[str, Any] = {
        "compared": list(compared),
        "verdicts": dict(Counter(one.verdict for one in compared)),
        "expected_by_chance": expected,
        "after_benjamini_hochberg": found,
        "uncompared": list(left),
        "refused": list(refused),
        "notes": list(notes),
    }
    return to_json(whole)


def _margin(text: str) -> float:
    value = share(text)
    if math.isclose(value, 0):
        raise argparse.ArgumentTypeError(f"{text}: give a number above 0, at most 1")
    return value


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="page-bench compare",
        description="Our numbers beside those of the PAGE paper (arXiv 2609.22157), with the "
        "intervals of both and a verdict; no model is loaded.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("runs", nargs="+", metavar="RUNS", help="trace files, or folders that hold trace_*.jsonl")
    add(
        "--table",
        action="append",
        metavar="NAME",
        help='only numbers of this table, as in "Table 2"; may be given several times',
    )
    add(
        "--margin",
        type=_margin,
        default=MARGIN,
        help="differences of shares up to this count as none (default %(default)s)",
    )
    add(
        "--any_numerics",
        action="store_true",
        help="compare runs of another dtype or attention implementation than the paper's as well",
    )
    add("--all", action="store_true", help="name every reported number without a counterpart")
    add_bootstrap(made)
    add("--json", action="store_true", help="print one JSON object")
    return made
