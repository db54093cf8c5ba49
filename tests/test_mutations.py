"""Each fault of `make mutants` still fits the code, and the tests to catch it are there."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PATCHES = sorted((ROOT / "tests" / "mutations").glob("*.patch"))


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_fault_can_be_planted(patch: Path) -> None:
    first = patch.read_text(encoding="utf-8").partition("\n")[0]
    named = first.removeprefix("Caught by: ").split()
    assert named
    assert all((ROOT / name).is_file() for name in named)
    check = ["git", "apply", "--check", "--unsafe-paths", str(patch)]
    found = subprocess.run(check, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def test_there_are_as_many_as_promised() -> None:
    assert len(PATCHES) >= 20
