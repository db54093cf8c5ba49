"""Which commands of lm-eval are about page-bench, and what is done around these alone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

MODEL = "page_hf"
TASK_PREFIX = "page_"
"""How the names of our tasks and groups begin."""


def is_ours(args: Any) -> bool:
    """Whether a command line names our model or one of our tasks.

    Args:
        args: as lm-eval parsed it; the file behind `--config` has not been read.
    """
    given = {"model": getattr(args, "model", None), "tasks": getattr(args, "tasks", None)}
    if getattr(args, "config", None):
        from lm_eval.config.evaluate_config import EvaluatorConfig

        try:
            of_file = EvaluatorConfig.load_yaml_config(args.config)
        except (OSError, ValueError, TypeError):  # lm-eval is about to say so
            of_file = {}
        given = {name: value or of_file.get(name) for name, value in given.items()}
    tasks = given["tasks"] or ()
    names = [tasks] if isinstance(tasks, str) else [str(task) for task in tasks]
    return given["model"] == MODEL or any(
        part.strip().startswith(TASK_PREFIX) for name in names for part in name.split(",")
    )


@contextmanager
def wandb_watched() -> Iterator[None]:
    """Show what goes wrong with lm-eval's W&B logger, which is made meanwhile."""
    import lm_eval.loggers as loggers

    from page_bench.harness.wandb.logger import watched

    original = loggers.WandbLogger
    vars(loggers)["WandbLogger"] = watched(original)
    try:
        yield
    finally:
        vars(loggers)["WandbLogger"] = original


@contextmanager
def git_asked_quietly(evaluator: ModuleType) -> Iterator[None]:
    """Keep off the console what git says outside a repository, where lm-eval asks for a commit.

    Args:
        evaluator: `lm_eval.evaluator`.
    """
    original = getattr(evaluator, "get_git_commit_hash", None)
    if original is None:
        yield
        return

    def commit() -> Any:
        from lm_eval.loggers.utils import get_commit_from_path

        command = ["git", "describe", "--always"]  # lm-eval's own
        try:
            asked = subprocess.run(command, capture_output=True, check=False)
        except OSError:  # there is no git, and nothing that it could say
            return original()
        # Where git fails, lm-eval falls back on this.
        return original() if asked.returncode == 0 else get_commit_from_path(os.getcwd())

    vars(evaluator)["get_git_commit_hash"] = commit
    try:
        yield
    finally:
        vars(evaluator)["get_git_commit_hash"] = original
