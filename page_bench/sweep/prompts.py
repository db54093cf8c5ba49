"""A sweep's prompts: rendered once, the same for all arms, and still the same after a restart."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock
from lm_eval.api.instance import Instance

from page_bench.engine.prompt import text_sha256
from page_bench.inputs.errors import UsageError
from page_bench.records.finished_runs import read_traces
from page_bench.sweep.arms import Arm
from page_bench.sweep.output import trace_files

FOLDER = "prompts"
"""Beside the arms' folders."""

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

Place = tuple[str, int]
"""A task and the number of a document."""


@dataclass(frozen=True)
class PromptFile:
    """The prompts of a task, as a sweep rendered them first.

    A chat template may print the time, and arms that are finished hold what it printed then. So a
    sweep that goes on takes the old text of every prompt whose document is still the same.

    Attributes:
        path: gzipped JSON lines, one per request.
    """

    path: Path

    @classmethod
    def of(cls, folder: Path, arm: Arm, basis: Mapping[str, str], task: Any) -> PromptFile:
        """That of a task, its configuration and the arm's model being what they are.

        Args:
            folder: of the sweep.
            arm: any of those that share their prompts.
            basis: see `basis_of`.
            task: lm-eval's.
        """
        # Model arguments stand in the metadata, and those of an arm differ.
        config = {k: v for k, v in task.dump_config().items() if k != "metadata"}
        about = [arm.prefill, basis["model"], basis["numerics"], config]
        name = re.sub(r"[^\w.-]+", "_", str(task.config.task))
        return cls(folder / FOLDER / f"{name}-{_digest(about)[:16]}.jsonl.gz")

    def settle(self, instances: Sequence[Instance]) -> str | None:
        """Give requests the texts of the file, or write one.

        Args:
            instances: rendered just now; their texts are replaced.

        Returns:
            The first document whose text is another than that of the file; None for none.

        Raises:
            UsageError: nothing can be written there.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(self.path.with_suffix(".lock")):
                known = self._read()
                rows = [_about(instance) for instance in instances]
                if known is None or [row for row, _ in known] != rows:
                    self._write(instances, rows)
                    return None
        except OSError as error:
            raise UsageError(
                f"the prompts cannot be written to {self.path} ({error.strerror or error}); make "
                f"room or the folder writable, and start the sweep again."
            ) from error
        first = None
        for instance, (_, text) in zip(instances, known, strict=True):
            if instance.args[0] != text:
                first = first or f"{instance.task_name} document {instance.doc_id}"
                instance.arguments = (text, *instance.args[1:])
        return first

    def _read(self) -> list[tuple[list[Any], str]] | None:
        """What each request is about, and its text; None for no file, or a damaged one."""
        try:
            with gzip.open(self.path, "rt", encoding="utf-8", errors="surrogatepass") as file:
                return [(row, text) for row, text in map(json.loads, file)]
        except (OSError, EOFError, ValueError, TypeError):
            return None

    def _write(self, instances: Sequence[Instance], rows: Sequence[list[Any]]) -> None:
        partial = self.path.with_suffix(".partial")
        with gzip.open(partial, "wt", encoding="utf-8", errors="surrogatepass") as file:
            for instance, row in zip(instances, rows, strict=True):
                file.write(json.dumps([row, instance.args[0]]) + "\n")
        os.replace(partial, self.path)


class PromptHashes:
    """The prompts of a group of arms, document by document.

    Args:
        requests: of one arm, of all types.
        doc_ids: see `PageConfig`.
    """

    def __init__(self, requests: Sequence[Instance], doc_ids: Mapping[str, Sequence[int]]) -> None:
        self._hashes: dict[Place, set[str]] = {}
        self._doc_ids = doc_ids
        for request in requests:
            place = self._place(request)
            self._hashes.setdefault(place, set()).add(text_sha256(request.args[0]))

    def check(self, arm: Arm, requests: Sequence[Instance]) -> None:
        """Refuse an arm that is about to answer other prompts.

        Raises:
            UsageError: names the first document.
        """
        for request in requests:
            place = self._place(request)
            if text_sha256(request.args[0]) not in self._hashes.get(place, ()):
                raise UsageError(
                    f"{arm.name} asks another prompt of {_named(place)} than the one that was "
                    f"answered for all arms; a task that words its prompts by the arm's options "
                    f"has to be run arm by arm, by lm_eval."
                )

    def check_finished(self, arms: Sequence[Arm]) -> None:
        """Refuse to go on beside finished arms of other prompts.

        Raises:
            UsageError: names the first such document.
        """
        unlike: dict[str, Place] = {}
        for arm in arms:
            asked: dict[Place, set[str]] = {}
            for path in trace_files(arm):
                for record in read_traces(path, without=("margin", "pair_agreement")):
                    trace = record.trace
                    place = trace.task, trace.doc_id
                    asked.setdefault(place, set()).add(trace.prompt_sha256)
            places = sorted(asked.keys() | self._hashes.keys())
            first = next((p for p in places if asked.get(p) != self._hashes.get(p)), None)
            if asked and first is not None:
                unlike[str(arm.folder)] = first
        if unlike:
            folder, place = next(iter(unlike.items()))
            more = f" and {len(unlike) - 1} more" if len(unlike) > 1 else ""
            raise UsageError(
                f"{folder}{more}: finished, but with another prompt of {_named(place)} than the "
                f"arms that are left would have, as where a task's data or a chat template has "
                f"changed or prints the time; delete the folders of the finished arms to run all "
                f"on the same prompts, or give another --output_path."
            )

    def _place(self, request: Instance) -> Place:
        task, number = str(request.task_name), int(request.doc_id or 0)
        chosen = self._doc_ids.get(task)
        return task, number if chosen is None else chosen[number]


def _named(place: Place) -> str:
    return f"{place[0]} document {place[1]}"


def _about(instance: Instance) -> list[Any]:
    """What a request is, but for its text."""
    rest = _digest([instance.request_type, instance.doc, instance.args[1:]])
    return [instance.doc_id, instance.idx, instance.repeats, rest]


def _digest(value: Any) -> str:
    # An object's address is another in every process.
    text = json.dumps(value, sort_keys=True, default=lambda v: _ADDRESS.sub("", str(v)))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
