"""Whether W&B sends, writes or drops what it is given."""

from __future__ import annotations

import os


def wandb_mode() -> str | None:
    """The mode, from the environment or from what `wandb offline` and `wandb disabled` left."""
    import wandb

    return os.environ.get("WANDB_MODE") or wandb.setup().settings.mode
