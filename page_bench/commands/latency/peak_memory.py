"""Peak memory of a stretch of work, above what was in use when it began."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from page_bench.inputs.errors import UsageError

_STATUS = Path("/proc/self/status")
_INTERVAL_S = 0.001


def counter(device: torch.device) -> str | None:
    """What `PeakMemory` reads on a device; None where nothing can be read."""
    if device.type == "cuda":
        return "torch.cuda.max_memory_allocated"
    if device.type == "cpu" and _STATUS.exists():
        return "resident anonymous memory"
    return None


class PeakMemory:
    """Watches memory while the context lasts.

    On CUDA the allocator's own counters are read, summed over the devices. On the CPU a thread
    reads the anonymous memory of this process every millisecond: weights may be mapped from disk,
    and whether their pages are resident is the kernel's affair. What earlier work freed is given
    back to the system when the context and each lap begin, since it would be used again unseen;
    glibc alone can do that, and not for all of it, so that on the CPU only a fresh process
    measures well, to a few MiB (see `in_fresh_process`).

    Args:
        device: one with a `counter`.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._start = self._peak = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        if not self._cuda:
            _give_back_freed()
        self._start = self._peak = self._in_use()
        if self._cuda:
            self._reset()
        else:
            self._watcher.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        if not self._cuda:
            self._watcher.join()

    def lap(self) -> int:
        """Bytes of the peak since the last call, or since the beginning."""
        if self._cuda:
            peak = sum(torch.cuda.max_memory_allocated(i) for i in _devices())
            self._reset()
            return peak - self._start
        with self._lock:
            peak = max(self._peak, self._in_use())
            _give_back_freed()
            self._peak = self._in_use()
        return peak - self._start

    def _watch(self) -> None:
        while not self._ended.wait(_INTERVAL_S):
            with self._lock:
                self._peak = max(self._peak, self._in_use())

    def _in_use(self) -> int:
        if self._cuda:
            return sum(torch.cuda.memory_allocated(i) for i in _devices())
        with _STATUS.open() as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))

    def _reset(self) -> None:
        for i in _devices():
            torch.cuda.reset_peak_memory_stats(i)


def in_fresh_process(arguments: Sequence[str]) -> dict[str, Any]:
    """Run this Python in a process of its own, where resident memory is live memory.

    Args:
        arguments: what follows `python`; it prints a JSON object as its last line.

    Returns:
        That object.

    Raises:
        UsageError: the process failed; the message gives its last line.
    """
    # Freed blocks go back to the system at once.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment
    )
    if done.returncode != 0:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise UsageError(
            f"peak memory could not be measured, the process for it ended with status "
            f"{done.returncode} after {time.perf_counter() - started:.0f} s ({last})."
        )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _give_back_freed() -> None:
    """Let go of the heap's freed pages; other C libraries than glibc keep them."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _devices() -> range:
    return range(torch.cuda.device_count())
