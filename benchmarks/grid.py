"""A grid of arms by the engine, against the same arms one after another.

Both sides run in one process on one loaded model, with the same prefill and decode code and no
store; prompts are generated RULER. Prints the ratio, what the engine's time is made of, and how it
grows with the number of arms and with the prompt's length.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Sequence

import torch
from lm_eval.api.instance import Instance

from page_bench.attention import observing
from page_bench.config import PageConfig
from page_bench.engine import Engine
from page_bench.lm import PageLM
from page_bench.prefill import base_model
from page_bench.prompt import Prompt
from page_bench.tasks.rulergen.dataset import load

EVICTORS = ("snapkv", "h2o", "streamingllm", "pyramidkv")
BUDGETS = (0.0625, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875)
GATES = ("open", "page")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--new_tokens", type=int, default=32)
    parser.add_argument("--growth", action="store_true", help="also over arms and lengths")
    arguments = parser.parse_args()
    lm = PageLM(device="cuda" if torch.cuda.is_available() else "cpu", dtype="float32")
    prompts = prompts_of(lm, arguments.length, arguments.prompts, arguments.new_tokens)
    arms = grid(EVICTORS, BUDGETS, GATES)
    engine_s, parts = together(lm, prompts, arms)
    alone_s = one_by_one(lm, prompts, arms)
    print(
        f"{len(arms)} arms, {len(prompts)} prompts of {arguments.length} tokens, "
        f"{arguments.new_tokens} new tokens, {torch.get_num_threads()} threads"
    )
    print(f"one after another {alone_s:8.1f} s")
    print(f"engine            {engine_s:8.1f} s, {alone_s / engine_s:.1f} times faster")
    print("of which " + ", ".join(f"{k} {v / engine_s:.0%}" for k, v in parts.items()))
    if arguments.growth:
        growth(lm, arguments)


def growth(lm: PageLM, arguments: argparse.Namespace) -> None:
    """Seconds per prompt over arms and over lengths, with fitted exponents."""
    prompts = prompts_of(lm, arguments.length, 1, arguments.new_tokens)
    counts = {}
    for budgets in (BUDGETS[:1], BUDGETS[:2], BUDGETS[::2], BUDGETS):
        arms = grid(EVICTORS, budgets, GATES)
        counts[len(arms)] = together(lm, prompts, arms)[0]
    print(table("arms", counts))
    lengths = {}
    for length in (1024, 2048, 4096, 8192 - 64):
        prompts = prompts_of(lm, length, 1, arguments.new_tokens)
        lengths[length] = together(lm, prompts, grid(EVICTORS, BUDGETS, GATES))[0]
    print(table("tokens", lengths))


def table(name: str, seconds: dict[int, float]) -> str:
    """`seconds` per count, and the exponent of the power law between the last two."""
    (a, b), (x, y) = list(seconds)[-2:], list(seconds.values())[-2:]
    cells = ", ".join(f"{n}: {s:.1f} s" for n, s in seconds.items())
    return f"{name}: {cells}; exponent of the last step {math.log(y / x) / math.log(b / a):.2f}"


def grid(
    evictors: Sequence[str], budgets: Sequence[float], gates: Sequence[str]
) -> list[PageConfig]:
    """All combinations."""
    return [
        PageConfig(evictor=evictor, budget=budget, gate=gate, tau="fixed")
        for evictor, budget, gate in itertools.product(evictors, budgets, gates)
    ]


def prompts_of(lm: PageLM, length: int, count: int, new_tokens: int) -> list[Prompt]:
    """Prompts of generated RULER that are answered by exactly so many tokens."""
    docs = load(
        ruler_length=length,
        ruler_task="niah_multikey_3",
        num_samples=count,
        essays="synthetic",
        pretrained=lm.model_name,
    )["test"]
    requests = [
        Instance(
            "generate_until",
            doc,
            (doc["prompt"], {"until": [], "max_gen_toks": new_tokens, "eos_token_id": None}),
            i,
            metadata=("grid", i, 1),
        )
        for i, doc in enumerate(docs)
    ]
    return lm.prompts(requests)


def together(
    lm: PageLM, prompts: Sequence[Prompt], arms: Sequence[PageConfig]
) -> tuple[float, dict[str, float]]:
    """Seconds for all arms from one prefill per prompt, and what they are made of."""
    plain: list[PageConfig | None] = [arm for arm in arms if arm.gate == "open"]
    parts = {"prefill": 0.0, "evict": 0.0, "decode": 0.0}
    start = time.perf_counter()
    with observing(base_model(lm.model)):
        engine = Engine(lm.model, lm.tokenizer, arms[0])
        for prompt in prompts:
            at_hand = engine._prefilled(prompt, [arm for arm in plain if arm], arms[:1])
            at_hand.seen(arms[0])
            at_hand.answers([*plain, None], last=True)
            parts["prefill"] += at_hand.prefill_s
            parts["evict"] += at_hand.evict_s
            parts["decode"] += at_hand.decode_s
    return time.perf_counter() - start, parts


def one_by_one(lm: PageLM, prompts: Sequence[Prompt], arms: Sequence[PageConfig]) -> float:
    """Seconds for the same arms, each for itself."""
    start = time.perf_counter()
    with observing(base_model(lm.model)):
        for arm in arms:
            Engine(lm.model, lm.tokenizer, arm).run(prompts)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
