"""A grid of arms by the engine, against `simple_evaluate` of one arm after another.

Both sides run in one process on one loaded model, with the same prefill and decode code; the second
has no store. Prompts are generated RULER, each answered by exactly so many tokens. Prints what
differs between the two sides' samples, the ratio of their times, what the engine's time is made of,
and with --growth how it grows with the number of arms and with the prompt's length.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import logging
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lm_eval
import torch
from lm_eval.tasks import TaskManager

from page_bench.config import PageConfig
from page_bench.engine.grid_work import Filled
from page_bench.harness import plugin
from page_bench.harness.lm import PageLM
from page_bench.harness.lm_eval_speedups import once_for_all_runs

EVICTORS = ("snapkv", "h2o", "streamingllm", "pyramidkv")
BUDGETS = (0.0625, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875)
GATES = ("open", "page")
TASKS = ("niah_multikey_3", "niah_multivalue", "vt", "fwe")

Samples = dict[tuple[str, int], dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--prompts", type=int, default=8, help=f"a multiple of {len(TASKS)}")
    parser.add_argument("--length", default="2k", help="of the tasks page_rulergen_…")
    parser.add_argument("--new_tokens", type=int, default=32)
    parser.add_argument("--budgets", type=float, nargs="+", default=BUDGETS)
    parser.add_argument("--growth", action="store_true", help="also over arms and lengths")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    plugin.install()
    lm = PageLM(device="cuda" if torch.cuda.is_available() else "cpu", dtype="float32")
    grid = Grid(lm, arguments.length, arguments.prompts // len(TASKS), arguments.new_tokens)
    arms = arms_of(arguments.budgets)
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads: {len(arms)} arms, "
        f"{grid.prompts} prompts of {arguments.length}, {arguments.new_tokens} new tokens each",
        flush=True,
    )
    engine_s, filled, together = grid.together(arms)
    print(f"engine            {engine_s:8.1f} s", flush=True)
    alone_s, alone = grid.one_by_one(arms)
    compare(arms, together, alone)
    print(f"one after another {alone_s:8.1f} s, {alone_s / engine_s:.1f} times the engine's")
    parts = {**filled.seconds, "rest": engine_s - sum(filled.seconds.values())}
    print("engine: " + ", ".join(f"{k} {v:.1f} s ({v / engine_s:.0%})" for k, v in parts.items()))
    if arguments.growth:
        growth(lm, arguments.new_tokens)


class Grid:
    """Prompts, and a model that answers them.

    Args:
        lm: the loaded model.
        length: as in the names of the tasks.
        each: prompts per task.
        new_tokens: of every answer.
    """

    def __init__(self, lm: PageLM, length: str, each: int, new_tokens: int) -> None:
        self.lm = lm
        self.each = each
        self.prompts = each * len(TASKS)
        self.names = [f"page_rulergen_{length}_{task}" for task in TASKS]
        manager = TaskManager(metadata={"essays": "synthetic", "pretrained": lm.model_name})
        tasks = manager.load(self.names)
        # As a sweep does it: what is asked is the same for every arm.
        manager.load = lambda names: tasks  # type: ignore[method-assign]
        self.arguments: dict[str, Any] = {
            "tasks": self.names,
            "limit": each,
            "task_manager": manager,
            "bootstrap_iters": 0,
            "gen_kwargs": {"until": [], "max_gen_toks": new_tokens, "eos_token_id": None},
        }

    def together(self, arms: Sequence[PageConfig]) -> tuple[float, Filled, list[Samples]]:
        """Seconds for all arms from one prefill per prompt, what they took, and the samples."""
        with tempfile.TemporaryDirectory() as folder, once_for_all_runs():
            store = str(Path(folder) / "store.sqlite")
            pages = [dataclasses.replace(arm, store=store) for arm in arms]
            requests = self._requests()
            lm = self.lm.with_page(pages[0])
            start = time.perf_counter()
            filled = lm.fill(requests, pages)
            samples = [self._evaluate(lm.with_page(page)) for page in pages]
            return time.perf_counter() - start, filled, samples

    def one_by_one(self, arms: Sequence[PageConfig]) -> tuple[float, list[Samples]]:
        """Seconds for the same arms, each for itself, and the samples."""
        with once_for_all_runs():
            start = time.perf_counter()
            samples = []
            for number, arm in enumerate(arms, start=1):
                samples.append(self._evaluate(self.lm.with_page(arm)))
                passed = time.perf_counter() - start
                print(f"{number} of {len(arms)} arms, {passed:.0f} s", file=sys.stderr, flush=True)
            return time.perf_counter() - start, samples

    def _requests(self) -> list[Any]:
        asked: list[Any] = []
        lm = self.lm.with_page(self.lm.page)

        def collect(requests: list[Any]) -> list[str]:
            asked.extend(requests)
            return [""] * len(requests)

        lm.generate_until = collect  # type: ignore[method-assign]
        lm_eval.simple_evaluate(model=lm, **self.arguments)
        return asked

    def _evaluate(self, lm: PageLM) -> Samples:
        results = lm_eval.simple_evaluate(model=lm, **self.arguments)
        assert results is not None
        return {
            (task, sample["doc_id"]): {
                "answer": sample["resps"],
                **{metric: sample[metric] for metric in sample["metrics"]},
            }
            for task, samples in results["samples"].items()
            for sample in samples
        }


def compare(
    arms: Sequence[PageConfig], together: Sequence[Samples], alone: Sequence[Samples]
) -> None:
    """Print how many samples of the two sides differ, and which."""
    differing = [
        (arm, key, here[key], there[key])
        for arm, here, there in zip(arms, together, alone, strict=True)
        for key in there
        if here[key] != there[key]
    ]
    total = sum(map(len, alone))
    opened = Counter(bool(s["gate_open"]) for one in alone for s in one.values())
    print(f"{total} samples on each side ({opened[True]} evicted), {len(differing)} differ")
    for arm, key, here, there in differing:
        print(f"  {arm.evictor} {arm.budget} {arm.gate} {key}: {here} | {there}")


def growth(lm: PageLM, new_tokens: int) -> None:
    """Seconds per prompt over arms and over lengths, with fitted exponents."""
    few = Grid(lm, "2k", 1, new_tokens)
    counts = {}
    for budgets in (BUDGETS[:1], BUDGETS[:2], BUDGETS[::2], BUDGETS):
        arms = arms_of(budgets)
        counts[len(arms)] = few.together(arms)[1]
    print(table("arms", counts))
    lengths = {}
    for name in ("1k", "2k", "4k", "8k"):
        grid = Grid(lm, name, 1, new_tokens)
        filled = grid.together(arms_of(BUDGETS))[1]
        lengths[filled.prefill_tokens // filled.prefilled] = filled
    print(table("tokens", lengths))


def table(name: str, filled: Mapping[int, Filled]) -> str:
    """Seconds per prompt by activity, and the exponents of power laws fitted to them."""
    activities = [*next(iter(filled.values())).seconds, "all"]
    lines = ["  ".join([f"{name:>8}", *(f"{activity:>9}" for activity in activities)])]
    columns: dict[str, list[float]] = {activity: [] for activity in activities}
    for count, one in filled.items():
        seconds = {**one.seconds, "all": sum(one.seconds.values())}
        for activity in activities:
            columns[activity].append(seconds[activity] / one.prefilled)
        cells = (f"{columns[activity][-1]:9.3f}" for activity in activities)
        lines.append("  ".join([f"{count:8}", *cells]))
    exponents = (f"{exponent(list(filled), columns[a]):9.2f}" for a in activities)
    lines.append("  ".join([f"{'exponent':>8}", *exponents]))
    return "\n".join(lines)


def exponent(counts: Sequence[int], seconds: Sequence[float]) -> float:
    """Slope of a straight line through the logarithms, by least squares."""
    x = [math.log(count) for count in counts]
    y = [math.log(second) for second in seconds]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    rise = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return rise / sum((a - mean_x) ** 2 for a in x)


def arms_of(budgets: Sequence[float]) -> list[PageConfig]:
    """All combinations of the evictors, the budgets and the gates."""
    return [
        PageConfig(evictor=evictor, budget=budget, gate=gate, tau="fixed")
        for evictor, budget, gate in itertools.product(EVICTORS, budgets, GATES)
    ]


if __name__ == "__main__":
    main()
