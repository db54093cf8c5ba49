"""What W&B could not do, in words: one sentence each, and never the key."""

from __future__ import annotations

import os
from typing import Any

_SECRET = "WANDB_API_KEY"


def reason(error: BaseException) -> str:
    """The cause of an error as a part of a sentence; W&B's key, should it stand there, does not."""
    told = _told(error)
    key = os.environ.get(_SECRET)
    return told.replace(key, f"${_SECRET}") if key else told


def _told(error: BaseException) -> str:
    if hasattr(error, "errors") and callable(error.errors):
        # pydantic's text begins with a count; what was wrong stands below it.
        problems: list[dict[str, Any]] = error.errors()
        return "; ".join(f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in problems)
    first = str(error).strip().partition("\n")[0]
    return first.rstrip(".") or type(error).__name__


def not_taken(what: str, error: BaseException) -> str:
    """The warning for something that W&B did not take."""
    return f"W&B did not take {what} ({reason(error)}); the local results do not depend on it."
