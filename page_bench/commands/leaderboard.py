"""`page-bench leaderboard`: add finished runs, check the files, export the ranked table, build."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from page_bench.commands.shared.output_formats import print_utf8
from page_bench.inputs.errors import UsageError
from page_bench.inputs.user_path import user_path
from page_bench.leaderboard.check import examined, read_board
from page_bench.leaderboard.export import FORMATS, exported
from page_bench.leaderboard.file import SCHEMA, TASKS, Board, beside, write_board

FILE = Path("leaderboard/leaderboard.csv")

_EPILOG = """\
  page-bench leaderboard add results          # rows of a sweep or of runs of lm_eval
  page-bench leaderboard check
  page-bench leaderboard export --format markdown --group suite=page_ruler_4k*
  page-bench leaderboard build                # leaderboard/index.html

A row is one arm on one suite. Δ needs the plain run (gate=open) of the same arm, harm and ρ the
full one (gate=closed), among the RUNS; what is not known stays empty. tasks.csv and schema.json lie
beside the file."""


def run(argv: Sequence[str]) -> int:
    """Run the command with its arguments; the status is 1 where `check` finds something."""
    args = _parser().parse_args(list(argv))
    args.file = user_path(args.file, "--file")
    print_utf8()
    status: int = args.act(args)
    return status


def _add(args: argparse.Namespace) -> int:
    # What computes statistics takes seconds to import.
    from page_bench.leaderboard.add import check_sound, merged, rows_of
    from page_bench.leaderboard.run import read_finished

    _check_name(args.file)
    runs, left_out = read_finished(args.runs)
    added = rows_of(runs)
    # Two that add at once would each keep its own rows alone.
    with _locked(args.file):
        board = read_board(args.file) if os.path.exists(args.file) else Board()
        together = merged(board, added, args.replace)
        check_sound(together)
        write_board(args.file, together)
    for note in [*left_out, *added.notes]:
        print(f"note: {note}", file=sys.stderr)
    count = _counted(len(added.rows), "row")
    print(f"{count} added to {args.file}, which holds {len(together.rows)}")
    return 0


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Alone with a table. The lock lies beside no table: a folder of tables holds nothing else."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(file))).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"page_bench_{name}.lock"
    lock = FileLock(path)
    try:
        lock.acquire()
    except OSError as error:
        raise UsageError(
            f"{path}, the lock of {file}, cannot be written ({error.strerror or error}); remove "
            f"it, or give TMPDIR another folder."
        ) from error
    try:
        yield
    finally:
        lock.release()


def _check_name(file: Path) -> None:
    """Refuse a name under which the tables that belong together would overwrite each other."""
    if file.name in (TASKS, SCHEMA):
        raise UsageError(f"--file {file}: another table has the name {file.name}; choose another.")
    if not os.path.exists(file) and os.path.exists(beside(file, TASKS)):
        raise UsageError(
            f"--file {file}: {TASKS} beside it belongs to another leaderboard; choose a new folder."
        )


def _examine(args: argparse.Namespace) -> int:
    board, found = examined(args.file)
    for finding in found:
        print(finding)
    if found:
        return 1
    rows, tasks = _counted(len(board.rows), "row"), _counted(len(board.tasks), "task")
    print(f"{args.file}: {rows} and {tasks}, nothing wrong")
    return 0


def _counted(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def _export(args: argparse.Namespace) -> int:
    sys.stdout.write(exported(read_board(args.file), args.format, args.group))
    return 0


def _build(args: argparse.Namespace) -> int:
    from page_bench.leaderboard.page import build

    given = args.output
    output = beside(args.file, "index.html") if given is None else user_path(given, "--output")
    build(args.file, output)
    print(f"page written to {output}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="page-bench leaderboard",
        description="The table of results, one row per arm and suite.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    acts = parser.add_subparsers(required=True, metavar="ACTION")

    def action(name: str, act: object, summary: str) -> argparse.ArgumentParser:
        one = acts.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        one.add_argument(
            "--file", type=Path, default=FILE, metavar="CSV", help=f"the table (default {FILE})"
        )
        one.set_defaults(act=act)
        return one

    adding = action("add", _add, "add rows of finished runs")
    adding.add_argument(
        "runs", nargs="+", metavar="RUNS", help="folders of runs or sweeps, or results files"
    )
    adding.add_argument(
        "--replace", action="store_true", help="put these runs in the place of rows of the same arm"
    )
    action("check", _examine, "check the table, the tasks and the schema")
    exporting = action("export", _export, "print the ranked table")
    exporting.add_argument(
        "--format", choices=FORMATS, default="markdown", help="default %(default)s"
    )
    exporting.add_argument(
        "--group",
        action="append",
        default=[],
        metavar="COLUMN=PATTERN",
        help="print only the groups that fit; may be given several times",
    )
    building = action("build", _build, "build the page")
    building.add_argument(
        "--output", type=Path, metavar="HTML", help="default: index.html beside the table"
    )
    return parser
