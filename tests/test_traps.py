"""Every test that the table of traps names is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TABLE = (ROOT / "docs" / "traps.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(\w+)::(\w+)`", TABLE.split("\n## ", 1)[1])


def test_each_named_test_exists() -> None:
    missing = [
        f"{file}::{name}"
        for file, name in NAMED
        if f"def test_{name}(" not in (ROOT / "tests" / f"test_{file}.py").read_text("utf-8")
    ]
    assert not missing
    assert len(NAMED) > 80


def test_each_trap_has_a_test_or_a_reason() -> None:
    rows = [line for line in TABLE.splitlines() if line.startswith("| ") and "---" not in line]
    traps = [line for line in rows if not line.startswith("| trap |")]
    impossible = TABLE.index("## Not possible here")
    for line in traps:
        assert "::" in line or TABLE.index(line) > impossible, line
