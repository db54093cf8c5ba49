"""`page-bench evictors`: every evictor with what it keeps, what it needs and its options."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import sys
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from page_bench.errors import UsageError
from page_bench.evictors import evictor_class, evictor_names, option_types
from page_bench.evictors.base import Evictor, Wrapper

_FOOTER = """\
On the command line: evictor=NAME, a wrapper as evictor=NAME(OTHER); options as
evictor.OPTION=VALUE, those of a wrapped evictor as evictor.base.OPTION=VALUE.
What an evictor needs is recorded besides keys and values, which are always at hand.
Where there is a variant, it is paper with granularity=shared, else published, unless given."""


@dataclass(frozen=True)
class OptionDescription:
    """One option of an evictor.

    Attributes:
        name: without `evictor.`.
        type: `int`, `float`, `bool`, `str`, or the choices, as in `avg | max`.
        default: what stands when nothing is given; None where that depends, or is nothing.
        by_variant: per variant the default that takes the place of None.
    """

    name: str
    type: str
    default: object
    by_variant: dict[str, object]


@dataclass(frozen=True)
class EvictorDescription:
    """What a person must know to use an evictor.

    Attributes:
        name: as on the command line.
        summary: the first line of its docstring.
        wrapper: whether it changes another evictor.
        needs: what it reads besides keys and values; a wrapper reads what the other does, too.
        granularities: keep sets it can have.
        refusal: why it cannot have the others; empty if it has all.
        options: its own ones.
    """

    name: str
    summary: str
    wrapper: bool
    needs: list[str]
    granularities: list[str]
    refusal: str
    options: list[OptionDescription]


def describe(name: str) -> EvictorDescription:
    """Describe an evictor, by its name or as `path/to/file.py:ClassName`.

    Raises:
        UsageError: there is no such evictor, or it cannot be used.
    """
    cls = evictor_class(name)
    return EvictorDescription(
        name=cls.name,
        summary=_summary(cls),
        wrapper=issubclass(cls, Wrapper),
        needs=sorted(cls.needs),
        granularities=list(cls.granularities),
        refusal=cls.refusal,
        options=_options(cls),
    )


def run(argv: Sequence[str]) -> int:
    """Print the evictors asked for, or all; 1 if one of them cannot be used."""
    parser = argparse.ArgumentParser(
        prog="page-bench evictors", description="List evictors, what they need and their options."
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="a name or path/to/file.py:ClassName; default all"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON list")
    args = parser.parse_args(list(argv))
    found: list[EvictorDescription] = []
    broken: list[UsageError] = []
    for name in args.names or evictor_names():
        try:
            found.append(describe(name))
        except UsageError as error:
            broken.append(error)
    if args.json:
        listed = [dataclasses.asdict(one) for one in found]
        print(json.dumps(listed, indent=2, ensure_ascii=False, default=str))
    elif found:
        print("\n\n".join(_text(one) for one in found), _FOOTER, sep="\n\n")
    for sentence in broken:
        print(f"page-bench: {sentence}", file=sys.stderr)
    return 1 if broken else 0


def _summary(cls: type[Evictor]) -> str:
    written = inspect.cleandoc(cls.__doc__ or "")
    # A dataclass without a docstring is given its signature.
    if written.startswith(f"{cls.__name__}("):
        return ""
    return written.partition("\n")[0]


def _options(cls: type[Evictor]) -> list[OptionDescription]:
    types = option_types(cls)
    return [
        OptionDescription(
            name=option.name,
            type=_type(types[option.name]),
            default=option.default,
            by_variant={
                variant: defaults[option.name]
                for variant, defaults in cls.variant_defaults.items()
                if option.default is None and option.name in defaults
            },
        )
        for option in dataclasses.fields(cls)
        if option.name in types
    ]


def _type(wanted: Any) -> str:
    parts = [part for part in typing.get_args(wanted) if part is not type(None)]
    if typing.get_origin(wanted) is Literal:
        return " | ".join(str(choice) for choice in parts)
    return " | ".join(_type(part) for part in parts) or getattr(wanted, "__name__", str(wanted))


def _text(evictor: EvictorDescription) -> str:
    title = f"{evictor.name}(OTHER)" if evictor.wrapper else evictor.name
    lines = [
        f"{title:<22}{evictor.summary}".rstrip(),
        f"  needs             {_needs(evictor)}",
        f"  granularity       {', '.join(evictor.granularities)}",
    ]
    width = max((len(option.name) + len(option.type) for option in evictor.options), default=0)
    for number, option in enumerate(evictor.options):
        kind = f"{option.name}: {option.type}"
        label = "options" if number == 0 else ""
        lines.append(f"  {label:<16}  {kind:<{width + 2}} = {_default(option)}")
    return "\n".join(lines)


def _needs(evictor: EvictorDescription) -> str:
    others = ["what OTHER needs"] if evictor.wrapper else []
    return ", ".join([*(need.replace("_", " ") for need in evictor.needs), *others]) or "nothing"


def _default(option: OptionDescription) -> str:
    if option.by_variant:
        return ", ".join(f"{_written(v)} in {k}" for k, v in option.by_variant.items())
    return _written(option.default)


def _written(value: object) -> str:
    """A value as it stands on the command line."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value) if value != "" else '""'
