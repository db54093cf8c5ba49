"""The parsers of page-bench's subcommands, for the reference and for checks of examples."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from typing import NoReturn
from unittest import mock

from docstrings import code, table

from page_bench.commands.cli import COMMANDS

LM_EVAL = "run"
"""The subcommand whose arguments are lm-eval's own."""


class _Reached(Exception):
    """A subcommand has made its parser and is about to read its arguments."""


def parser_of(command: str) -> argparse.ArgumentParser:
    """The parser that a subcommand would read its arguments with."""
    run = importlib.import_module(COMMANDS[command].module).run

    def stop(parser: argparse.ArgumentParser, *_: object, **__: object) -> NoReturn:
        raise _Reached(parser)

    with mock.patch.object(argparse.ArgumentParser, "parse_args", stop):
        try:
            run([])
        except _Reached as reached:
            parser: argparse.ArgumentParser = reached.args[0]
            return parser
    raise ValueError(f"page-bench {command} reads no arguments")


def actions_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """What a subcommand does by a second word, such as `add`; empty for most."""
    found: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= action.choices
    return found


def described(parser: argparse.ArgumentParser, level: int) -> list[str]:
    """Paragraphs on a command, those on its actions included.

    Args:
        parser: the command's.
        level: of its heading.
    """
    found = [f"{'#' * level} {parser.prog}", parser.description or ""]
    shown = [a for a in parser._actions if a.help != argparse.SUPPRESS and a.dest != "help"]
    rows = [
        (_written(action), _default(action), _help(action, parser))
        for action in shown
        if not isinstance(action, argparse._SubParsersAction)
    ]
    if rows:
        found.append(table(("argument", "default", "meaning"), rows))
    if parser.epilog:
        found.append(f"```\n{parser.epilog.strip(chr(10))}\n```")
    for action_parser in actions_of(parser).values():
        found += described(action_parser, level + 1)
    return found


def _written(action: argparse.Action) -> str:
    """An argument as it is typed: `--limit N`, `-L N`."""
    value = _value(action)
    if not action.option_strings:
        return code(value)
    words = [f"{name} {value}".strip() for name in action.option_strings]
    return ", ".join(map(code, words)) + (" (required)" if action.required else "")


def _value(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    name = action.metavar or action.dest.upper()
    if action.choices is not None and action.metavar is None:
        name = " | ".join(map(str, action.choices))
    name = name if isinstance(name, str) else " ".join(name)
    return {"+": f"{name} …", "*": f"[{name} …]", "?": f"[{name}]"}.get(str(action.nargs), name)


def _default(action: argparse.Action) -> str:
    default = action.default
    nothing = default is None or default is False or default in ("", [], argparse.SUPPRESS)
    if nothing or not action.option_strings:
        return ""
    many = isinstance(default, Sequence) and not isinstance(default, str)
    return code(" ".join(map(str, default)) if many else default)


def _help(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    values = {**vars(action), "prog": parser.prog}
    return (action.help or "") % {k: v for k, v in values.items() if v is not argparse.SUPPRESS}
