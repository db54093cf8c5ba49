"""Whether W&B sends, writes or drops what it is given, and under whose run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_OF_AN_AGENT = ("WANDB_SWEEP_ID", "WANDB_SWEEP_PARAM_PATH", "WANDB_RUN_ID")
"""By these W&B's agent tells the command that it starts which run is the command's own."""


def wandb_mode() -> str | None:
    """The mode, from the environment or from what `wandb offline` and `wandb disabled` left."""
    import wandb

    return os.environ.get("WANDB_MODE") or wandb.setup().settings.mode


def is_in_a_sweep() -> bool:
    """Whether W&B's agent has started this process, or one around it."""
    return bool(os.environ.get("WANDB_SWEEP_ID"))


@contextmanager
def apart_from_sweeps() -> Iterator[None]:
    """Let runs that are opened meanwhile have ids of their own, also in an agent's environment.

    There W&B would drop their ids and projects, and give the agent's one id to all of them.
    """
    import wandb

    kept = {name: os.environ.pop(name) for name in _OF_AN_AGENT if name in os.environ}
    if kept:
        wandb.teardown()  # it reads the environment once
    try:
        yield
    finally:
        os.environ.update(kept)
        if kept:
            wandb.teardown()
