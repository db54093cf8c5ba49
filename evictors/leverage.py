"""Leverage scores of keys, the query-free half of Compactor (arXiv 2507.08143)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from page_bench.evictors.base import Evictor, LayerView, Need
from page_bench.evictors.base.precision import double, fp64_device

MAX_SEED = 2**32
_RIDGE = 1e-2
_SMALLEST_DEVIATION = 1e-6


@dataclass(frozen=True)
class Leverage(Evictor):
    """Keeps keys of high statistical leverage among the keys of their head.

    Attributes:
        sketch_size: random directions that keys are projected to, before their rotation.
        seed: another seed gives other directions.
    """

    name: ClassVar[str] = "leverage"
    needs: ClassVar[frozenset[Need]] = frozenset({"keys_before_rotation"})

    sketch_size: int = 48
    seed: int = 0

    def __post_init__(self) -> None:
        self.check_options("sketch_size", at_least=1)
        self.check_options("seed", at_least=0, at_most=MAX_SEED)

    def score(self, layer: LayerView, n_keep: int | None = None) -> Tensor:
        seed = layer_seed(self.seed, layer.index)
        scores = standardised(leverage(layer.keys_before_rotation, self.sketch_size, seed))
        return scores.float().to(layer.keys.device)


def leverage(keys: Tensor, sketch_size: int, seed: int) -> Tensor:
    """How far each key lies from the others in the metric of their own spread.

    Keys `[H_kv, n, d]` are centred over positions and projected to `sketch_size` random
    directions, drawn on the CPU: the same on every device. X being the result, the leverage of row
    x is xᵀ(XᵀX + 0.01·I)⁻¹x: fp64 `[H_kv, n]`, each in [0, 1), on `precision.fp64_device`.
    """
    heads, _, dim = keys.shape
    generator = torch.Generator().manual_seed(seed)
    sketches = torch.randn(heads, dim, sketch_size, generator=generator, dtype=torch.float64)
    device = fp64_device(keys.device)
    sketches = (sketches / sketch_size**0.5).to(device)
    ridge = _RIDGE * torch.eye(sketch_size, dtype=torch.float64, device=device)
    scores = []
    # One head at a time, since fp64 is needed where the sketch has more columns than keys have
    # dimensions.
    for head, sketch in zip(keys, sketches, strict=True):
        rows = double(head)
        rows = (rows - rows.mean(0)) @ sketch
        factor = torch.linalg.cholesky(rows.mT @ rows + ridge)
        whitened = torch.linalg.solve_triangular(factor, rows.mT, upper=False)
        scores.append(whitened.square().sum(0))
    return torch.stack(scores)


def standardised(scores: Tensor) -> Tensor:
    """Scores with mean 0 and sample standard deviation 1 over all heads and positions."""
    centred = scores - scores.mean()
    return centred / scores.std().clamp_min(_SMALLEST_DEVIATION) if scores.numel() > 1 else centred


def layer_seed(seed: int, layer: int) -> int:
    """A seed of its own for each layer."""
    return seed * 2**16 + layer
