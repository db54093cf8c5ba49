"""Samples on disk."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from page_bench.inputs import json_text
from page_bench.model import default_model

_log = logging.getLogger(__name__)


class Store:
    """One file per sample, so that processes which make the same set do not wait for each other.

    Args:
        name: of the set, for people.
        identity: everything that decides what its samples are.
        root: the folder of all sets; None for `rulergen` in the cache of page-bench.
    """

    def __init__(self, name: str, identity: Mapping[str, Any], root: Path | None = None) -> None:
        text = json.dumps(dict(identity), sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()[:16]
        self._reported = False
        self.folder = (root or default_model.cache_root() / "rulergen") / f"{name}_{key}"

    def read(self, index: int) -> dict[str, Any] | None:
        """A sample; None when it is not there or not whole."""
        try:
            row = json_text.parse(self._file(index).read_bytes())
        except (OSError, ValueError):
            return None
        return row if isinstance(row, dict) and row.get("index") == index else None

    def write(self, row: Mapping[str, Any]) -> None:
        """Keep a sample. A folder that cannot be written is reported once; the run goes on."""
        file = self._file(row["index"])
        part = file.with_suffix(f".{os.getpid()}.part")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(dict(row), ensure_ascii=False), encoding="utf-8")
            os.replace(part, file)
        except OSError as error:
            if not self._reported:
                _log.warning("Generated samples cannot be kept in %s: %s", self.folder, error)
            self._reported = True

    def _file(self, index: int) -> Path:
        return self.folder / f"{index:05d}.json"
