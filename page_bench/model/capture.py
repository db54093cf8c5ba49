"""What an evictor may need of an attention layer besides the queries and keys it attends with.

One mechanism serves every family: a hook sees what a layer's attention is called with, and the
layer itself is asked again for queries and keys under a rotation by nothing. So biases, norms,
fused projections and layers that do not rotate need no code of their own.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from page_bench.evictors.base.layer_view import Need
from page_bench.evictors.base.precision import double
from page_bench.inputs.errors import UsageError

PROBE_ARGUMENT = "page_probe"
"""Keyword under which an attention function is asked to hand over its queries and keys."""

FUTURE_POSITIONS = 512
"""Positions after the prompt over which `future_rotation` is averaged."""

_CALL_NEEDS: frozenset[Need] = frozenset(
    {"queries_before_rotation", "keys_before_rotation", "future_rotation", "hidden_states"}
)
_PROJECTIONS = ("o_proj", "out_proj", "dense", "wo")
_CONTINUED = "a rotation of its queries that can be continued"
_LARGEST_PHASE_ERROR = 0.1
"""Radians; far above what tables in bfloat16, or angles of fp32 at long lengths, are off by."""


class Probed(Exception):
    """Carries a layer's queries and keys out of its forward, before it attends."""

    def __init__(self, query: Tensor, key: Tensor) -> None:
        super().__init__()
        self.query, self.key = query, key


Calls = dict[nn.Module, dict[str, Any]]
"""Attention module → the arguments of its present call, by name."""


@contextmanager
def calls_of(
    model: PreTrainedModel, needs: frozenset[Need], layers: Collection[int]
) -> Iterator[Calls]:
    """Collects what the attention of these layers is called with, as far as `needs` ask for it."""
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
        # What others are called with would wait for the next of these to be let go of.
        if isinstance(index := getattr(module, "layer_idx", None), int) and index in layers
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
        before, keys_before = _before_rotation(module, call)
        found["queries_before_rotation"] = before[0]
        found["keys_before_rotation"] = keys_before[0]
    if "future_rotation" in needs:
        found["future_rotation"] = _future_rotation(module, call, query, before)
    return found


def _before_rotation(module: nn.Module, call: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Queries `[1, H, T, d]` and keys `[1, H_kv, T, d]`."""
    rotation = call.get("position_embeddings")
    arguments = {name: _untouched(value) for name, value in call.items()}
    arguments |= {"position_embeddings": _neutral(module, rotation), PROBE_ARGUMENT: True}
    try:
        module.forward(**arguments)
    except Probed as probed:
        # Never the exception itself: its traceback leads to the frames of this very pass, and so
        # back to whoever holds it, a cycle that keeps all tensors of the layer alive.
        return probed.query, probed.key
    raise _missing(module, "its queries and keys")


def _untouched(value: Any) -> Any:
    """An argument that a layer may write to, so that asking it again changes nothing."""
    # The layer's keys stand in the cache already.
    if isinstance(value, Cache):
        return None
    return copy(value) if isinstance(value, MutableMapping | list) else value


def _neutral(module: nn.Module, rotation: Any) -> Any:
    """A rotation by nothing of the same form: tables (cos, sin), or a table of complex numbers."""
    if isinstance(rotation, tuple | list) and len(rotation) == 2:
        cos, sin = rotation
        # Position 0 is not rotated: the order of the tables is known.
        if bool((sin[..., 0, :] == 0).all()) and bool((cos[..., 0, :] > 0).all()):
            return torch.ones_like(cos), torch.zeros_like(sin)
    if isinstance(rotation, Tensor) and rotation.is_complex():
        return torch.ones_like(rotation)
    raise _missing(module, "its rotary embedding")


def _future_rotation(
    module: nn.Module, call: Mapping[str, Any], after: Tensor, before: Tensor
) -> Tensor:
    """Mean rotation over the positions after the prompt, fp32 `[d, d]`.

    The tables are in the model's dtype. Their angles are found over the whole prompt, not from one
    position to the next, so that bfloat16 costs no more than its rounding of one angle.
    """
    dim = after.shape[-1]
    identity = torch.eye(dim, device=after.device)
    if torch.equal(after, before):
        return identity
    rotation = call["position_embeddings"]
    if not isinstance(rotation, tuple | list) or rotation[0].dim() != 3 or after.shape[2] < 2:
        raise _missing(module, _CONTINUED)
    rotate = _rotating(module, rotation, after, before)
    length = after.shape[2]
    places = _spread(length, 64).to(after.device)
    phasors = torch.complex(*(double(table[0, places]) for table in rotation))
    # Scaled embeddings (YaRN) carry a factor.
    factor = phasors.abs().mean(0)
    angle = _angle(module, rotation)
    steps = torch.arange(FUTURE_POSITIONS, device=angle.device)[:, None] + length
    mean = torch.polar(factor.expand(len(steps), -1).contiguous(), steps * angle).mean(0)
    tables = (part.float()[None, None].to(after.device) for part in (mean.real, mean.imag))
    return rotate(identity[None, None], *tables)[0, 0]


def _angle(module: nn.Module, tables: Sequence[Tensor]) -> Tensor:
    """Angle from one position to the next, fp64 `[r]`, of tables `[1, T, r]` that turn evenly."""
    cos, sin = (table[0] for table in tables)

    def phase(places: int | Tensor) -> Tensor:
        return torch.atan2(double(sin[places]), double(cos[places]))

    last = len(cos) - 1
    angle, at = phase(1), 1
    while at < last:
        # Known well enough to tell how often it has gone round by then.
        at = min(8 * at, last)
        angle = angle + _wrapped(phase(at) - at * angle) / at
    places = _spread(len(cos), 64).to(cos.device)
    off = _wrapped(phase(places) - places.to(angle.device)[:, None] * angle)
    if off.abs().max() > _LARGEST_PHASE_ERROR:
        raise _missing(module, _CONTINUED)
    return angle


def _spread(length: int, count: int) -> Tensor:
    """Up to `count` positions from the first to the last, int64."""
    return torch.linspace(0, length - 1, min(length, count)).long()


def _wrapped(phase: Tensor) -> Tensor:
    return torch.remainder(phase + torch.pi, 2 * torch.pi) - torch.pi


Rotate = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Vectors `[1, H, T, d]` and tables `[1, T, r]` → the vectors rotated."""


def _rotating(module: nn.Module, tables: Sequence[Tensor], after: Tensor, before: Tensor) -> Rotate:
    """The family's own rotation, proved on the prompt's queries.

    Raises:
        UsageError: it does not make the attended queries of those before rotation.
    """
    apply = getattr(sys.modules[type(module).__module__], "apply_rotary_pos_emb", None)
    if apply is None:
        raise _missing(module, _CONTINUED)
    width = tables[0].shape[-1]

    def together(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rotated: Tensor = apply(x, x, cos, sin)[0]
        return rotated

    def alone(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rotated: Tensor = apply(x, cos, sin)
        return rotated

    def partly(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return torch.cat([together(x[..., :width], cos, sin), x[..., width:]], dim=-1)

    places = _spread(after.shape[2], 16).to(after.device)
    expected = double(after[:, :, places])
    for rotate in (together, alone, partly):
        try:
            found = rotate(before[:, :, places], *(table[:, places] for table in tables))
        except (TypeError, ValueError, IndexError, RuntimeError):
            continue
        tolerance = max(4 * torch.finfo(after.dtype).eps, 1e-5)
        if found.shape == expected.shape and bool(
            (double(found) - expected).norm() <= tolerance * expected.norm()
        ):
            return rotate
    raise _missing(module, _CONTINUED)


def _output_projection(module: nn.Module, query: Tensor) -> Tensor:
    """Per query head the rows of the output projection `[H, d_v, D]`, whatever its layer type."""
    project: Callable[[Tensor], Tensor] | None = next(
        (getattr(module, name) for name in _PROJECTIONS if hasattr(module, name)), None
    )
    width = getattr(project, "in_features", None)
    if project is None or width is None or width % query.shape[1]:
        raise _missing(module, "its output projection")
    held = project.weight if type(project) is nn.Linear else None
    if type(held) is nn.Parameter and held.device == query.device:
        weight = held.T
    else:
        # Applying the layer serves quantised weights and adapters.
        inputs = torch.eye(width, dtype=query.dtype, device=query.device)
        weight = project(inputs) - project(torch.zeros_like(inputs[:1]))
    return torch.unflatten(weight, 0, (query.shape[1], -1))


def _missing(module: nn.Module, what: str) -> UsageError:
    return UsageError(
        f"the evictor reads {what}, which {type(module).__name__} does not show; choose another "
        f"evictor for this model."
    )
