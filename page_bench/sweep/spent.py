"""Where the time of a sweep went."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from page_bench.engine.grid_work import Filled


@dataclass
class Spent:
    """Where the time of a sweep went.

    Attributes:
        arms: arms that were run.
        prompts: prompts whose answers were asked for, over all groups.
        stored: those of which everything stood in the store.
        prefill_tokens, new_tokens: tokens read and answered by the model.
        seconds: by activity.
    """

    arms: int = 0
    prompts: int = 0
    stored: int = 0
    prefill_tokens: int = 0
    new_tokens: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def on(self, activity: str) -> Iterator[None]:
        """Count the seconds of a block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            passed = time.perf_counter() - start
            self.seconds[activity] = self.seconds.get(activity, 0.0) + passed

    def fill(self, filled: Filled, passed: float) -> None:
        """Count the seconds in which a group's answers were computed."""
        self.stored += filled.stored
        self.prompts += filled.stored + filled.prefilled
        self.prefill_tokens += filled.prefill_tokens
        self.new_tokens += filled.new_tokens
        rest = passed - sum(filled.seconds.values())
        for activity, seconds in {**filled.seconds, "store": rest}.items():
            self.seconds[activity] = self.seconds.get(activity, 0.0) + seconds

    def __str__(self) -> str:
        total = sum(self.seconds.values())
        lines = [
            f"{self.arms} arms in {total:.1f} s; {self.stored} of {self.prompts} prompts came from "
            f"the store",
            f"prefill {self._rate(self.prefill_tokens, 'prefill')}, decode "
            f"{self._rate(self.new_tokens, 'decode')}",
        ]
        lines += [
            f"  {activity:<24}{seconds:10.1f} s {seconds / total:6.1%}"
            for activity, seconds in self.seconds.items()
        ]
        return "\n".join(lines)

    def _rate(self, tokens: int, activity: str) -> str:
        seconds = self.seconds.get(activity, 0.0)
        return f"{tokens} tokens" + (f", {tokens / seconds:.0f} per s" if seconds else "")
