"""H2O (arXiv 2306.14048): heavy hitters of the prompt.

`variant=paper` is how the PAGE paper ran it: the mean over all query rows decides alone.
`variant=published` splits the budget into heavy hitters and recent positions, as the authors do.
In neither form are scores updated or entries evicted while the answer is decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from page_bench.evictors.base import Evictor, LayerView, Need
from page_bench.evictors.base.layer_view import Reduction


@dataclass(frozen=True)
class H2O(Evictor):
    """Keeps what all query rows together attend to.

    A key is seen by the rows after it only, so early keys are favoured; that is the method. The
    prompt alone decides: the authors' updates during decoding are not made.

    Attributes:
        variant: `paper`, by score alone; `published`, half of the count for recent positions.
        reduction: from the query heads of a group to their KV head.
        normalise_by_age: whether a key's sum is divided by the number of rows that see it.
    """

    name: ClassVar[str] = "h2o"
    needs: ClassVar[frozenset[Need]] = frozenset({"attention_mass"})
    variant_defaults: ClassVar[Mapping[str, Mapping[str, object]]] = {"paper": {}, "published": {}}

    variant: Literal["paper", "published"] | None = None
    reduction: Reduction = "mean"
    normalise_by_age: bool = False

    @property
    def reads_budget(self) -> bool:
        return self.variant != "paper"

    def score(self, layer: LayerView, n_keep: int | None = None) -> Tensor:
        length, mass = layer.prompt_tokens, layer.attention_mass
        if self.normalise_by_age:
            mass = mass / torch.arange(length, 0, -1, device=mass.device)
        elif self.variant != "published":
            mass = mass / length
        scores = layer.per_kv_head(mass, self.reduction)
        if self.variant == "published":
            if n_keep is None:
                raise ValueError("h2o halves the count it may keep: call score with n_keep")
            scores[:, length - n_keep // 2 :] = torch.inf
        return scores

    def always_keeps(self, window: int) -> tuple[int, int]:
        # Half of the count, which the budget says; one at least.
        return 0, int(self.variant == "published")
