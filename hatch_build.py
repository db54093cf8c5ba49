"""Build hook: an editable install gets the `.pth` file that a wheel carries at its root."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PTH = "page_bench_lm_eval.pth"


class EditablePth(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the `.pth` file alone: the folders are reached through the checkout's symlinks."""
        if version == "editable":
            build_data["force_include_editable"] = {str(Path(self.root) / PTH): PTH}
