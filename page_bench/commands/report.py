"""`page-bench report`: tables and figures from traces, or from the paper's released logs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from page_bench.analysis.gate_choice import Choice
from page_bench.analysis.outcomes import METRICS
from page_bench.analysis.regate import Tau
from page_bench.commands.gate_arguments import add_bootstrap, gate_options, tau_value
from page_bench.commands.shared.argument_types import share, whole_number
from page_bench.gating.gates import GATES, make_gate
from page_bench.gating.match import POLICIES
from page_bench.gating.rules import CAPACITY_BOUND, OPEN_RATE, THETA_Z
from page_bench.inputs.errors import UsageError
from page_bench.inputs.user_path import user_path
from page_bench.report.settings import RHO_THRESHOLD, Settings

_EPILOG = """\
RUNS are trace files or folders that hold trace_*.jsonl, with a plain record (gate=open) and a full
one (gate=closed) of each input, or the JSONL logs that the PAGE paper's authors have released.
Replicates on other data are told apart by seed=NUMBER:PATH; what the name of an authors' log does
not say stands before it as model=NAME,context=4K,evictor=NAME:PATH.

  page-bench report results -o report
  page-bench report results -o report --gate page --tau 0.07
  page-bench report seed=1:first seed=2:second -o report"""
_OF_TAU = ("tau", "theta_z", "open_rate", "pilot_size", "calibration")


def run(argv: Sequence[str]) -> int:
    """Run the command with its arguments."""
    args = parser().parse_args(list(argv))
    choice, settings = _choice(args), _settings(args)
    folder = user_path(args.output, "-o")

    # Heavy, and not needed where an argument is wrong.
    from threadpoolctl import threadpool_limits

    from page_bench.report.build import build
    from page_bench.report.files import PAGE, check_folder, write
    from page_bench.report.sources import read

    sources = read(args.runs, choice)
    check_folder(folder)
    # Its products are small: threads would wait for each other, and add up in another order.
    with threadpool_limits(1, "blas"):
        report = build(sources, settings, _bar("sections"))
    write(report, folder, _bar("charts"))
    for note in report.notes:
        print(f"note: {note}")
    left_out = sum(not file.n for file in sources.files)
    print(
        f"{len(sources.cells)} cells from {len(sources.files) - left_out} files, {left_out} files "
        f"left out; report written to {folder / PAGE}"
    )
    return 0


def _bar(what: str) -> Any:
    from tqdm import tqdm

    def wrap(items: Sequence[Any]) -> Iterator[Any]:
        return iter(tqdm(items, desc=what, unit="", disable=not sys.stderr.isatty()))

    return wrap


def _choice(args: argparse.Namespace) -> Choice:
    if args.gate is None and args.gate_args:
        raise UsageError("--gate_args are options of --gate; give that as well.")
    gate = None if args.gate is None else make_gate(args.gate, gate_options(args.gate_args))
    defaults = parser()
    changed = [n for n in _OF_TAU if getattr(args, n) != defaults.get_default(n)]
    if not changed:
        return Choice(gate, None, args.metric, args.least_inputs)
    if args.tau is None:
        raise UsageError(
            f"--{changed[0]} says how a τ is found; give --tau zscore, quantile or midpoint too."
        )
    tau = Tau(
        args.tau,
        args.theta_z,
        args.open_rate,
        args.pilot_size,
        None if args.calibration is None else user_path(args.calibration, "--calibration"),
        args.calibration_mismatch,
    )
    return Choice(gate, tau, args.metric, args.least_inputs)


def _settings(args: argparse.Namespace) -> Settings:
    return Settings(args.capacity_bound, args.draws, args.seed, args.rho_threshold)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="page-bench report",
        description="Tables and figures of what eviction does, input by input, from stored runs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("runs", nargs="+", metavar="RUNS", help="files or folders, see below")
    add("-o", "--output", required=True, metavar="DIR", help="new, empty or of an earlier report")
    add(
        "--gate",
        help=f"decide anew by one of {', '.join(GATES)} (default: as the runs did; where none had "
        "a gate, page)",
    )
    add("--gate_args", default="", metavar="NAME=VALUE,…", help="its options")
    add(
        "--tau",
        type=tau_value,
        help="decide anew at a number, fixed, zscore, quantile or midpoint (default: as the runs "
        "did; where none had a gate, zscore, in the authors' logs 0.07)",
    )
    add("--theta_z", type=float, default=THETA_Z, help="θ_z of zscore (default %(default)s)")
    add("--open_rate", type=float, default=OPEN_RATE, help="of quantile (default %(default)s)")
    add(
        "--pilot_size",
        type=whole_number(2),
        default=100,
        help="inputs to measure τ on (default 100; of the authors' logs all, as in the paper)",
    )
    add("--calibration", metavar="FILE", help="pilot written by page-bench calibrate")
    add("--calibration_mismatch", choices=POLICIES, default="error")
    add(
        "--metric",
        choices=METRICS,
        help="what all is taken from (default correct, of the authors' logs correct_paper)",
    )
    add(
        "--capacity_bound",
        default=CAPACITY_BOUND,
        metavar="TASKS",
        help="tasks that eviction ruins, names or patterns separated by commas (default "
        "%(default)s)",
    )
    add("--rho_threshold", type=share, default=RHO_THRESHOLD, help="(default %(default)s)")
    add_bootstrap(made)
    add(
        "--least_inputs",
        type=whole_number(1),
        default=20,
        help="of each task in an authors' log; one with fewer is a stub (default %(default)s)",
    )
    return made
