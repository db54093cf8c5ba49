"""What the runs of `latency` amount to: rounds, medians, quartiles, and what a gate mixes."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from page_bench.commands.latency.bench import CLOSED, FULL, OPEN, Bench, Ignored, Run


def rounds_of(
    bench: Bench, length: int, rounds: int, progress: Ignored = lambda: None
) -> dict[str, list[Run]]:
    """Run all configurations in turn, over and over, after one run of each that is dropped.

    Another one begins in each round, so that none always follows the same.

    Args:
        bench: what is run.
        length: prompt tokens.
        rounds: how often each configuration is measured.
        progress: called after each run.

    Returns:
        By configuration, its runs in the order of the rounds.
    """
    prompt, names = bench.prompt(length), bench.configurations
    runs: dict[str, list[Run]] = {name: [] for name in names}
    for number in range(-1, rounds):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            gc.collect()  # outside of what is timed
            run = bench.run(name, prompt)
            progress()
            if number >= 0:
                runs[name].append(run)
    return runs


@dataclass(frozen=True)
class Spread:
    """A measured quantity over the rounds: median, quartiles (linear interpolation), n."""

    median: float
    q1: float
    q3: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least one value."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0], 1)
        q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, q1, q3, len(values))

    @property
    def iqr(self) -> float:
        """Interquartile range."""
        return self.q3 - self.q1


@dataclass(frozen=True)
class Cost:
    """One configuration at one length.

    Attributes:
        prompt_tokens: T.
        configuration: its name.
        prefill_s, gate_s, evict_s, decode_s, total_s, decode_tokens_per_s: see `Run`.
        observation_s: the prefill minus the bare one of the same round.
        decode_steps, kv_bytes, kv_formula_bytes, kept_all_because: see `Run`.
    """

    prompt_tokens: int
    configuration: str
    prefill_s: Spread
    observation_s: Spread | None
    gate_s: Spread | None
    evict_s: Spread | None
    decode_s: Spread
    total_s: Spread
    decode_tokens_per_s: Spread
    decode_steps: int
    kv_bytes: int
    kv_formula_bytes: int
    kept_all_because: str | None


def costs(prompt_tokens: int, runs: Mapping[str, Sequence[Run]]) -> list[Cost]:
    """What the rounds amount to, one row per configuration.

    Args:
        prompt_tokens: T.
        runs: see `rounds_of`; `full` is among them.
    """
    bare = [run.prefill_s for run in runs[FULL]]
    rows = []
    for name, these in runs.items():
        observed = [run.prefill_s - b for run, b in zip(these, bare, strict=True)]
        last = these[-1]
        rows.append(
            Cost(
                prompt_tokens=prompt_tokens,
                configuration=name,
                prefill_s=Spread.of([run.prefill_s for run in these]),
                observation_s=None if name == FULL else Spread.of(observed),
                gate_s=_spread_of([run.gate_s for run in these]),
                evict_s=_spread_of([run.evict_s for run in these]),
                decode_s=Spread.of([run.decode_s for run in these]),
                total_s=Spread.of([run.total_s for run in these]),
                decode_tokens_per_s=Spread.of([run.decode_tokens_per_s for run in these]),
                decode_steps=last.decode_steps,
                kv_bytes=last.kv_bytes,
                kv_formula_bytes=last.kv_formula_bytes,
                kept_all_because=last.kept_all_because,
            )
        )
    return rows


@dataclass(frozen=True)
class Expected:
    """What a gate costs on average, at the medians of its open and of its closed runs.

    Attributes:
        prompt_tokens: T.
        open_rate: share of prompts on which the gate opens.
        decode_s, total_s: seconds.
        decode_tokens_per_s: passes of the model per second of decoding.
        kv_bytes: of the prompt's keys and values while decoding.
    """

    prompt_tokens: int
    open_rate: float
    decode_s: float
    total_s: float
    decode_tokens_per_s: float
    kv_bytes: float


def expected(rows: Sequence[Cost], open_rate: float) -> Expected | None:
    """The mix of a gate's two outcomes; None without gated rows.

    Args:
        rows: of one length, see `costs`.
        open_rate: share of prompts on which the gate opens.
    """
    named = {row.configuration: row for row in rows}
    if OPEN not in named:
        return None
    opened, closed = named[OPEN], named[CLOSED]

    def mixed(one: float, other: float) -> float:
        return open_rate * one + (1 - open_rate) * other

    decode_s = mixed(opened.decode_s.median, closed.decode_s.median)
    return Expected(
        prompt_tokens=opened.prompt_tokens,
        open_rate=open_rate,
        decode_s=decode_s,
        total_s=mixed(opened.total_s.median, closed.total_s.median),
        decode_tokens_per_s=mixed(opened.decode_steps, closed.decode_steps) / decode_s,
        kv_bytes=mixed(opened.kv_bytes, closed.kv_bytes),
    )


def _spread_of(values: Sequence[float | None]) -> Spread | None:
    there = [value for value in values if value is not None]
    return Spread.of(there) if there else None
