"""`page-bench store`: what a run store holds, whether it is sound, and how to tidy it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from page_bench.inputs.errors import UsageError
from page_bench.inputs.user_path import user_path
from page_bench.records.store.contents import Arm, Contents, Model, contents, records, to_line
from page_bench.records.store.file import read_as_stored
from page_bench.records.store.key import NUMERICS_VERSION
from page_bench.records.store.store import RunStore
from page_bench.records.store.upkeep import Selection, faults, merge, prune

_SHOWN = 20
"""Faults and conflicts that are named one by one."""

_EPILOG = """\
  page-bench store ls runs.sqlite
  page-bench store verify runs.sqlite
  page-bench store export runs.sqlite > runs.jsonl
  page-bench store merge runs.sqlite other.sqlite
  page-bench store prune runs.sqlite --numerics old --yes

ls, verify and export write nothing. A copy of a store that is in use misses what stands in the
files -wal and -shm beside it; merge it into a new one instead."""


def run(argv: Sequence[str]) -> int:
    """Run the command with its arguments; 1 where a store is found to be at fault."""
    args = _parser().parse_args(list(argv))
    status: int = args.act(args)
    return status


def _list(args: argparse.Namespace) -> int:
    with RunStore(args.path, read_only=True) as store:
        found = contents(store)
        size = _size(store.path)
    if args.json:
        whole = {"path": str(store.path), "file_bytes": size, **dataclasses.asdict(found)}
        print(json.dumps(whole, indent=2, ensure_ascii=False))
    else:
        print("\n".join([f"{store.path}: {_amount(size)}", *_tables(found)]))
    return 0


def _verify(args: argparse.Namespace) -> int:
    with RunStore(args.path, read_only=True) as store:
        found = list(faults(store))
        held = contents(store) if not found else None
    if held is None:
        _print_some(found, "fault")
        print(
            f"page-bench: {store.path} is damaged in {len(found)} place(s); merge it into a new "
            f"store, which leaves damaged records out.",
            file=sys.stderr,
        )
        return 1
    total = sum(model.seen + model.answers for model in held.models)
    print(f"{store.path}: {total} records, all as they were written")
    old = sum(model.seen + model.answers for model in held.models if not model.current)
    if old:
        print(
            f"{old} of them are of other numerics than this page-bench's ({NUMERICS_VERSION}) and "
            f"are never read; prune --numerics old removes them"
        )
    return 0


def _export(args: argparse.Namespace) -> int:
    with RunStore(args.path, read_only=True) as store:
        for record in records(store):
            with read_as_stored(store.path):
                line = to_line(record)
            print(line)
    return 0


def _merge(args: argparse.Namespace) -> int:
    paths = [user_path(path, "store").resolve() for path in (args.path, *args.sources)]
    if paths[0] in paths[1:]:
        raise UsageError(f"{paths[0]} cannot be merged with itself; name another store.")
    troubled = False
    for source_path in paths[1:]:
        # Before the target is made: a mistyped source must not leave an empty store behind.
        with (
            RunStore(source_path, read_only=True) as source,
            RunStore(paths[0]) as store,
        ):
            merged = merge(store, source)
        print(
            f"{source.path}: {merged.added} records added, {merged.equal} were there already, "
            f"{len(merged.conflicts)} in conflict, {len(merged.damaged)} damaged"
        )
        _print_some(merged.conflicts, "kept as it was")
        _print_some(merged.damaged, "left out")
        troubled = troubled or bool(merged.conflicts or merged.damaged)
    return int(troubled)


def _prune(args: argparse.Namespace) -> int:
    selection = Selection(
        args.model, args.evictor, args.budget, args.granularity, _numerics(args.numerics)
    )
    if selection == Selection():
        raise UsageError(
            "prune needs to know what to remove; give --model, --evictor, --budget, --granularity "
            "or --numerics."
        )
    with RunStore(args.path, read_only=not args.yes) as store:
        gone = prune(store, selection, dry=not args.yes)
        chosen = f"{gone['seen']} prefills and {gone['answer']} answers"
        if not args.yes:
            print(f"{chosen} would be removed; add --yes to remove them")
            return 0
        print(f"{chosen} removed")
        try:
            store.compact()
        except UsageError as error:
            print(f"page-bench: the file has kept its size: {error}", file=sys.stderr)
    return 0


def _numerics(given: str | None) -> int | str | None:
    if given is None or given == "old":
        return given
    if not given.isdecimal():
        raise UsageError(f"--numerics {given} is no version; give a whole number, or old.")
    return int(given)


def _tables(found: Contents) -> list[str]:
    if not found.models:
        return ["no records"]
    lines = []
    for model in found.models:
        lines += ["", *_model(model)]
    lines += ["", f"{'task':<40}{'prompts':>10}"]
    lines += [f"{task:<40}{count:>10}" for task, count in found.tasks.items()]
    lines += ["", _line("arm", "budget", "n_sink", "recent", "window", "answers", "options")]
    lines += [_arm(arm) for arm in found.arms]
    sizes = ", ".join(f"{kind} {_amount(size)}" for kind, size in found.bytes.items())
    return [*lines, "", f"values: {sizes}"]


def _model(model: Model) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in model.versions.items())
    unread = "" if model.current else ", of no use to this page-bench"
    return [
        " = ".join(model.names),
        f"  {model.dtype}, {model.attn_implementation}, on {', '.join(model.devices)}, "
        f"weights {model.weights[:12]}",
        f"  numerics {model.numerics}{unread}; {versions}",
        f"  {model.prompts} prompts, {model.seen} prefills, {model.answers} answers",
    ]


def _arm(arm: Arm) -> str:
    name = arm.evictor
    if arm.granularity is not None:
        name += f", {arm.granularity}"
    if arm.score_norm not in (None, "none"):
        name += f", {arm.score_norm}"
    options = " ".join(f"{k}={v}" for k, v in arm.options.items() if v is not None)
    budget = "" if arm.budget is None else f"{arm.budget:g}"
    positions = ("" if n is None else n for n in (arm.n_sink, arm.recent, arm.window))
    return _line(name, budget, *positions, arm.answers, options)


def _line(name: str, *columns: int | str) -> str:
    budget, n_sink, recent, window, answers, options = columns
    numbers = f"{budget:>8}{n_sink:>7}{recent:>7}{window:>7}{answers:>9}"
    return f"{name:<40}{numbers}  {options}".rstrip()


def _print_some(phrases: Sequence[str], what: str) -> None:
    for phrase in phrases[:_SHOWN]:
        print(f"{what}: {phrase}")
    if len(phrases) > _SHOWN:
        print(f"… and {len(phrases) - _SHOWN} more")


def _size(path: Path) -> int:
    files = (path, path.with_name(path.name + "-wal"))
    return sum(file.stat().st_size for file in files if file.exists())


def _amount(size: float) -> str:
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="page-bench store",
        description="What a run store holds, whether it is sound, and how to tidy it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    acts = parser.add_subparsers(required=True, metavar="ACTION")

    def action(name: str, act: object, summary: str) -> argparse.ArgumentParser:
        one = acts.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        one.add_argument("path", metavar="PATH", help="the store")
        one.set_defaults(act=act)
        return one

    listing = action("ls", _list, "list models, tasks and arms, and how much there is of each")
    listing.add_argument("--json", action="store_true", help="print one JSON object")
    action("verify", _verify, "check the file, and every record against its checksums")
    action(
        "export",
        _export,
        "print all records as JSON lines; a number that is none (NaN, infinity) becomes null",
    )
    merging = action(
        "merge",
        _merge,
        "add to a store, made if need be, what others hold; where they disagree, it keeps its own "
        "record and the other is named",
    )
    merging.add_argument("sources", nargs="+", metavar="SOURCE", help="stores to read")
    pruning = action("prune", _prune, "remove the records that fit all options given")
    pruning.add_argument("--model", help="name, or from 6 characters on of its weights' checksum")
    pruning.add_argument("--evictor", help="as in evictor=, or full for the full cache")
    pruning.add_argument("--budget", type=float, help="of the arm")
    pruning.add_argument("--granularity", help="of the arm")
    pruning.add_argument(
        "--numerics", metavar="VERSION", help="of page-bench's numerics; old: all but this one's"
    )
    pruning.add_argument("--yes", action="store_true", help="do it; without, only count")
    return parser
