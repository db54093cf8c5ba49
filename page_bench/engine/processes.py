"""The processes among which a run's requests are shared out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch.distributed

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """This process and its peers, as lm-eval's data parallelism starts them.

    Attributes:
        rank: which of them this one is.
        count: how many there are.
    """

    rank: int = 0
    count: int = 1

    def gather(self, value: T) -> list[T]:
        """What each process gives, by rank; every one of them must call this."""
        if self.count == 1:
            return [value]
        gathered: list[T] = [value] * self.count
        torch.distributed.all_gather_object(gathered, value)
        return gathered


ALONE = Processes()
