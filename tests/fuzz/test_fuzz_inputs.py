"""Files that others made, with every kind of damage: one clear sentence, or what they hold."""

from __future__ import annotations

import io
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import released_logs
import torch
from fuzzing import damaged, damaged_bytes, fresh, fuzzed, json_text, outcome, quiet
from hypothesis import given
from hypothesis import strategies as st
from retention_checkpoint import random_gates, write_checkpoint

from page_bench.analysis.gate_choice import Choice, Place
from page_bench.analysis.paper_logs.logs import read_authors
from page_bench.evictors._retention_checkpoint import load_gates
from page_bench.sweep.arms import arms_of
from page_bench.sweep.file import read_sweep
from page_bench.tasks.longbench_rows import check_row
from page_bench.tasks.longbench_rows import rows_of as longbench_rows
from page_bench.tasks.rulergen import questions


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


# Logs of the paper's authors

LOGS = {
    "gated_h2o_qwen3b_4k.jsonl": released_logs.gated_rows(n=3, tasks=released_logs.TASKS[:2]),
    "adakv_qwen3b_4k.jsonl": released_logs.arm_rows()[:12],
    "gated_dbtrimkv_qwen3b_4k.jsonl": released_logs.memory_rows()[:12],
    "drops_qwen3b_4k.jsonl": released_logs.agreement_rows(n=3, tasks=released_logs.TASKS[:2]),
}


@fuzzed(16)
@given(data=st.data())
def test_logs_of_the_authors(place: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(LOGS)))
    lines = data.draw(damaged(LOGS[name]))
    text = "\n".join(map(json_text, lines)) if isinstance(lines, list) else json_text(lines)
    content = text.encode("utf-8", "surrogatepass")
    if data.draw(st.booleans()):
        content = data.draw(damaged_bytes(content))
    with fresh(place) as folder:
        (folder / name).write_bytes(content)
        read = outcome(lambda: read_authors([(folder / name, Place(name))], Choice(least_inputs=1)))
        if read is not None:
            assert read.used or read.refused or read.notes


# Sweeps

SWEEP = {
    "method": "grid",
    "name": "x",
    "run_cap": 6,
    "command": [
        *("${env}", "lm_eval", "run", "--model", "page_hf", "--tasks", "page_quickstart"),
        *("--output_path", "out", "--model_args", "pretrained=x", "${args_no_hyphens}"),
    ],
    "parameters": {
        "evictor": {"values": ["snapkv", "knorm"]},
        "budget": {"distribution": "q_uniform", "min": 0.25, "max": 1.0, "q": 0.25},
        "n_sink": {"min": 1, "max": 3},
        "theta_z": {"value": -0.69},
    },
}
YAML = b"""\
method: random
parameters:
  evictor: {values: [snapkv, knorm]}
  budget: {distribution: log_uniform_values, min: 0.1, max: 1.0}
  theta_z: {distribution: normal, mu: -0.7, sigma: 0.1}
command:
- lm_eval
- run
- --model
- page_hf
- --tasks
- page_quickstart
- --model_args
- ${args_no_hyphens}
"""
YAML_TRICKS = (
    *(b"!!python/object/apply:os.system ['touch outside']", b"!!int x", b"!!float x", b"!!bool x"),
    *(b"2026-99-99", b"!!timestamp x", b"!!binary x", b"0x" + b"f" * 9000, b"!!int ''"),
    *(b"&a [*a, *a]", b"{" * 400, b"[" * 400, b"!function os.system", b"? [a]\n: b", b".nan"),
    *(b"!!set {a, b}", b"!!omap [a: 1]", b"1e400", b".inf", b"9" * 5000, b"&a {a: *a}", b"<<: 1"),
)


def plan(path: Path) -> None:
    """A sweep file as far as its arms, with nothing run."""
    sweep = outcome(lambda: read_sweep(path))
    if sweep is None:
        return
    arms = quiet(lambda: arms_of(sweep, path.parent / "out", count=3))
    for arm in arms or ():
        assert arm.folder.parent.resolve() == (path.parent / "out").resolve()
        assert not (set(arm.folder.name) & set('/\\\x00:*?"<>|\n'))
        assert len(arm.folder.name.encode()) < 200


@fuzzed(50)
@given(data=st.data())
def test_sweeps(place: Path, data: st.DataObject) -> None:
    value = data.draw(damaged(SWEEP))
    with fresh(place) as folder:
        (folder / "sweep.yaml").write_text(json_text(value, depth=400))  # JSON is YAML
        plan(folder / "sweep.yaml")


@fuzzed(50)
@given(data=st.data())
def test_bytes_of_sweeps(place: Path, data: st.DataObject) -> None:
    content = data.draw(damaged_bytes(YAML))
    if data.draw(st.booleans()):
        start = data.draw(st.integers(0, len(content)))
        content = content[:start] + data.draw(st.sampled_from(YAML_TRICKS)) + content[start + 5 :]
    with fresh(place) as folder:
        (folder / "sweep.yaml").write_bytes(content)
        plan(folder / "sweep.yaml")
    assert not Path("outside").exists()


# Retention gates


@pytest.fixture(scope="module")
def gates(place: Path) -> tuple[bytes, dict[str, Any]]:
    folder = write_checkpoint(place / "gates", random_gates("rg10", 3, 16, 2, inner=4))
    weights = (folder / "trimkv_weights.pth").read_bytes()
    return weights, json.loads((folder / "config.json").read_bytes())


@fuzzed(40)
@given(data=st.data())
def test_retention_gates(
    place: Path, gates: tuple[bytes, dict[str, Any]], data: st.DataObject
) -> None:
    weights, config = gates
    with fresh(place) as folder:
        (folder / "trimkv_weights.pth").write_bytes(
            data.draw(damaged_bytes(weights)) if data.draw(st.booleans()) else weights
        )
        (folder / "config.json").write_text(json_text(data.draw(damaged(config))))
        read = outcome(lambda: load_gates(str(folder)))
        if read is not None:
            read.gates[0](torch.ones(2, read.shape.hidden_size))


_PARTS = st.sampled_from(
    [
        torch.zeros(()),
        torch.zeros(3),
        torch.zeros(2, 0),
        torch.zeros(4, 16, dtype=torch.complex64),
        torch.zeros(4, 16, dtype=torch.int8),
        torch.full((4, 16), float("nan")),
        torch.zeros(4, 16, device="meta"),
        torch.zeros(4, 16).to_sparse(),
        torch.nn.Parameter(torch.zeros(4, 16)),
        "text",
        None,
        [torch.zeros(3)],
    ]
)
_KEYS = st.sampled_from(
    [
        "model.layers.0.self_attn.retention_gate.bias",
        "model.layers.99999999999.self_attn.retention_gate.bias",
        f"model.layers.{'9' * 5000}.self_attn.retention_gate.bias",
        "model.layers.1.self_attn.retention_gate.linear3.weight",
        "model.layers.٣.self_attn.retention_gate.linear1.weight",
        "../../outside",
        5,
        None,
        b"x",
    ]
)


@fuzzed(40)
@given(data=st.data())
def test_weights_of_retention_gates(
    place: Path, gates: tuple[bytes, dict[str, Any]], data: st.DataObject
) -> None:
    weights, config = gates
    table = torch.load(io.BytesIO(weights), weights_only=True)
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from(sorted(map(str, table))) | _KEYS)
        if data.draw(st.booleans()):
            table.pop(key, None)
        else:
            table[key] = data.draw(_PARTS)
    with fresh(place) as folder:
        torch.save(table, folder / "trimkv_weights.pth")
        (folder / "config.json").write_text(json.dumps(config))
        read = outcome(lambda: load_gates(str(folder)))
        if read is not None:
            read.gates[0](torch.ones(2, read.shape.hidden_size))


# Documents of tasks

ROWS = [
    {"context": "A text.", "question": "Who?", "answers": ["him"], "dataset": "qasper"},
    {"context": "Another.", "question": "What?", "answers": ["it", 3], "dataset": "qasper"},
]
SQUAD = {
    "data": [
        {
            "title": "t",
            "paragraphs": [
                {
                    "context": "The Rhine is a river.",
                    "qas": [{"question": "What?", "answers": [{"text": "a river"}], "id": "1"}],
                }
            ],
        }
    ]
}
HOTPOT = [
    {
        "question": "Who?",
        "answer": "he",
        "context": [["A", ["He."]], ["B", ["She."]]],
        "supporting_facts": [["A", 0]],
    }
]


@fuzzed(80)
@given(data=st.data())
def test_rows_of_longbench(place: Path, data: st.DataObject) -> None:
    lines = data.draw(damaged(ROWS))
    text = "\n".join(map(json_text, lines)) if isinstance(lines, list) else json_text(lines)
    content = text.encode("utf-8", "surrogatepass")
    if data.draw(st.booleans()):
        content = data.draw(damaged_bytes(content))
    with fresh(place) as folder:
        (folder / "qasper.jsonl").write_bytes(content)
        metadata = {"longbench_data": str(folder)}
        rows = outcome(lambda: longbench_rows("qasper", metadata))
        for number, row in enumerate(rows or ()):
            outcome(partial(check_row, row, "qasper", number))


@fuzzed(80)
@given(data=st.data())
def test_documents_of_questions(place: Path, data: st.DataObject) -> None:
    kind, whole = data.draw(st.sampled_from([("squad", SQUAD), ("hotpotqa", HOTPOT)]))
    content = json_text(data.draw(damaged(whole))).encode("utf-8", "surrogatepass")
    if data.draw(st.booleans()):
        content = data.draw(damaged_bytes(content))
    with fresh(place) as folder:
        (folder / "documents.json").write_bytes(content)
        questions.load.cache_clear()
        corpus = outcome(lambda: questions.load(kind, str(folder / "documents.json")))
        if corpus is not None:
            assert corpus.questions
            assert corpus.digest
