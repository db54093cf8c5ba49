"""JSON as files of page-bench hold it; what else a parser would let through is refused."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from page_bench.inputs import text_file

LARGEST = 2**63 - 1
"""Whole numbers beyond this, and below its negative, fit into no table."""

# The only way to write half of a surrogate pair.
_ESCAPED = re.compile(r"\\u[dD][89a-fA-F]")
HALF = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair, which JSON can hold by its number and UTF-8 cannot."""


def parse(
    text: str | bytes,
    *,
    nan: bool = False,
    twice: bool = False,
    halves: Collection[str] | None = (),
) -> Any:
    """The value of a text in JSON.

    Args:
        text: UTF-8 where it is bytes; see `text_file.text_of`.
        nan: whether NaN and infinities are allowed, which Python and lm-eval write.
        twice: whether a name may stand twice in an object, where the last one counts.
        halves: fields of the outermost object whose texts may hold half of a surrogate pair, as
            answers may; None for all.

    Raises:
        NotText: it is not UTF-8.
        ValueError: it is no JSON; nested too deeply; or it holds a name twice, a number out of
            range, or half of a surrogate pair where no text has one.
    """
    if isinstance(text, bytes):
        text = text_file.text_of(text)
    try:
        value = _decoder(nan, twice).decode(text)
        if halves is not None and _ESCAPED.search(text):
            _check_halves(value, halves)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return value


def lines(
    path: Path, *, nan: bool = False, twice: bool = False, halves: Collection[str] | None = ()
) -> Iterator[tuple[int, Any]]:
    """The values of a file with one JSON text per line, each with its line's number from 1 on.

    Blank lines are passed over. Only LF ends a line: a text may hold anything else.

    Args:
        path: the file.
        nan, twice, halves: as in `parse`.

    Raises:
        OSError: it cannot be read.
        ValueError: a line is no JSON; the message names it.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                value = parse(line, nan=nan, twice=twice, halves=halves)
            except text_file.NotText as error:
                raise ValueError(f"line {number} {error.what}") from error
            except json.JSONDecodeError as error:
                what = f"{error.msg} at column {error.colno}"
                raise ValueError(f"line {number} is no JSON: {what}") from error
            except ValueError as error:
                raise ValueError(f"line {number} is no JSON: {error}") from error
            yield number, value


def escaped(text: str) -> str:
    """JSON that was made with `ensure_ascii=False`, with halves of surrogate pairs escaped.

    UTF-8 holds no such half, JSON does. A high half right before a low one reads back as the
    character that both make.
    """
    return HALF.sub(lambda half: f"\\u{ord(half[0]):04x}", text)


def _check_halves(value: Any, halves: Collection[str]) -> None:
    if halves and isinstance(value, Mapping):
        value = {name: item for name, item in value.items() if name not in halves}
    if half := HALF.search(json.dumps(value, ensure_ascii=False)):
        raise ValueError(f"\\u{ord(half[0]):04x} is half of a surrogate pair, which is no text")


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
