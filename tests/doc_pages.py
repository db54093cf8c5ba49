"""The pages of the documentation, and the code, commands and links in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]

_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_PROGRAMS = ("page-bench", "lm_eval")
_BEFORE = ("-m", "srun")
_ENDS = ("|", ">", "&", "&&", ";")


def blocks(page: Path, language: str) -> list[str]:
    """Blocks of code that name this language; those that name none for ""."""
    text = page.read_text(encoding="utf-8")
    return [code for _, name, code in _BLOCK.findall(text) if name == language]


def spans(page: Path) -> list[str]:
    """Code within lines."""
    return _SPAN.findall(_BLOCK.sub("", page.read_text(encoding="utf-8")).replace("\\|", "|"))


def links(page: Path) -> list[str]:
    """Where the page's links lead, those to the web left out."""
    text = _SPAN.sub("", _BLOCK.sub("", page.read_text(encoding="utf-8")))
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    return [link for link in found if not link.startswith(("https://", "http://"))]


def headings(page: Path) -> set[str]:
    """Headings as links name them."""
    lines = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


def commands(page: Path) -> Iterator[tuple[list[str], bool]]:
    """The words of each command, from `page-bench` or `lm_eval` on, and whether it is whole.

    A mention within a line may leave out what has to be there.
    """
    lines = [(span, False) for span in spans(page)]
    for language in ("", "bash"):
        for block in blocks(page, language):
            lines += [(line, True) for line in block.replace("\\\n", " ").splitlines()]
    for line, whole in lines:
        try:
            words = shlex.split(re.sub(r",?…", "", line), comments=whole)
        except ValueError:  # prose
            continue
        start = next((i for i, word in enumerate(words) if word in _PROGRAMS), None)
        if start is None or len(words) == 1:
            continue
        # Else it is prose in a block, such as a command's notes on itself.
        if start == 0 or words[start - 1] in _BEFORE or "=" in words[0]:
            end = next((i for i, word in enumerate(words) if word in _ENDS), len(words))
            yield [word for word in words[start:end] if word != "--help"], whole
