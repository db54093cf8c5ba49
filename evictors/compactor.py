"""Compactor (arXiv 2507.08143): leverage of the keys, plus attention within tiles of the prompt.

As its authors published it in kvpress, but positions that only fill up the last tile take no
attention here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from page_bench.evictors.base import Evictor, LayerView, Need
from page_bench.evictors.leverage import MAX_SEED, layer_seed, leverage, standardised

_ALL_ROWS = 2**31 - 1
"""More query rows than any prompt has: queries of all positions are recorded."""


@dataclass(frozen=True)
class Compactor(Evictor):
    """Keeps keys of high leverage and what its own part of the prompt attends to.

    Attributes:
        n_sink: first positions that the method keeps itself and leaves out of all statistics.
        n_recent: last positions, likewise.
        chunk_size: positions per tile; queries of a tile attend to all its keys, later ones
            included.
        sketch_size: random directions that keys are projected to, before their rotation.
        blending: weight of the leverage beside the attention; None means the share of positions
            that is evicted.
        scaled: whether the tiles' logits are scaled like the model's (1/√d); the authors' code
            leaves them as they are.
        seed: another seed gives other directions.
    """

    name: ClassVar[str] = "compactor"
    needs: ClassVar[frozenset[Need]] = frozenset({"keys", "values", "keys_before_rotation"})
    needs_in_words: ClassVar[tuple[str, ...]] = ("queries of all positions",)
    defaults_in_words: ClassVar[Mapping[str, str]] = {"blending": "the share that is evicted"}

    n_sink: int = 8
    n_recent: int = 4
    chunk_size: int = 256
    sketch_size: int = 48
    blending: float | None = None
    scaled: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        self.check_options("n_sink", "n_recent", "blending", at_least=0)
        self.check_options("chunk_size", "sketch_size", at_least=1)
        self.check_options("seed", at_least=0, at_most=MAX_SEED)

    @property
    def query_rows(self) -> int:
        return _ALL_ROWS

    @property
    def reads_budget(self) -> bool:
        return True

    def score(self, layer: LayerView, n_keep: int | None = None) -> Tensor:
        length = layer.prompt_tokens
        score = layer.keys.new_full(layer.keys.shape[:2], torch.inf, dtype=torch.float32)
        if length <= self.n_sink + self.n_recent:
            return score
        middle = slice(self.n_sink, length - self.n_recent)
        keys = layer.keys_before_rotation[:, middle]
        seed = layer_seed(self.seed, layer.index)
        spread = standardised(leverage(keys, self.sketch_size, seed)).float().to(keys.device)
        score[:, middle] = self._weight(length, n_keep) * spread + self._attention(layer, middle)
        return score

    def always_keeps(self, window: int) -> tuple[int, int]:
        return self.n_sink, self.n_recent

    def _weight(self, length: int, n_keep: int | None) -> float:
        if self.blending is not None:
            return self.blending
        if n_keep is None:
            raise ValueError("compactor without blending needs to know how many positions stay")
        return 1 - n_keep / length

    def _attention(self, layer: LayerView, middle: slice) -> Tensor:
        """Attention within tiles, weighted by the values' norms, smoothed and standardised."""
        queries, keys = layer.window_queries[:, middle], layer.keys[:, middle]
        scaling = layer.scaling if self.scaled else 1.0
        tiles = zip(
            torch.split(queries, self.chunk_size, dim=1),
            torch.split(keys, self.chunk_size, dim=1),
            strict=True,
        )
        sums = torch.cat([_received(*tile, scaling) for tile in tiles], dim=1)
        weighted = layer.per_kv_head(sums) * layer.values[:, middle].float().norm(dim=-1)
        return standardised(F.avg_pool1d(weighted, kernel_size=3, stride=1, padding=1))


def _received(queries: Tensor, keys: Tensor, scaling: float) -> Tensor:
    """Attention, fp32 `[H, n]`, that each key of a tile gets from all its queries `[H, n, d]`."""
    grouped = torch.unflatten(queries.float(), 0, (len(keys), -1))
    logits = grouped @ keys.float().mT[:, None] * scaling
    return logits.softmax(-1).sum(-2).flatten(0, 1)
