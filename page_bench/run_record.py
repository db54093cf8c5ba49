"""What one run of lm-eval leaves behind: summaries by request type, and one file of traces."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from page_bench.summary import RunSummary
from page_bench.trace import Answer, Trace, writable_folder, write_traces

log = logging.getLogger(__name__)


class RunRecord:
    """Filled while lm-eval runs its requests, one type of them after another.

    Args:
        trace: folder for the file of traces; None writes none.

    Raises:
        UsageError: nothing can be written there.
    """

    def __init__(self, trace: str | None) -> None:
        self._folder = None if trace is None else writable_folder(trace)
        self._summaries: dict[str, RunSummary] = {}
        self._answers: list[Answer] = []
        self._gathered: list[Trace] | None = None
        self._file: Path | None = None
        self._unwritten: str | None = None
        self._is_closed = False

    def is_over_for(self, request_type: str) -> bool:
        """Whether requests of this type belong to another run."""
        return self._is_closed or request_type in self._summaries

    def add(self, request_type: str, summary: RunSummary, answers: Sequence[Answer]) -> None:
        """Take in what came of all requests of one type.

        Args:
            request_type: as lm-eval names it.
            summary: of all answers.
            answers: they are scored later, and then carry other traces.
        """
        self._summaries[request_type] = summary
        self._answers += answers
        if self._folder is None:
            return
        if self._file is None:
            stamp = datetime.now().isoformat().replace(":", "-")
            self._file = self._folder / f"trace_{stamp}.jsonl"
        self._write()
        if self._unwritten is None:
            log.info("trace: %s", self._file)

    def gather(self, collect: Callable[[list[Trace]], list[list[Trace]] | None]) -> None:
        """Take in the traces of all processes, once these are scored.

        Args:
            collect: called by every process with its traces; gives all of them, by rank, to the
                one that writes, and None to the others.
        """
        if self._gathered is not None:
            return
        shares = collect(self._traces)
        traces = [trace for share in shares or () for trace in share]
        tasks = {task: i for i, task in enumerate(dict.fromkeys(t.task for t in traces))}
        # In the order of one process alone.
        self._gathered = sorted(traces, key=lambda t: (tasks[t.task], t.doc_id, t.repeat))

    @property
    def _traces(self) -> list[Trace]:
        if self._gathered is not None:
            return self._gathered
        return [answer.trace for answer in self._answers if answer.trace is not None]

    def close(self) -> dict[str, Any]:
        """Write the traces anew, now that they are scored.

        Returns:
            Entries for the results' configuration.
        """
        self._is_closed = True
        if self._file is not None:
            self._write()
        entries = self._to_config()
        if self._unwritten:
            entries["warnings"].append(self._unwritten)
        entries["trace_file"] = str(self._file) if self._file and not self._unwritten else None
        return entries

    def _to_config(self) -> dict[str, Any]:
        if len(self._summaries) < 2:
            return next(iter(self._summaries.values()), RunSummary()).to_config()
        parts = self._summaries.values()
        # Each type of request measured a τ of its own.
        together = RunSummary(
            samples=sum(part.samples for part in parts),
            gates_open=sum(part.gates_open for part in parts),
            evicted=sum(part.evicted for part in parts),
            warnings=tuple(
                f"{k}: {w}" for k, part in self._summaries.items() for w in part.warnings
            ),
        )
        by_type = {name: part.to_config() for name, part in self._summaries.items()}
        return {**together.to_config(), "by_request_type": by_type}

    def _write(self) -> None:
        """Write the traces as far as they are known; a full disk must not cost the answers."""
        assert self._file is not None
        try:
            write_traces(self._file, self._traces)
        except OSError as error:
            self._unwritten = f"the trace could not be written to {self._file}: {error}"
            log.error(self._unwritten)
        else:
            self._unwritten = None
