"""What an arm's results rest on besides its words: code, calibration, and files of the model."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from page_bench.engine.checksums import evictor_checksums
from page_bench.records.store.key import NUMERICS_VERSION, digest_of
from page_bench.sweep.arms import Arm

_OF_THE_MODEL = ("pretrained", "peft", "delta", "tokenizer")
"""Model arguments that may name a local folder."""

_SUFFIXES = (".safetensors", ".bin", ".pt", ".gguf", ".json", ".model", ".txt", ".jinja", ".py")


def basis_of(arm: Arm) -> dict[str, str]:
    """By name, hashes of what the arm's results rest on and its words do not say.

    No weights are read: a model in a local folder goes by the names, sizes and times of its files,
    one of the Hugging Face hub by its name in the words alone. So what a branch of the hub or the
    data of a task has become since, and newer libraries, go unseen.

    Raises:
        UsageError: the source code of the arm's evictor cannot be read.
    """
    page = arm.page
    basis = {"numerics": str(NUMERICS_VERSION)}
    if page.gate != "closed":
        basis["evictor"] = digest_of(evictor_checksums(page.make_evictor()))
    if page.calibration is not None:
        basis["calibration"] = _content(Path(page.calibration))
    files = {name: _files(arm.config.model_args.get(name)) for name in _OF_THE_MODEL}
    basis["model"] = hashlib.sha256(json.dumps(files).encode()).hexdigest()
    return basis


def changes(then: object, now: dict[str, str]) -> list[str]:
    """Names of the parts that are not what they were."""
    if not isinstance(then, dict):
        return sorted(now)
    return sorted(name for name in {*then, *now} if then.get(name) != now.get(name))


def _content(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:  # an arm that is run says so
        return "unreadable"


def _files(name: Any) -> list[tuple[str, int, int]]:
    """Files that stand in a folder, with their size in bytes and the time of their last change."""
    found: list[tuple[str, int, int]] = []
    if isinstance(name, str) and name:
        with suppress(OSError, ValueError):  # what is no folder has none
            for path in sorted(Path(name).iterdir()):
                if path.suffix in _SUFFIXES:
                    stat = path.stat()
                    found.append((path.name, stat.st_size, stat.st_mtime_ns))
    return found
