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
from itertools import pairwise
from typing import Any, Literal

from page_bench.evictors import evictor_class, evictor_names, option_types, title_parts
from page_bench.evictors.base import Evictor, Wrapper
from page_bench.inputs.errors import UsageError

_FOOTER = """\
On the command line: evictor=NAME, a wrapper as 'evictor=NAME(OTHER)' in quotes; options as
evictor.OPTION=VALUE, those of a wrapped evictor as evictor.base.OPTION=VALUE, variant among them:
evictor.variant says nothing about an evictor inside.
Keys and values are always at hand, except for models with latent attention; what else an evictor
needs is recorded for it."""

_VARIANT = "paper with granularity=shared, else published"


@dataclass(frozen=True)
class OptionDescription:
    """One option of an evictor.

    Attributes:
        name: without `evictor.`.
        type: `int`, `float`, `bool`, `str`, or the choices, as in `avg | max`.
        default: what stands when nothing is given; None where that depends, or is nothing.
        by_variant: per variant the default that takes the place of None.
        in_words: what None stands for; empty where the variant or nothing says so.
    """

    name: str
    type: str
    default: object
    by_variant: dict[str, object]
    in_words: str


@dataclass(frozen=True)
class EvictorDescription:
    """What a person must know to use an evictor.

    Attributes:
        name: as on the command line.
        summary: the first line of its docstring.
        wrapper: whether it changes another evictor.
        needs: what it reads; a wrapper reads what the other does, too.
        needs_in_words: further needs, those that depend on options among them.
        granularities: keep sets it can have.
        refusal: why it cannot have the others; empty if it has all.
        options: its own ones; of an evictor inside another they begin with `base.`.
        note: what a user should know besides; may be empty.
    """

    name: str
    summary: str
    wrapper: bool
    needs: list[str]
    needs_in_words: list[str]
    granularities: list[str]
    refusal: str
    options: list[OptionDescription]
    note: str


def describe(name: str, prefix: str = "") -> EvictorDescription:
    """Describe an evictor, by its name or as `path/to/file.py:ClassName`.

    Args:
        name: of one evictor; for a wrapper without what it wraps.
        prefix: what stands before its options, such as `base.` inside a wrapper.

    Raises:
        UsageError: there is no such evictor, or it cannot be used.
    """
    cls = evictor_class(name)
    return EvictorDescription(
        name=cls.name,
        summary=_summary(cls),
        wrapper=issubclass(cls, Wrapper),
        needs=sorted(cls.needs),
        needs_in_words=list(cls.needs_in_words),
        granularities=list(cls.granularities),
        refusal=cls.refusal,
        options=_options(cls, prefix),
        note=cls.note,
    )


def describe_title(title: str) -> list[EvictorDescription]:
    """Describe each evictor of a title such as `adakv(snapkv)`, the outermost wrapper first.

    Raises:
        UsageError: there is no such evictor, or it cannot be put together.
    """
    parts = title_parts(title)
    found = [describe(part, "base." * depth) for depth, part in enumerate(parts)]
    for outer, inner in pairwise(found):
        if not outer.wrapper:
            raise UsageError(
                f"evictor={outer.name} wraps no other evictor; leave ({inner.name}) out."
            )
    return found


def run(argv: Sequence[str]) -> int:
    """Print the evictors asked for, or all; 1 if one of them cannot be used."""
    parser = argparse.ArgumentParser(
        prog="page-bench evictors", description="List evictors, what they need and their options."
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="a name, path/to/file.py:ClassName or a wrapper around one of these; default all",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON list")
    args = parser.parse_args(list(argv))
    found: list[EvictorDescription] = []
    broken: list[UsageError] = []
    for name in args.names or evictor_names():
        try:
            found += [one for one in describe_title(name) if one not in found]
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


def _options(cls: type[Evictor], prefix: str) -> list[OptionDescription]:
    types = option_types(cls)
    return [
        OptionDescription(
            name=prefix + option.name,
            type=_type(types[option.name]),
            default=option.default,
            by_variant={
                variant: defaults[option.name]
                for variant, defaults in cls.variant_defaults.items()
                if option.default is None and option.name in defaults
            },
            in_words=_in_words(cls, option.name),
        )
        for option in dataclasses.fields(cls)
        if option.name in types
    ]


def _in_words(cls: type[Evictor], option: str) -> str:
    if option == "variant" and {"paper", "published"} <= set(cls.variant_defaults):
        return _VARIANT if "shared" in cls.granularities else "published"
    return cls.defaults_in_words.get(option, "")


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
    if evictor.note:
        lines.append(f"  note              {evictor.note}")
    width = max((len(option.name) + len(option.type) for option in evictor.options), default=0)
    for number, option in enumerate(evictor.options):
        kind = f"{option.name}: {option.type}"
        label = "options" if number == 0 else ""
        lines.append(f"  {label:<16}  {kind:<{width + 2}} = {_default(option)}")
    return "\n".join(lines)


def _needs(evictor: EvictorDescription) -> str:
    others = ["what OTHER needs"] if evictor.wrapper else []
    named = [need.replace("_", " ") for need in evictor.needs]
    return ", ".join([*named, *evictor.needs_in_words, *others]) or "nothing"


def _default(option: OptionDescription) -> str:
    if option.by_variant:
        return ", ".join(f"{_written(v)} in {k}" for k, v in option.by_variant.items())
    if option.default is None and option.in_words:
        return option.in_words
    return _written(option.default)


def _written(value: object) -> str:
    """A value as it stands on the command line."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value) if value != "" else '""'
