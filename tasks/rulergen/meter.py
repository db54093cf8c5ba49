"""A prompt's length, as the tokenizer of the model sees it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from page_bench.inputs.errors import UsageError
from page_bench.tasks.protocols import PROTOCOLS, plain_text, render, templated
from page_bench.tasks.tokenizer import tokenizer_of


class Meter:
    """Counts the tokens of prompts.

    A prompt is counted as lm-eval sends it: where the tokenizer has a chat template, inside that
    template with the answer prefix as the beginning of the answer, else as plain text with the
    special tokens that the tokenizer adds. A run that leaves a template out has prompts that are
    shorter by what the template adds.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        if not self.text("The quick brown fox"):
            raise UsageError(
                "The tokenizer turns text into no tokens at all, so that no length can be "
                "measured; name one that has its files with tokenizer=NAME in --model_args."
            )
        self.fingerprint = _fingerprint(tokenizer)

    def text(self, text: str, special: bool = False) -> int:
        """A text's tokens, with or without the special tokens that the tokenizer adds."""
        encoded = self._tokenizer(text, add_special_tokens=special, verbose=False)
        return len(encoded["input_ids"])

    def prompt(self, row: Mapping[str, Any], protocol: str) -> int:
        """The tokens of a row's prompt under one protocol."""
        rendered = render(row, protocol)
        if getattr(self._tokenizer, "chat_template", None):
            text = templated(rendered, self._tokenizer)
            # As lm-eval encodes it: a BOS is added unless the template wrote one.
            bos = getattr(self._tokenizer, "bos_token", None)
            return self.text(text, special=not (bos and text.startswith(bos)))
        return self.text(plain_text({**vars(rendered), "protocol": protocol}), special=True)

    def prompts(self, row: Mapping[str, Any]) -> dict[str, int]:
        """The tokens of a row's prompt under every protocol."""
        return {protocol: self.prompt(row, protocol) for protocol in PROTOCOLS}


def meter_of(metadata: Mapping[str, Any]) -> Meter:
    """The meter of the model that a task's metadata names, see `tokenizer.tokenizer_of`."""
    return _meter(tokenizer_of(metadata))


_meter = lru_cache(maxsize=1)(Meter)  # one for all tasks of a run


def _fingerprint(tokenizer: Any) -> str:
    """Changes with anything that decides the length of a prompt."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        state = json.loads(backend.to_str())
        # Left by an earlier use of the tokenizer.
        state.update(truncation=None, padding=None)
    else:
        state = {"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab()}
    for name in ("chat_template", "bos_token", "eos_token"):  # templates write the other two
        state[name] = getattr(tokenizer, name, None)
    text = json.dumps(state, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
