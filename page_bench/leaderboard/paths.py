"""Local paths, which no row and no command publishes: they are cut to the names they end in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from page_bench.evictors import title_parts

_ROOTED = re.compile(r"[/~$%\\]|\.{1,2}[/\\]|[a-z]:[/\\]|file:", re.IGNORECASE)
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*://.*|\d+(/\d+)+", re.IGNORECASE | re.DOTALL)
"""Addresses, and dates."""
_FILE = re.compile(
    r"\.(arrow|bin|csv|gguf|gz|ini|jinja|jsonl?|log|md|npy|npz|parquet|pickle|pkl|pt|pth|py(:\w+)?"
    r"|safetensors|sqlite3?|toml|tsv|txt|ya?ml|zip|zst)$",
    re.IGNORECASE,
)
_IN_A_REPOSITORY = ("revision", "code_revision", "subfolder", "gguf_file")
"""Arguments whose slashes are those of the Hub."""


def is_local(text: str) -> bool:
    """Whether a text is a path of a machine, rather than a name on the Hub.

    A name on the Hub has at most two parts, `org/name`; a folder given so cannot be told from it.
    Paths are: what is absolute or begins with `~`, `.`, `..`, a variable, a drive or `file:`; what
    has three parts or more; what has two and ends like a file, or in a slash.
    """
    if _ROOTED.match(text):
        return True
    parts = re.split(r"[/\\]", text)
    if len(parts) < 2 or _ELSEWHERE.fullmatch(text):
        return False
    return len(parts) > 2 or not parts[-1] or _FILE.search(text) is not None


def without_folders(value: Any) -> Any:
    """A value in which local paths are cut to the names that they end in."""
    if isinstance(value, Mapping):
        return {
            key: item
            if key in _IN_A_REPOSITORY and isinstance(item, str) and not _ROOTED.match(item)
            else without_folders(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [without_folders(item) for item in value]
    return last_part(value) if isinstance(value, str) and is_local(value) else value


def without_path(title: str) -> str:
    """An evictor's title in which classes in files go by the files' names alone.

    Raises:
        UsageError: it is no evictor's title.
    """
    *wrappers, inner = (last_part(p) if ".py:" in p else p for p in title_parts(title))
    return "".join(f"{name}(" for name in wrappers) + inner + ")" * len(wrappers)


def last_part(path: str) -> str:
    """What follows the last slash; the path itself where nothing does."""
    bare = re.sub(r"^file:", "", path, flags=re.IGNORECASE)
    return bare.replace("\\", "/").rstrip("/").rpartition("/")[2] or path
