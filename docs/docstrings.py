"""Docstrings taken apart, and Markdown tables put together, for the reference."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

_SECTION = re.compile(r"(Args|Attributes|Returns|Yields|Raises):(.*)")
_ENTRY = re.compile(r"(\w+(?:, \w+)*): (.*)")


@dataclass(frozen=True)
class Docstring:
    """A docstring in its parts.

    Attributes:
        text: all before the first section.
        sections: by heading, the lines below it without their common indent.
    """

    text: str = ""
    sections: dict[str, str] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """The first paragraph, on one line."""
        return joined(self.text.partition("\n\n")[0])

    def entries(self, section: str) -> dict[str, str]:
        """What a section says of each name, on one line."""
        found: dict[str, str] = {}
        names: list[str] = []
        for line in self.sections.get(section, "").splitlines():
            entry = _ENTRY.fullmatch(line)
            if entry:
                names = entry[1].split(", ")
                found |= dict.fromkeys(names, entry[2])
            else:
                found |= {name: f"{found[name]} {line.strip()}" for name in names}
        return found


def docstring_of(thing: object) -> Docstring:
    """The docstring of a module, class or function; of a class none that it has inherited."""
    written = vars(thing).get("__doc__") if isinstance(thing, type) else inspect.getdoc(thing)
    text: list[str] = []
    sections: dict[str, list[str]] = {}
    lines = text
    for line in inspect.cleandoc(written or "").splitlines():
        heading = _SECTION.fullmatch(line)
        if heading:
            lines = sections.setdefault(heading[1], [])
        else:
            lines.append(line)
    return Docstring(
        "\n".join(text).strip(),
        {name: inspect.cleandoc("\n" + "\n".join(own)) for name, own in sections.items()},
    )


def attributes_of(cls: type) -> dict[str, str]:
    """What a class and those it is made from say of their attributes."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        found |= docstring_of(base).entries("Attributes")
    return found


def module_text(cls: type) -> str:
    """What the module of a class says of itself."""
    return docstring_of(sys.modules[cls.__module__]).text


def joined(text: str) -> str:
    """A text on one line."""
    return " ".join(text.split())


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; `|` in a cell is escaped."""
    lines = [headings, ["---"] * len(headings)]
    lines += [[joined(cell).replace("|", "\\|") or " " for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(text: object) -> str:
    """Text as code; nothing stays nothing."""
    return f"`{text}`" if str(text) else ""
