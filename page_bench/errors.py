"""The one exception for what a user can put right."""

from __future__ import annotations


class UsageError(ValueError):
    """A mistake in what was asked for: one sentence on what was wrong, what is allowed, what to do.

    The command line prints it without a traceback and exits with status 1.
    """
