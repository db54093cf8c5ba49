"""`page-bench sweep`: all arms of W&B sweep files on this machine, from one prefill per prompt."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from page_bench.commands.shared.argument_types import whole_number
from page_bench.harness.wandb.mode import is_in_a_sweep
from page_bench.inputs.user_path import user_path
from page_bench.sweep.arms import Arm, arms_of, trackers_of
from page_bench.sweep.file import read_sweep

_EPILOG = """\
Each arm gets a folder of its own under --output_path, with what `lm_eval run` writes. A sweep that
was stopped goes on when it is started again with the same words; a finished arm is run anew once
its folder is deleted, or its evictor's code, its calibration or its model's files have changed.
The same files run on many machines with `wandb sweep` and `wandb agent`."""


def run(argv: Sequence[str], task_manager: Any = None) -> int:
    """Run the command with its arguments.

    Args:
        argv: what follows `sweep`.
        task_manager: see `sweep_tasks.SharedTasks`.
    """
    args = _parser().parse_args(list(argv))
    arms: dict[tuple[str, Path], Arm] = {}
    for file in args.files:
        for arm in arms_of(read_sweep(file), args.output_path, args.count, args.seed, args.limit):
            # An arm of two files with folders of their own is written to both, answered once.
            arms.setdefault((arm.digest, arm.folder.parent), arm)
    chosen = list(arms.values())
    flags = trackers_of(chosen)
    if flags:
        _say(
            f"{', '.join(flags)}: left out, a local sweep reports to no server; page-bench "
            f"wandb-import uploads its results to W&B afterwards, one run per arm"
        )
    if is_in_a_sweep():
        _say(
            "W&B's agent has started this command, but a local sweep opens no run, so the agent's "
            "own stays empty; let the agent run lm_eval, one arm at a time, as the file says"
        )
    _share_log()
    from page_bench.sweep.plan import plan_sweep  # loads torch and lm-eval
    from page_bench.sweep.runner import run_sweep
    from page_bench.sweep.verdict import verdict

    if args.plan:
        print(_table(plan_sweep(chosen, task_manager)))
        return 0
    store = None if args.store is None else user_path(args.store, "--store")
    spent = run_sweep(chosen, store, task_manager, _say, args.ray)
    if spent.arms:
        _say(str(spent))
    print(verdict(chosen))
    return 0


def _say(text: str) -> None:
    print(f"page-bench sweep: {text}", file=sys.stderr)


def _share_log() -> None:
    from lm_eval.utils import setup_logging

    from page_bench.harness import hooks

    setup_logging()
    hooks._share_log()


def _table(plans: Sequence[Any]) -> str:
    """The plan as a table, with its sums."""
    rows: list[tuple[str, ...]] = [("group", "arms", "finished", "prefills", "decodes", "look-ups")]
    for number, plan in enumerate(plans, start=1):
        counts = (plan.arms, plan.finished, plan.prompts, plan.decodes, plan.look_ups)
        rows.append((str(number), *(f"{count:,}" for count in counts)))
    sums = [
        sum(getattr(plan, name) for plan in plans)
        for name in ("arms", "finished", "prompts", "decodes", "look_ups")
    ]
    rows.append(("all", *(f"{count:,}" for count in sums)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    return "\n".join([*lines, "Decodes are at most so many; what the store holds is not counted."])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="page-bench sweep",
        description="Run W&B sweep files on this machine: every prompt is prefilled once, and all "
        "arms are answered from it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="W&B sweep file (method grid or random)")
    add("--output_path", "-o", metavar="DIR", help="folder for the arms' folders")
    add("--store", metavar="PATH", help="run store (store.sqlite in the first file's DIR)")
    add("--ray", metavar="ADDRESS", help="share out the prompts on a Ray cluster, or on `local`")
    add("--plan", action="store_true", help="count prefills and decodes, and run nothing")
    add(
        "--count",
        type=whole_number(1),
        metavar="N",
        help="first N arms of a grid, or N random arms",
    )
    add("--seed", type=int, default=0, metavar="N", help="of random arms (0)")
    add("--limit", "-L", type=float, metavar="N", help="prompts per task, in place of the file's")
    return parser
