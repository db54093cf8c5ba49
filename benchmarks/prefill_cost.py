"""What observing costs: prefill with window attention and D against a bare SDPA prefill.

    python benchmarks/prefill_cost.py            both tables
    python benchmarks/prefill_cost.py --tokens 1024 --rounds 9

Times alternate within one process; peak memory is taken in a fresh process each. Prints ratios.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from page_bench.commands.latency.peak_memory import PeakMemory, in_fresh_process
from page_bench.gating.signals import head_agreement, head_agreement_drop
from page_bench.model import attention
from page_bench.model.default_model import default_pretrained, resolve
from page_bench.model.prefill import forward, prefill

WINDOW, TOP_K = 32, 32
SHAPES = ((64, 40, 4096), (80, 64, 4096))


def load() -> Any:
    """The default model in fp32."""
    model = AutoModelForCausalLM.from_pretrained(resolve(default_pretrained()), dtype=torch.float32)
    return model.eval()


def bare(model: Any, ids: torch.Tensor) -> None:
    """Prefill as `generate` would do it."""
    model.set_attn_implementation("sdpa")
    forward(model, ids, DynamicCache(config=model.config))


def observed(model: Any, ids: torch.Tensor) -> None:
    """Prefill with the observation window, and D."""
    model.set_attn_implementation(attention.observable_name("sdpa"))
    filled = prefill(model, ids, window=WINDOW, room=1)
    head_agreement_drop(head_agreement(filled.observation.window_attention, TOP_K))


def timed(function: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def compare_times(tokens: int, rounds: int) -> None:
    """Alternate both prefills, and D alone, and print medians and their ratios."""
    model = load()
    ids = prompt(model, tokens)
    bare(model, ids)
    observed(model, ids)
    filled = prefill(model, ids, window=WINDOW, room=1)
    window_attention = filled.observation.window_attention
    seconds: dict[str, list[float]] = {"bare": [], "observed": [], "D": []}
    for _ in range(rounds):
        seconds["bare"].append(timed(lambda: bare(model, ids)))
        seconds["observed"].append(timed(lambda: observed(model, ids)))
        seconds["D"].append(timed(lambda: head_agreement(window_attention, TOP_K)))
    median = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"prefill of {tokens} tokens, median of {rounds} alternating rounds")
    for name, values in seconds.items():
        print(f"  {name:9} {median[name]:8.4f} s   (min {min(values):.4f}, max {max(values):.4f})")
    print(f"  observed / bare  {median['observed'] / median['bare']:.3f}")
    print(f"  D / bare         {median['D'] / median['bare']:.4f}")


def compare_signal(rounds: int) -> None:
    """D against the top-k that it cannot do without, at the shapes of larger models."""
    for layers, heads, tokens in SHAPES:
        generator = torch.Generator().manual_seed(0)
        attention_rows = torch.rand(layers, heads, tokens, generator=generator).softmax(-1)
        topk, signal = [], []
        for _ in range(rounds + 1):
            topk.append(timed(lambda a=attention_rows: a.topk(TOP_K)))  # type: ignore[misc]
            signal.append(timed(lambda a=attention_rows: head_agreement(a, TOP_K)))  # type: ignore[misc]
        first, second = statistics.median(topk[1:]), statistics.median(signal[1:])
        print(
            f"D at L={layers} H={heads} T={tokens}: {second * 1e3:.1f} ms, top-k alone "
            f"{first * 1e3:.1f} ms, ratio {second / first:.2f}"
        )


def compare_memory(tokens: int, rounds: int) -> None:
    """Peak resident memory above the loaded model, each way in fresh processes, alternating."""
    peaks: dict[str, list[int]] = {"bare": [], "observed": []}
    for _ in range(rounds):
        for way, values in peaks.items():
            done = in_fresh_process([__file__, "--peak", way, "--tokens", str(tokens)])
            values.append(done["bytes"])
    median = {way: statistics.median(values) for way, values in peaks.items()}
    print(f"peak memory above the loaded model, median of {rounds} fresh processes each")
    for way, values in peaks.items():
        low, high = min(values) / 2**20, max(values) / 2**20
        print(f"  {way:9} {median[way] / 2**20:8.1f} MiB (min {low:.1f}, max {high:.1f})")
    print(f"  observed / bare  {median['observed'] / median['bare']:.3f}")


def print_peak(way: str, tokens: int) -> None:
    """Run one way once and print by how much it raised this process's resident memory."""
    model = load()
    ids = prompt(model, tokens)
    gc.collect()
    with PeakMemory(model.device) as memory:
        {"bare": bare, "observed": observed}[way](model, ids)
        print(json.dumps({"bytes": memory.lap()}))


def prompt(model: Any, tokens: int) -> torch.Tensor:
    """Random token ids `[1, tokens]`; neither time nor memory depends on what they say."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(3, model.config.vocab_size, (1, tokens), generator=generator)


def main() -> None:
    """Print both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peak", choices=("bare", "observed"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    attention.register()
    if arguments.peak:
        print_peak(arguments.peak, arguments.tokens)
        return
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {os.cpu_count()} cores")
    compare_times(arguments.tokens, arguments.rounds)
    compare_signal(arguments.rounds)
    compare_memory(arguments.tokens, arguments.rounds)


if __name__ == "__main__":
    main()
