"""Random eviction: the control that any method has to beat."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from page_bench.evictors.base import Evictor, LayerView


@dataclass(frozen=True)
class Random(Evictor):
    """Keeps random positions; the same ones for the same prompt and seed on every device.

    Attributes:
        seed: another seed gives another choice.
    """

    name: ClassVar[str] = "random"

    seed: int = 0

    def score(self, layer: LayerView, n_keep: int | None = None) -> Tensor:
        name = f"{self.seed}/{layer.prompt_seed}/{layer.index}".encode()
        seed = int.from_bytes(hashlib.sha256(name).digest()[:7])
        generator = torch.Generator().manual_seed(seed)
        score = torch.rand(layer.n_kv_heads, layer.prompt_tokens, generator=generator)
        return score.to(layer.keys.device)
