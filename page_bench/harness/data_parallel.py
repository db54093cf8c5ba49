"""lm-eval's `hf` model in several processes: ranks on every device, and no answer twice."""

from __future__ import annotations

from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from page_bench.engine.processes import Processes
from page_bench.harness.requests import without_padding


class DataParallelLM(HFLM):
    """`hf` as `accelerate launch` and `torchrun` start it, on CPUs and GPUs alike.

    Args:
        kwargs: those of lm-eval's `hf` model.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        accelerator = getattr(self, "accelerator", None)
        if accelerator is not None:
            # HFLM does so where it sees several GPUs, and then by the rank within a node.
            self._rank, self._world_size = accelerator.process_index, accelerator.num_processes
        self._padded: list[Instance] = []

    @property
    def processes(self) -> Processes:
        """This process and its peers."""
        return Processes(self.rank, self.world_size)

    def counted(self, requests: list[Instance]) -> tuple[list[Instance], list[int]]:
        """The requests without lm-eval's copies, and for each of all which of them answers it.

        The copies' answers are taken out again by `barrier`.
        """
        if self.world_size == 1:
            return requests, list(range(len(requests)))
        counted, places = without_padding(requests)
        self._padded = counted
        return counted, places

    def barrier(self) -> None:
        """Wait for all processes; lm-eval calls this once the answers stand in the requests."""
        for request in self._padded:
            del request.resps[request.repeats :]
        self._padded = []
        super().barrier()
