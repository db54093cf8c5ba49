"""`simple_evaluate` in process: gated, plain and full arms, and lm-eval's own model."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lm_eval
import pytest
import test_longbench
import test_ruler
from lm_eval.tasks import TaskManager

from page_bench.harness import plugin
from page_bench.harness.hooks import TASKS_FOLDER
from page_bench.harness.lm import PageLM

TinyFolder = Callable[[str], Path]


@pytest.fixture(scope="module")
def evaluate(tiny_folder: TinyFolder) -> Callable[..., dict[str, Any]]:
    """Runs the quickstart on a tiny model whose answers mean nothing but differ by cache."""
    plugin.install()
    pretrained = str(tiny_folder("llama"))

    def run(
        model: str,
        tasks: Sequence[str] = ("page_quickstart",),
        metadata: dict[str, Any] | None = None,
        chat: bool = False,
        **model_args: Any,
    ) -> dict[str, Any]:
        # Parsing lm-eval's own thousands of files takes many seconds and adds nothing here.
        manager = TaskManager(
            include_path=str(TASKS_FOLDER),
            include_defaults=False,
            metadata={"pretrained": pretrained, **(metadata or {})},
        )
        results: dict[str, Any] = lm_eval.simple_evaluate(
            model=model,
            model_args={"pretrained": pretrained, "dtype": "float32", **model_args},
            tasks=list(tasks),
            task_manager=manager,
            device="cpu",
            limit=3,
            bootstrap_iters=0,
            apply_chat_template=chat,
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


@pytest.mark.parametrize("chat", [False, True], ids=["plain", "chat"])
def test_a_closed_gate_scores_like_hf_on_every_kind_of_task(
    chat: bool, evaluate: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    tasks = (
        *("page_rulergen_2k_niah_multikey_3", "page_rulergen_2k_vt", "page_ruler_4k_vt"),
        *("page_ruler_4k_mixed4_qa_1", "page_longbench_hotpotqa", "page_longbench_trec"),
        "page_longbench_page_qasper",
    )
    metadata = {
        "ruler_data": str(test_ruler.write(tmp_path / "4096.jsonl", test_ruler.split(4096))),
        "longbench_data": str(test_longbench.write(tmp_path / "longbench")),
    }
    stock = evaluate("hf", tasks, metadata, chat)
    closed = evaluate("page_hf", tasks, metadata, chat, gate="closed")
    assert set(stock["samples"]) == set(tasks)
    assert answers(closed) == answers(stock)
    for task in tasks:
        for metric in ("score", "correct", "kept_kv", "gate_open"):
            name = f"{metric},none"
            assert closed["results"][task][name] == stock["results"][task][name]


def test_the_context_of_every_kind_of_task_can_be_compressed_alone(
    evaluate: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    tasks = ("page_rulergen_2k_vt", "page_ruler_4k_vt", "page_longbench_hotpotqa")
    metadata = {
        "ruler_data": str(test_ruler.write(tmp_path / "4096.jsonl", test_ruler.split(4096))),
        "longbench_data": str(test_longbench.write(tmp_path / "longbench")),
    }
    results = evaluate(
        "page_hf",
        tasks,
        {**metadata, "protocol": "kvpress"},
        True,
        gate="open",
        compress="context",
        window=4,
        budget=0.5,
        trace=str(tmp_path / "trace"),
    )
    (path,) = (tmp_path / "trace").iterdir()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert {row["protocol"] for row in rows} == {"kvpress"}
    assert {row["correct_paper"] for row in rows} <= {0.0, 1.0}
    assert results["config"]["page"]["evicted"] == len(samples(results)) > 0
    for row in samples(results):
        # Half of the context, and all of the question and the chat template's end.
        assert 0.5 <= row["kept_kv"] < 1


@pytest.mark.parametrize("how", ["object", "object and manager", "name and manager"])
def test_prompts_are_sized_to_the_model_that_is_given(how: str, tiny_folder: TinyFolder) -> None:
    """2,048 byte-level tokens are about 500 of the default model's."""
    plugin.install()
    folder = str(tiny_folder("llama"))
    model = PageLM(folder, device="cpu", gate="closed") if "object" in how else "hf"
    manager = TaskManager(include_path=str(TASKS_FOLDER), include_defaults=False)
    results = lm_eval.simple_evaluate(
        model=model,
        model_args={"pretrained": folder} if model == "hf" else None,
        tasks=["page_rulergen_2k_vt"],
        task_manager=manager if "manager" in how else None,
        device="cpu" if model == "hf" else None,
        limit=1,
        bootstrap_iters=0,
    )
    (row,) = results["samples"]["page_rulergen_2k_vt"]
    assert 0.9 * 2048 < len(row["arguments"][0][0]) <= 2048
