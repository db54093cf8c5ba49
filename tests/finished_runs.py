"""Finished runs as lm-eval and page_hf leave them, without a run: results JSON and trace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stored_traces import stored

from page_bench.records.trace import Trace, write_traces

FULL = {"vt": (1, 0, 1, 1), "niah_multikey_3": (1, 1, 1, 0)}
PLAIN = {"vt": (1, 1, 1, 0), "niah_multikey_3": (0, 0, 1, 0)}
DROPS = {"vt": 0.2, "niah_multikey_3": 0.02}
TAU = 0.07
"""Opens on vt alone: of 8 answers the full cache has 6 right, plain eviction 4, the gate 6."""
SUITE = "page_ruler_4k"
ASKED = {"max_new_tokens": 30, "stop": []}
DATE = 1_795_950_000.0  # 2026-11-29


def answers(gate: str, **changes: Any) -> list[Trace]:
    """The traces of a run with one of the gates `open`, `closed` and `page`."""
    found = []
    for task, drop in DROPS.items():
        opened = gate == "open" or (gate == "page" and drop >= TAU)
        for doc_id, correct in enumerate((PLAIN if opened else FULL)[task]):
            decided: dict[str, Any] = {"tau": TAU, "tau_variant": "number"}
            values: dict[str, Any] = {
                **(decided if gate == "page" else {}),
                "evictor_args": {"variant": "paper"},
                "protocol": "page",
                "chat_template": True,
                "asked": ASKED,
                "n_sink": 4,
                "recent": 32,
                "kv_bytes_full": 4000,
                "kv_bytes_kept": 1000 if opened else 4000,
                "decode_s": 1.0 if opened else 3.0,
                "new_tokens": 10,
            }
            found.append(
                stored(
                    f"{SUITE}_{task}",
                    doc_id,
                    gate=gate,
                    gate_open=opened,
                    drop=drop,
                    correct=float(correct),
                    **{**values, **changes},
                )
            )
    return found


def write_run(folder: Path, traces: Sequence[Trace], **config: Any) -> Path:
    """Results and trace of a run in a folder; returns the results' path.

    Args:
        folder: is made.
        traces: of all its answers.
        config: replaces entries of the results' `config`; `page` is added to.
    """
    first = traces[0]
    tasks = list(dict.fromkeys(trace.task for trace in traces))
    trace_file = folder / "trace_2026-11-29T10-00-00.000000.jsonl"
    write_traces(trace_file, traces)
    page = {
        "page_bench": "0.1.0",
        "model": first.model,
        "device": "cpu",
        "chat_template": first.chat_template,
        "theta_z": -0.69,
        "pilot_size": 100,
        "calibration": None,
        "truncation": None,
        "trace_file": str(trace_file),
        **{name: getattr(first, name) for name in ("evictor", "granularity", "budget", "gate")},
        **{name: getattr(first, name) for name in ("tau_variant", "tau")},
        **config.pop("page", {}),
    }
    args = {"pretrained": first.model, "evictor": first.evictor, "budget": first.budget}
    args |= {"gate": first.gate, "tau": TAU}
    counts = {task: [t for t in traces if t.task == task] for task in tasks}
    metadata = {"version": 1.0, "protocol": first.protocol, "config_source": "/x/y.yaml", **args}
    results = {
        "results": {
            task: {"correct,none": sum(t.correct or 0 for t in own) / len(own)}
            for task, own in counts.items()
        },
        "group_subtasks": {},
        "configs": {task: {"repeats": 1, "metadata": metadata} for task in tasks},
        "versions": dict.fromkeys(tasks, 1.0),
        "n-shot": dict.fromkeys(tasks, 0),
        "n-samples": {
            task: {"original": 500, "effective": len(own)} for task, own in counts.items()
        },
        "config": {
            "model": "page_hf",
            "model_args": {**args, "trace": str(folder)},
            "model_num_parameters": 7_000_000_000,
            "page": page,
            "limit": 4.0,
            "gen_kwargs": {},
            "random_seed": 0,
            "numpy_seed": 1234,
            "torch_seed": 1234,
            "fewshot_seed": 1234,
            **config,
        },
        "git_hash": "abc1234",
        "date": DATE,
        "pretty_env_info": "PyTorch version: 2.13.0+cpu\n\nCPU:\nModel name:      Some CPU\n",
        "transformers_version": "5.24.0",
        "lm_eval_version": "0.4.13",
        "system_instruction": None,
    }
    path = folder / "results_2026-11-29T10-00-00.000001.json"
    path.write_text(json.dumps(results), encoding="utf-8")
    return path


def write_trio(folder: Path, **changes: Any) -> Path:
    """Full, plain and gated run of one arm, each in a folder of its own."""
    for gate in ("closed", "open", "page"):
        write_run(folder / gate, answers(gate, **changes))
    return folder


def edited(path: Path, **changes: Any) -> None:
    """Change entries of a results file's top level or, with `config_…`, of its config."""
    results = json.loads(path.read_text(encoding="utf-8"))
    for name, value in changes.items():
        place = results["config"] if name.startswith("config_") else results
        place[name.removeprefix("config_")] = value
    path.write_text(json.dumps(results), encoding="utf-8")
