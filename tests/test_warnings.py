"""What a run says of itself beyond its numbers: warnings, and where the numbers came from."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch
from stored_traces import stored
from tiny_models import tiny_model

from page_bench import __version__
from page_bench.config import PageConfig
from page_bench.engine.decision import without_pilot
from page_bench.engine.make_trace import brief
from page_bench.engine.summary import RunSummary
from page_bench.harness.run_output import RunRecord
from page_bench.model import provenance
from page_bench.records.trace import Answer, Trace


def warnings(traces: Sequence[Trace], **arguments: Any) -> str:
    """Those of a run before its answers are scored, as one text."""
    config = PageConfig(gate="open", **arguments)
    found = RunSummary.of(config, [*map(brief, traces)], without_pilot(config))
    return "\n".join(found.warnings)


def said(answers: Sequence[str], task: str = "vt", **changes: Any) -> list[Trace]:
    return [stored(task, i, answer=text, **changes) for i, text in enumerate(answers)]


def test_answers_that_are_all_empty_are_a_warning() -> None:
    empty = said(["", " ", "\n", "", ""])
    assert "all 5 answers to vt are empty" in warnings(empty)
    assert "empty" not in warnings([*said(["", "", "", ""]), stored("vt", 4, answer="7")])


def test_answers_that_are_all_the_same_are_a_warning_for_their_task_alone() -> None:
    found = warnings([*said(["the"] * 6, "fwe"), *said(["1", "2", "3", "1", "1"], "vt")])
    assert "all 6 answers to fwe are the same" in found
    assert "vt" not in found


def test_few_answers_repeats_and_likelihoods_prove_nothing() -> None:
    assert "answers to" not in warnings(said(["the"] * 4))
    assert "answers to" not in warnings([stored("vt", 0, answer="the", repeat=i) for i in range(9)])
    assert "answers to" not in warnings(said([""] * 9, log_likelihoods=[-1.0], greedy=[False]))


def test_truncated_prompts_are_a_warning() -> None:
    cut = [stored("vt", i, truncated_tokens=n) for i, n in enumerate([0, 10, 30, 50])]
    assert "3 of 4 prompts were cut by truncation=middle, of 30 tokens in the median" in warnings(
        cut, truncation="middle"
    )


def test_answers_past_a_change_of_rotation_are_a_warning() -> None:
    arms = [(True, None), (True, "gate closed"), (True, None), (False, None), (None, None)]
    changed = [
        stored("vt", i, rotation_changed=there, kept_all_because=why)
        for i, (there, why) in enumerate(arms)
    ]
    found = warnings(changed)
    assert "3 of 5 answers go on past the length at which this model's rotary" in found
    assert "1 from a full cache follow it, as hf does, and 2 from an evicted cache keep" in found
    assert "rotary" not in warnings(changed[3:])


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([0.0] * 20, "even the full cache is hardly ever right (vt 0.00 of 20)"),
        ([1.0] + [0.0] * 19, "even the full cache is hardly ever right (vt 0.05 of 20)"),
        ([1.0, 1.0] + [0.0] * 18, None),
        ([0.0] * 4, None),
    ],
)
def test_a_full_cache_that_fails_the_task_is_a_warning(
    verdicts: list[float], expected: str | None, tmp_path: Path
) -> None:
    traces = [
        stored("vt", i, gate="closed", correct=value, kept_all_because="gate closed")
        for i, value in enumerate(verdicts)
    ]
    # What was evicted may fail.
    traces += [stored("vt", 100 + i, correct=0.0) for i in range(9)]
    record = RunRecord(str(tmp_path))
    record.add("generate_until", RunSummary(), [Answer(t.answer, t) for t in traces])
    found = "\n".join(record.close({})["warnings"])
    assert expected in found if expected else "full cache" not in found


def test_a_record_says_what_computed_it() -> None:
    found = provenance.provenance(tiny_model("llama"), torch.device("cpu"))
    assert found["page_bench"] == __version__
    assert found["versions"]["torch"] == torch.__version__
    assert found["device"] == "cpu"
    processors = Path("/proc/cpuinfo")
    if processors.exists() and "model name" in processors.read_text():
        assert f": {found['device_name']}\n" in processors.read_text()
    assert found["device_name"]


def test_versions_of_quantisers_are_told_where_weights_are_quantised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed = {"torch": "2", "torchao": "0.9", "compressed-tensors": "0.8"}

    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr("importlib.metadata.version", version)
    model = tiny_model("llama")
    assert provenance.versions(model) == {"torch": "2"}
    model.config.quantization_config = {"quant_method": "torchao"}
    assert provenance.versions(model) == installed


def test_the_commit_is_that_of_page_bench_and_says_what_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "_ROOT", tmp_path)
    provenance.commit.cache_clear()
    assert provenance.commit() is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "file").write_text("1")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    provenance.commit.cache_clear()
    assert provenance.commit() == head.stdout.strip()
    (tmp_path / "file").write_text("2")
    provenance.commit.cache_clear()
    assert provenance.commit() == f"{head.stdout.strip()}-dirty"
    provenance.commit.cache_clear()


def test_a_warning_about_short_prompts_names_five_of_them_once_each() -> None:
    traces = [stored("vt", i, must_keep=68, repeat=r) for i in range(7) for r in range(2)]
    traces += [stored("qa", 0, must_keep=50.0), stored("qa", 1)]
    assert (
        "15 of 16 prompts are so short that evictor=snapkv kept more than budget=0.125 says, the "
        "50 to 68 positions that it always keeps: vt 0, vt 1, vt 2, vt 3, vt 4 and 3 more."
    ) in warnings(traces)
    # A closed gate keeps all for another reason.
    closed = [stored("vt", 0, gate="page", gate_open=False, kept_all_because="gate closed")]
    assert "always keeps" not in warnings(closed)


def test_a_budget_is_of_what_is_compressed() -> None:
    # Of a context of 40 tokens 36 stay whatever the budget; a long question changes nothing.
    traces = [stored("vt", 0, prompt_tokens=400, context_tokens=40)]
    assert "1 of 1 evicted prompts kept more than budget=0.25" in warnings(
        traces, budget=0.25, n_sink=4, recent=32
    )


def test_prompts_of_which_nothing_was_evicted_are_not_counted_as_evicted() -> None:
    """Three prompts open, of 20, 60 and 400 tokens, where 40 positions always stay."""
    short = stored("vt", 0, prompt_tokens=20, kept_all_because="prompt too short", kept_kv=1.0)
    traces = [short, *(stored("vt", i, prompt_tokens=n) for i, n in ((1, 60), (2, 400)))]
    said = warnings(traces, budget=0.25, n_sink=4, recent=32)
    assert (
        "nothing was evicted of 1 of 3 prompts whose gate opened, which are too short: n_sink + "
        "recent + 4 = 40 positions stay." in said
    )
    assert "1 of 2 evicted prompts kept more than budget=0.25" in said
    alone = warnings([short], budget=0.25, n_sink=4, recent=32)
    assert "nothing was evicted of 1 of 1 prompts" in alone
    assert "evicted prompts kept more" not in alone
