"""fp64 for what fp32 is too coarse for, on any device."""

from __future__ import annotations

import torch
from torch import Tensor

_WITHOUT_FP64 = ("mps",)
"""Types of devices on which not even a tensor of fp64 can lie."""


def fp64_device(device: torch.device) -> torch.device:
    """Where to compute in fp64 with what lies on a device: there, or on the CPU."""
    return torch.device("cpu") if device.type in _WITHOUT_FP64 else device


def double(values: Tensor) -> Tensor:
    """The same in fp64, on `fp64_device`."""
    return values.to(fp64_device(values.device)).double()
