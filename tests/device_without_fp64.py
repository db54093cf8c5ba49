"""A device without fp64, simulated: real numbers behind tensors that say they lie on `meta`."""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

DEVICE = torch.device("meta")
_WIDE = (torch.float64, torch.complex128)
_MOVES = ("aten::to", "aten::_to_copy", "aten::copy_")
_MAY_MIX = (*_MOVES, "aten::index", "aten::index_put_", "aten::_index_put_impl_")


class OnDevice(Tensor):
    """A tensor that lies there."""

    numbers: Tensor

    def __new__(cls, numbers: Tensor) -> Self:
        if numbers.dtype in _WIDE:
            raise TypeError(f"the device has no {numbers.dtype}")
        with torch.inference_mode(False):
            made: Self = Tensor._make_wrapper_subclass(
                cls, numbers.shape, numbers.stride(), dtype=numbers.dtype, device=DEVICE
            )
        made.numbers = numbers
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})

    def tolist(self) -> Any:
        return self.numbers.tolist()


class WithoutFp64(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, what is asked for on the device lies there."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def moved(value: Any) -> Any:
    """The tensors of a value, on the device."""
    if isinstance(value, Tensor):
        return OnDevice(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{k: moved(v) for k, v in vars(value).items()})
    return tree_map(moved, value) if isinstance(value, dict | list | tuple) else value


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    found: list[Tensor] = []

    def bare(value: Any) -> Any:
        if isinstance(value, Tensor):
            found.append(value)
        if isinstance(value, torch.device) and value.type == DEVICE.type:
            return torch.device("cpu")
        return value.numbers if isinstance(value, OnDevice) else value

    name, target = func._schema.name, kwargs.get("device")
    plain_args, plain_kwargs = tree_map(bare, (args, kwargs))
    there = [tensor for tensor in found if isinstance(tensor, OnDevice)]
    elsewhere = [t for t in found if not isinstance(t, OnDevice) and t.dim() > 0]
    if there and elsewhere and name not in _MAY_MIX:
        raise RuntimeError(f"{name} of tensors on two devices")
    result = func(*plain_args, **plain_kwargs)
    stays = bool(there) if target is None else target.type == DEVICE.type
    if not stays:
        return result.clone() if there and isinstance(result, Tensor) else result
    if name == "aten::copy_" and not isinstance(args[0], OnDevice):
        return result
    return tree_map(lambda one: OnDevice(one) if type(one) is Tensor else one, result)
