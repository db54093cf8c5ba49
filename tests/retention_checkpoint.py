"""Miniature checkpoints of retention gates, in the layout in which TrimKV's authors publish."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig

Gate = dict[str, Tensor]
"""The parts of one layer's gate, by their name in the file."""


def random_gates(
    kind: str, layers: int, hidden_size: int, kv_heads: int, inner: int = 24, seed: int = 0
) -> list[Gate]:
    """Gates whose β lies mostly between 0.5 and 0.999 on hidden states of spread 1.

    Args:
        kind: `rg` or `rg10`; the latter's `linear3.weight` and `bias` are one for all layers.
        layers: L.
        hidden_size: D.
        kv_heads: H_kv.
        inner: width between the matrices, 512 in published gates.
        seed: of the weights.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, spread: float) -> Tensor:
        return torch.randn(shape, generator=generator) * spread

    last = "linear3.weight" if kind == "rg10" else "linear2.weight"
    tied = {last: normal(kv_heads, inner, spread=0.8), "bias": 3 + normal(kv_heads, spread=1)}
    gates = []
    for _ in range(layers):
        gate = {
            "linear1.weight": normal(inner, hidden_size, spread=hidden_size**-0.5),
            "linear1.bias": normal(inner, spread=0.3),
        }
        if kind == "rg10":
            gate["linear2.weight"] = normal(inner, inner, spread=inner**-0.5)
            gate["linear2.bias"] = normal(inner, spread=0.3)
            gate.update(tied)
        else:
            gate[last] = normal(kv_heads, inner, spread=0.5)
            gate["bias"] = 3 + normal(kv_heads, spread=1)
        gates.append(gate)
    return gates


def write_checkpoint(
    folder: Path, gates: list[Gate], dtype: torch.dtype = torch.float32, **config: Any
) -> Path:
    """Write `trimkv_weights.pth` and `config.json`.

    Args:
        folder: made if it does not exist.
        gates: one per layer.
        dtype: of the stored weights.
        config: fields of the configuration that differ.

    Returns:
        `folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    prefix = "model.layers.{}.self_attn.retention_gate.{}"
    # Tensors that are one in memory stay one in the file, as in a model's state dict.
    stored: dict[int, Tensor] = {}
    weights = {
        prefix.format(index, part): stored.setdefault(id(value), value.to(dtype))
        for index, gate in enumerate(gates)
        for part, value in gate.items()
    }
    torch.save(weights, folder / "trimkv_weights.pth")
    deep = "linear3.weight" in gates[0]
    values: dict[str, Any] = {
        "architectures": ["TrimKVQwen3ForCausalLM"],
        "base_model": "someone/base-model",
        "model_type": "qwen3",
        "hidden_act": "silu",
        "hidden_size": gates[0]["linear1.weight"].shape[1],
        "num_hidden_layers": len(gates),
        "num_key_value_heads": len(gates[0]["bias"]),
        "retention_gate": "rg10" if deep else "rg",
        "retention_gate_intermediate_size": len(gates[0]["linear1.bias"]),
        "retention_gate_bias_init": 8.0,
        "tie_retention_gate_layers": True,
        "global_capacity": deep,
        "memory_size": 128,
        "trainable_params": "retention_gate",
        **config,
    }
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    return folder


def checkpoint_for(folder: Path, config: PreTrainedConfig, kind: str, seed: int = 0) -> Path:
    """Write random gates that fit a model, see `random_gates` and `write_checkpoint`."""
    layers, heads = config.num_hidden_layers, config.num_key_value_heads
    gates = random_gates(kind, layers, config.hidden_size, heads, seed=seed)
    return write_checkpoint(folder, gates)
