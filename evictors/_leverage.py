"""Statistical leverage of keys, approximated by a random sketch (Compactor, arXiv 2507.08143)."""

from __future__ import annotations

import torch
from torch import Tensor

from page_bench.evictors.base.precision import double, fp64_device

MAX_SEED = 2**32
_RIDGE = 1e-2
_SMALLEST_DEVIATION = 1e-6


def leverage(keys: Tensor, sketch_size: int, seed: int) -> Tensor:
    """How far each key lies from the others in the metric of their own spread.

    Keys are centred over positions and projected to `sketch_size` random directions; X being the
    result, the leverage of row x is xᵀ(XᵀX + 0.01·I)⁻¹x.

    Args:
        keys: `[H_kv, n, d]`, before the rotary embedding.
        sketch_size: columns of X.
        seed: of the projection, drawn on the CPU: the same on every device.

    Returns:
        fp64 `[H_kv, n]`, each in [0, 1), on `precision.fp64_device`.
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
