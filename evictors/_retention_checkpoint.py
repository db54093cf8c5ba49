"""Retention gates and their files, laid out as TrimKV's authors publish them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub import constants, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HFValidationError
from torch import Tensor, nn
from torch.nn import functional
from transformers.activations import ACT2FN

from page_bench.inputs import json_text
from page_bench.inputs.errors import UsageError
from page_bench.inputs.user_path import user_path

WEIGHTS_FILE = "trimkv_weights.pth"
CONFIG_FILE = "config.json"
EXAMPLE = (
    f"the path of a {WEIGHTS_FILE}, a folder that holds one, or a Hub id such as "
    f"ngocbh/TrimKV-Qwen3-4B-Instruct-2507"
)

_LINEARS = {"rg": ("linear1", "linear2"), "rg10": ("linear1", "linear2", "linear3")}
"""The matrices of each kind of gate. All but the last have a bias of their own; the last one's
is called `bias`."""

_KEY = re.compile(
    r"(?:.+\.)?layers\.(?P<layer>[0-9]{1,6})\.self_attn\.retention_gate\.(?P<part>.+)"
)
_HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+(?<!\.pth)")
_BLOCK = 8192
"""Positions that go through a gate at once, so that a long prompt's fp32 copy stays small."""


class GateShape(NamedTuple):
    """What a model must have for gates to fit it."""

    layers: int
    hidden_size: int
    kv_heads: int

    def __str__(self) -> str:
        return (
            f"{self.layers} layers, hidden size {self.hidden_size} and "
            f"{self.kv_heads} KV head{'s' if self.kv_heads > 1 else ''}"
        )


class RetentionGate(nn.Module):
    """One layer's gate, in fp32 whatever the file's dtype is."""

    def __init__(self, linears: list[tuple[Tensor, Tensor]], activation: nn.Module) -> None:
        """Linear maps as (weight `[out, in]`, bias `[out]`), the activation between them."""
        super().__init__()
        self.linears = nn.ModuleList(_linear(weight, bias) for weight, bias in linears)
        self.activation = activation

    def forward(self, hidden_states: Tensor) -> Tensor:
        """log β per KV head and token, fp32 `[H_kv, T]`, from the attention's input `[T, D]`."""
        blocks = []
        for block in torch.split(hidden_states, _BLOCK):
            out = block.float()
            for linear in self.linears[:-1]:
                out = self.activation(linear(out))
            blocks.append(functional.logsigmoid(self.linears[-1](out)))
        return torch.cat(blocks).T


@dataclass(frozen=True)
class GateCheckpoint:
    """The gates of a whole model, one per layer, each on the device where it was last used.

    The kind is `rg` (a gate per layer) or `rg10` (deeper; the last matrix and bias are the same in
    all layers), as the authors call them.
    """

    kind: str
    shape: GateShape
    gates: tuple[RetentionGate, ...]


def load_gates(checkpoint: str) -> GateCheckpoint:
    """The gates in a weights file, a folder with `trimkv_weights.pth` and `config.json`, or such a
    folder on the Hugging Face Hub, by its id.

    Raises:
        UsageError: there is no such checkpoint, or it is none of retention gates.
    """
    weights = _weights_path(checkpoint)
    config = weights.with_name(CONFIG_FILE)
    files = [path for path in (weights, config) if path.is_file()]
    return _load(weights, tuple((path, path.stat().st_mtime_ns) for path in files))


@lru_cache(maxsize=2)  # Arms that differ in their budget alone share one copy.
def _load(weights: Path, files: tuple[tuple[Path, int], ...]) -> GateCheckpoint:
    config = _read_config(files[1][0]) if len(files) > 1 else {}
    layers = _by_layer(_read_weights(weights), weights)
    kind = _kind(layers, config, weights)
    if kind == "rg10" and config.get("tie_retention_gate_layers", True):
        _tie(layers, weights)
    shape = _checked_shape(layers, kind, config, weights)
    activation = _activation(config, weights)
    names = _LINEARS[kind]
    gates = []
    # The first prompt may ask for them in inference mode, whose tensors could not be moved later.
    with torch.inference_mode(False):
        for parts in layers:
            biases = [parts[f"{name}.bias"] for name in names[:-1]] + [parts["bias"]]
            matrices = [parts[f"{name}.weight"] for name in names]
            gates.append(RetentionGate(list(zip(matrices, biases, strict=True)), activation))
    return GateCheckpoint(kind, shape, tuple(gates))


def _weights_path(checkpoint: str) -> Path:
    path = user_path(checkpoint, "evictor.checkpoint")
    if path.is_file():
        return path
    if path.is_dir():
        if (path / WEIGHTS_FILE).is_file():
            return path / WEIGHTS_FILE
        raise UsageError(
            f"evictor.checkpoint={checkpoint} is a folder without {WEIGHTS_FILE}; give the folder "
            f"of a TrimKV or DBTrimKV checkpoint."
        )
    if not _HUB_ID.fullmatch(checkpoint):
        raise UsageError(f"evictor.checkpoint={checkpoint} does not exist; give {EXAMPLE}.")
    try:
        hf_hub_download(checkpoint, CONFIG_FILE)
        return Path(hf_hub_download(checkpoint, WEIGHTS_FILE))
    except (OSError, EntryNotFoundError, HFValidationError) as error:
        if constants.HF_HUB_OFFLINE:
            raise UsageError(
                f"evictor.checkpoint={checkpoint} is neither here nor in the Hub's local cache, "
                f"and HF_HUB_OFFLINE forbids to download it; run `hf download {checkpoint}` where "
                f"there is a network, or give a local path."
            ) from error
        reason = str(error).strip().partition("\n")[0]
        raise UsageError(
            f"evictor.checkpoint={checkpoint} is not here and could not be downloaded from the "
            f"Hub ({reason}); check the id, or give a local path."
        ) from error


def _read_weights(path: Path) -> Mapping[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises what its readers of two formats raise
        raise UsageError(
            f"{path} could not be read as weights of PyTorch "
            f"({str(error).partition(chr(10))[0]}); give a {WEIGHTS_FILE} as published."
        ) from error
    plain = isinstance(content, Mapping) and all(
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and not (value.is_meta or value.is_quantized)
        for value in content.values()
    )
    if not plain:
        raise UsageError(f"{path} holds no table of weights; give a {WEIGHTS_FILE} as published.")
    return content


def _read_config(path: Path) -> dict[str, Any]:
    try:
        content = json_text.parse(path.read_bytes(), nan=True)
    except ValueError as error:
        raise UsageError(f"{path} is not JSON ({error}); mend it or download it again.") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} is not a configuration; mend it or download it again.")
    return content


def _by_layer(weights: Mapping[str, Tensor], path: Path) -> list[dict[str, Tensor]]:
    """The parts of each layer's gate, by their name inside the gate."""
    layers: dict[int, dict[str, Tensor]] = {}
    known = {f"{name}.{part}" for name in _LINEARS["rg10"] for part in ("weight", "bias")}
    for key, value in weights.items():
        found = _KEY.fullmatch(str(key))
        if found is None or found["part"] not in known | {"bias"}:
            raise UsageError(
                f"{path} holds {key}, which is no part of a retention gate; give the "
                f"{WEIGHTS_FILE} of a checkpoint that trained nothing but gates."
            )
        layers.setdefault(int(found["layer"]), {})[found["part"]] = value
    if not layers:
        raise UsageError(f"{path} holds no retention gates; give a {WEIGHTS_FILE} as published.")
    missing = next(index for index in range(len(layers) + 1) if index not in layers)
    if missing < len(layers):
        raise UsageError(
            f"{path} lacks the gate of layer {missing}; give a complete {WEIGHTS_FILE}."
        )
    return [layers[index] for index in range(len(layers))]


def _kind(layers: list[dict[str, Tensor]], config: Mapping[str, Any], path: Path) -> str:
    kind = "rg10" if any("linear3.weight" in parts for parts in layers) else "rg"
    declared = config.get("retention_gate", kind)
    if not isinstance(declared, str) or declared not in _LINEARS:
        raise UsageError(
            f"{path} holds gates of kind {declared}; only {' and '.join(_LINEARS)} read hidden "
            f"states and are supported."
        )
    if declared != kind:
        raise UsageError(
            f"{path} holds gates of kind {kind}, but the {CONFIG_FILE} beside it says {declared}; "
            f"give the two files of one checkpoint."
        )
    return kind


def _tie(layers: list[dict[str, Tensor]], path: Path) -> None:
    """Give all layers the last matrix and bias, which the file holds once or L times."""
    for part in ("linear3.weight", "bias"):
        stored = [parts[part] for parts in layers if part in parts]
        same = (o.dtype == stored[0].dtype and torch.equal(o, stored[0]) for o in stored)
        if not all(same):
            raise UsageError(
                f"{path} holds a different {part} in different layers, though gates of kind rg10 "
                f"have one for all unless {CONFIG_FILE} says tie_retention_gate_layers=false; "
                f"give the two files of one checkpoint."
            )
        for parts in layers:
            parts.update({part: stored[0]} if stored else {})


def _checked_shape(
    layers: list[dict[str, Tensor]], kind: str, config: Mapping[str, Any], path: Path
) -> GateShape:
    """The shape of the first layer's gate, once all others are known to have it too."""
    names = _LINEARS[kind]
    sizes = {part: tuple(tensor.shape) for part, tensor in layers[0].items()}
    inner, hidden, *_ = (*sizes.get("linear1.weight", ()), 0, 0)
    heads, *_ = (*sizes.get("bias", ()), 0)
    expected: dict[str, tuple[int, ...]] = {"bias": (heads,)}
    width = hidden
    for name in names[:-1]:
        expected[f"{name}.weight"] = (inner, width)
        expected[f"{name}.bias"] = (inner,)
        width = inner
    expected[f"{names[-1]}.weight"] = (heads, inner)
    for index, parts in enumerate(layers):
        if parts.keys() != expected.keys():
            wrong = sorted(parts.keys() ^ expected.keys())[0]
            raise UsageError(
                f"{path} {'has' if wrong in parts else 'lacks'} {wrong} in layer {index}, unlike "
                f"a gate of kind {kind}; give a complete {WEIGHTS_FILE}."
            )
        for part, shape in expected.items():
            if tuple(parts[part].shape) != shape or not parts[part].is_floating_point():
                raise UsageError(
                    f"{path} holds {part} of shape {tuple(parts[part].shape)} in layer {index} "
                    f"where {shape} fits the other parts; give a {WEIGHTS_FILE} as published."
                )
    return GateShape(len(layers), hidden, heads)


def _activation(config: Mapping[str, Any], path: Path) -> nn.Module:
    name = config.get("hidden_act", "silu")
    try:
        return ACT2FN[name]
    except (KeyError, TypeError) as error:
        raise UsageError(
            f"{path.with_name(CONFIG_FILE)} has hidden_act={name}, which transformers does not "
            f"know; mend it or download it again."
        ) from error


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    # A copy of its own for each layer: layers may be on different devices.
    linear.weight = nn.Parameter(weight.to(torch.float32, copy=True), requires_grad=False)
    linear.bias = nn.Parameter(bias.to(torch.float32, copy=True), requires_grad=False)
    return linear
