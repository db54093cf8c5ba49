"""Finished runs uploaded to W&B, each under the keys that a live run has there."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm_eval.loggers.wandb_logger import WandbLogger

from page_bench.commands.wandb_import.finished import Content, FinishedRun
from page_bench.gating import calibration as calibration_file
from page_bench.harness.wandb.failures import reason
from page_bench.harness.wandb.full_cache import Verdicts, full_correct
from page_bench.harness.wandb.logger import watched
from page_bench.harness.wandb.mode import wandb_mode
from page_bench.harness.wandb.run import TrackedRun
from page_bench.inputs import json_text
from page_bench.inputs.errors import UsageError
from page_bench.inputs.user_path import user_path

log = logging.getLogger(__name__)

MARKS = "wandb_import.json"
"""File beside the results that says where they were uploaded."""
IMPORTED = "page_import"
"""Where a run's config says that it was uploaded whole, and from which file."""


@dataclass(frozen=True)
class Destination:
    """Where runs go.

    Attributes:
        project: of W&B.
        entity: user or team; None for W&B's default.
        group: that all runs are put into; None for none.
    """

    project: str
    entity: str | None = None
    group: str | None = None

    @property
    def is_offline(self) -> bool:
        """Whether runs are written to files for `wandb sync`."""
        return wandb_mode() in ("offline", "dryrun")

    def __str__(self) -> str:
        place = self.project if self.entity is None else f"{self.entity}/{self.project}"
        return f"{place} (offline)" if self.is_offline else place


@dataclass(frozen=True)
class Uploaded:
    """What became of one run.

    Attributes:
        is_new: False where it had been uploaded before.
        warnings: what W&B did not take; such a run is uploaded anew the next time.
        folder: W&B's own, with a folder for each run of this machine.
    """

    is_new: bool
    warnings: list[str]
    folder: Path


def is_uploaded(run: FinishedRun, destination: Destination) -> bool:
    """Whether a former upload marked the run as whole; an offline file must still be there."""
    mark = _marks(run).get(run.path.name, {}).get(str(destination))
    file = mark.get("file") if isinstance(mark, dict) else None
    return isinstance(file, str) and (not destination.is_offline or Path(file).is_file())


def upload(
    run: FinishedRun, content: Content, destination: Destination, known: Verdicts
) -> Uploaded:
    """Upload one run, unless it is there.

    Its id depends on its results alone, so W&B's server knows it again.

    Args:
        run: the run.
        content: of its files.
        destination: where to.
        known: the full cache's verdicts.

    Raises:
        UsageError: W&B opens no run.
    """
    traces = content.traces
    opened = _open(run, destination)
    folder = Path(opened.settings.sync_file).parents[1]
    if opened.config.get(IMPORTED) == run.path.name:
        opened.finish()
        _mark(run, destination, opened)
        return Uploaded(False, [], folder)
    tracked, logger = TrackedRun(opened), watched(WandbLogger)()
    tracked.start(run.page)
    for trace in traces:
        tracked.answered(trace.gate_open, trace.kept_kv)
    calibration = _calibration(run.page.get("calibration"))
    tracked.finish(run.page, traces, full_correct(traces, {}, known), calibration)
    logger.post_init(run.results)
    logger.log_eval_result()
    if content.samples is not None:
        logger.log_eval_samples(content.samples)
    if not tracked.warnings and not logger.warnings:
        opened.config.update({IMPORTED: run.path.name}, allow_val_change=True)
    logger.run.finish()
    warnings = tracked.warnings + logger.warnings
    if not warnings:
        _mark(run, destination, opened)
    return Uploaded(True, warnings, folder)


def _calibration(name: object) -> str | None:
    """The file that results name, where it is a calibration: they may name any file at all."""
    if not isinstance(name, str):
        return None
    try:
        calibration_file.load(user_path(name))
    except UsageError:
        return None
    return name


def _open(run: FinishedRun, destination: Destination) -> Any:
    import wandb

    try:
        return wandb.init(
            project=destination.project,
            entity=destination.entity,
            group=destination.group,
            name=run.name,
            id=run.id,
            # Offline there is nothing to resume.
            resume=None if destination.is_offline else "allow",
            config=run.parameters,
            # What this machine does and prints now is not the run's.
            settings=wandb.Settings(
                silent=True, console="off", x_disable_stats=True, disable_git=True
            ),
        )
    except Exception as error:
        raise UsageError(
            f"W&B could not open a run ({reason(error)}); correct --project, --entity and W&B's "
            f"settings, or set WANDB_MODE=offline and use `wandb sync` later. What was uploaded so "
            f"far stays."
        ) from error


def _marks(run: FinishedRun) -> dict[str, Any]:
    try:
        found = json_text.parse((run.path.parent / MARKS).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _mark(run: FinishedRun, destination: Destination, opened: Any) -> None:
    """Note that the run is there; without a note the server is asked the next time."""
    marks: dict[str, Mapping[str, Any]] = _marks(run)
    mark = {"id": run.id, "file": str(opened.settings.sync_file)}
    marks[run.path.name] = {**marks.get(run.path.name, {}), str(destination): mark}
    partial = run.path.parent / f"{MARKS}.partial"
    try:
        partial.write_text(json.dumps(marks, indent=2), encoding="utf-8")
        os.replace(partial, run.path.parent / MARKS)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        log.warning(
            f"{partial.parent} takes no note of the upload ({error}); started again, the command "
            f"uploads {run.name} anew where W&B is offline."
        )
