"""Peak memory of the runs of `latency`: in this process on CUDA, else in a fresh one each."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from page_bench.commands.latency.bench import Bench, load
from page_bench.commands.latency.peak_memory import PeakMemory, in_fresh_process


@dataclass(frozen=True)
class Peaks:
    """Peak memory of one run, above what the loaded model takes.

    Attributes:
        prefill_bytes: until the first decoding step: the prompt's pass, the gate, the eviction.
        decode_bytes: from then on.
    """

    prefill_bytes: int
    decode_bytes: int


def peaks(bench: Bench, name: str, length: int) -> Peaks:
    """Watch one run in this process.

    Args:
        bench: what is run, on a device with a memory counter.
        name: one of its configurations.
        length: prompt tokens.
    """
    prompt = bench.prompt(length)
    gc.collect()
    before: list[int] = []
    with PeakMemory(bench.model.device) as memory:
        bench.run(name, prompt, lambda: before.append(memory.lap()))
        return Peaks(before[0], memory.lap())


def fresh_peaks(
    model_args: str, device: str | None, new_tokens: int, name: str, length: int
) -> Peaks:
    """Watch one run in a process of its own, which loads the model anew.

    Args:
        model_args, device, new_tokens: see `latency.load`.
        name, length: see `peaks`.
    """
    request = json.dumps([model_args, device, new_tokens, name, length])
    return Peaks(**in_fresh_process(["-m", "page_bench.commands.latency.peaks", request]))


def main(argv: Sequence[str]) -> None:
    """Print the peaks of the run that `fresh_peaks` asks for."""
    model_args, device, new_tokens, name, length = json.loads(argv[0])
    bench, _, _ = load(model_args, device, new_tokens)
    print(json.dumps(asdict(peaks(bench, name, length))))


if __name__ == "__main__":
    main(sys.argv[1:])
