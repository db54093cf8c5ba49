"""Evictors, one file each: a module of this folder named after the method is all it takes."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import math
import pkgutil
import typing
from collections.abc import Mapping

from page_bench.errors import UsageError
from page_bench.evictors.base import Evictor

_NOT_METHODS = {"base"}


def evictor_names() -> list[str]:
    """Names of all evictors in this folder, sorted."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in _NOT_METHODS)


def evictor_class(name: str) -> type[Evictor]:
    """The class of an evictor, by its name.

    Raises:
        UsageError: there is no evictor of this name.
    """
    if name not in evictor_names():
        raise UsageError(
            f"evictor={name} does not exist{_nearest(str(name), evictor_names())}; "
            f"evictors are {', '.join(evictor_names())}."
        )
    module = importlib.import_module(f"{__name__}.{name}")
    (found,) = (
        member
        for member in vars(module).values()
        if isinstance(member, type)
        and issubclass(member, Evictor)
        and member.__module__ == module.__name__
    )
    if found.name != name:
        raise UsageError(
            f"the evictor in {module.__file__} calls itself {found.name!r}; give its class "
            f"name: ClassVar[str] = {name!r}, after the module."
        )
    return found


def make_evictor(name: str, options: Mapping[str, object]) -> Evictor:
    """An evictor with its options checked against the fields of its class.

    Raises:
        UsageError: unknown evictor or option, or a value of the wrong type.
    """
    cls = evictor_class(name)
    types = typing.get_type_hints(cls)
    fields = [field.name for field in dataclasses.fields(cls)]
    for option, value in options.items():
        if option not in fields:
            allowed = ", ".join(f"evictor.{field}" for field in fields) or "none"
            raise UsageError(
                f"evictor.{option} is not an option of {name}{_nearest(option, fields)}; "
                f"its options are: {allowed}."
            )
        if not _fits(value, types[option]):
            raise UsageError(
                f"evictor.{option}={value!r} is not a value of type "
                f"{types[option].__name__}, which {name} needs there."
            )
    return cls(**{k: types[k](v) for k, v in options.items()})


def _fits(value: object, wanted: type) -> bool:
    """Whether a value as lm-eval parsed it can stand for `wanted`: 1 and 1.0 are both numbers."""
    if isinstance(value, bool) or wanted is bool:
        return isinstance(value, bool) and wanted is bool
    if wanted is int:
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if wanted is float:
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, wanted)


def _nearest(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name.lower(), names, n=1)
    return f" (did you mean {close[0]}?)" if close else ""
