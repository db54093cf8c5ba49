"""What a sweep takes, counted before anything is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from page_bench.harness import plugin
from page_bench.sweep.arms import Arm, eviction_of, groups_of
from page_bench.sweep.output import is_finished
from page_bench.sweep.tasks import SharedTasks


@dataclass(frozen=True)
class GroupPlan:
    """What a group of arms that share their prefills takes, if nothing of it is stored.

    Attributes:
        arms: how many arms.
        finished: how many of them have their files already; the rest counts only what is left.
        prompts: prompts of one arm, each prefilled once.
        evictions: different evictions; each is decoded once per prompt, or less often where two
            keep the same entries.
        full: whether the full cache is decoded, too.
        gated: arms whose gate chooses, prompt by prompt, between the two.
    """

    arms: int
    finished: int
    prompts: int
    evictions: int
    full: bool
    gated: int

    @property
    def decodes(self) -> int:
        """Answers to decode, at most."""
        return self.prompts * (self.evictions + self.full)

    @property
    def look_ups(self) -> int:
        """Answers of gated arms, which cost nothing more."""
        return self.prompts * self.gated


def plan_sweep(arms: Sequence[Arm], task_manager: Any = None) -> list[GroupPlan]:
    """What a sweep takes, group by group; loads tasks, and no weights.

    Args:
        arms: all arms.
        task_manager: see `SharedTasks`.

    Raises:
        UsageError: a task that does not exist or does not generate.
    """
    plugin.install()
    plans = []
    for group in groups_of(arms):
        left = [arm for arm in group if not is_finished(arm)]
        pages = [arm.page for arm in left]
        plans.append(
            GroupPlan(
                arms=len(group),
                finished=len(group) - len(left),
                prompts=SharedTasks(left[0], task_manager).prompt_count(left[0]) if left else 0,
                evictions=len({eviction_of(page) for page in pages} - {None}),
                full=any(page.gate != "open" for page in pages),
                gated=sum(page.gate not in ("open", "closed") for page in pages),
            )
        )
    return plans
