"""The command `page-bench`: one table of subcommands, each with its own arguments."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from page_bench import __version__
from page_bench.inputs.errors import UsageError


class Command(NamedTuple):
    """A subcommand.

    Attributes:
        summary: what `--help` says of it.
        module: where its `run(argv)` stands, which takes the arguments that follow the
            subcommand's name and returns the exit status; imported only when it is called.
    """

    summary: str
    module: str


COMMANDS = {
    "run": Command(
        "evaluate a model, with the arguments of `lm_eval run`", "page_bench.commands.run"
    ),
    "sweep": Command(
        "run all arms of a W&B sweep file on this machine", "page_bench.commands.sweep"
    ),
    "calibrate": Command(
        "measure the threshold τ on a pilot, into a file", "page_bench.commands.calibrate.command"
    ),
    "regate": Command(
        "any gate, any τ on stored plain and full runs", "page_bench.commands.regate"
    ),
    "show": Command("one prompt of a run, and what its cache kept", "page_bench.commands.show"),
    "report": Command("tables and figures from stored runs", "page_bench.commands.report"),
    "evictors": Command(
        "list the evictors, what they need and their options", "page_bench.commands.evictors"
    ),
    "latency": Command(
        "time and memory of full, plain and gated decoding", "page_bench.commands.latency.command"
    ),
    "doctor": Command(
        "check that numbers are right with your model, device and dtype",
        "page_bench.commands.doctor.command",
    ),
    "wandb-import": Command(
        "upload finished runs and sweeps to Weights & Biases",
        "page_bench.commands.wandb_import.command",
    ),
    "compare": Command("our numbers beside those of the PAGE paper", "page_bench.commands.compare"),
    "leaderboard": Command(
        "add finished runs to the table of results, check, rank, build its page",
        "page_bench.commands.leaderboard",
    ),
    "store": Command(
        "list, check, export, merge or prune a run store", "page_bench.commands.store"
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    if not words:
        parser.print_help()
        return 0
    command = COMMANDS[parser.parse_args(words[:1]).command]
    try:
        status: int = importlib.import_module(command.module).run(words[1:])
        return status
    except UsageError as error:
        print(f"page-bench: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Whoever read the output has seen enough; Python would complain once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="page-bench",
        description="What KV-cache eviction does to a language model, input by input.",
        epilog="commands:\n"
        + "\n".join(f"  {name:<14}{command.summary}" for name, command in COMMANDS.items())
        + "\n\n`page-bench COMMAND --help` shows a command's arguments.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"page-bench {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="see below")
    return parser
