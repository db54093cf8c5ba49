"""Titles such as `adakv(snapkv)`: taken apart, and made into evictors with checked options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from page_bench.evictors._registry import IN_FILE, evictor_class, evictor_names, option_types
from page_bench.evictors.base import Evictor, Granularity, Wrapper
from page_bench.evictors.base.foreign import blaming
from page_bench.inputs import options as checks
from page_bench.inputs.errors import UsageError

_WRAPPED = (
    re.compile(r"(?P<name>[^()]*)\((?P<base>.*)\)"),
    # A path may hold parentheses itself.
    re.compile(r"(?P<name>.+?\.py:\w+)\s*\((?P<base>.*)\)"),
)


def is_in_file(title: str) -> bool:
    """Whether an evictor, or one that it wraps, is a class in a file, so that its code would run.

    Ask first for a title that comes from a file and not from the user. UsageError: it is no title.
    """
    return any(IN_FILE.fullmatch(part) for part in title_parts(title))


def title_parts(title: str) -> list[str]:
    """The names in a title, the outermost wrapper's first: `adakv(snapkv)` → adakv, snapkv.

    Raises:
        UsageError: its parentheses do not match, or one of them is empty.
    """
    parts, rest = [], str(title).strip()
    while not IN_FILE.fullmatch(rest) and ("(" in rest or ")" in rest):
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
