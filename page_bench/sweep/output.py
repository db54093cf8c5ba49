"""What lm-eval writes of one arm, and whether it stands there whole."""

from __future__ import annotations

import glob
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock
from lm_eval.loggers import EvaluationTracker, evaluation_tracker

from page_bench.inputs import json_text
from page_bench.inputs.errors import UsageError
from page_bench.records.finished_runs import TRACE_PATTERN
from page_bench.sweep.arms import Arm
from page_bench.sweep.basis import basis_of, changes

MARKER = "finished.json"
"""File in an arm's folder that says that all others are whole."""

LOCK = ".lock"
"""File in an arm's folder that says that a sweep writes there."""

_PATTERNS = ("results_*.json", "samples_*.jsonl", TRACE_PATTERN, "*.partial")


def is_finished(arm: Arm) -> bool:
    """Whether the arm's files are there whole, and would be the same if it were run again."""
    marker = _whole(arm)
    return marker is not None and not changes(marker.get("basis"), basis_of(arm))


def outdated(arm: Arm) -> list[str]:
    """What the arm's results rest on and has changed since they were written; none without them."""
    marker = _whole(arm)
    return [] if marker is None else changes(marker.get("basis"), basis_of(arm))


def _whole(arm: Arm) -> dict[str, Any] | None:
    """The arm's marker, if all files are there, each as long as when it was finished."""
    try:
        marker: dict[str, Any] = json_text.parse((arm.folder / MARKER).read_bytes(), nan=True)
        whole = marker["arm"] == arm.digest and all(
            (arm.folder / name).stat().st_size == size for name, size in marker["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return marker if whole else None


def trace_files(arm: Arm) -> list[Path]:
    """The traces of an arm that is finished."""
    marker = _whole(arm)
    names = [] if marker is None else map(Path, marker["files"])
    return [arm.folder / name for name in names if name.match(TRACE_PATTERN)]


@contextmanager
def unfinished(arm: Arm) -> Iterator[bool]:
    """The arm's folder for this process alone, without what a killed run has left in it.

    Yields:
        Whether the arm is still to be run; another process may have finished it meanwhile.

    Raises:
        UsageError: nothing can be written there.
    """
    try:
        arm.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(arm.folder / LOCK)
        lock.acquire()
    except OSError as error:
        raise _unwritable(arm, error) from error
    try:
        wanted = not is_finished(arm)
        if wanted:
            (arm.folder / MARKER).unlink(missing_ok=True)
            for path in _files(arm):
                path.unlink()
        yield wanted
    finally:
        lock.release()


def write_results(
    arm: Arm, basis: dict[str, str], tracker: EvaluationTracker, results: dict[str, Any]
) -> None:
    """Write results and samples as `lm_eval run` does, then mark the arm as finished.

    Args:
        arm: the arm; its folder holds nothing but this run's trace.
        basis: see `basis_of`, from before the arm's model was loaded.
        tracker: the run's tracker.
        results: what `simple_evaluate` returned; the samples are taken out of it.

    Raises:
        UsageError: a file did not come out whole, as on a full disk.
    """
    samples = results.pop("samples") if arm.config.log_samples else None
    with _mishaps() as told:
        tracker.save_results_aggregated(results=results, samples=samples)
        if samples is not None:
            for task in results["configs"]:
                tracker.save_results_samples(task_name=task, samples=samples[task])
        if tracker.push_results_to_hub or tracker.push_samples_to_hub:
            tracker.recreate_metadata_card()
    try:
        if told:
            raise OSError(told[1] if len(told) > 1 else told[0])
        _check(arm, samples)
        trace = _trace(results["config"]["page"])
        files = {*_files(arm), *([] if trace is None else [Path(trace)])}
        marker = {
            "arm": arm.digest,
            "basis": basis,
            "parameters": dict(arm.parameters),
            "files": {os.path.relpath(path, arm.folder): path.stat().st_size for path in files},
        }
        text = json.dumps(marker, indent=2, default=str)
        partial = arm.folder / f"{MARKER}.partial"
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, arm.folder / MARKER)
    except (OSError, ValueError) as error:
        raise _unwritable(arm, error) from error


@contextmanager
def _mishaps() -> Iterator[list[str]]:
    """What lm-eval's tracker says went wrong: it goes on when it cannot write a file.

    Yields:
        Its messages, which fill as they come: a warning, and then the reason.
    """
    told: list[str] = []

    def read(record: logging.LogRecord) -> bool:
        if told or record.levelno >= logging.WARNING:
            told.append(record.getMessage())
        return False

    logger = logging.getLogger(evaluation_tracker.__name__)
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addFilter(read)
    try:
        yield told
    finally:
        logger.removeFilter(read)
        logger.setLevel(level)


def _check(arm: Arm, samples: dict[str, list[Any]] | None) -> None:
    """Raise ValueError or OSError unless every file is there and whole."""
    results = list(arm.folder.rglob("results_*.json"))
    if len(results) != 1:
        raise ValueError("the results file is missing")
    json.loads(results[0].read_text(encoding="utf-8"))
    for task, rows in (samples or {}).items():
        paths = list(results[0].parent.glob(f"samples_{glob.escape(task)}_????-??-??T*.jsonl"))
        if len(paths) != 1:
            raise ValueError(f"the samples of {task} are missing")
        with paths[0].open("rb") as file:
            if sum(line.endswith(b"\n") for line in file) != len(rows):
                raise ValueError(f"{paths[0].name} is not whole")


def _trace(page: dict[str, Any]) -> str | None:
    """The file of traces; raises OSError if there was to be one, which a run alone only tells."""
    if page["trace"] is not None and page["trace_file"] is None:
        raise OSError(page["warnings"][-1])
    file: str | None = page["trace_file"]
    return file


def _files(arm: Arm) -> list[Path]:
    """The files that a run of lm-eval leaves in an arm's folder."""
    return sorted({path for pattern in _PATTERNS for path in arm.folder.rglob(pattern)})


def _unwritable(arm: Arm, error: Exception) -> UsageError:
    reason = getattr(error, "strerror", None) or error
    return UsageError(
        f"the results of {arm.name} could not be written to {arm.folder} ({reason}); make room or "
        f"the folder writable, and start the sweep again: it goes on from there."
    )
