"""Finished runs on this machine, with all that lm-eval and page-bench have left of them."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from page_bench.inputs import json_text
from page_bench.inputs.errors import UsageError
from page_bench.inputs.user_path import is_file, user_path
from page_bench.records.finished_runs import read_traces
from page_bench.records.trace import Trace
from page_bench.sweep.output import LOCK, MARKER

RESULTS_PATTERN = "results_*.json"

_STAMP = re.compile(r"\d{4}-\d\d-\d\dT[0-9.-]+$")
_GENERATED = "generate_until"
_ID_LENGTH = 16


@dataclass(frozen=True)
class Content:
    """What stands beside a run's results.

    Attributes:
        traces: of all samples.
        samples: by task, as lm-eval had them when it wrote them; None where they are not there.
    """

    traces: list[Trace]
    samples: dict[str, list[dict[str, Any]]] | None


@dataclass(frozen=True)
class FinishedRun:
    """One run of lm-eval with `page_hf`.

    Attributes:
        path: of the results.
        results: as lm-eval wrote them.
        trace_file: the traces.
        parameters: what a sweep set; empty for a run of its own.
        name: of a sweep's arm, or of the results file.
        id: depends on the results alone.
    """

    path: Path
    results: dict[str, Any]
    trace_file: Path
    parameters: dict[str, Any]
    name: str
    id: str

    @property
    def page(self) -> dict[str, Any]:
        """Settings of the arm, and what was found."""
        settings: dict[str, Any] = self.results["config"]["page"]
        return settings

    def read(self) -> Content:
        """What its other files hold.

        Raises:
            UsageError: a file is not whole.
            OSError: a file cannot be read.
        """
        traces = [record.trace for record in read_traces(self.trace_file)]
        said = self.page.get("samples")
        if said is not None and said != len(traces):
            raise UsageError(
                f"{self.trace_file} has {len(traces)} of the run's {said} samples; run again."
            )
        try:
            return Content(traces, self._samples())
        except (AttributeError, KeyError, TypeError) as error:
            raise UsageError(
                f"the samples beside {self.path} are not as lm-eval writes them "
                f"({type(error).__name__}: {error}); delete them, or run again."
            ) from error

    def _samples(self) -> dict[str, list[dict[str, Any]]] | None:
        stamp = _STAMP.search(self.path.stem)
        if stamp is None:
            return None
        found = {}
        for task, config in self.results["configs"].items():
            path = self.path.parent / f"samples_{task}_{stamp[0]}.jsonl"
            if not is_file(path):
                return None
            try:
                rows = [row for _, row in json_text.lines(path, nan=True, halves=None)]
            except ValueError as error:
                raise UsageError(
                    f"{path} is not whole ({error}); delete it, or run again."
                ) from error
            found[task] = [_sample(row, config.get("output_type", _GENERATED)) for row in rows]
        return found


def finished_runs(places: Sequence[str]) -> tuple[list[FinishedRun], list[str]]:
    """The runs of files and of folders with all below them.

    Args:
        places: results files of lm-eval, and folders that hold such.

    Returns:
        Runs in the order of their paths, and sentences on what was left out.

    Raises:
        UsageError: a place does not exist, or no run is there.
    """
    runs, notes = [], []
    for path in _results_files(places):
        found = _read(path)
        if isinstance(found, str):
            notes.append(f"{path} is left out: {found}.")
        else:
            runs.append(found)
    if not runs:
        raise UsageError(
            f"{', '.join(places)}: no finished run of page_hf is there; give folders that "
            f"page-bench sweep or lm_eval with --output_path has written"
            f"{' (' + ' '.join(notes) + ')' if notes else ''}."
        )
    return runs, notes


def _results_files(places: Sequence[str]) -> list[Path]:
    found: dict[Path, Path] = {}
    for place in places:
        path = user_path(place)
        if not path.exists():
            raise UsageError(
                f"{path} does not exist; give folders or results files of finished runs."
            )
        for file in sorted(path.rglob(RESULTS_PATTERN)) if path.is_dir() else [path]:
            found.setdefault(file.resolve(), file)
    return list(found.values())


def _read(path: Path) -> FinishedRun | str:
    """A run, or why it is none."""
    try:
        text = path.read_bytes()
        results = json_text.parse(text, nan=True)
        page = results["config"].get("page")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "it is no whole results file of lm-eval"
    if not isinstance(page, dict):
        return "its model is not page_hf"
    folder, parameters = _arm(path)
    if folder is not None and parameters is None:
        return "its sweep has not finished it"
    traced = page.get("trace_file")
    if not isinstance(traced, str):
        return "it has no trace"
    # The folder may have been moved since.
    beside = path.parent / Path(traced).name
    trace_file = beside if is_file(beside) else Path(traced)
    if not is_file(trace_file):
        return f"its trace {trace_file.name} is gone"
    name = path.stem if folder is None else folder.name
    digest = hashlib.sha256(text).hexdigest()[:_ID_LENGTH]
    return FinishedRun(path, results, trace_file, parameters or {}, name, digest)


def _arm(path: Path) -> tuple[Path | None, dict[str, Any] | None]:
    """The folder of the sweep's arm, and what the sweep set; None where there is none yet."""
    for folder in list(path.absolute().parents)[:2]:
        if (folder / LOCK).exists() or (folder / MARKER).exists():
            try:
                marker = json_text.parse((folder / MARKER).read_bytes(), nan=True)
                return folder, dict(marker["parameters"])
            except (OSError, ValueError, KeyError, TypeError):
                return folder, None
    return None, None


def _sample(row: dict[str, Any], output_type: str) -> dict[str, Any]:
    """A sample with its arguments in a list again, and numbers that were written as text."""
    arguments = [list(given.values()) for given in row["arguments"].values()]
    made = {**row, "arguments": arguments}
    if output_type != _GENERATED:
        for name in ("resps", "filtered_resps"):
            made[name] = _values(row[name])
    if output_type == "multiple_choice":
        made["target"] = _values(row["target"])
    return made


def _values(value: Any) -> Any:
    """What was written as text: log-likelihoods, flags, numbers of choices."""
    if isinstance(value, list):
        return [_values(item) for item in value]
    for read in (ast.literal_eval, float):
        try:
            return read(value)
        except (TypeError, ValueError, SyntaxError):
            continue
    return value
