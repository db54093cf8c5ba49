"""What the bar over prompts says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from page_bench.engine.grid_work import Filled
from page_bench.harness.progress import PromptBar


def outcome(gate_open: bool, kept_kv: float) -> Any:
    because = None if kept_kv < 1 else "prompt too short" if gate_open else "gate closed"
    answer = SimpleNamespace(kept_kv=kept_kv, kept_all_because=because)
    return SimpleNamespace(gate_open=gate_open, answer=answer)


def test_a_run_shows_how_often_the_gate_opened_and_what_was_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with PromptBar(4, "page_hf: snapkv, gate page", hidden=False) as bar:
        for gate_open, kept_kv in ((True, 0.125), (False, 1.0), (True, 0.125)):
            bar.answered(outcome(gate_open, kept_kv))
    said = capsys.readouterr().err
    assert "page_hf: snapkv, gate page:" in said
    assert "3/4" in said
    assert "2 of 3 open, kept_kv 0.417" in said


def test_what_is_open_and_not_evicted_is_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    with PromptBar(2, "page_hf: snapkv, gate open", hidden=False) as bar:
        for kept_kv in (1.0, 0.5):
            bar.answered(outcome(True, kept_kv))
    assert "2 of 2 open, 1 evicted, kept_kv 0.750" in capsys.readouterr().err


def test_a_grid_shows_its_rates_and_what_was_stored(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = {"prefill": 4.0, "signals": 0.0, "evict": 0.0, "decode": 0.5}
    with PromptBar(2, "page_hf: 64 arms", hidden=False) as bar:
        bar.filled(Filled(stored=1))
        bar.filled(
            Filled(stored=1, prefilled=1, prefill_tokens=1024, new_tokens=96, seconds=seconds)
        )
    said = capsys.readouterr().err
    assert "1 stored, prefill 256 tokens/s, decode 192 tokens/s" in said


def test_a_hidden_bar_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with PromptBar(1, "page_hf", hidden=True) as bar:
        bar.answered(outcome(True, 0.5))
    assert capsys.readouterr().err == ""
