"""Leverage scores of keys, the query-free half of Compactor (arXiv 2507.08143)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from page_bench.evictors._checks import check_option
from page_bench.evictors._leverage import MAX_SEED, layer_seed, leverage, standardised
from page_bench.evictors.base import Evictor, LayerView, Need


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
        check_option("sketch_size", self.sketch_size, at_least=1)
        check_option("seed", self.seed, at_least=0, at_most=MAX_SEED)

    def score(self, layer: LayerView, n_keep: int | None = None) -> Tensor:
        seed = layer_seed(self.seed, layer.index)
        scores = standardised(leverage(layer.keys_before_rotation, self.sketch_size, seed))
        return scores.float().to(layer.keys.device)
