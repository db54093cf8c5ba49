"""Options of evictors and gates: fields of a dataclass, checked as the command line gives them."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from page_bench.inputs.errors import UsageError

_NONE = type(None)


def option_types(cls: type, without: Iterable[str] = ()) -> dict[str, Any]:
    """The options of a dataclass and their types.

    Args:
        cls: the dataclass.
        without: names of fields that are no options.
    """
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls) if f.name not in without}


def type_name(wanted: Any) -> str:
    """A type as a person writes it: `a whole number`, `avg or max`."""
    if typing.get_origin(wanted) is Literal:
        return " or ".join(str(choice) for choice in typing.get_args(wanted))
    if _is_union(wanted):
        return " or ".join(type_name(part) for part in typing.get_args(wanted) if part is not _NONE)
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    return words.get(wanted, str(wanted))


def checked(
    options: Mapping[str, object], known: Mapping[str, Any], prefix: str, owner: str
) -> dict[str, Any]:
    """Options as values of their fields' types.

    Args:
        options: by name, as lm-eval parsed them.
        known: the options that there are, with their types (see `option_types`).
        prefix: what stands before their names on the command line, without the dot.
        owner: whose options they are, for messages.

    Raises:
        UsageError: an option that does not exist, or a value of the wrong type.
    """
    for option in options:
        if option not in known:
            allowed = ", ".join(f"{prefix}.{name}" for name in known) or "none"
            raise UsageError(
                f"{prefix}.{option} is not an option of {owner}{nearest(option, known)}; "
                f"its options are: {allowed}."
            )
    return {
        option: _converted(value, known[option], f"{prefix}.{option}", owner)
        for option, value in options.items()
    }


def nearest(name: str, names: Iterable[str]) -> str:
    """` (did you mean …?)` with the most similar name, or nothing."""
    close = difflib.get_close_matches(name.lower(), list(names), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _converted(value: object, wanted: Any, option: str, owner: str) -> object:
    """A value as lm-eval parsed it, as the type of its field: 1 and 1.0 are both numbers."""
    optional = _is_union(wanted) and _NONE in typing.get_args(wanted)
    if optional and (value is None or value == "none"):
        return None
    parts = typing.get_args(wanted) if _is_union(wanted) else (wanted,)
    for part in parts:
        if typing.get_origin(part) is Literal:
            if value in typing.get_args(part):
                return value
        elif part is not _NONE and _fits(value, part):
            return part(value)
    raise UsageError(
        f"{option}={value!r} is not a value that {owner} takes there; give {type_name(wanted)}."
    )


def _is_union(wanted: Any) -> bool:
    return typing.get_origin(wanted) in (types.UnionType, typing.Union)


def _fits(value: object, wanted: type) -> bool:
    if isinstance(value, bool) or wanted is bool:
        return isinstance(value, bool) and wanted is bool
    if wanted is int:
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if wanted is float:
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, wanted)
