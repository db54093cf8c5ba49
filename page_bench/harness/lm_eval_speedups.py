"""What lm-eval does anew for every run though it cannot have changed: done once for many runs.

With `harness`, the only place that replaces anything in another package, and only for a while.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lm_eval
import lm_eval.api.task
import lm_eval.evaluator
import torch.utils.collect_env
from tqdm import tqdm


@contextmanager
def once_for_all_runs() -> Iterator[None]:
    """What is the same for every arm is done once, and shown once."""
    environment = functools.cache(torch.utils.collect_env.get_pretty_env_info)
    commit = functools.cache(lm_eval.evaluator.get_git_commit_hash)
    hidden = functools.partial(tqdm, disable=True)
    with (
        _replaced(torch.utils.collect_env, "get_pretty_env_info", environment),
        _replaced(lm_eval.evaluator, "get_git_commit_hash", commit),
        _replaced(lm_eval.api.task, "tqdm", hidden),
    ):
        yield


@contextmanager
def _replaced(module: Any, name: str, value: object) -> Iterator[None]:
    original = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, original)
