"""JSON back into dataclasses: every value is checked against the type of its field."""

from __future__ import annotations

import dataclasses
import math
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

_WORDS: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    types.NoneType: "null",
    tuple: "a list",
    Mapping: "an object",
}


class Misfit(ValueError):
    """A value that does not fit its field; the message is a phrase that says which and why."""


def read(kind: Any, value: object, where: str) -> Any:
    """A value that JSON gave, as its type.

    Args:
        kind: a dataclass, `str`, `int`, `float` or `bool`; or a `Literal`, union, tuple or
            `Mapping` from `str` of such types.
        value: what JSON gave. Lists become tuples; null is NaN where only a number may stand.
        where: what it is, for messages, such as `inputs[0]`.

    Raises:
        Misfit: a value of another type, or a field that is missing or unknown.
    """
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _union(parts, value, where)
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        return _dataclass(kind, value, where)
    if origin is Mapping and isinstance(value, dict):
        return {key: read(parts[1], item, f"{where}.{key}") for key, item in value.items()}
    if origin is tuple and isinstance(value, list):
        kinds = parts[:1] * len(value) if parts[-1] is Ellipsis else parts
        if len(kinds) == len(value):
            pairs = enumerate(zip(kinds, value, strict=True))
            return tuple(read(one, item, f"{where}[{i}]") for i, (one, item) in pairs)
    if origin is Literal and value in parts:
        return value
    if kind is float and value is None:
        return math.nan
    if _is_number(value) if kind is float else type(value) is kind:
        return value
    raise Misfit(f"{where} is {value!r:.60}, not {_wanted(kind)}")


def _dataclass(kind: Any, record: Mapping[str, object], where: str) -> Any:
    hints = typing.get_type_hints(kind)
    needed = [f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING]
    for names, known, fault in ((needed, record, "is missing"), (record, hints, "does not exist")):
        for name in names:
            if name not in known:
                raise Misfit(f"{where}.{name} {fault}")
    return kind(**{k: read(hints[k], item, f"{where}.{k}") for k, item in record.items()})


def _union(parts: tuple[Any, ...], value: object, where: str) -> Any:
    if value is None and types.NoneType in parts:
        return None
    for part in parts:
        try:
            return read(part, value, where)
        except Misfit:
            continue
    wanted = " or ".join(_wanted(part) for part in parts)
    raise Misfit(f"{where} is {value!r:.60}, not {wanted}")


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max


def _wanted(kind: Any) -> str:
    origin = typing.get_origin(kind)
    if origin is Literal:
        return " or ".join(map(str, typing.get_args(kind)))
    return _WORDS.get(origin or kind, "an object")
