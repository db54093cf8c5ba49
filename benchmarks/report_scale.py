"""Time and memory of `page-bench report` on many traces of a made-up grid.

    python benchmarks/report_scale.py --rows 100000

Writes the traces of SnapKV and other evictors at eight budgets and of the full cache, for two
suites of six tasks, reports on them in a process of its own, and prints seconds and its peak
memory.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

TASKS = ("niah_multikey_3", "niah_multivalue", "vt", "fwe", "qa_1", "qa_2")
SUITES = {"page_ruler_4k": 4000, "page_ruler_16k": 16000}
EVICTORS = (
    *("snapkv", "h2o", "tova", "knorm", "keydiff", "lagkv", "streamingllm", "pyramidkv"),
    *("adakv", "expected_attention"),
)
BUDGETS = (0.0625, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875)
LAYERS = 28


def write_grid(folder: Path, rows: int, seed: int = 0) -> int:
    """Write the traces of a grid with about so many rows; returns how many they are."""
    generator = np.random.default_rng(seed)
    arms = [("open", evictor, b) for evictor in EVICTORS for b in BUDGETS] + [("closed", "none", 1)]
    inputs = max(1, round(rows / len(arms) / len(TASKS) / len(SUITES)))
    prompts = [
        (suite, length, task, doc_id)
        for suite, length in SUITES.items()
        for task in TASKS
        for doc_id in range(inputs)
    ]
    profiles = np.sort(generator.uniform(0.2, 0.8, (len(prompts), LAYERS)))[:, ::-1]
    hard = np.array([task == TASKS[0] for _, _, task, _ in prompts])
    profiles[hard] = profiles[hard].mean(1, keepdims=True) + generator.normal(
        0, 0.01, (hard.sum(), LAYERS)
    )
    third = LAYERS // 3
    drops = profiles[:, :third].mean(1) - profiles[:, -third:].mean(1)
    full = generator.random(len(prompts)) < 0.8
    for number, (gate, evictor, budget) in enumerate(arms):
        own = folder / f"arm{number}"
        own.mkdir(parents=True)
        chance = 0.9 if gate == "closed" else min(1.0, 0.3 + budget)
        right = full & (generator.random(len(prompts)) < np.where(hard, budget**2, chance))
        correct = full if gate == "closed" else right
        with (own / "trace_1.jsonl").open("w", encoding="utf-8") as file:
            for i, (suite, length, task, doc_id) in enumerate(prompts):
                row = _trace(f"{suite}_{task}", doc_id, length, profiles[i].tolist())
                row |= {"gate": gate, "gate_open": gate == "open", "evictor": evictor}
                row |= {"budget": float(budget), "kept_kv": float(budget), "drop": float(drops[i])}
                row |= {"kept_all_because": None if gate == "open" else "gate closed"}
                row |= dict.fromkeys(("score", "correct", "correct_paper"), float(correct[i]))
                row["signals"] = {"drop": float(drops[i])}
                file.write(json.dumps(row) + "\n")
    return len(arms) * len(prompts)


def _trace(task: str, doc_id: int, length: int, agreement: list[float]) -> dict[str, Any]:
    return {
        **{"model": "made-up-7b", "dtype": "bfloat16", "attn_implementation": "sdpa"},
        **{"task": task, "doc_id": doc_id, "protocol": "ruler", "repeat": 0},
        "prompt_sha256": hashlib.sha256(f"{task}/{doc_id}".encode()).hexdigest(),
        **{"evictor_args": {"variant": "paper"}, "granularity": "shared", "score_norm": "none"},
        **{"n_sink": 4, "recent": 32, "window": 32, "top_k": 32, "compress": "prompt"},
        **{"chat_template": True, "asked": {"max_new_tokens": 128, "stop": []}, "gate_args": {}},
        **{"tau_variant": None, "tau": None, "z": None, "discarded_s": 0.0},
        **{"truncated_tokens": 0, "new_tokens": 12, "answer": "a made-up answer of some words"},
        **{"prompt_tokens": length + doc_id, "context_tokens": None, "agreement": agreement},
        **{"full_attention_layers": list(range(LAYERS)), "pair_agreement": None, "margin": None},
        **{"kv_bytes_full": length * 57344, "prefill_s": 0.4, "gate_s": 0.01},
        **{"kept_tokens": 100.0, "kv_bytes_kept": 5_000_000, "kv_bytes_allocated": 6_000_000},
        **{"evict_s": 0.01, "decode_s": 1.0, "decode_rows": 4, "mean_token_entropy": 0.5},
        **{"repetition": 0.0, "log_likelihoods": None, "greedy": None, "schema_version": 2},
    }


# What `wait4` says of a child begins with the parent's own peak.
_CODE = """
import re, sys
from pathlib import Path
from page_bench.commands.cli import main
status = main(sys.argv[1:])
print(re.search("VmHWM.*", Path("/proc/self/status").read_text())[0])
sys.exit(status)
"""


def measured(runs: Path, output: Path, *more: str) -> tuple[float, float]:
    """Seconds and peak resident memory (GB) of a report in a process of its own."""
    began = time.perf_counter()
    words = ["report", str(runs), "-o", str(output), *more]
    done = subprocess.run([sys.executable, "-c", _CODE, *words], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.returncode)
    return time.perf_counter() - began, int(done.stdout.split()[-2]) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description="Time and memory of a report on many traces.")
    parser.add_argument("--rows", type=int, default=100_000, help="traces (default %(default)s)")
    parser.add_argument("--keep", metavar="DIR", help="where to leave traces and report")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(args.keep or temporary)
        rows = write_grid(folder / "runs", args.rows)
        seconds, memory = measured(folder / "runs", folder / "report")
    print(f"{rows} rows: {seconds:.1f} s, peak {memory:.2f} GB")


if __name__ == "__main__":
    main()
