"""Whether a model is given the tokens that it was published with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from page_bench.commands.doctor.subject import Subject
from page_bench.commands.doctor.verdict import Verdict

FILE = "tokenizer.json"
PROBES = (
    "The key is 7462981.",
    " two  spaces\n\n\tand a tab",
    "don't I'll HE'S naïve café Straße",
    "def f(x): return x**2 # {}[]<>",
    "日本語と中文, עברית, 🙂",
    "3.14159 1,000,000 2026-12-01",
)
"""Texts on which tokenizers part that differ in normalising, splitting or prefixing."""


def published_tokens(subject: Subject) -> Verdict:
    """Whether `AutoTokenizer` gives the ids that the model's tokenizer.json gives.

    Some classes of transformers build a tokenizer anew from its vocabulary and leave the file's
    rules for normalising and splitting aside.
    """
    from tokenizers import Tokenizer

    tokenizer = subject.lm.tokenizer
    file = _file(tokenizer, getattr(subject.lm, "revision", None))
    if file is None:
        return Verdict("skip", f"the tokenizer was not loaded from a {FILE}")
    try:
        published = Tokenizer.from_file(str(file))
    except Exception as error:  # all that tokenizers raises
        return Verdict("skip", f"{file} is read by no class of tokenizers ({error!s:.80})")
    published.no_padding()
    published.no_truncation()
    texts = (subject.text, *PROBES)
    parted = []
    for text in texts:
        pairs = [
            (
                list(tokenizer(text, add_special_tokens=special)["input_ids"]),
                published.encode(text, add_special_tokens=special).ids,
            )
            for special in (False, True)
        ]
        if differing := [pair for pair in pairs if pair[0] != pair[1]]:
            parted.append((text, *differing[0]))
    figures: dict[str, Any] = {"texts": len(texts), "different": len(parted)}
    if not parted:
        return Verdict("pass", f"{len(texts)} of {len(texts)} texts as by {FILE}", figures)
    text, ours, theirs = min(parted, key=lambda one: len(one[0]))
    figures |= {"text": text, "auto_tokenizer": ours, "tokenizer_json": theirs}
    return Verdict(
        "warn",
        f"{len(parted)} of {len(texts)} texts have other ids by {FILE} than by AutoTokenizer, "
        f"which hf and page_hf use: {text!r:.40} is {_short(ours)}, by the file {_short(theirs)}",
        figures,
    )


def _file(tokenizer: Any, revision: str | None) -> Path | None:
    from transformers.utils import cached_file

    name = getattr(tokenizer, "name_or_path", "")
    if not name:
        return None
    if Path(name).is_dir():
        file = Path(name) / FILE
        return file if file.is_file() else None
    try:
        found = cached_file(
            *(name, FILE),
            revision=revision,
            local_files_only=True,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
    except (OSError, ValueError):
        return None
    return None if found is None else Path(found)


def _short(ids: list[int]) -> str:
    return f"[{', '.join(map(str, ids[:6]))}{', …' if len(ids) > 6 else ''}]"
