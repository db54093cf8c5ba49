"""`simple_evaluate` in process: gated, plain and full arms, and lm-eval's own model."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from lm_eval.tasks import TaskManager

from page_bench import plugin
from page_bench.harness import TASKS_FOLDER

TinyFolder = Callable[[str], Path]


@pytest.fixture(scope="module")
def evaluate(tiny_folder: TinyFolder) -> Callable[..., dict[str, Any]]:
    """Runs the quickstart on a tiny model whose answers mean nothing but differ by cache."""
    plugin.install()
    pretrained = str(tiny_folder("llama"))

    def run(model: str, **model_args: Any) -> dict[str, Any]:
        # Parsing lm-eval's own thousands of files takes many seconds and adds nothing here.
        manager = TaskManager(
            include_path=str(TASKS_FOLDER),
            include_defaults=False,
            metadata={"pretrained": pretrained},
        )
        results: dict[str, Any] = lm_eval.simple_evaluate(
            model=model,
            model_args={"pretrained": pretrained, "dtype": "float32", **model_args},
            tasks=["page_quickstart"],
            task_manager=manager,
            device="cpu",
            limit=3,
            bootstrap_iters=0,
        )
        return results

    return run


def samples(results: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for task in sorted(results["samples"]) for row in results["samples"][task]]


def answers(results: dict[str, Any]) -> list[str]:
    return [row["resps"][0][0] for row in samples(results)]


def test_gated_answers_are_the_plain_or_the_full_ones_of_the_same_tasks(
    evaluate: Callable[..., dict[str, Any]],
) -> None:
    plain = evaluate("page_hf", gate="open")
    full = evaluate("page_hf", gate="closed")
    gated = evaluate("page_hf")
    stock = evaluate("hf")

    assert answers(full) == answers(stock)
    assert answers(plain) != answers(full)
    opened = [row["gate_open"] for row in samples(gated)]
    assert set(opened) == {0.0, 1.0}
    for gate_open, *same in zip(opened, answers(gated), answers(plain), answers(full), strict=True):
        assert same[0] == (same[1] if gate_open else same[2])
    kept = [
        row["kept_kv"] if gate_open else 1.0
        for gate_open, row in zip(opened, samples(plain), strict=True)
    ]
    assert gated["groups"]["page_quickstart"]["kept_kv,none"] == pytest.approx(
        sum(kept) / len(kept)
    )

    # Any other model keeps its whole cache and has no gate.
    for row in samples(stock):
        assert (row["kept_kv"], row["gate_open"]) == (1.0, 0.0)
        assert math.isnan(row["head_drop"])
    assert [row["score"] for row in samples(full)] == [row["score"] for row in samples(stock)]
