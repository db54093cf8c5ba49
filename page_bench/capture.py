"""What an evictor may need of an attention layer besides the queries and keys it attends with.

One mechanism serves every family: a hook sees what a layer's attention is called with, and the
layer itself is asked again for queries and keys under a rotation by nothing. So biases, norms,
fused projections and layers that do not rotate need no code of their own.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from page_bench.errors import UsageError
from page_bench.layer_view import Need

PROBE_ARGUMENT = "page_probe"
"""Keyword under which an attention function is asked to hand over its queries and keys."""

FUTURE_POSITIONS = 512
"""Positions after the prompt over which `future_rotation` is averaged."""

_CALL_NEEDS: frozenset[Need] = frozenset(
    {"queries_before_rotation", "keys_before_rotation", "future_rotation", "hidden_states"}
)
_PROJECTIONS = ("o_proj", "out_proj", "dense", "wo")


class Probed(Exception):
    """Carries a layer's queries and keys out of its forward, before it attends."""

    def __init__(self, query: Tensor, key: Tensor) -> None:
        super().__init__()
        self.query, self.key = query, key


Calls = dict[nn.Module, dict[str, Any]]
"""Attention module → the arguments of its present call, by name."""


@contextmanager
def calls_of(model: PreTrainedModel, needs: frozenset[Need]) -> Iterator[Calls]:
    """Collects what each attention layer is called with, as far as `needs` ask for it."""
    calls: Calls = {}
    if not needs & _CALL_NEEDS:
        yield calls
        return

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        extra = bound.pop("kwargs", {})
        calls[module] = {**bound, **extra}

    handles = [
        module.register_forward_pre_hook(hook, with_kwargs=True)
        for module in model.modules()
        if isinstance(getattr(module, "layer_idx", None), int)
    ]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def captured(
    module: nn.Module, call: Mapping[str, Any] | None, query: Tensor, key: Tensor, needs: set[Need]
) -> dict[Need, Tensor]:
    """The needs of `_CALL_NEEDS` and `output_projection`, for one layer.

    Args:
        module: the attention layer.
        call: its arguments, see `calls_of`.
        query: `[1, H, T, d]`, what it attends with, after rotation.
        key: `[1, H_kv, T, d]`.
        needs: which of them are wanted.

    Returns:
        By need, in the shapes of `layer_view.LayerView`.

    Raises:
        UsageError: the model does not show one of them.
    """
    found: dict[Need, Tensor] = {}
    if "output_projection" in needs:
        found["output_projection"] = _output_projection(module, query)
    if not needs & _CALL_NEEDS:
        return found
    if call is None or "hidden_states" not in call:
        raise _missing(module, "what its attention is called with")
    if "hidden_states" in needs:
        found["hidden_states"] = call["hidden_states"][0]
    if needs & {"queries_before_rotation", "keys_before_rotation", "future_rotation"}:
        before = _before_rotation(module, call)
        found["queries_before_rotation"] = before.query[0]
        found["keys_before_rotation"] = before.key[0]
    if "future_rotation" in needs:
        found["future_rotation"] = _future_rotation(module, call, query, before.query)
    return found


def _before_rotation(module: nn.Module, call: Mapping[str, Any]) -> Probed:
    rotation = call.get("position_embeddings")
    if rotation is None:
        raise _missing(module, "its rotary embedding")
    neutral = (
        (torch.ones_like(rotation[0]), torch.zeros_like(rotation[1]))
        if isinstance(rotation, tuple | list)
        else torch.ones_like(rotation)
    )
    arguments = {**call, "position_embeddings": neutral, PROBE_ARGUMENT: True}
    # The layer's keys stand in the cache already.
    arguments.update({k: None for k in ("cache", "past_key_values", "past_key_value") if k in call})
    try:
        module.forward(**arguments)
    except Probed as probed:
        return probed
    raise _missing(module, "its queries and keys")


def _future_rotation(
    module: nn.Module, call: Mapping[str, Any], after: Tensor, before: Tensor
) -> Tensor:
    """Mean rotation over the positions after the prompt, fp32 `[d, d]`."""
    dim = after.shape[-1]
    identity = torch.eye(dim, device=after.device)
    if torch.equal(after, before):
        return identity
    rotate = getattr(sys.modules[type(module).__module__], "apply_rotary_pos_emb", None)
    rotation = call["position_embeddings"]
    if rotate is None or not isinstance(rotation, tuple | list) or rotation[0].shape[1] < 2:
        raise _missing(module, "a rotation of its queries that can be continued")
    cos, sin = (table[0].double() for table in rotation)
    # Scaled embeddings (YaRN) carry a factor, which position 0 shows alone.
    factor = cos[0]
    angle = torch.atan2(sin[1] / factor, cos[1] / factor)
    last = torch.complex(cos[-1], sin[-1])
    steps = torch.arange(1, FUTURE_POSITIONS + 1, device=cos.device)[:, None] * angle
    mean = (last * torch.polar(torch.ones_like(steps), steps)).mean(0)
    tables = (part.float()[None, None] for part in (mean.real, mean.imag))
    rotated: Tensor = rotate(identity[None, None], identity[None, None], *tables)[0][0, 0]
    return rotated


def _output_projection(module: nn.Module, query: Tensor) -> Tensor:
    """Per query head the rows of the output projection `[H, d_v, D]`, whatever its layer type."""
    project: Callable[[Tensor], Tensor] | None = next(
        (getattr(module, name) for name in _PROJECTIONS if hasattr(module, name)), None
    )
    width = getattr(project, "in_features", None)
    if project is None or width is None or width % query.shape[1]:
        raise _missing(module, "its output projection")
    # Applying the layer also serves quantised weights and adapters.
    inputs = torch.eye(width, dtype=query.dtype, device=query.device)
    weight = project(inputs) - project(torch.zeros_like(inputs[:1]))
    return weight.view(query.shape[1], width // query.shape[1], -1)


def _missing(module: nn.Module, what: str) -> UsageError:
    return UsageError(
        f"the evictor reads {what}, which {type(module).__name__} does not show; choose another "
        f"evictor for this model."
    )
