"""What a plain model computes in each attention layer, caught by forward hooks.

The inputs of the naive references of the evictors; nothing here uses the package. The model is
an eager fp32 copy, so that whole attention matrices can be looked at.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from reference import forward
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

Caught = dict[str, Any]
"""What the hooks of one layer caught, by the name of the part of the layer."""


@dataclass
class LayerInputs:
    """One attention layer over one prompt, fp32; D is the hidden size.

    Attributes:
        x: `[T, D]`, what the attention is given.
        q_pre: `[H, T, d]`, queries after norms and biases, before the rotation.
        k_pre: `[H_kv, T, d]`, keys at the same point.
        q: `[H, T, d]`, rotated queries.
        k: `[H_kv, T, d]`, rotated keys, as cached.
        v: `[H_kv, T, d]`, values, as cached.
        attention: `[H, T, T]`, rows are queries.
        w_o: `[H, d, D]`, what each head's output is multiplied with.
        scaling: factor of the attention logits.
    """

    x: Tensor
    q_pre: Tensor
    k_pre: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    attention: Tensor
    w_o: Tensor
    scaling: float

    def kv_head(self, query_head: int) -> int:
        """The KV head that a query head reads."""
        return query_head * len(self.k) // len(self.q)

    def group(self, kv_head: int) -> list[int]:
        """The query heads that read a KV head."""
        return [j for j in range(len(self.q)) if self.kv_head(j) == kv_head]


def layer_inputs(model: PreTrainedModel, ids: Tensor) -> list[LayerInputs]:
    """The L layers of a model of the Llama family (its attention is called `self_attn`).

    Covers Llama, Mistral, Qwen2, Qwen3, Phi-3, Gemma-3 text, OLMo2 and SmolLM3.

    Args:
        model: any dtype and attention implementation; left as it was.
        ids: int64 `[1, T]`.
    """
    eager = _eager_copy(model)
    cache = DynamicCache()
    caught, output = _watched(eager, ids, cache=cache, output_attentions=True)
    layers = []
    for index, (attention, seen) in enumerate(zip(_attentions(eager), caught, strict=True)):
        width = attention.head_dim
        k, v = cache.layers[index].keys[0], cache.layers[index].values[0]
        raw = seen.get("q_norm", seen.get("q_proj")), seen.get("k_norm", seen.get("k_proj"))
        if "qkv_proj" in seen:
            heads, kv_heads = output.attentions[index].shape[1], k.shape[0]
            sizes = [heads * width, kv_heads * width, kv_heads * width]
            raw = tuple(seen["qkv_proj"].split(sizes, dim=-1)[:2])
        q_pre, k_pre = (_by_head(part, width) for part in raw)
        q, k_again = (_rotated(part, seen["rotation"]) for part in (q_pre, k_pre))
        # The cache is the witness that hooks and rotation are right.
        torch.testing.assert_close(k_again, k, atol=1e-5, rtol=1e-5)
        w_o = torch.stack([w.T for w in attention.o_proj.weight.detach().split(width, dim=1)])
        weights = output.attentions[index][0]
        layers.append(
            LayerInputs(seen["x"], q_pre, k_pre, q, k, v, weights, w_o, attention.scaling)
        )
    return layers


def mean_rotations(model: PreTrainedModel, start: int, steps: int) -> list[Tensor]:
    """Per layer the mean rotation over positions start … start + steps - 1, `[d, d]`.

    A row vector x at such a position becomes x·R; the identity in a layer that does not rotate.
    """
    eager = _eager_copy(model)
    ids = torch.zeros(1, steps, dtype=torch.long)
    caught, _ = _watched(eager, ids, position_ids=torch.arange(start, start + steps)[None])
    means = []
    for attention, seen in zip(_attentions(eager), caught, strict=True):
        unit = torch.eye(attention.head_dim)[:, None].expand(-1, steps, -1)
        means.append(_rotated(unit, seen["rotation"]).mean(1))
    return means


def _eager_copy(model: PreTrainedModel) -> PreTrainedModel:
    eager = copy.deepcopy(model).float().eval()
    eager.set_attn_implementation("eager")
    return eager


def _attentions(model: PreTrainedModel) -> list[Any]:
    return [layer.self_attn for layer in model.model.layers]


def _watched(
    model: PreTrainedModel, ids: Tensor, cache: DynamicCache | None = None, **kwargs: Any
) -> tuple[list[Caught], Any]:
    """One forward, with what each attention layer was given and what its parts gave."""
    caught: list[Caught] = []
    hooks = []
    for attention in _attentions(model):
        seen: Caught = {}
        caught.append(seen)
        hooks.append(
            attention.register_forward_pre_hook(partial(_catch_input, seen), with_kwargs=True)
        )
        for name in ("q_proj", "k_proj", "qkv_proj", "q_norm", "k_norm"):
            if hasattr(attention, name):
                part = getattr(attention, name)
                hooks.append(part.register_forward_hook(partial(_catch_output, seen, name)))
    with torch.no_grad():
        cache = DynamicCache() if cache is None else cache
        output = forward(model, ids, cache, **kwargs)
    for hook in hooks:
        hook.remove()
    return caught, output


def _catch_input(seen: Caught, module: nn.Module, args: Any, kwargs: Any) -> None:
    seen["x"] = (args[0] if args else kwargs["hidden_states"])[0]
    # SmolLM3 says per layer whether it rotates; the others always do.
    rotates = getattr(module, "use_rope", True)
    seen["rotation"] = [part[0] for part in kwargs["position_embeddings"]] if rotates else None


def _catch_output(seen: Caught, name: str, module: nn.Module, args: Any, output: Tensor) -> None:
    seen[name] = output


def _by_head(projected: Any, width: int) -> Tensor:
    """`[1, T, H·d]`, `[1, T, H, d]` or `[1, H, T, d]` (told apart by T ≠ H) → `[H, T, d]`."""
    if projected.dim() == 3:
        projected = projected.unflatten(-1, (-1, width))
    heads = projected[0]
    assert heads.shape[0] != heads.shape[1]
    return heads.transpose(0, 1) if heads.shape[0] > heads.shape[1] else heads


def _rotated(vectors: Tensor, rotation: list[Tensor] | None) -> Tensor:
    """Rotary embedding of `[H, T, d]`: coordinate i is paired with i + r/2 of the first r."""
    if rotation is None:
        return vectors
    cos, sin = rotation
    half = cos.shape[-1] // 2
    rotated = vectors.clone()
    for i in range(half):
        a, b = vectors[..., i], vectors[..., i + half]
        rotated[..., i] = a * cos[:, i] - b * sin[:, i]
        rotated[..., i + half] = b * cos[:, i + half] + a * sin[:, i + half]
    return rotated
