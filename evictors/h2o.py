"""H2O (arXiv 2306.14048), as the PAGE paper ran it: on the prompt, without decode updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from page_bench.evictors.base import Evictor, LayerView, Need, mean_over_group


@dataclass(frozen=True)
class H2O(Evictor):
    """Keeps what all query rows together attend to.

    The mean is over all T rows although a key is seen by the rows after it only, so early keys
    are favoured; that is the method.
    """

    name: ClassVar[str] = "h2o"
    needs: ClassVar[frozenset[Need]] = frozenset({"attention_mass"})

    def score(self, layer: LayerView, n_keep: int | None = None) -> Tensor:
        return mean_over_group(layer.attention_mass / layer.prompt_tokens, layer.n_kv_heads)
