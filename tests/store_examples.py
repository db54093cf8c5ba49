"""Keys and values for tests of the run store, made without a model."""

from __future__ import annotations

from typing import Any

from page_bench.config import PageConfig
from page_bench.engine.keys import StoredModel, answer_key, seen_key
from page_bench.engine.prompt import Prompt
from page_bench.gating.fingerprint import Fingerprint
from page_bench.model.decode import AnswerRequest
from page_bench.records.store.key import Key

MODEL = StoredModel(
    name="tiny",
    fingerprint=Fingerprint("c" * 64, "f" * 64),
    weights="1234567890abcdef" * 4,
    dtype="float32",
    attn_implementation="sdpa",
    tokenizer="t" * 64,
    generation={"eos_token_id": 2},
    setting={"devices": ["cpu"], "versions": {"torch": "2.13.0"}},
)
ARM = PageConfig(evictor="snapkv", budget=0.25)


def prompt(number: int = 0, **changes: Any) -> Prompt:
    """A prompt, each number another one."""
    text = f"Which of them is {number}?"
    values: dict[str, Any] = {
        "task": "page_vt",
        "doc_id": number,
        "repeat": 0,
        "protocol": None,
        "text": text,
        "input_ids": tuple(text.encode()),
        "context_tokens": None,
        "truncated_tokens": 0,
        "request": AnswerRequest(8, ("</s>",), {"do_sample": False}),
    }
    return Prompt(**{**values, **changes})


def seen(number: int = 0, model: StoredModel = MODEL) -> tuple[Key, dict[str, Any]]:
    """What a prefill showed."""
    value = {"agreement": [0.1, 0.2 + number], "drop": 0.1 + number / 7, "prefill_s": 0.5}
    return seen_key(model, prompt(number), ARM), value


def answer(
    number: int = 0, arm: PageConfig | None = ARM, model: StoredModel = MODEL, seconds: float = 0.5
) -> tuple[Key, dict[str, Any]]:
    """An answer."""
    value = {"answer_ids": [number, 2], "kept_kv": 1 / 3, "decode_s": seconds, "decode_rows": 1}
    return answer_key(model, prompt(number), arm), value


def differs(changed: Key, base: Key) -> bool:
    """Whether records under two keys are kept apart."""
    return changed.digest != base.digest
