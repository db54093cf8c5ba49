"""The command `page-bench`: one table of subcommands, each with its own arguments."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from page_bench import __version__
from page_bench.errors import UsageError


class Command(NamedTuple):
    """A subcommand: what `--help` says of it, and what runs it.

    `run` takes the arguments that follow the subcommand's name and returns the exit status.
    """

    summary: str
    run: Callable[[list[str]], int]


def run_lm_eval(argv: list[str]) -> int:
    """`lm_eval run …`, for places where `.pth` files are not processed; the model is page_hf."""
    from page_bench import plugin

    plugin.install()
    from lm_eval.__main__ import cli_evaluate

    named = any(word.split("=")[0] in ("--model", "-M", "--config", "-C") for word in argv)
    model = [] if named or not argv else ["--model", "page_hf"]
    sys.argv = ["page-bench", "run", *model, *argv]  # lm-eval reads its arguments there
    cli_evaluate()
    return 0


def run_evictors(argv: list[str]) -> int:
    """The list of evictors; what it imports is heavy."""
    from page_bench import evictor_list

    return evictor_list.run(argv)


COMMANDS = {
    "run": Command("evaluate a model, with the arguments of `lm_eval run`", run_lm_eval),
    "evictors": Command("list the evictors, what they need and their options", run_evictors),
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
        return command.run(words[1:])
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
        + "\n".join(f"  {name:<12}{command.summary}" for name, command in COMMANDS.items())
        + "\n\n`page-bench COMMAND --help` shows a command's arguments.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"page-bench {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="see below")
    return parser
