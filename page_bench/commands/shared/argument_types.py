"""Types of command-line arguments that several subcommands take."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def whole_number(least: int) -> Callable[[str], int]:
    """An argparse type for whole numbers from `least` on."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text}: give a whole number from {least} on")
        return int(text)

    return number


def share(text: str) -> float:
    """An argparse type for numbers in [0, 1]."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text}: give a number in [0, 1]")
    return value
