"""The house: rooms in one order, every import pointing down, nothing lying outside of a room."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = (
    ("commands",),
    ("api",),
    ("leaderboard", "sweep"),
    ("report",),
    ("pages",),
    ("harness",),
    ("analysis",),
    ("engine", "tasks"),
    ("model",),
    ("config",),
    ("gating",),
    ("evictors", "records"),
    ("inputs",),
)
"""From top to bottom; a room imports rooms below it, and none beside it."""
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
SILENT = ("page_bench/__init__.py", "page_bench/harness/__init__.py")
"""Imported at every start of Python, so they import nothing."""


def modules(root: Path) -> Iterator[tuple[str, Path]]:
    """All modules of page_bench as `(room, file)`, evictors and tasks included."""
    for path in sorted((root / "page_bench").rglob("*.py")):
        parts = path.relative_to(root / "page_bench").with_suffix("").parts
        if parts[0] not in ("evictors", "tasks"):  # links, in a checkout
            yield parts[0], path
    for room in ("evictors", "tasks"):
        yield from ((room, path) for path in sorted((root / room).rglob("*.py")))


def rooms_imported(path: Path) -> Iterator[tuple[str, int]]:
    """Rooms that a file imports from, within functions and for types too, with the line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        names = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: a relative import hides its room"
            names = [f"{node.module}.{name}" for name in names]
        for name in names:
            top, _, rest = name.partition(".")
            if top == "page_bench" and rest and not rest.startswith("__"):
                yield rest.partition(".")[0], node.lineno


def upward(root: Path) -> list[str]:
    """Imports that point up or sideways, as `file:line`; no loop of rooms is possible without."""
    return [
        f"{path.relative_to(root)}:{line} {room} imports {imported}"
        for room, path in modules(root)
        if room != "__init__"
        for imported, line in rooms_imported(path)
        if imported != room and FLOOR[imported] <= FLOOR[room]
    ]


def test_every_import_points_down() -> None:
    assert not upward(ROOT)


@pytest.mark.parametrize(
    ("room", "line"),
    [
        ("model", "from page_bench.engine import prompt"),
        ("inputs", "import page_bench.config"),
        ("records", "def f():\n    from page_bench import evictors"),
        ("harness", "from page_bench.pages.section import Section"),
    ],
)
def test_an_upward_import_is_found(tmp_path: Path, room: str, line: str) -> None:
    for name in FLOOR:
        (tmp_path / "page_bench" / name).mkdir(parents=True)
    (tmp_path / "page_bench" / room / "planted.py").write_text(line, encoding="utf-8")
    (found,) = upward(tmp_path)
    assert found.startswith(f"page_bench/{room}/planted.py:{line.count(chr(10)) + 1} {room} ")


def test_all_of_the_house_stands_in_a_room() -> None:
    """Data that is shipped lies beside what reads it."""
    here = {path.name for path in (ROOT / "page_bench").iterdir() if path.name != "__pycache__"}
    rooms = {room for room in FLOOR if room != "config" and (ROOT / "page_bench" / room).is_dir()}
    assert here - {"py.typed"} == rooms | {"__init__.py", "config.py"}


def test_what_python_imports_at_its_start_imports_nothing() -> None:
    for name in SILENT:
        at_once = ast.parse((ROOT / name).read_text(encoding="utf-8")).body
        assert not [n for n in at_once if isinstance(n, ast.Import | ast.ImportFrom)], name


def test_contributing_shows_every_room() -> None:
    """With each room's folders, in the order of the floors."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (tree,) = re.findall(r"```\npage_bench/\n(.*?)```", text, re.DOTALL)
    shown = re.findall(r"^  (\w+)", tree, re.MULTILINE)
    assert [FLOOR[room] for room in shown] == sorted(FLOOR[room] for room in shown)
    assert set(shown) == {r for r in FLOOR if (ROOT / "page_bench" / r).is_dir()} | {"config"}
