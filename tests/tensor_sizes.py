"""How large the tensors are that a computation makes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class LargestTensor(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, notes the largest storage that any operation returns.

    Attributes:
        bytes: of that storage; what stood before does not count.
    """

    def __init__(self, before: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.before = {tensor.untyped_storage().data_ptr() for tensor in before}
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in self.before:
                    self.bytes = max(self.bytes, storage.nbytes())
        return result
