"""The classes of evictors by name: page-bench's own, those of installed packages and of files."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
import pkgutil
import re
import sys
import types
import typing
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from page_bench.evictors._source import class_in_file, source_checksum
from page_bench.evictors.base import Evictor
from page_bench.inputs import options as checks
from page_bench.inputs.errors import UsageError
from page_bench.inputs.user_path import user_path

ENTRY_POINTS = "page_bench.evictors"
IN_FILE = re.compile(r"(?P<path>.+\.py):(?P<name>\w+)")


def own_names() -> list[str]:
    """Names of the evictors in this folder, sorted."""
    folder = importlib.import_module("page_bench.evictors").__path__
    modules = (module.name for module in pkgutil.iter_modules(folder))
    return sorted(name for name in modules if name != "base" and not name.startswith("_"))


def evictor_names() -> list[str]:
    """Names of all evictors, those of installed packages included, sorted."""
    return sorted({*own_names(), *(point.name for point in _installed(tuple(sys.path)))})


@functools.lru_cache(maxsize=8)
def _installed(path: tuple[str, ...]) -> Sequence[EntryPoint]:
    """Evictors of installed packages on `sys.path`; the search takes 20 ms each time."""
    return tuple(entry_points(group=ENTRY_POINTS))


def option_types(cls: type[Evictor]) -> dict[str, Any]:
    """The options of an evictor and their types; a wrapped evictor is not an option."""
    return checks.option_types(cls, without=("base",))


def evictor_class(name: str) -> type[Evictor]:
    """The class of an evictor, by its name or as `path/to/file.py:ClassName`.

    Raises:
        UsageError: there is no such evictor, or it is not what an evictor must be.
    """
    in_file = IN_FILE.fullmatch(name)
    if in_file:
        path = user_path(in_file["path"], "evictor")
        return _checked(class_in_file(path, in_file["name"]), name, None)
    installed = [point for point in _installed(tuple(sys.path)) if point.name == name]
    if name in own_names():
        if installed:
            raise UsageError(
                f"evictor={name} is page-bench's own and that of {installed[0].value}; give the "
                f"installed one another name."
            )
        return _own_class(name)
    if not installed:
        raise UsageError(
            f"evictor={name} does not exist{checks.nearest(name, evictor_names())}; evictors are "
            f"{', '.join(evictor_names())}, or path/to/file.py:ClassName."
        )
    if len(installed) > 1:
        raise UsageError(
            f"evictor={name} is given by {len(installed)} installed packages: "
            f"{', '.join(str(point.value) for point in installed)}; keep one of them."
        )
    try:
        loaded = installed[0].load()
    except Exception as error:
        raise UsageError(
            f"evictor={name} ({installed[0].value}) could not be imported: {error}"
        ) from error
    return _checked(loaded, installed[0].value, name)


def _own_class(name: str) -> type[Evictor]:
    module = importlib.import_module(f"page_bench.evictors.{name}")
    found = [
        member
        for member in vars(module).values()
        if isinstance(member, type)
        and issubclass(member, Evictor)
        and member.__module__ == module.__name__
    ]
    if len(found) != 1:
        raise UsageError(
            f"{module.__file__} defines {len(found)} evictors; it must define one, {name!r} "
            f"(a module that defines none begins with an underscore)."
        )
    return _checked(found[0], str(module.__file__), name)


def _checked(found: object, where: str, name: str | None) -> type[Evictor]:
    """The class, if it is a complete evictor of the right name."""
    complete = isinstance(found, type) and issubclass(found, Evictor)
    if not complete or getattr(found, "__abstractmethods__", None):
        raise UsageError(
            f"{where} is not an evictor; make it a subclass of page_bench.evictors.base.Evictor "
            f"that defines score."
        )
    cls: type[Evictor] = found  # type: ignore[assignment]
    if "__dataclass_params__" not in vars(cls):
        raise UsageError(f"the evictor in {where} needs the decorator @dataclass(frozen=True).")
    _check_options(cls, where)
    if not isinstance(getattr(cls, "name", None), str):
        raise UsageError(f"the evictor in {where} has no name; give it name: ClassVar[str] = ….")
    if name is not None and cls.name != name:
        raise UsageError(
            f"the evictor in {where} calls itself {cls.name!r}; give its class "
            f"name: ClassVar[str] = {name!r}."
        )
    source_checksum(cls)  # as it is imported; once per class
    return cls


def _check_options(cls: type[Evictor], where: str) -> None:
    """Raise UsageError for an option without default, or one that no command line could give and
    no record could hold."""
    try:
        options = option_types(cls)
    except Exception as error:
        raise UsageError(
            f"the evictor in {where} has annotations that cannot be read ({error}); import what "
            f"they name."
        ) from error
    for option, wanted in options.items():
        if not _is_plain(wanted):
            written = wanted.__name__ if isinstance(wanted, type) else str(wanted)
            raise UsageError(
                f"the evictor in {where} has an option {option} of type {written}; an option is a "
                f"bool, int, float, str or Literal of these, or None."
            )
    bare = []
    for field in dataclasses.fields(cls):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if field.name not in options or default is None:
            continue
        if default is dataclasses.MISSING:
            bare.append(field.name)
            continue
        number = isinstance(default, float) and not math.isfinite(default)
        if number or not isinstance(default, bool | int | float | str):
            raise UsageError(
                f"the evictor in {where} has {default!r} as the default of {field.name}; give it "
                f"a truth value, a finite number, a text or None."
            )
    if bare:
        raise UsageError(
            f"the evictor in {where} has no default for {', '.join(bare)}; give every option one."
        )


def _is_plain(wanted: Any) -> bool:
    if typing.get_origin(wanted) is Literal:
        return all(isinstance(choice, bool | int | str) for choice in typing.get_args(wanted))
    if typing.get_origin(wanted) in (types.UnionType, typing.Union):
        return all(_is_plain(part) for part in typing.get_args(wanted))
    return wanted in (bool, int, float, str, type(None))
