"""The arguments of `page-bench regate`."""

from __future__ import annotations

import argparse
import math

from page_bench.analysis.intervals import DRAWS, SEED
from page_bench.analysis.outcomes import METRICS
from page_bench.analysis.regate import Tau
from page_bench.commands.shared.argument_types import whole_number
from page_bench.gating.gates import GATES
from page_bench.gating.match import POLICIES
from page_bench.gating.rules import CAPACITY_BOUND, MIDPOINT_SIZE, OPEN_RATE, THETA_Z
from page_bench.inputs.errors import UsageError
from page_bench.inputs.user_path import user_path

ABLATIONS = ("bins", "layers", "head_pairs", "signals")
LEAST_DRAWS = 100
"""Below this, percentiles of 95 % are the ends of what was drawn, or nearly."""

_EPILOG = """\
Runs hold a plain record (gate=open) and a full one (gate=closed) of each input; a gated run's
records serve as what its gate made of them. One full run serves all evictors and budgets.

  page-bench regate results --gate page --tau 0.07
  page-bench regate results --sweep --figure sweep.svg
  page-bench regate results --sweep --capacity_bound niah_multikey_3
  page-bench regate results --gate random --gate_args rate=0.7
  page-bench regate results --ablate signals"""


_DECIDING = ("gate", "gate_args", "tau", "theta_z", "open_rate", "pilot_size", "calibration")
_READ_BY = {
    "taus": ("sweep",),
    "figure": ("sweep",),
    "capacity_bound": ("sweep", "ablate"),
    **dict.fromkeys(_DECIDING, ("sweep", "k_sweep", "regate")),
}
"""Which way of running reads an argument, where not all do; `regate` is the one without a name."""


def check_mode(args: argparse.Namespace) -> None:
    """Refuse arguments that would not be read.

    Raises:
        UsageError: there is one.
    """
    mode = next((m for m in ("sweep", "k_sweep", "ablate") if getattr(args, m)), "regate")
    defaults = parser()
    for name, readers in _READ_BY.items():
        if mode in readers or getattr(args, name) == defaults.get_default(name):
            continue
        if name in _DECIDING:
            raise UsageError(
                f"--ablate looks at all inputs and decides on none, so --{name} has no use; leave "
                f"one of them out."
            )
        wanted = " or ".join(f"--{reader}" for reader in readers)
        raise UsageError(f"--{name} is read by {wanted} alone; add that, or leave it out.")


def tau_of(args: argparse.Namespace) -> Tau:
    calibration = None if args.calibration is None else user_path(args.calibration, "--calibration")
    return Tau(
        args.tau,
        args.theta_z,
        args.open_rate,
        args.pilot_size,
        calibration,
        args.calibration_mismatch,
    )


def gate_options(words: str) -> dict[str, object]:
    """Options of a gate from `NAME=VALUE,…`."""
    options: dict[str, object] = {}
    for word in filter(None, words.split(",")):
        name, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"--gate_args {words} is not NAME=VALUE,…; {word} has no value.")
        options[name.strip().removeprefix("gate.")] = _value(value.strip())
    return options


def _value(text: str) -> object:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def add_bootstrap(parser: argparse.ArgumentParser) -> None:
    """The arguments of a bootstrap, the same for all commands."""
    parser.add_argument(
        "--draws",
        type=whole_number(LEAST_DRAWS),
        default=DRAWS,
        help="of the bootstrap (default %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=whole_number(0),
        default=SEED,
        help="of the bootstrap (default %(default)s)",
    )


def tau_value(text: str) -> float | str:
    """An argparse type for τ: a number, or the name of a rule."""
    value = _value(text)
    return float(value) if isinstance(value, int | float) else text


def _finite(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text}: give a finite number")
    return value


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="page-bench regate",
        description="The outcome of any gate at any τ, from stored runs; no model is loaded.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("runs", nargs="+", metavar="RUNS", help="trace files, or folders that hold trace_*.jsonl")
    add("--gate", default="page", help=f"one of {', '.join(GATES)} (default page)")
    add("--gate_args", default="", metavar="NAME=VALUE,…", help="its options")
    add(
        "--tau",
        type=tau_value,
        default="zscore",
        help="a number, fixed, zscore, quantile or midpoint (default zscore); measured on these "
        f"inputs, or on --calibration; midpoint reads {MIDPOINT_SIZE} inputs of each of its tasks",
    )
    add("--theta_z", type=float, default=THETA_Z, help="θ_z of zscore (default %(default)s)")
    add("--open_rate", type=float, default=OPEN_RATE, help="of quantile (default %(default)s)")
    add(
        "--pilot_size",
        type=whole_number(2),
        default=100,
        help="inputs to measure τ on (default 100)",
    )
    add("--calibration", metavar="FILE", help="pilot written by page-bench calibrate")
    add("--calibration_mismatch", choices=POLICIES, default="error")
    add("--metric", choices=METRICS, default="correct", help="what Δ and harm are taken from")
    mode = made.add_mutually_exclusive_group()
    mode.add_argument("--sweep", action="store_true", help="every τ, with the plateau")
    mode.add_argument("--k_sweep", action="store_true", help="runs of different top_k at one τ")
    mode.add_argument("--ablate", choices=ABLATIONS, help="what D, or each signal, carries")
    add("--taus", type=_finite, nargs="+", default=[], help="τ to sweep (default: all that differ)")
    add("--figure", metavar="FILE", help="draw the sweep, as .png or .svg")
    add(
        "--capacity_bound",
        metavar="TASKS",
        help="tasks that are to stay closed, separated by +; for --ablate (default "
        f"{CAPACITY_BOUND}) and, where given, for false rates by task in --sweep",
    )
    add_bootstrap(made)
    add("--json", action="store_true", help="print one JSON object")
    return made
