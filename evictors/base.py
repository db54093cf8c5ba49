"""What an evictor is: a score per KV head and position, and optionally how counts are shared."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from page_bench.budget import BudgetPlan
from page_bench.errors import UsageError

Need = Literal["window_attention", "attention_mass"]
"""What must be recorded during prefill for an evictor; keys and values are always at hand."""


@dataclass(frozen=True)
class LayerView:
    """One layer after prefill, as an evictor sees it.

    Attributes:
        index: layer index, 0 = next to the embedding.
        n_layers: layers of the model.
        prompt_tokens: T.
        keys: `[H_kv, T, d]`, after the rotary embedding, in the model's dtype.
        values: `[H_kv, T, d_v]`, in the model's dtype.
        window_attention: fp32 `[H, T]`, per query head the attention averaged over the
            observation window.
        recorded_mass: what `attention_mass` gives; None unless the evictor needs it.
        prompt_seed: a number that depends on the prompt alone.
    """

    index: int
    n_layers: int
    prompt_tokens: int
    keys: Tensor
    values: Tensor
    window_attention: Tensor
    recorded_mass: Tensor | None
    prompt_seed: int

    @property
    def n_kv_heads(self) -> int:
        """KV heads H_kv of this layer."""
        return self.keys.shape[0]

    @property
    def attention_mass(self) -> Tensor:
        """fp32 `[H, T]`, per query head the attention summed over all query rows.

        Raises:
            UsageError: it was not recorded, since the evictor does not say that it needs it.
        """
        if self.recorded_mass is None:
            raise UsageError(
                "this evictor reads attention_mass, which is recorded on demand only: add "
                'needs: ClassVar[frozenset[Need]] = frozenset({"attention_mass"}) to its class.'
            )
        return self.recorded_mass


@dataclass(frozen=True)
class Evictor(ABC):
    """A method that decides which prompt positions leave the KV cache.

    Subclasses are frozen dataclasses whose fields are the method's hyper-parameters, each with
    a default; they stand as `evictor.FIELD=VALUE` on the command line. Caches, protected
    positions, rounding and top-k are not theirs: the engine does these once for all.

    Attributes:
        name: the name on the command line, which is also the module's.
        needs: what must be recorded during prefill.
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[Need]] = frozenset()

    @abstractmethod
    def score(self, layer: LayerView, n_keep: int | None = None) -> Tensor:
        """Worth of each position to each KV head.

        Args:
            layer: the layer after prefill.
            n_keep: positions that will be kept; only two-stage methods read it.

        Returns:
            fp32 `[H_kv, T]`, higher = keep.
        """

    def allocate(self, scores: list[Tensor], plan: BudgetPlan) -> Tensor:
        """Positions to keep per layer and KV head, protected ones included; default uniform.

        Args:
            scores: per layer, fp32 `[H_kv, T]`.
            plan: the budget and the shape of the model.

        Returns:
            int64 `[L, H_kv]`, each between `plan.n_protected` and T.
        """
        return torch.full((plan.n_layers, plan.n_kv_heads), plan.n_keep)


def mean_over_group(attention: Tensor, n_kv_heads: int) -> Tensor:
    """Mean over the query heads that share a KV head: `[H, T]` → `[H_kv, T]`."""
    heads, length = attention.shape
    return attention.view(n_kv_heads, heads // n_kv_heads, length).mean(1)
