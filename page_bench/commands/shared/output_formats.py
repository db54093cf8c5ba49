"""What the commands print."""

from __future__ import annotations

import io
import sys


def print_utf8() -> None:
    """Print in UTF-8 whatever the locale says: tables hold letters that others lack."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
