"""`page-bench wandb-import`: finished local sweeps and runs in W&B, one run per arm."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Hashable, Sequence

from page_bench.harness.wandb.mode import apart_from_sweeps, wandb_mode
from page_bench.inputs.errors import UsageError

_EPILOG = """\
  page-bench wandb-import results/headline --project page-bench --group headline
  WANDB_MODE=offline page-bench wandb-import results/headline --project page-bench

A run has the keys that it would have had with --wandb_args. What has been uploaded is left alone
when the command is started again; with WANDB_MODE=offline it is written to files alone, which
`wandb sync` uploads."""


def run(argv: Sequence[str]) -> int:
    """Run the command with its arguments; 1 where something was not uploaded whole."""
    args = _parser().parse_args(list(argv))
    with apart_from_sweeps():
        return _import(args)


def _import(args: argparse.Namespace) -> int:
    if wandb_mode() == "disabled":
        raise UsageError(
            "WANDB_MODE=disabled uploads nothing, nor does W&B after `wandb disabled`; set "
            "WANDB_MODE to online or offline."
        )
    from tqdm import tqdm

    # These load lm-eval.
    from page_bench.commands.wandb_import.finished import finished_runs
    from page_bench.commands.wandb_import.importer import Destination, is_uploaded, upload
    from page_bench.harness.wandb.full_cache import file_verdicts

    runs, notes = finished_runs(args.runs)
    for note in notes:
        _say(note)
    destination = Destination(args.project, args.entity, args.group)
    left = [one for one in runs if not is_uploaded(one, destination)]
    known: dict[Hashable, float] = {}
    for one in runs if left else ():
        if one.page.get("gate") == "closed":
            known |= file_verdicts(one.trace_file)
    new, failed = 0, 0
    folders: set[str] = set()
    for one in tqdm(left, desc="wandb-import", unit="run", disable=None):
        try:
            content = one.read()
        except (OSError, UsageError) as error:
            problems = [str(error)]
        else:
            done = upload(one, content, destination, known)
            problems, new = done.warnings, new + (done.is_new and not done.warnings)
            folders.add(str(done.folder))
        failed += bool(problems)
        for problem in problems:
            _say(f"{one.name}: {problem}")
    print(
        f"{new} of {len(runs)} runs {'written' if destination.is_offline else 'uploaded'} "
        f"for {destination}"
        + (f" to {', '.join(sorted(folders))}" if destination.is_offline and folders else "")
        + f", {len(runs) - new - failed} were there already"
        + (f", {failed} are not whole: start the command again" if failed else "")
    )
    if destination.is_offline:
        places = "".join(f" {folder}/offline-run-*" for folder in sorted(folders))
        print(f"Nothing has been sent: `wandb sync{places}` uploads what was written.")
    return int(failed > 0)


def _say(text: str) -> None:
    print(f"page-bench wandb-import: {text}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="page-bench wandb-import",
        description="Upload finished runs to Weights & Biases: settings, samples, metrics, traces "
        "and lm-eval's results.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUNS", help="folders with runs, or their results_*.json")
    add("--project", required=True, metavar="NAME", help="W&B's project")
    add("--entity", metavar="NAME", help="user or team (W&B's default)")
    add("--group", metavar="NAME", help="group that all runs are put into")
    return parser
