"""Finds the interpreters of other Python releases."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path


def find_interpreter(release: str) -> Path | None:
    """A `pythonX.Y` on PATH or among pyenv's versions that can make virtual environments.

    Args:
        release: `X.Y`.
    """
    return next((path for path in candidates(release) if can_make_environments(path)), None)


def candidates(release: str) -> Iterator[Path]:
    """Where such an interpreter may be, the first choice first."""
    if on_path := shutil.which(f"python{release}"):
        yield Path(on_path)
    if shutil.which("pyenv"):
        root = subprocess.run(["pyenv", "root"], capture_output=True, text=True).stdout.strip()
        yield from sorted(Path(root).glob(f"versions/{release}.*/bin/python{release}"))


def can_make_environments(path: Path) -> bool:
    """Whether it starts (a shim of pyenv need not) and has venv with pip."""
    try:
        done = subprocess.run([path, "-c", "import ensurepip, venv"], capture_output=True)
    except OSError:
        return False
    return done.returncode == 0
