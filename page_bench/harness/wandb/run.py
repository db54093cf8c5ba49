"""The W&B run that lm-eval, or whoever called it, has opened: what `page_hf` adds to it."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from page_bench.harness.wandb.failures import not_taken
from page_bench.harness.wandb.metrics import PREFIX, drops_of, summary_of
from page_bench.harness.wandb.samples import COLUMNS, rows_of
from page_bench.records.trace import Trace

log = logging.getLogger(__name__)

CONFIG = "page"
"""Where the arm's settings stand in the run's config."""
STEP = "step"
"""The setting that holds the one step at which all is logged, where lm-eval was given one."""
ANSWERED = f"{PREFIX}answered"
RUNNING = f"{PREFIX}running/"
SAMPLES = f"{PREFIX}samples"
DROPS = f"{PREFIX}drop/"

_NAME_LENGTH = 128


def attached(rank: int) -> TrackedRun | None:
    """What logs to the W&B run that is open; None without one. No run is ever opened here.

    Args:
        rank: of this process. Others than the first log only where W&B is disabled, which is
            nowhere.
    """
    # Never imported here: a run can only be open where someone has.
    run = getattr(sys.modules.get("wandb"), "run", None)
    return None if run is None or (rank and not run.disabled) else TrackedRun(run)


class TrackedRun:
    """Logs a run of lm-eval; nothing that W&B does to it ever ends the run.

    Args:
        run: W&B's run, open.

    Attributes:
        warnings: sentences on what W&B did not take.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self._silent = bool(run.disabled)
        self._step: int | None = None
        self._answered = self._opened = 0
        self._kept = 0.0
        self._failed: dict[str, tuple[list[str], Exception]] = {}
        self._is_started = False

    @property
    def warnings(self) -> list[str]:
        return [not_taken(", ".join(parts), error) for parts, error in self._failed.values()]

    def start(self, settings: Mapping[str, Any]) -> None:
        """Log the arm's settings, before the first prompt is answered; later calls do nothing."""
        if not self._is_started and not self._silent:
            self._attempt("the settings", lambda: self._open(settings))
        self._is_started = True

    def answered(self, gate_open: bool, kept_kv: float) -> None:
        """Log the open rate and the mean kept share of the cache over the prompts so far.

        While prompts of the run are its pilot, τ is not final, and so these are not either.

        Args:
            gate_open: of one more prompt.
            kept_kv: of its answer's cache.
        """
        self._answered += 1
        self._opened += gate_open
        self._kept += kept_kv
        if not self._silent and not self._failed:
            n = self._answered
            self._attempt("running rates", lambda: self._rates(n, self._opened / n, self._kept / n))

    def finish(
        self,
        settings: Mapping[str, Any],
        traces: Sequence[Trace],
        full: Sequence[float | None],
        calibration: str | None,
    ) -> None:
        """Log what came of the run.

        Args:
            settings: of the arm, with τ and what else was found.
            traces: of all samples, scored.
            full: see `metrics.summary_of`.
            calibration: file that is kept with the run; None for none.
        """
        if self._silent or not traces:
            return
        n = len(traces)
        opened = sum(trace.gate_open for trace in traces) / n
        kept = sum(trace.kept_kv for trace in traces) / n
        self._attempt("the settings", lambda: self._configure(settings))
        self._attempt("running rates", lambda: self._rates(n, opened, kept))
        self._attempt("the summary", lambda: self._summarise(summary_of(traces, full)))
        self._attempt("the histograms of D", lambda: self._draw(traces))
        self._attempt("the table of samples", lambda: self._tabulate(traces))
        self._attempt("the trace", lambda: self._keep_trace(traces))
        if calibration is not None:
            self._attempt("the calibration", lambda: self._keep_file(Path(calibration)))

    def _attempt(self, what: str, log_it: Callable[[], object]) -> None:
        """Do it; if W&B fails, whatever its error is, say so and go on."""
        try:
            log_it()
        except Exception as error:
            parts, _ = self._failed.setdefault(str(error), ([], error))
            if not parts:
                # The rest that fails for this reason is named in the warnings.
                log.warning(not_taken(what, error))
            if what not in parts:
                parts.append(what)

    def _open(self, settings: Mapping[str, Any]) -> None:
        self._step = dict(self._run.config).get(CONFIG, {}).get(STEP)
        self._configure(settings)
        # Of an evaluation before this one in the same run: no number of it may stand beside ours.
        for key in [k for k in dict(self._run.summary) if k.startswith(PREFIX)]:
            del self._run.summary[key]
        self._run.define_metric(ANSWERED)
        self._run.define_metric(f"{RUNNING}*", step_metric=ANSWERED)

    def _configure(self, settings: Mapping[str, Any]) -> None:
        values = {k: v for k, v in settings.items() if k != STEP}
        if self._step is not None:
            values[STEP] = self._step
        self._run.config.update({CONFIG: values}, allow_val_change=True)

    def _rates(self, n: int, open_rate: float, kept_kv: float) -> None:
        rates = {f"{RUNNING}open_rate": open_rate, f"{RUNNING}kept_kv": kept_kv}
        self._log({ANSWERED: n, **rates})

    def _summarise(self, numbers: Mapping[str, float]) -> None:
        self._log(numbers)
        # A sweep reads the summary, whatever is logged after this.
        self._run.summary.update(dict(numbers))

    def _draw(self, traces: Sequence[Trace]) -> None:
        import wandb

        drops = drops_of(traces)
        self._log({DROPS + task: wandb.Histogram(values) for task, values in drops.items()})

    def _tabulate(self, traces: Sequence[Trace]) -> None:
        import wandb

        rows, most = rows_of(traces), wandb.Table.MAX_ARTIFACT_ROWS
        # None stands beside numbers, where a gate reads no τ or a task gives no score.
        table = wandb.Table(columns=[*COLUMNS], data=rows[:most], allow_mixed_types=True)
        self._log({SAMPLES: table})
        if len(rows) > most:
            raise ValueError(f"a table holds {most} rows at most; the trace there has all")

    def _keep_trace(self, traces: Sequence[Trace]) -> None:
        import wandb

        # Not the file, which may be on the disk that is full.
        artifact = wandb.Artifact(_name("trace", self._run.id), type="trace")
        with artifact.new_file("trace.jsonl", mode="w", encoding="utf-8") as file:
            file.writelines(trace.to_json() + "\n" for trace in traces)
        self._run.log_artifact(artifact)

    def _keep_file(self, calibration: Path) -> None:
        import wandb

        path = calibration.expanduser()
        artifact = wandb.Artifact(_name("calibration", path.stem), type="calibration")
        artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    def _log(self, row: Mapping[str, Any]) -> None:
        self._run.log(dict(row), step=self._step)


def _name(kind: str, which: str) -> str:
    """An artifact's name, of the characters that W&B allows."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", f"{kind}-{which}")[:_NAME_LENGTH]
