"""One layer after its attention over a prompt, as an evictor sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from page_bench.evictors.base.causal import mean_attention
from page_bench.inputs.errors import UsageError

Need = Literal[
    "keys",
    "values",
    "window_attention",
    "attention_mass",
    "window_queries",
    "queries_before_rotation",
    "keys_before_rotation",
    "future_rotation",
    "hidden_states",
    "output_projection",
]
"""What an evictor reads of a layer.

Keys and values are always there; an evictor that reads them says so because models with latent
attention cache neither, but latents of all heads together."""

READ_IN_PASS: frozenset[Need] = frozenset(
    (
        *("queries_before_rotation", "keys_before_rotation", "future_rotation"),
        *("hidden_states", "output_projection"),
    )
)
"""Needs as large as the cache or the weights: an evictor with one of them scores each layer during
the prefill, so that only one layer's are alive at a time."""

Reduction = Literal["mean", "max", "sum"]


@dataclass(frozen=True)
class LayerView:
    """One layer after its own attention over the whole prompt, as an evictor sees it.

    Layers without full attention (sliding windows) are neither evicted nor shown or counted.
    page-bench's own evictors only read the tensors; others get copies, which they may change.

    Attributes:
        index: 0 = the shown layer next to the embedding.
        layer: the layer's index among all layers of the model.
        n_layers: layers L that are shown.
        n_model_layers: all layers of the model.
        prompt_tokens: T.
        keys: `[H_kv, T, d]`, after the rotary embedding, in the model's dtype.
        values: `[H_kv, T, d_v]`, in the model's dtype.
        scaling: factor of the attention logits, 1/√d in most models.
        window: observation window w.
        window_attention: fp32 `[H, T]`, per query head the attention averaged over the last w
            query rows.
        prompt_seed: a number that depends on the prompt alone.
        recorded: what was recorded because an evictor needs it.
        attention_of_rows: by `Evictor.query_rows`, fp32 `[H, T]`, attention averaged over so many
            last query rows; on models with latent attention alone.
    """

    index: int
    layer: int
    n_layers: int
    n_model_layers: int
    prompt_tokens: int
    keys: Tensor
    values: Tensor
    scaling: float
    window: int
    window_attention: Tensor
    prompt_seed: int
    recorded: Mapping[Need, Tensor] = field(default_factory=dict)
    attention_of_rows: Mapping[int, Tensor] = field(default_factory=dict)

    @property
    def n_kv_heads(self) -> int:
        """KV heads H_kv of this layer; query head j reads KV head ⌊j·H_kv/H⌋."""
        return self.keys.shape[0]

    @property
    def attention_mass(self) -> Tensor:
        """fp32 `[H, T]`, per query head the attention summed over all query rows."""
        return self._read("attention_mass")

    @property
    def window_queries(self) -> Tensor:
        """`[H, n, d]`, the last queries after the rotary embedding, n = `Evictor.query_rows` or
        more (T if the prompt is shorter)."""
        if self.attention_of_rows:
            raise UsageError(
                "this evictor reads window_queries, but the cache of the model holds latents of "
                "all heads together, which they cannot be multiplied with; let it read "
                "attention_of_last, or choose an evictor that does, such as snapkv."
            )
        return self._read("window_queries")

    @property
    def queries_before_rotation(self) -> Tensor:
        """`[H, T, d]`, after query norms and biases."""
        return self._read("queries_before_rotation")

    @property
    def keys_before_rotation(self) -> Tensor:
        """`[H_kv, T, d]`, after key norms and biases."""
        return self._read("keys_before_rotation")

    @property
    def future_rotation(self) -> Tensor:
        """fp32 `[d, d]`, mean rotation over positions T … T+511: a row vector x becomes x·R.

        The identity where the layer does not rotate.
        """
        return self._read("future_rotation")

    @property
    def hidden_states(self) -> Tensor:
        """`[T, D]`, the input of the attention, after the layer's input norm."""
        return self._read("hidden_states")

    @property
    def output_projection(self) -> Tensor:
        """`[H, d_v, D]`, per query head the rows of the output projection: o = Σ_h a_h·W_h."""
        return self._read("output_projection")

    def attention_of_last(self, rows: int) -> Tensor:
        """fp32 `[H, T]`, per query head the attention averaged over the last `rows` query rows.

        An evictor that asks for another number than the observation window says so in
        `query_rows`.
        """
        if rows == self.window:
            return self.window_attention
        if rows in self.attention_of_rows:
            return self.attention_of_rows[rows]
        return mean_attention(self.window_queries[:, -rows:], self.keys, self.scaling)

    def per_kv_head(self, rows: Tensor, reduction: Reduction = "mean") -> Tensor:
        """Mean, maximum or sum over the query heads of a group: `[H, T]` → `[H_kv, T]`."""
        grouped = rows.view(self.n_kv_heads, rows.shape[0] // self.n_kv_heads, rows.shape[1])
        if reduction == "max":
            return grouped.amax(1)
        return grouped.sum(1) if reduction == "sum" else grouped.mean(1)

    def _read(self, need: Need) -> Tensor:
        if need not in self.recorded:
            raise UsageError(
                f"this evictor reads {need}, which is recorded on demand only: add "
                f'needs: ClassVar[frozenset[Need]] = frozenset({{"{need}"}}) to its class.'
            )
        return self.recorded[need]
