"""What all signals cost together, against a bare SDPA prefill of the same prompt.

    python benchmarks/signals_cost.py
    python benchmarks/signals_cost.py --tokens 1024 --rounds 9
    python benchmarks/signals_cost.py --cpu-time      one thread, where others use the machine too

Everything that is observed beyond the prefill itself is timed: the pass over the window's softmax
with entropy and κ, D with its head pairs, and the readings of `signals=all`, from the queries and
keys of a real pass. Times alternate within one process. Prints ratios, and ends with an error if
all signals cost more than the limit.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM
from transformers.cache_utils import DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from page_bench.evictors.base.causal import attention_sums
from page_bench.gating.signals import agreements, head_agreement, measure, pair_agreement
from page_bench.model.default_model import default_pretrained, resolve
from page_bench.model.prefill import forward
from page_bench.model.window import window_statistics

WINDOW, TOP_K = 32, 32
LIMIT = 0.03
CAPTURING = "sdpa_with_a_copy"

Layer = tuple[Tensor, Tensor, float]
"""A layer's last queries `[H, w, d]`, its keys `[H_kv, T, d]`, the factor of its logits."""


def bare(model: Any, ids: Tensor) -> None:
    """Prefill as `generate` would do it."""
    model.set_attn_implementation("sdpa")
    forward(model, ids, DynamicCache(config=model.config))


def captured(model: Any, ids: Tensor) -> list[Layer]:
    """What the layers' attention is given in one pass."""
    layers: list[Layer] = []

    def attention(
        module: Any, query: Tensor, key: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        layers.append((query[0, :, -WINDOW:].clone(), key[0].clone(), kwargs["scaling"]))
        output: tuple[Tensor, Tensor | None]
        output = sdpa_attention_forward(module, query, key, *args, **kwargs)
        return output

    AttentionInterface.register(CAPTURING, attention)
    AttentionMaskInterface.register(CAPTURING, sdpa_mask)
    model.set_attn_implementation(CAPTURING)
    with torch.inference_mode():
        model(ids, logits_to_keep=1)
    return layers


def attention_alone(layers: list[Layer]) -> Tensor:
    """What the gate `page` has read off the pass, `[L, H, T]`."""
    return torch.stack([attention_sums(*layer) / WINDOW for layer in layers])


def all_signals(layers: list[Layer]) -> dict[str, float]:
    """Everything that `signals=all` and `signals=pairs` measure."""
    seen = [window_statistics(*layer, TOP_K) for layer in layers]
    window_attention = torch.stack([layer.mean_attention for layer in seen])
    row_entropy = torch.stack(
        [layer.row_entropy for layer in seen if layer.row_entropy is not None]
    )
    agreement = agreements(window_attention)
    pair_agreement(window_attention, TOP_K)
    return measure(agreement, window_attention, row_entropy, [key for _, key, _ in layers])


def timed(function: Callable[[], object], clock: Callable[[], float]) -> float:
    """Seconds of one call."""
    start = clock()
    function()
    return clock() - start


def main() -> int:
    """Print the comparison; 1 if the signals cost more than the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cpu-time", action="store_true", help="CPU seconds of a single thread")
    arguments = parser.parse_args()
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    if arguments.cpu_time:
        torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(resolve(default_pretrained()), dtype=torch.float32)
    model.eval()
    # Neither time nor memory depends on what the tokens say.
    generator = torch.Generator().manual_seed(0)
    vocabulary = model.config.vocab_size
    ids = torch.randint(3, vocabulary, (1, arguments.tokens), generator=generator)
    layers = captured(model, ids)
    window_attention = attention_alone(layers)
    ways: dict[str, Callable[[], object]] = {
        "bare prefill": lambda: bare(model, ids),
        "all signals": lambda: all_signals(layers),
        "window attention": lambda: attention_alone(layers),
        "D": lambda: head_agreement(window_attention, TOP_K),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(arguments.rounds + 1):
        for name, way in ways.items():
            elapsed = timed(way, clock)
            if number:  # the first round warms up
                seconds[name].append(elapsed)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    ratio = {name: value / median["bare prefill"] for name, value in median.items()}
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {os.cpu_count()} cores")
    kind = "CPU time" if arguments.cpu_time else "wall-clock time"
    print(f"{arguments.tokens} tokens, {kind}, median of {arguments.rounds} alternating rounds")
    for name, values in seconds.items():
        print(
            f"  {name:17} {median[name]:8.4f} s   (min {min(values):.4f}, max {max(values):.4f})"
            f"   {ratio[name]:.4f} of the prefill"
        )
    spared = ratio["window attention"] + ratio["D"]
    print(f"  all signals cost {ratio['all signals']:.2%} of the prefill (limit {LIMIT:.0%})")
    print(f"  {ratio['all signals'] - spared:.2%} more than D alone, which costs {spared:.2%}")
    return int(ratio["all signals"] > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
