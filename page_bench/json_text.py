"""JSON as files of page-bench hold it; what else a parser would let through is refused."""

from __future__ import annotations

import json
import math
import re
from functools import cache
from typing import Any

LARGEST = 2**63 - 1
"""Whole numbers beyond this, and below its negative, fit into no table."""

# The only way to write half of a surrogate pair.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse(text: str | bytes, *, nan: bool = False, twice: bool = False) -> Any:
    """The value of a text in JSON.

    Args:
        text: UTF-8 where it is bytes.
        nan: whether NaN and infinities are allowed, which Python and lm-eval write.
        twice: whether a name may stand twice in an object, where the last one counts.

    Raises:
        ValueError: it is no JSON; nested too deeply; or it holds a name twice, a number out of
            range, or half of a surrogate pair, which no file could hold.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    try:
        value = _decoder(nan, twice).decode(text)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return value


# Hooks for whole files cost less than a walk over what was read.
@cache
def _decoder(nan: bool, twice: bool) -> json.JSONDecoder:
    return json.JSONDecoder(
        parse_constant=None if nan else _refused,
        parse_float=None if nan else _finite,
        parse_int=_whole,
        object_pairs_hook=None if twice else _once,
    )


def _refused(word: str) -> float:
    raise ValueError(f"{word} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits:.40} is too large")
    return value


def _whole(digits: str) -> int:
    value = int(digits) if len(digits) < 30 else LARGEST + 1
    if abs(value) > LARGEST:
        raise ValueError(f"the whole number {digits:.40} is too large")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r:.60} stands in it twice")
    return found
