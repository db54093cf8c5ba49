"""Paths as a user writes them: `~` filled in, and what no file system takes refused."""

from __future__ import annotations

import os
from pathlib import Path

from page_bench.inputs.errors import UsageError

_LONGEST_NAME, _LONGEST_PATH = 255, 4095
"""Bytes, on the file systems of Linux and macOS."""


def user_path(given: str | os.PathLike[str], what: str = "the path") -> Path:
    """A path with its `~` filled in; nothing need be there.

    Args:
        given: as the user wrote it.
        what: what it is, for messages, such as `store`.

    Raises:
        UsageError: no file can have this name.
    """
    try:
        path = Path(given).expanduser()
        name, whole = max(map(os.fsencode, path.parts), key=len, default=b""), os.fsencode(path)
    except RuntimeError as error:
        raise UsageError(
            f"{what} {given!s:.200} begins with the home folder of a user who is not known here; "
            f"write it out."
        ) from error
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} {given!s:.200} holds no text; give another path.") from error
    if b"\0" in whole:
        raise UsageError(f"{what} {given!s:.200} holds a NUL character; give another path.")
    if len(name) > _LONGEST_NAME or len(whole) > _LONGEST_PATH:
        raise UsageError(f"{what} {given!s:.200} is too long for a path; give a shorter one.")
    return path


def is_there(given: str) -> bool:
    """Whether a text names a file or a folder that exists."""
    try:
        return user_path(given).exists()
    except (OSError, UsageError):
        return False


def is_file(given: str | os.PathLike[str]) -> bool:
    """Whether there is such a file; what no file can be called is none."""
    try:
        return Path(given).is_file()
    except (OSError, ValueError):
        return False
