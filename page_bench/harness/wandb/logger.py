"""lm-eval's W&B logger with its failures shown: those at the start end the run, later ones do not.

lm-eval opens the W&B run before it builds the model, and tells of what goes wrong afterwards in an
INFO record alone, or, at the very end, by a traceback after all results are written.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from page_bench.harness.wandb.failures import not_taken, reason
from page_bench.harness.wandb.run import CONFIG, STEP
from page_bench.harness.wandb.run_file import becomes_whole
from page_bench.inputs.errors import UsageError

if TYPE_CHECKING:
    from lm_eval.loggers.wandb_logger import WandbLogger
else:
    # lm-eval's module may be what is just being imported.
    WandbLogger = object

log = logging.getLogger(__name__)


def watched(logger: type[WandbLogger]) -> type[ShownFailures]:
    """lm-eval's class `WandbLogger` with its failures shown; the same class if they are already."""
    if issubclass(logger, ShownFailures):
        return logger
    made: type[ShownFailures] = type("PageWandbLogger", (ShownFailures, logger), {})
    return made


class ShownFailures(WandbLogger):
    """What stands before lm-eval's `WandbLogger`, see `watched`.

    Args:
        init_args: arguments of `wandb.init`, and `step`.
        config_args: what is put into the run's config.

    Attributes:
        warnings: sentences on what W&B did not take.

    Raises:
        UsageError: W&B has opened no run.
    """

    run: Any
    step: int | None

    def __init__(
        self, init_args: dict[str, Any] | None = None, config_args: dict[str, Any] | None = None
    ) -> None:
        self.warnings: list[str] = []
        self._live: dict[str, Any] = {}
        arguments = dict(init_args or {})
        if int(os.environ.get("RANK") or 0) > 0:
            # Under accelerate each process comes here, and only the first has results.
            arguments["mode"] = "disabled"
        try:
            step = arguments.get("step")
            if step is not None and (type(step) is not int or step < 0):
                raise ValueError(f"step: {step!r} is no whole number from 0 on")
            super().__init__(arguments, config_args)
            if self.step is not None:
                self.run.config.update({CONFIG: {STEP: self.step}}, allow_val_change=True)
        except Exception as error:
            raise UsageError(
                f"W&B could not open a run ({reason(error)}), so nothing was computed; correct "
                f"--wandb_args and W&B's settings, set WANDB_MODE=offline to do without its "
                f"server, or leave out --wandb_args."
            ) from error
        with suppress(AttributeError):
            # W&B tells its core of each library that is imported from now on; where that was
            # killed, the import would fail.
            self.run._unregister_telemetry_import_hooks(self.run.id)
        self.run = _Finishing(self.run, self._warn)

    def post_init(self, results: dict[str, Any]) -> None:
        """Take the results; what W&B does not take of them is added to their warnings."""
        self._live = results
        super().post_init(results)

    def log_eval_result(self) -> None:
        """Log metrics, tables and the results file, as lm-eval does."""
        self._attempt("lm-eval's results", super().log_eval_result)

    def log_eval_samples(self, samples: dict[str, list[dict[str, Any]]]) -> None:
        """Log a table and a file of samples for each task or group, as lm-eval does."""
        log_them = functools.partial(super().log_eval_samples, samples)
        self._attempt("lm-eval's tables of samples", log_them)

    def _attempt(self, what: str, log_it: Callable[[], object]) -> None:
        try:
            log_it()
        except Exception as error:
            self._warn(not_taken(what, error))

    def _warn(self, warning: str) -> None:
        log.warning(warning)
        self.warnings.append(warning)
        page = self._live.get("config", {}).get("page")
        if isinstance(page, dict):
            page.setdefault("warnings", []).append(warning)


class _Finishing:
    """W&B's run, whose end may fail but ends nothing else."""

    def __init__(self, run: Any, warn: Callable[[str], None]) -> None:
        self._run, self._warn = run, warn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    def finish(self, *args: Any, **kwargs: Any) -> None:
        try:
            self._run.finish(*args, **kwargs)
        except Exception as error:
            self._warn(not_taken("the end of the run", error))
            return
        file = Path(self._run.settings.sync_file)
        if not self._run.disabled and not becomes_whole(file):
            self._warn(
                f"W&B's record of the run, {file}, is not whole, as on a full disk, and so may be "
                f"what its server has; page-bench wandb-import uploads the local results anew."
            )
