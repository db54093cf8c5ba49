"""Files of retention gates: how they are found, what they hold, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from retention_checkpoint import Gate, random_gates, write_checkpoint

from page_bench.evictors._retention_checkpoint import load_gates
from page_bench.inputs.errors import UsageError


def test_a_long_prompt_goes_through_the_gate_in_blocks(tmp_path: Path) -> None:
    gate = load_gates(str(write_checkpoint(tmp_path, random_gates("rg", 1, 8, 2)))).gates[0]
    x = torch.randn(20_000, 8, generator=torch.Generator().manual_seed(0))
    assert gate(x).shape == (2, 20_000)
    torch.testing.assert_close(gate(x)[:, 8190:8195], gate(x[8190:8195]))


def test_what_is_tied_across_layers_may_stand_in_the_file_once(tmp_path: Path) -> None:
    gates = random_gates("rg10", 3, 16, 2)
    whole = load_gates(str(write_checkpoint(tmp_path / "whole", gates)))
    once = [
        {part: v for part, v in gate.items() if i == 0 or part not in ("linear3.weight", "bias")}
        for i, gate in enumerate(gates)
    ]
    sparse = load_gates(str(write_checkpoint(tmp_path / "once", once)))
    x = torch.randn(10, 16, generator=torch.Generator().manual_seed(1))
    assert sparse.shape == whole.shape == (3, 16, 2)
    for ours, theirs in zip(sparse.gates, whole.gates, strict=True):
        assert torch.equal(ours(x), theirs(x))


def test_tied_parts_that_differ_are_refused_unless_declared_untied(tmp_path: Path) -> None:
    gates = random_gates("rg10", 3, 16, 2)
    gates[2] = {**gates[2], "bias": gates[2]["bias"] + 1}
    with pytest.raises(UsageError, match="a different bias in different layers"):
        load_gates(str(write_checkpoint(tmp_path / "tied", gates)))
    folder = write_checkpoint(tmp_path / "untied", gates, tie_retention_gate_layers=False)
    for gate, loaded in zip(gates, load_gates(str(folder)).gates, strict=True):
        assert torch.equal(loaded.state_dict()["linears.2.bias"], gate["bias"])


def test_the_activation_is_the_configuration_s(tmp_path: Path) -> None:
    gates = random_gates("rg", 1, 16, 2)
    x = torch.randn(10, 16, generator=torch.Generator().manual_seed(1))
    relu = load_gates(str(write_checkpoint(tmp_path / "relu", gates, hidden_act="relu"))).gates[0]
    inner = (x @ gates[0]["linear1.weight"].T + gates[0]["linear1.bias"]).clamp(min=0)
    out = inner @ gates[0]["linear2.weight"].T + gates[0]["bias"]
    torch.testing.assert_close(relu(x), out.sigmoid().log().T, atol=1e-5, rtol=1e-5)
    with pytest.raises(UsageError, match="hidden_act=quick, which transformers does not know"):
        load_gates(str(write_checkpoint(tmp_path / "quick", gates, hidden_act="quick")))


def test_a_weights_file_alone_and_a_cached_hub_id_load_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates = random_gates("rg10", 2, 16, 2)
    commit = "0" * 40
    repository = tmp_path / "hub" / "models--someone--DBTrimKV-tiny"
    folder = write_checkpoint(repository / "snapshots" / commit, gates)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    alone = tmp_path / "weights.pth"
    alone.write_bytes((folder / "trimkv_weights.pth").read_bytes())
    x = torch.randn(10, 16, generator=torch.Generator().manual_seed(1))
    named = ("someone/DBTrimKV-tiny", str(alone), str(folder))
    first, *others = (load_gates(checkpoint) for checkpoint in named)
    assert first.kind == "rg10"
    for other in others:
        assert torch.equal(first.gates[1](x), other.gates[1](x))


def test_a_file_is_read_once_until_it_changes(tmp_path: Path) -> None:
    folder = str(write_checkpoint(tmp_path, random_gates("rg", 2, 16, 2)))
    first = load_gates(folder)
    assert load_gates(folder) is first
    write_checkpoint(tmp_path, random_gates("rg", 3, 16, 2))
    assert load_gates(folder).shape.layers == 3


def test_gates_loaded_in_inference_mode_can_still_be_moved(tmp_path: Path) -> None:
    folder = str(write_checkpoint(tmp_path, random_gates("rg", 2, 16, 2)))
    with torch.inference_mode():
        gate = load_gates(folder).gates[0]
        # Stands for another device: parameters are replaced in the same way.
        gate.to(torch.float64)
    gate.to(torch.float32)
    with torch.inference_mode():
        assert gate(torch.zeros(3, 16)).shape == (2, 3)


@pytest.mark.parametrize(
    ("checkpoint", "said"),
    [
        ("nowhere.pth", "nowhere.pth does not exist; give the path"),
        ("some/where.pth", "some/where.pth does not exist; give the path"),
        ("/some/where/else", "/some/where/else does not exist; give the path"),
        ("someone/unheard-of", "HF_HUB_OFFLINE forbids to download it; run `hf download someone/"),
    ],
)
def test_a_missing_checkpoint_is_named(
    checkpoint: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=re.escape(said)):
        load_gates(checkpoint)


def test_a_failed_download_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: str) -> str:
        raise huggingface_hub.errors.EntryNotFoundError("404: no such file\nand more")

    module = "page_bench.evictors._retention_checkpoint"
    monkeypatch.setattr(f"{module}.hf_hub_download", fails)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(UsageError, match=r"could not be downloaded .*\(404: no such file\); check"):
        load_gates("someone/unheard-of")


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is a folder without trimkv_weights\.pth"):
        load_gates(str(tmp_path))


Change = Callable[[list[Gate]], Any]


def drop_bias(gates: list[Gate]) -> None:
    del gates[1]["linear1.bias"]


def drop_first(gates: list[Gate]) -> None:
    del gates[0]["linear2.weight"]


def add_other(gates: list[Gate]) -> None:
    gates[1]["linear4.weight"] = torch.zeros(2)


def deepen(gates: list[Gate]) -> None:
    gates[1]["linear3.weight"] = torch.zeros(2, 24)


def narrow(gates: list[Gate]) -> None:
    gates[1]["linear1.weight"] = torch.zeros(24, 15)


def swap(gates: list[Gate]) -> None:
    gates[0]["linear2.weight"] = gates[0]["linear2.weight"].T.contiguous()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (drop_bias, "lacks linear1.bias in layer 1"),
        (drop_first, "lacks linear2.weight in layer 0"),
        (add_other, "retention_gate.linear4.weight, which is no part of a retention gate"),
        (deepen, "holds gates of kind rg10, but the config.json beside it says rg"),
        (narrow, "holds linear1.weight of shape (24, 15) in layer 1 where (24, 16) fits"),
        (swap, "holds linear2.weight of shape (24, 2) in layer 0 where (2, 24) fits"),
    ],
)
def test_gates_that_do_not_hold_together_are_named(
    change: Change, said: str, tmp_path: Path
) -> None:
    gates = random_gates("rg", 2, 16, 2)
    change(gates)
    with pytest.raises(UsageError, match=re.escape(said)):
        load_gates(str(write_checkpoint(tmp_path, gates, retention_gate="rg")))


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({"model.layers.0.mlp.up_proj.weight": torch.zeros(2, 2)}, "is no part of a retention"),
        ({}, "holds no retention gates"),
        ([torch.zeros(2)], "holds no table of weights"),
        ({"model.layers.0.self_attn.retention_gate.bias": 3}, "holds no table of weights"),
    ],
)
def test_other_files_of_pytorch_are_refused(weights: Any, said: str, tmp_path: Path) -> None:
    torch.save(weights, tmp_path / "other.pth")
    with pytest.raises(UsageError, match=said):
        load_gates(str(tmp_path / "other.pth"))


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 truncated"])
def test_a_damaged_weights_file_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "trimkv_weights.pth").write_bytes(content)
    with pytest.raises(UsageError, match="could not be read as weights of PyTorch"):
        load_gates(str(tmp_path))


def test_a_pickle_that_runs_code_is_not_loaded(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[Any, ...]:
            return (tmp_path.joinpath("harmed").touch, ())

    torch.save({"x": Harm()}, tmp_path / "trimkv_weights.pth")
    with pytest.raises(UsageError, match="could not be read as weights of PyTorch"):
        load_gates(str(tmp_path))
    assert not (tmp_path / "harmed").exists()


def test_a_configuration_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, random_gates("rg", 2, 16, 2), retention_gate="rg4")
    with pytest.raises(UsageError, match="gates of kind rg4; only rg and rg10"):
        load_gates(str(folder))
    (folder / "config.json").write_text("{broken")
    with pytest.raises(UsageError, match=r"config\.json is not JSON"):
        load_gates(str(folder))
    (folder / "config.json").write_text(json.dumps([1]))
    with pytest.raises(UsageError, match=r"config\.json is not a configuration"):
        load_gates(str(folder))
