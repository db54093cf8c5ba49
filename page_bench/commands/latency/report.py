"""The costs that `latency` measures, as tables for people and as one JSON object."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import transformers

from page_bench import __version__
from page_bench.commands.latency.bench import FULL, Bench
from page_bench.commands.latency.costs import Cost, Expected, Spread
from page_bench.commands.latency.peaks import Peaks
from page_bench.model.prefill import base_model
from page_bench.model.provenance import device_name

_MIB = 2**20

Found = Mapping[tuple[int, str], Peaks]
"""(prompt tokens, configuration) → peaks; empty where memory was not watched."""


@dataclass(frozen=True)
class Setting:
    """What was measured on what.

    Attributes:
        model, dtype, attn_implementation, weights_bytes: the model.
        evictor, evictor_args, granularity, budget, gate: the arm.
        new_tokens, rounds: of each run, and of these per configuration.
        device, threads, cores: `threads` are torch's.
        load_average_1min: of the machine when timing began and when it ended.
        memory_counter: what peaks were read from; None where they were not.
        torch, transformers, page_bench: versions.
    """

    model: str
    dtype: str
    attn_implementation: str
    weights_bytes: int
    evictor: str
    evictor_args: dict[str, Any]
    granularity: str
    budget: float
    gate: str
    new_tokens: int
    rounds: int
    device: str
    threads: int
    cores: int
    load_average_1min: tuple[float, float]
    memory_counter: str | None
    torch: str
    transformers: str
    page_bench: str


def setting_of(
    bench: Bench, model_name: str, rounds: int, memory_counter: str | None, loads: Sequence[float]
) -> Setting:
    """The setting of a bench on this machine; `loads` are its load averages, first and last."""
    inner, config = base_model(bench.model), bench.config
    mixed = bench.mixed_precision
    kind = inner.device.type
    on = device_name(inner.device)
    return Setting(
        model=model_name,
        dtype=_name(inner.dtype) + ("" if mixed is None else f", autocast {_name(mixed)}"),
        attn_implementation=str(inner.config._attn_implementation),
        weights_bytes=int(inner.get_memory_footprint(return_buffers=False)),
        evictor=config.make_evictor().title,
        evictor_args=asdict(config.make_evictor()),
        granularity=config.granularity,
        budget=config.budget,
        gate=config.gate,
        new_tokens=bench.new_tokens,
        rounds=rounds,
        device=f"{kind} ({on})",
        threads=torch.get_num_threads(),
        cores=os.cpu_count() or 1,
        load_average_1min=(loads[0], loads[-1]),
        memory_counter=memory_counter,
        torch=torch.__version__,
        transformers=transformers.__version__,
        page_bench=__version__,
    )


def as_json(
    setting: Setting, rows: Sequence[Cost], mixes: Sequence[Expected], found: Found
) -> dict[str, Any]:
    """Everything, under keys that carry their units; what was not measured is null."""
    results = []
    for row in rows:
        peaks = found.get((row.prompt_tokens, row.configuration))
        seen = {"prefill_bytes": None, "decode_bytes": None} if peaks is None else asdict(peaks)
        results.append({**asdict(row), **{f"peak_{name}": value for name, value in seen.items()}})
    return {**asdict(setting), "results": results, "gated_expected": [asdict(m) for m in mixes]}


def tables(setting: Setting, rows: Sequence[Cost], mixes: Sequence[Expected], found: Found) -> str:
    """A card of the setting, then times and memory, and notes on what is unusual."""
    parts = [_card(setting)]
    for length in dict.fromkeys(row.prompt_tokens for row in rows):
        these = [row for row in rows if row.prompt_tokens == length]
        mix = [m for m in mixes if m.prompt_tokens == length]
        parts += [_times(these, mix), _memory(these, mix, found)]
    return "\n\n".join([*parts, "\n".join(_notes(setting, rows))])


def _card(setting: Setting) -> str:
    loads = " to ".join(f"{load:.1f}" for load in setting.load_average_1min)
    return (
        f"{setting.model}, {setting.dtype}, {setting.attn_implementation}, weights "
        f"{setting.weights_bytes / _MIB:.0f} MiB; {setting.evictor} at budget {setting.budget:g}, "
        f"granularity {setting.granularity}, gate {setting.gate}\n"
        f"{setting.device}, {setting.threads} threads of {setting.cores} cores, load average "
        f"{loads}; torch {setting.torch}, transformers {setting.transformers}\n"
        f"batch 1, greedy, {setting.new_tokens} forced new tokens, {setting.rounds} interleaved "
        f"rounds: median (interquartile range)"
    )


def _times(rows: Sequence[Cost], mixes: Sequence[Expected]) -> str:
    heads = ("prefill s", "observing ms", "gate (D) ms", "evict ms", "decode s", "total s")
    table: list[tuple[str, ...]] = [(_length(rows), *heads, "tokens/s", "")]
    full = next(row for row in rows if row.configuration == FULL).decode_tokens_per_s.median
    for row in rows:
        small = (_cell(cell, 1000) for cell in (row.observation_s, row.gate_s, row.evict_s))
        large = (_cell(cell) for cell in (row.decode_s, row.total_s, row.decode_tokens_per_s))
        speed = f"{row.decode_tokens_per_s.median / full:.2f}×"
        table.append((row.configuration, _cell(row.prefill_s), *small, *large, speed))
    for mix in mixes:
        numbers = (mix.decode_s, mix.total_s, mix.decode_tokens_per_s)
        ratio = mix.decode_tokens_per_s / full
        table.append((_mixed(mix), *["–"] * 4, *(_short(n) for n in numbers), f"{ratio:.2f}×"))
    return _aligned(table)


def _memory(rows: Sequence[Cost], mixes: Sequence[Expected], found: Found) -> str:
    heads = ("KV MiB", "by formula", "", "peak prefill MiB", "peak decode MiB")
    table: list[tuple[str, ...]] = [(_length(rows), *heads)]
    full = next(row for row in rows if row.configuration == FULL).kv_bytes
    for row in rows:
        peaks = found.get((row.prompt_tokens, row.configuration))
        seen = (None, None) if peaks is None else (peaks.prefill_bytes, peaks.decode_bytes)
        sizes = (row.kv_bytes, row.kv_formula_bytes)
        table.append(
            (
                row.configuration,
                *(f"{size / _MIB:.2f}" for size in sizes),
                f"1/{full / row.kv_bytes:.1f}",
                *("–" if size is None else f"{size / _MIB:.1f}" for size in seen),
            )
        )
    for mix in mixes:
        size, share = f"{mix.kv_bytes / _MIB:.2f}", f"1/{full / mix.kv_bytes:.1f}"
        table.append((_mixed(mix), size, "–", share, "–", "–"))
    return _aligned(table)


def _notes(setting: Setting, rows: Sequence[Cost]) -> list[str]:
    """What a reader of the tables must know."""
    notes = [
        "tokens/s: passes of the model per second of decoding. An evicted cache reads the last "
        "prompt token again, one pass more.",
        "observing is part of the prefill: what it takes longer than the bare one of its round.",
        "gated, open = plain + gate; gated, closed = full + observing + gate. The mix is computed "
        "from both, at the arm's open_rate.",
    ]
    if setting.memory_counter is None:
        notes.append("peak memory was not measured.")
    else:
        fresh = "" if "cuda" in setting.memory_counter else ", in fresh processes, to a few MiB"
        notes.append(
            f"peaks: {setting.memory_counter} above the loaded model{fresh}; prefill with gate "
            f"and eviction."
        )
    if max(setting.load_average_1min) > setting.cores + 1:
        notes.append("the load average tells of other work on this machine, which disturbs times.")
    for row in rows:
        where = f"{row.configuration} at {row.prompt_tokens:,} tokens"
        if row.kv_bytes != row.kv_formula_bytes:
            notes.append(
                f"{where}: the cache holds {row.kv_bytes:,} bytes, the formula says "
                f"{row.kv_formula_bytes:,}."
            )
        if row.kept_all_because is not None:
            notes.append(f"{where}: nothing was evicted ({row.kept_all_because}).")
    return notes


def _mixed(mix: Expected) -> str:
    return f"gated, {mix.open_rate:.0%} open"


def _length(rows: Sequence[Cost]) -> str:
    return f"{rows[0].prompt_tokens:,} tokens"


def _cell(spread: Spread | None, factor: int = 1) -> str:
    if spread is None:
        return "–"
    return f"{_short(spread.median * factor)} ({_short(spread.iqr * factor)})"


def _short(number: float) -> str:
    """Three digits, without an exponent."""
    if abs(number) >= 100:
        return f"{number:,.0f}"
    return f"{number:.3f}" if abs(number) < 1 else f"{number:.3g}"


def _aligned(table: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    lines = []
    for name, *cells in table:
        rest = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *rest]).rstrip())
    return "\n".join(lines)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
