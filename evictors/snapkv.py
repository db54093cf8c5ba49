"""SnapKV (arXiv 2404.14469).

`variant=paper` is how the PAGE paper ran it: no pooling kernel, and what the window's own
positions get counts like the rest. `variant=published` is the authors' code, with the keep set
per KV head in place of their copies per query head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from page_bench.evictors.base import Evictor, Granularity, LayerView, Need
from page_bench.evictors.base.layer_view import Reduction
from page_bench.inputs.errors import UsageError


@dataclass(frozen=True)
class SnapKV(Evictor):
    """Keeps what the last w query rows attend to.

    Attributes:
        variant: `paper` averages over the window's rows and does no more; `published` pools over
            positions and always keeps the window itself.
        window: last query rows; None means the run's observation window.
        kernel_size: positions pooled over, odd; None means 1 in `paper`, the authors' number in
            `published`.
        pooling: average or maximum over these; the average counts the zeros beyond the edges, as
            in the authors' code.
        reduction: from the query heads of a group to their KV head, before pooling.
    """

    name: ClassVar[str] = "snapkv"
    needs: ClassVar[frozenset[Need]] = frozenset({"window_attention"})
    needs_in_words: ClassVar[tuple[str, ...]] = ("last queries with a window of its own",)
    defaults_in_words: ClassVar[Mapping[str, str]] = {"window": "the run's window"}
    variant_defaults: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "paper": {"kernel_size": 1},
        "published": {"kernel_size": 5},
    }

    variant: Literal["paper", "published"] | None = None
    window: int | None = None
    kernel_size: int | None = None
    pooling: Literal["avg", "max"] = "avg"
    reduction: Reduction = "mean"

    def __post_init__(self) -> None:
        self.check_options("window", at_least=1)
        if self.kernel_size is not None and (self.kernel_size < 1 or self.kernel_size % 2 == 0):
            raise UsageError(
                f"evictor.kernel_size={self.kernel_size} has no middle position; give an odd "
                f"number, 1 for no pooling."
            )

    def score(self, layer: LayerView, n_keep: int | None = None) -> Tensor:
        form = self if self.kernel_size else self.resolved("head" if self.variant else "shared")
        rows = min(form.window or layer.window, layer.prompt_tokens)
        attention = layer.attention_of_last(form.window or layer.window)
        grouped = layer.per_kv_head(attention, form.reduction)
        if form.variant == "paper":
            return form._pooled(grouped)
        before = layer.prompt_tokens - rows
        scores = torch.full_like(grouped, torch.inf)
        if before:
            scores[:, :before] = form._pooled(grouped[:, :before])
        return scores

    def always_keeps(self, window: int) -> tuple[int, int]:
        return 0, (self.window or window) if self.variant == "published" else 0

    def resolved(self, granularity: Granularity) -> Self:
        form = super().resolved(granularity)
        of_form = form.variant_defaults[str(form.variant)]
        for other, defaults in form.variant_defaults.items():
            for option in defaults:
                if option not in of_form and getattr(form, option) is not None:
                    raise UsageError(
                        f"evictor.{option} belongs to another form of {form.name}; leave it out, "
                        f"or give evictor.variant={other}."
                    )
        return form

    @property
    def query_rows(self) -> int:
        return self.window or 0

    def _pooled(self, rows: Tensor) -> Tensor:
        """`rows` `[H_kv, N]` pooled over positions, same shape; a kernel of 1 changes nothing."""
        if self.kernel_size is None or self.kernel_size == 1:
            return rows
        pool = F.max_pool1d if self.pooling == "max" else F.avg_pool1d
        pooled: Tensor = pool(rows, self.kernel_size, stride=1, padding=self.kernel_size // 2)
        return pooled
