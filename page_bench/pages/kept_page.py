"""One prompt as a page: its text shaded by what the cache kept, beside its answers."""

from __future__ import annotations

import base64
import difflib
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_FOLDER = Path(__file__).parent
_WORDS = re.compile(r"\s+|\w+|[^\w\s]")


@dataclass(frozen=True)
class ShownAnswer:
    """One of the answers that stand side by side.

    Attributes:
        name: such as `full cache`.
        about: such as its kept-KV and score, in words.
        text: the answer.
    """

    name: str
    about: str
    text: str


def kept_page(
    title: str,
    tokens: Sequence[str],
    kept: npt.NDArray[np.bool_],
    layers: Sequence[int],
    agreement: Sequence[float],
    facts: Mapping[str, str],
    answers: Sequence[ShownAnswer],
) -> str:
    """The page's HTML, which loads nothing; none of its text is trusted.

    Args:
        title: of the page.
        tokens: the prompt's tokens as text, T of them.
        kept: `[L, H_kv, T]`.
        layers: numbers of the L layers in the model.
        agreement: head agreement of each.
        facts: what stands at the top, by name.
        answers: what differs from the first of them is marked.
    """
    data: dict[str, Any] = {
        "title": title,
        "tokens": list(tokens),
        "shape": list(kept.shape),
        "kept": base64.b64encode(np.packbits(kept, axis=-1).tobytes()).decode(),
        "layers": list(layers),
        "agreement": list(agreement),
        "facts": list(facts.items()),
        "answers": [
            {
                "name": answer.name,
                "about": answer.about,
                "parts": differences(answers[0].text, answer.text),
            }
            for answer in answers
        ],
    }
    script = _asset("kept.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "policy": f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        f"base-uri 'none'; form-action 'none'",
        "title": escape(title),
        "data": json.dumps(data, ensure_ascii=True).replace("<", "\\u003c"),
        "script": script,
    }
    # In one pass, so that nothing within the data is taken for a place of another part.
    return re.sub(r"<!--(\w+)-->", lambda found: parts[found[1]], _asset("kept.html"))


def differences(base: str, text: str) -> list[tuple[str, bool]]:
    """A text in parts, each with whether it is missing in `base`, word by word."""
    ours, theirs = _WORDS.findall(text), _WORDS.findall(base)
    parts = []
    matcher = difflib.SequenceMatcher(None, theirs, ours, autojunk=False)
    for kind, _, _, start, end in matcher.get_opcodes():
        if start < end:
            parts.append(("".join(ours[start:end]), kind != "equal"))
    return parts


def _asset(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
