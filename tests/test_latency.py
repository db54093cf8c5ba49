"""`page-bench latency`: what is run, counted and shown. No time decides any of these."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import FAMILIES, randomised, save_tiny, small_config, tiny_model, tiny_tokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel

from page_bench.commands import cli
from page_bench.commands.latency import command as latency_command
from page_bench.commands.latency import peak_memory
from page_bench.commands.latency.bench import CLOSED, FULL, OPEN, PLAIN, Bench, Run
from page_bench.commands.latency.costs import Spread, costs, expected, rounds_of
from page_bench.commands.latency.peak_memory import PeakMemory, in_fresh_process
from page_bench.commands.latency.peaks import Peaks, fresh_peaks
from page_bench.commands.latency.report import as_json, setting_of, tables
from page_bench.config import PageConfig
from page_bench.engine.decode_batches import CacheSize
from page_bench.inputs.errors import UsageError
from page_bench.model.cache import empty_cache
from page_bench.model.prefill import forward
from page_bench.model.support import layer_windows

NEW, LENGTH, KEPT = 5, 200, 50
MIB = 2**20


def bench_of(model: PreTrainedModel, **arguments: Any) -> Bench:
    config = PageConfig(**{"budget": KEPT / LENGTH, "window": 8, **arguments})
    return Bench(model, tiny_tokenizer(FAMILIES["llama"].with_bos), config, NEW)


def made(total: float, **changes: Any) -> Run:
    values: dict[str, Any] = {
        "prefill_s": total,
        "gate_s": None,
        "evict_s": None,
        "decode_s": 1.0,
        "decode_steps": 4,
        "kv_bytes": 800,
        "kv_formula_bytes": 800,
    }
    return Run(**{**values, **changes})


RUNS = {
    FULL: [made(1.0), made(2.0), made(9.0)],
    PLAIN: [made(1.5, evict_s=0.5, decode_steps=5, kv_bytes=100)] * 3,
    OPEN: [made(1.5, gate_s=0.25, evict_s=0.5, decode_steps=5, kv_bytes=100)] * 3,
    CLOSED: [made(1.5, gate_s=0.25, decode_s=2.0)] * 3,
}
"""By hand; the bare prefills are 1, 2 and 9 s."""


@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral"])
@pytest.mark.parametrize("granularity", ["shared", "head"])
def test_measured_bytes_equal_the_formula(family: str, granularity: str) -> None:
    model = tiny_model(family)
    evictor = "adakv(snapkv)" if granularity == "head" else "snapkv"
    bench = bench_of(model, evictor=evictor, granularity=granularity)
    prompt, text = bench.prompt(LENGTH), model.config
    entry = text.num_hidden_layers * text.num_key_value_heads * 16 * 2 * 4
    for name in bench.configurations:
        run = bench.run(name, prompt)
        entries = KEPT if name in (PLAIN, OPEN) else LENGTH
        assert run.kv_bytes == run.kv_formula_bytes == entries * entry, name


def test_bytes_of_sliding_layers_too() -> None:
    config = small_config(
        "olmo3", sliding_window=16, layer_types=["sliding_attention", "full_attention"] * 2
    )
    config.vocab_size = max(config.vocab_size, 300)
    bench = bench_of(randomised(config), gate="open")
    for name, kept in ((FULL, LENGTH), (PLAIN, KEPT)):
        run = bench.run(name, bench.prompt(LENGTH))
        assert run.kv_bytes == run.kv_formula_bytes
        heads, dim = config.num_key_value_heads, config.hidden_size // config.num_attention_heads
        assert run.kv_bytes == 2 * (kept + 16) * heads * dim * 2 * 4


def test_formula_reproduces_the_paper() -> None:
    # Qwen2.5-1.5B in bf16 with the 106.1 MiB of Table 26 at its prompts' length.
    config = small_config("qwen2", num_hidden_layers=28, num_key_value_heads=2)
    config.hidden_size, config.num_attention_heads = 1536, 12
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        ids = torch.zeros(1, 3880, dtype=torch.long)
    cache = empty_cache(layer_windows(config), 3880)
    forward(model, ids, cache)
    size = CacheSize.of(cache, 3880)
    assert size.bytes == size.bytes_at(3880) == 28 * 2 * 128 * 3880 * 4
    assert size.bytes / MIB == pytest.approx(106.1, abs=0.1)
    assert size.bytes_at(970) == size.bytes // 4


def test_bytes_of_latents_are_what_the_cache_holds_of_them() -> None:
    config = small_config("deepseek_v3", vocab_size=300, max_position_embeddings=1024)
    bench = bench_of(randomised(config), gate="open")
    # One latent and one rotated key a token, for all heads together.
    entry = config.num_hidden_layers * (config.kv_lora_rank + config.qk_rope_head_dim) * 4
    for name, kept in ((FULL, LENGTH), (PLAIN, KEPT)):
        run = bench.run(name, bench.prompt(LENGTH))
        assert run.kv_bytes == run.kv_formula_bytes == kept * entry


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_decoding_is_forced_and_its_passes_counted(family: str) -> None:
    model = tiny_model(family)
    bench = bench_of(model)
    prompt = bench.prompt(LENGTH)
    # Any token would end the answer, and the model's own settings sample.
    model.generation_config.eos_token_id = [*range(150)]
    model.generation_config.do_sample = True
    calls: list[str] = []
    for name in bench.configurations:
        run = bench.run(name, prompt, lambda name=name: calls.append(name))  # type: ignore[misc]
        assert run.decode_steps == (NEW if name in (PLAIN, OPEN) else NEW - 1)
        assert (run.gate_s is None) == (name in (FULL, PLAIN))
        assert (run.evict_s is None) == (name in (FULL, CLOSED))
    assert calls == [FULL, PLAIN, OPEN, CLOSED]
    assert not model._forward_pre_hooks
    assert model.config._attn_implementation == "sdpa"


def test_an_answer_that_ends_early_is_no_measurement() -> None:
    model = tiny_model("llama")
    model.generation_config.max_time = 0.0
    bench = bench_of(model)
    for name in (FULL, PLAIN):
        with pytest.raises(UsageError, match="ended after 1 of 5 tokens"):
            bench.run(name, bench.prompt(LENGTH))


def test_prompts_have_the_length_and_no_special_token() -> None:
    bench = bench_of(tiny_model("llama"))
    ids = bench.prompt(3000).input_ids
    assert len(ids) == 3000
    assert ids == bench.prompt(3000).input_ids
    assert not {*ids} & {*bench.tokenizer.all_special_ids}
    assert len({*ids}) > 200


def test_rounds_interleave_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def run(bench: Bench, name: str, prompt: object) -> Run:
        order.append(name)
        return made(float(len(order)))

    monkeypatch.setattr(Bench, "run", run)
    done: list[int] = []
    runs = rounds_of(bench_of(tiny_model("llama")), LENGTH, 3, lambda: done.append(1))
    rounds = [order[i : i + 4] for i in range(0, 16, 4)]
    assert all({*one} == {FULL, PLAIN, OPEN, CLOSED} for one in rounds)
    assert [one[0] for one in rounds[1:]] == [FULL, PLAIN, OPEN]
    assert [run.prefill_s for run in runs[FULL]] == [5.0, 12.0, 15.0]
    assert [len(r) for r in runs.values()] == [3] * 4
    assert len(done) == 16


def test_costs_are_medians_and_differences_within_a_round() -> None:
    full, plain, opened, closed = rows = costs(LENGTH, RUNS)
    assert full.prefill_s == Spread(2.0, 1.5, 5.5, 3)
    assert full.prefill_s.iqr == 4.0
    assert full.observation_s is None
    # 0.5, −0.5 and −7.5, not the difference of medians' spread
    assert plain.observation_s == Spread(-0.5, -4.0, 0.0, 3)
    assert plain.gate_s is None
    assert plain.total_s.median == 3.0
    assert opened.total_s.median == 3.25
    assert closed.total_s.median == 3.75
    assert [row.decode_tokens_per_s.median for row in rows] == [4.0, 5.0, 5.0, 2.0]
    mix = expected(rows, 0.75)
    assert mix is not None
    assert mix.decode_s == 1.25
    assert mix.total_s == 0.75 * 3.25 + 0.25 * 3.75
    assert mix.kv_bytes == 275
    assert mix.decode_tokens_per_s == (0.75 * 5 + 0.25 * 4) / 1.25
    assert expected(rows[:2], 0.75) is None
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0, 1)


def test_tables_and_json_say_the_same() -> None:
    bench = bench_of(tiny_model("llama"))
    runs = {**RUNS, PLAIN: [made(1.5, evict_s=0.5, kv_bytes=100, kept_all_because="too short")]}
    runs[PLAIN] *= 3
    rows = costs(4096, runs)
    mix = expected(rows, 0.75)
    assert mix is not None
    found = {(4096, name): Peaks(3 * MIB, (5 if name == PLAIN else 7) * MIB) for name in RUNS}
    setting = setting_of(bench, "tiny", 3, "some counter", [0.5, 99.0])
    shown = tables(setting, rows, [mix], found)
    for text in (
        "4,096 tokens",
        "median (interquartile range)",
        "gated, 75% open",
        "load average 0.5 to 99.0",
        "disturbs times",
        "plain at 4,096 tokens: nothing was evicted (too short).",
        "plain at 4,096 tokens: the cache holds 100 bytes, the formula says 800.",
        "some counter",
    ):
        assert text in shown
    lines = [line for line in shown.splitlines() if line.startswith("plain ")]
    assert "-500 (4,000)" in lines[0]
    assert lines[0].endswith("1.00×")
    assert "1/8.0" in lines[1]
    assert lines[1].endswith("5.0")
    line = as_json(setting, rows, [mix], found)
    assert json.loads(json.dumps(line))["results"][1]["peak_decode_bytes"] == 5 * MIB
    assert line["results"][0]["prefill_s"] == {"median": 2.0, "q1": 1.5, "q3": 5.5, "n": 3}
    assert line["gated_expected"][0]["kv_bytes"] == 275
    assert line["weights_bytes"] == bench.model.num_parameters() * 4
    unmeasured = tables(setting_of(bench, "tiny", 3, None, [0.5]), rows[:1], [], {})
    assert "not measured" in unmeasured
    assert "disturbs" not in unmeasured


@pytest.fixture
def words(tiny_folder: Callable[[str], Path]) -> list[str]:
    args = f"pretrained={tiny_folder('llama')},dtype=float32,budget=0.25,window=8"
    return ["-a", args, "--device=cpu", "--new_tokens=3", "--rounds=2", "--no_memory"]


def test_command_prints_table_and_json(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["latency", *words, "--lengths", "100", "60", "100"]) == 0
    *shown, last = capsys.readouterr().out.splitlines()
    assert any(line.startswith("gated, closed") for line in shown)
    found = json.loads(last)
    assert found["dtype"] == "float32"
    assert found["memory_counter"] is None
    rows = found["results"]
    assert [(row["prompt_tokens"], row["configuration"]) for row in rows] == [
        (length, name) for length in (100, 60) for name in (FULL, PLAIN, OPEN, CLOSED)
    ]
    assert all(row["kv_bytes"] == row["kv_formula_bytes"] for row in rows)
    assert all(row["total_s"]["n"] == 2 for row in rows)
    assert len(found["gated_expected"]) == 2


def test_a_gate_that_reads_nothing_has_no_gated_rows(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words[1] += ",gate=open"
    assert latency_command.run([*words, "--lengths", "60", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert [row["configuration"] for row in found["results"]] == [FULL, PLAIN]
    assert found["gated_expected"] == []


@pytest.mark.parametrize(
    ("more", "flags", "message"),
    [
        ("", ["--lengths", "8190"], "8190 prompt tokens and 3 new ones .* 8192 positions"),
        (",store=x.sqlite", [], "store=x.sqlite"),
        (",gate=retry", [], "gate=retry decodes before it decides"),
        (",compress=context", [], "compress=context"),
        (",device=cpu", [], "give it once"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    words: list[str], more: str, flags: list[str], message: str
) -> None:
    words[1] += more
    with pytest.raises(UsageError, match=message):
        latency_command.run([*words, *flags])


def test_one_new_token_is_no_step() -> None:
    with pytest.raises(UsageError, match="at least 2"):
        Bench(tiny_model("llama"), None, PageConfig(), 1)


def test_peak_memory_forgets_what_was_before_a_lap() -> None:
    device = torch.device("cpu")
    assert peak_memory.counter(device) == "resident anonymous memory"
    assert peak_memory.counter(torch.device("meta")) is None
    with PeakMemory(device) as memory:
        block = torch.ones(64 * MIB // 4)
        kept = torch.ones(64 * MIB // 4)
        del block
        assert 120 * MIB < memory.lap() < 160 * MIB
        assert 56 * MIB < memory.lap() < 90 * MIB
        del kept
        memory.lap()
        assert memory.lap() < 30 * MIB


def test_peak_memory_on_cuda_sums_the_allocators(monkeypatch: pytest.MonkeyPatch) -> None:
    # Stands in for two GPUs; only the arithmetic over their counters is tested.
    in_use, peak = [100, 10], [100, 10]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda i: in_use[i])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda i: peak[i])
    monkeypatch.setattr(
        torch.cuda, "reset_peak_memory_stats", lambda i: peak.__setitem__(i, in_use[i])
    )
    assert peak_memory.counter(torch.device("cuda")) == "torch.cuda.max_memory_allocated"
    peak[0] = 999  # of earlier work
    with PeakMemory(torch.device("cuda")) as memory:
        in_use[:], peak[:] = [150, 30], [200, 40]
        assert memory.lap() == 240 - 110
        assert memory.lap() == 180 - 110


def test_a_failed_process_is_reported() -> None:
    with pytest.raises(UsageError, match=r"status 1 .*ValueError: so"):
        in_fresh_process(["-c", "raise ValueError('so')"])
    assert in_fresh_process(["-c", "print('x'); print('{\"a\": 1}')"]) == {"a": 1}


def test_eviction_lowers_the_decoding_peak(tmp_path: Path) -> None:
    # 128 KiB of cache per token, so that it stands out of what a process takes anyway.
    shape = {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 512}
    folder = save_tiny(tmp_path, "llama", **shape)
    args = f"pretrained={folder},dtype=float32,budget=0.1"
    full, plain = (fresh_peaks(args, "cpu", 3, name, 1000) for name in (FULL, PLAIN))
    cache = 1000 * 128 * 1024
    assert full.prefill_bytes > 0.9 * cache
    assert plain.prefill_bytes > 0.9 * cache
    assert full.decode_bytes > 0.9 * cache
    assert plain.decode_bytes < 0.3 * cache


def test_memory_that_was_free_before_counts_when_it_is_used_again() -> None:
    # Blocks of the heap, below the size at which a block is the system's again once it is freed.
    script = """
import json, torch
from page_bench.commands.latency.peak_memory import PeakMemory
def blocks():
    return [torch.ones(16 * 1024) for _ in range(320)]
earlier = blocks()
pin = torch.ones(16 * 1024)
del earlier
with PeakMemory(torch.device("cpu")) as memory:
    mine = blocks()
    used = memory.lap()
    del mine
    memory.lap()
    print(json.dumps({"used": used, "afterwards": memory.lap()}))
"""
    found = in_fresh_process(["-c", script])
    assert 19 * MIB < found["used"] < 30 * MIB
    assert found["afterwards"] < 10 * MIB


def test_an_evicted_cache_decodes_in_what_it_takes_and_little_more(tmp_path: Path) -> None:
    # Of many small tensors, which come from the heap.
    shape = {"num_hidden_layers": 24, "num_key_value_heads": 4, "head_dim": 64}
    folder = save_tiny(tmp_path, "llama", **shape)
    args = f"pretrained={folder},dtype=float32,budget=0.25,window=8"
    plain = fresh_peaks(args, "cpu", 3, PLAIN, 400)
    kv_size = 24 * 2 * 4 * 64 * 100 * 4
    assert kv_size <= plain.decode_bytes < kv_size + 2 * MIB
    assert plain.prefill_bytes > 4 * kv_size
