"""Evictors, one file each: a module of this folder named after the method is all it takes.

An evictor is asked for by a *title*: a name (`snapkv`), a wrapper around another title
(`adakv(snapkv)`), or a class in a file (`path/to/file.py:ClassName`). Installed packages add
names through the entry-point group `page_bench.evictors`.
"""

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
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from page_bench.evictors._source import class_in_file, source_checksum
from page_bench.evictors.base import Evictor, Granularity, Wrapper
from page_bench.evictors.base.foreign import blaming
from page_bench.inputs import options as checks
from page_bench.inputs.errors import UsageError
from page_bench.inputs.user_path import user_path

ENTRY_POINTS = "page_bench.evictors"

_IN_FILE = re.compile(r"(?P<path>.+\.py):(?P<name>\w+)")
_WRAPPED = (
    re.compile(r"(?P<name>[^()]*)\((?P<base>.*)\)"),
    # A path may hold parentheses itself.
    re.compile(r"(?P<name>.+?\.py:\w+)\s*\((?P<base>.*)\)"),
)


def is_in_file(title: str) -> bool:
    """Whether an evictor, or one that it wraps, is a class in a file, so that its code would run.

    Whoever reads titles from files, and not from the user, asks first.

    Raises:
        UsageError: the title is none.
    """
    return any(_IN_FILE.fullmatch(part) for part in title_parts(title))


def own_names() -> list[str]:
    """Names of the evictors in this folder, sorted."""
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in modules if name != "base" and not name.startswith("_"))


def evictor_names() -> list[str]:
    """Names of all evictors, those of installed packages included, sorted."""
    return sorted({*own_names(), *(point.name for point in _installed())})


def _installed() -> Sequence[EntryPoint]:
    return _installed_in(tuple(sys.path))


@functools.lru_cache(maxsize=8)
def _installed_in(path: tuple[str, ...]) -> Sequence[EntryPoint]:
    """Evictors of installed packages; to look through all of these takes 20 ms each time."""
    return tuple(entry_points(group=ENTRY_POINTS))


def evictor_class(name: str) -> type[Evictor]:
    """The class of an evictor, by its name or as `path/to/file.py:ClassName`.

    Raises:
        UsageError: there is no such evictor, or it is not what an evictor must be.
    """
    in_file = _IN_FILE.fullmatch(name)
    if in_file:
        path = user_path(in_file["path"], "evictor")
        return _checked(class_in_file(path, in_file["name"]), name, None)
    installed = [point for point in _installed() if point.name == name]
    if name in own_names() and installed:
        raise UsageError(
            f"evictor={name} is page-bench's own and that of {installed[0].value}; give the "
            f"installed one another name."
        )
    if name in own_names():
        module = importlib.import_module(f"{__name__}.{name}")
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


def make_evictor(title: str, options: Mapping[str, object], granularity: Granularity) -> Evictor:
    """An evictor with its options checked against the fields of its class.

    Args:
        title: name, wrapper with the wrapped title in parentheses, or class in a file.
        options: by field; those of a wrapped evictor as `base.FIELD`.
        granularity: fills in the defaults that depend on it.

    Raises:
        UsageError: unknown evictor or option, a value of the wrong type, or a keep set that the
            method cannot have.
    """
    made = _make(title_parts(title), options, "evictor")
    with blaming(made.title, "did not take its options"):
        evictor = made.resolved(granularity)
    outer: list[type[Evictor]] = []
    part: Evictor | None = evictor
    while part is not None:
        if granularity not in part.granularities:
            raise UsageError(
                f"evictor={part.title} has no meaning in granularity={granularity}: {part.refusal}"
            )
        if type(part) in outer and isinstance(part, Wrapper) and not part.nests:
            raise UsageError(
                f"evictor={evictor.title} has {part.name} inside itself, where only one of the two "
                f"would act; name it once."
            )
        outer.append(type(part))
        part = part.base if isinstance(part, Wrapper) else None
    return evictor


def title_parts(title: str) -> list[str]:
    """The names in a title, the outermost wrapper's first: `adakv(snapkv)` → adakv, snapkv.

    Raises:
        UsageError: its parentheses do not match, or one of them is empty.
    """
    parts, rest = [], str(title).strip()
    while not _IN_FILE.fullmatch(rest) and ("(" in rest or ")" in rest):
        splits = (pattern.fullmatch(rest) for pattern in _WRAPPED)
        split = next((s for s in splits if s and _balanced(s["base"])), None)
        if split is None:
            raise UsageError(
                f"evictor={title} has parentheses that do not match; write a wrapper as "
                f"adakv(snapkv)."
            )
        parts.append(split["name"].strip())
        rest = split["base"].strip()
    if parts and parts[-1] and not rest:
        raise UsageError(
            f"evictor={title} names nothing in its parentheses; name what {parts[-1]} wraps, as "
            f"in {parts[-1]}(snapkv)."
        )
    if not all([*parts, rest]):
        raise UsageError(
            f"evictor={title} lacks a name; evictors are {', '.join(evictor_names())}, or "
            f"path/to/file.py:ClassName."
        )
    return [*parts, rest]


def _balanced(text: str) -> bool:
    depth = 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if depth < 0:
            return False
    return depth == 0


def option_types(cls: type[Evictor]) -> dict[str, Any]:
    """The options of an evictor and their types; a wrapped evictor is not an option."""
    return checks.option_types(cls, without=("base",))


def _make(parts: list[str], options: Mapping[str, object], prefix: str) -> Evictor:
    first, *wrapped = parts
    cls = evictor_class(first)
    name = cls.name
    inner = {k.removeprefix("base."): v for k, v in options.items() if k.startswith("base.")}
    own = {k: v for k, v in options.items() if not k.startswith("base.")}
    values: dict[str, Any] = {}
    if issubclass(cls, Wrapper):
        if not wrapped:
            raise UsageError(
                f"evictor={name} changes another evictor: name it in parentheses, as in "
                f"{name}(snapkv)."
            )
        values["base"] = _make(wrapped, inner, f"{prefix}.base")
    elif wrapped:
        raise UsageError(
            f"evictor={name} wraps no other evictor; leave ({'('.join(wrapped)}"
            f"{')' * len(wrapped)} out."
        )
    elif inner:
        raise UsageError(
            f"{prefix}.base.{next(iter(inner))} is an option of a wrapped evictor, but {name} "
            f"wraps none; leave base. out."
        )
    values |= checks.checked(own, option_types(cls), prefix, name)
    with blaming(cls.name, "did not take its options"):
        return cls(**values)


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
    _check_types(cls, where)
    bare = [
        field.name
        for field in dataclasses.fields(cls)
        if field.name != "base"
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if bare:
        raise UsageError(
            f"the evictor in {where} has no default for {', '.join(bare)}; give every option one."
        )
    if not isinstance(getattr(cls, "name", None), str):
        raise UsageError(f"the evictor in {where} has no name; give it name: ClassVar[str] = ….")
    if name is not None and cls.name != name:
        raise UsageError(
            f"the evictor in {where} calls itself {cls.name!r}; give its class "
            f"name: ClassVar[str] = {name!r}."
        )
    source_checksum(cls)  # as it is imported; once per class
    return cls


def _check_types(cls: type[Evictor], where: str) -> None:
    """Raise UsageError for an option that no command line could give and no record could hold."""
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
    for field in dataclasses.fields(cls):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if field.name not in options or default in (None, dataclasses.MISSING):
            continue
        number = isinstance(default, float) and not math.isfinite(default)
        if number or not isinstance(default, bool | int | float | str):
            raise UsageError(
                f"the evictor in {where} has {default!r} as the default of {field.name}; give it "
                f"a truth value, a finite number, a text or None."
            )


def _is_plain(wanted: Any) -> bool:
    if typing.get_origin(wanted) is Literal:
        return all(isinstance(choice, bool | int | str) for choice in typing.get_args(wanted))
    if typing.get_origin(wanted) in (types.UnionType, typing.Union):
        return all(_is_plain(part) for part in typing.get_args(wanted))
    return wanted in (bool, int, float, str, type(None))
