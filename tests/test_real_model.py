"""The default model, SmolLM2, on quickstart prompts: what the full cache says is what hf says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lm_eval.models.huggingface import HFLM
from test_lm import requests, templated, trace_of

from page_bench.harness.lm import PageLM
from page_bench.tasks import quickstart

pytestmark = pytest.mark.real_model


@pytest.fixture(scope="module")
def texts(default_model_folder: Path) -> list[str]:
    """A short prompt of each quickstart task."""
    metadata = {"pretrained": str(default_model_folder), "prompt_tokens": 300}
    tasks = (quickstart.needle_number, quickstart.needle_word, quickstart.repeated_fact)
    rows = [task(**metadata)["test"][0] for task in tasks]
    return [row["prompt"] + row["answer_prefix"] for row in rows]


def test_full_cache_answers_equal_those_of_hf(default_model_folder: Path, texts: list[str]) -> None:
    arguments: dict[str, Any] = {"device": "cpu", "dtype": "float32"}
    stock = HFLM(str(default_model_folder), **arguments)
    asked = requests(texts + [templated(stock, text) for text in texts], until=["\n"])
    expected = stock.generate_until(asked, disable_tqdm=True)
    assert len(set(expected)) >= 3
    for arm in ({"gate": "closed"}, {"gate": "open", "budget": 1.0}):
        lm = PageLM(str(default_model_folder), **arm, **arguments)
        assert lm.generate_until(asked, disable_tqdm=True) == expected


def test_an_eighth_of_the_cache_is_really_gone(
    default_model_folder: Path, texts: list[str]
) -> None:
    lm = PageLM(str(default_model_folder), gate="open", device="cpu", dtype="float32")
    answers = lm.generate_until(requests(texts), disable_tqdm=True)
    for trace in map(trace_of, answers):
        assert trace.kept_tokens == max(trace.prompt_tokens // 8, 40)
        # 30 layers, 3 KV heads of 64 numbers, keys and values in fp32.
        assert trace.kv_bytes_full == trace.prompt_tokens * 30 * 3 * 64 * 2 * 4
        assert trace.kv_bytes_kept / trace.kv_bytes_full == pytest.approx(trace.kept_kv)
