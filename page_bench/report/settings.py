"""What the user may set about a report's statistics."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass

from page_bench.analysis.intervals import DRAWS, SEED
from page_bench.gating.rules import CAPACITY_BOUND
from page_bench.inputs.errors import UsageError

RHO_THRESHOLD = 0.05
"""From this ρ on a task is dilution-prone, below it capacity-bound (paper, Eq. 1 and below)."""


@dataclass(frozen=True)
class Settings:
    """The same for all sections of a report.

    Attributes:
        capacity_bound: names or patterns (`*`, `?`, `[…]`) of the tasks that eviction ruins,
            separated by commas. As in `gate=task_oracle`, each is compared with the whole name
            and with what follows any underscore in it.
        draws, seed: of all bootstraps.
        rho_threshold: see `RHO_THRESHOLD`.
    """

    capacity_bound: str = CAPACITY_BOUND
    draws: int = DRAWS
    seed: int = SEED
    rho_threshold: float = RHO_THRESHOLD

    def __post_init__(self) -> None:
        if not self.patterns:
            raise UsageError(
                f"capacity_bound is {self.capacity_bound!r}, which names no task; give names or "
                f"patterns of tasks, separated by commas."
            )

    @property
    def patterns(self) -> list[str]:
        """The names of `capacity_bound`, one by one."""
        return [part for part in map(str.strip, self.capacity_bound.split(",")) if part]

    def is_capacity_bound(self, task: str) -> bool:
        """Whether a task, named with or without its suite, is one of those."""
        return any(
            fnmatch.fnmatchcase(task, pattern) or fnmatch.fnmatchcase(task, f"*_{pattern}")
            for pattern in self.patterns
        )
