"""Peak memory of many arms of one prompt, against what it is made of.

Each count of arms runs in a fresh process: one prefill, then the evicted answers and the full one,
`--rows` decoded together. Prints the peaks above the loaded model beside the bound: the full cache,
the buffers of the largest decode batch and one layer's transient, which is what a bare prefill of
the same prompt takes besides its cache.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Sequence
from typing import Any

import torch

from page_bench.commands.latency.peak_memory import PeakMemory, in_fresh_process
from page_bench.config import PageConfig
from page_bench.engine.prefilled_prompt import PromptPass
from page_bench.engine.prompt import Prompt
from page_bench.model import attention, default_model
from page_bench.model.attention import MEAN_ALONE, observing
from page_bench.model.cache import allocated_bytes, empty_cache
from page_bench.model.decode import AnswerRequest
from page_bench.model.prefill import forward
from page_bench.model.support import layer_windows

EVICTORS = ("snapkv", "h2o", "streamingllm", "pyramidkv")
BUDGETS = (0.0625, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875)
MIB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--new_tokens", type=int, default=32)
    parser.add_argument("--rows", type=int, default=4, help="answers decoded together")
    parser.add_argument("--budgets", type=int, nargs="+", default=[1, 2, 4, 8], help="how many")
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak is not None:
        print(json.dumps(peak(arguments, BUDGETS[-arguments.peak :] if arguments.peak else ())))
        return
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads: {arguments.tokens} tokens, "
        f"{arguments.rows} answers together; MiB above the loaded model"
    )
    bare = measured(arguments, 0)
    transient = bare["prefill"] - bare["cache"]
    print(f"bare prefill {bare['prefill'] / MIB:.1f}, of which cache {bare['cache'] / MIB:.1f}")
    print("arms  prefill   decode  largest batch    bound")
    for count in arguments.budgets:
        found = measured(arguments, count)
        bound = found["cache"] + found["batch"] + transient
        cells = (found["prefill"], found["decode"], found["batch"], bound)
        first, second, third, last = (f"{cell / MIB:.1f}" for cell in cells)
        print(f"{found['arms']:4}  {first:>7}  {second:>7}  {third:>13}  {last:>7}")


def measured(arguments: argparse.Namespace, budgets: int) -> dict[str, Any]:
    """The peaks in a fresh process."""
    options = ("tokens", "new_tokens", "rows")
    words = [w for name in options for w in (f"--{name}", str(getattr(arguments, name)))]
    return in_fresh_process([__file__, "--peak", str(budgets), *words])


def peak(arguments: argparse.Namespace, budgets: Sequence[float]) -> dict[str, int]:
    """Run once, and say by how much each part raised this process's memory."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    attention.register()
    path = default_model.resolve(default_model.default_pretrained())
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, model.config.vocab_size, (arguments.tokens,), generator=generator)
    arms = [PageConfig(evictor=e, budget=b, gate="open") for e in EVICTORS for b in budgets]
    gc.collect()
    if not arms:
        with PeakMemory(model.device) as memory:
            room = arguments.tokens + arguments.new_tokens
            cache = empty_cache(layer_windows(model.config), room)
            forward(model, ids[None], cache)
            return {"prefill": memory.lap(), "cache": allocated_bytes(cache)}
    request = AnswerRequest(arguments.new_tokens, (), {"eos_token_id": None})
    prompt = Prompt("memory", 0, 0, None, "", tuple(ids.tolist()), None, 0, request)
    with PeakMemory(model.device) as memory, observing(model):
        at_hand = PromptPass(
            model,
            tokenizer,
            prompt,
            arms,
            window=arms[0].window,
            spread=MEAN_ALONE,
            seed=0,
            decode_rows=arguments.rows,
        )
        prefill = memory.lap()
        answers = at_hand.answers([*arms, None], last=True)
        decode = memory.lap()
    *evicted, full = sorted(answer.kv_bytes_allocated for answer in answers)
    # The smallest come first; the full cache is decoded last, as it stands.
    batches = (evicted[i : i + arguments.rows] for i in range(0, len(evicted), arguments.rows))
    return {
        "arms": len(answers),
        "prefill": prefill,
        "decode": decode,
        "cache": full,
        "batch": max(map(sum, batches)),
    }


if __name__ == "__main__":
    main()
