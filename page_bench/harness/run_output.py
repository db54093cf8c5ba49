"""What one run of lm-eval leaves behind: summaries by request type, and one file of traces."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from page_bench.engine.engine import Outcome
from page_bench.engine.memory import Memory
from page_bench.engine.prompt import Prompt
from page_bench.engine.summary import (
    RunSummary,
    cut_warnings,
    full_cache_warnings,
    unscored_warnings,
)
from page_bench.harness.sample_scores import with_correct
from page_bench.harness.wandb.full_cache import Place, full_correct, run_verdicts, stored_verdicts
from page_bench.harness.wandb.run import TrackedRun, attached
from page_bench.inputs.errors import UsageError
from page_bench.records.trace import Answer, Trace, writable_folder, write_traces

log = logging.getLogger(__name__)

Share = tuple[list[Trace], dict[Place, float]]
"""One process's traces, and the full cache's verdicts that it knows."""


class RunRecord:
    """Filled while lm-eval runs its requests, one type of them after another.

    Args:
        trace: folder for the file of traces; None writes none.
        rank: of this process.

    Raises:
        UsageError: nothing can be written there.
    """

    def __init__(self, trace: str | None, rank: int = 0) -> None:
        self._folder = None if trace is None else writable_folder(trace)
        self._rank = rank
        self._tracked: TrackedRun | None = None
        self._stored: dict[Place, float] = {}
        self._summaries: dict[str, RunSummary] = {}
        self._answers: list[Answer] = []
        self._gathered: list[Trace] | None = None
        self._file: Path | None = None
        self._unwritten: str | None = None
        self._is_closed = False

    def is_over_for(self, request_type: str) -> bool:
        """Whether requests of this type belong to another run."""
        gathered = self._gathered is not None  # as other processes know, which close nothing
        return self._is_closed or gathered or request_type in self._summaries

    def started(
        self, settings: Mapping[str, Any], answered: Callable[[Outcome], object]
    ) -> Callable[[Outcome], object]:
        """What is to be called with the outcome of each prompt that is done.

        The W&B run is the one that is open by now.

        Args:
            settings: of the arm.
            answered: is called so in any case.
        """
        if self._tracked is None:
            self._tracked = attached(self._rank)
        tracked = self._tracked
        if tracked is None:
            return answered
        tracked.start(settings)

        def both(outcome: Outcome) -> None:
            answered(outcome)
            tracked.answered(outcome.gate_open, outcome.answer.kept_kv)

        return both

    def compare(self, memory: Memory | None, prompts: Sequence[Prompt]) -> None:
        """Look up what the full cache answers, for whoever tracks the run."""
        if self._tracked is None or memory is None:
            return
        try:
            self._stored |= stored_verdicts(memory, prompts)
        except UsageError as error:
            log.warning(f"harm is left out of W&B: {error}")

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

    def gather(self, collect: Callable[[Share], list[Share] | None]) -> None:
        """Take in the traces of all processes, once these are scored.

        Args:
            collect: called by every process with what it has; gives all of that, by rank, to the
                one that writes, and None to the others.
        """
        if self._gathered is not None:
            return
        shares = collect((self._traces, self._stored)) or []
        traces = [trace for share, _ in shares for trace in share]
        self._stored = {place: value for _, own in shares for place, value in own.items()}
        tasks = {task: i for i, task in enumerate(dict.fromkeys(t.task for t in traces))}
        # In the order of one process alone.
        self._gathered = sorted(traces, key=lambda t: (tasks[t.task], t.doc_id, t.repeat))

    @property
    def _traces(self) -> list[Trace]:
        if self._gathered is not None:
            return self._gathered
        return [answer.trace for answer in self._answers if answer.trace is not None]

    def close(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Write the traces anew, now that they are scored, and log all to W&B.

        Args:
            settings: of the arm.

        Returns:
            The settings, with what else the results' configuration says of the run.
        """
        self._is_closed = True
        self._gathered = with_correct(self._traces)
        if self._file is not None:
            self._write()
        entries = self._to_config()
        traces = self._traces
        late = cut_warnings(traces) + full_cache_warnings(traces) + unscored_warnings(traces)
        for warning in late:
            log.warning(warning)
            entries["warnings"].append(warning)
        if self._unwritten:
            entries["warnings"].append(self._unwritten)
        entries["trace_file"] = str(self._file) if self._file and not self._unwritten else None
        page = {**settings, **entries}
        if self._tracked is not None:
            runs = {} if self._folder is None else run_verdicts(self._folder, self._file)
            full = full_correct(self._traces, self._stored, runs)
            self._tracked.finish(page, self._traces, full, page.get("calibration"))
            page["warnings"] += self._tracked.warnings
        return page

    def _to_config(self) -> dict[str, Any]:
        if len(self._summaries) < 2:
            return next(iter(self._summaries.values()), RunSummary()).to_config()
        parts = self._summaries.values()
        # Each type of request measured a τ of its own.
        together = RunSummary(
            samples=sum(part.samples for part in parts),
            gates_open=sum(part.gates_open for part in parts),
            evicted=sum(part.evicted for part in parts),
            drop_layers=min(
                (p.drop_layers for p in parts if p.drop_layers is not None), default=None
            ),
            rotations_changed=sum(part.rotations_changed for part in parts),
            generated=sum(part.generated for part in parts),
            cut=sum(part.cut for part in parts),
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
