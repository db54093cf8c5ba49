"""Which model this is: hashes by which a calibration is recognised."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

SAMPLED = 64
"""Numbers of each parameter that enter the hash, evenly spaced from first to last."""

# What says how a model was loaded or written, not what it computes; the dtype of the weights and
# the attention implementation are compared by name.
_NOT_THE_MODEL = frozenset(
    {"transformers_version", "dtype", "torch_dtype", "attn_implementation", "name_or_path"}
)


@dataclass(frozen=True)
class Fingerprint:
    """Two hashes of a model.

    Attributes:
        configuration: SHA-256 of its configuration as JSON, without what only says how it was
            loaded or saved, so the same in every dtype and with every attention implementation.
        weights: SHA-256 of each parameter's name, shape and dtype and of `SAMPLED` of its numbers,
            those of an adapter included. A model that differs in other numbers only goes unseen.
    """

    configuration: str
    weights: str


def model_fingerprint(model: Any) -> Fingerprint:
    """The fingerprint of a loaded model, quickly: a few numbers of each parameter are read.

    Args:
        model: of transformers, or PEFT's wrapper around one. Parameters that are offloaded to
            disk enter by name, shape and dtype alone.
    """
    configuration = json.dumps(_essence(model.config.to_diff_dict()), sort_keys=True, default=str)
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters(), key=lambda item: item[0]):
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
        digest.update(_sample(parameter))
    return Fingerprint(hashlib.sha256(configuration.encode()).hexdigest(), digest.hexdigest())


def _essence(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            # Of quantised weights every word counts.
            str(k): v if k == "quantization_config" else _essence(v)
            for k, v in value.items()
            if k not in _NOT_THE_MODEL and not str(k).startswith("_")
        }
    return [_essence(item) for item in value] if isinstance(value, list | tuple) else value


def _sample(parameter: Tensor) -> bytes:
    if parameter.is_meta or not parameter.numel():
        return b""
    if (parts := getattr(parameter, "__tensor_flatten__", None)) is not None:
        # Quantised weights that are no plain tensor; not all of them can be indexed.
        return b"".join(_sample(getattr(parameter, name)) for name in parts()[0])
    numbers = parameter.detach().reshape(-1)
    places = torch.linspace(
        0, len(numbers) - 1, min(SAMPLED, len(numbers)), dtype=torch.float64
    ).long()
    chosen: bytes = numbers[places.to(numbers.device)].float().cpu().numpy().tobytes()
    return chosen
