"""The arms that the checks try, and which entries they keep."""

from __future__ import annotations

from dataclasses import replace

from page_bench.commands.doctor.subject import Subject
from page_bench.config import PageConfig, budget_for
from page_bench.model.keep_plan import KeepPlan, positions_to_keep
from page_bench.model.prefill import Prefill, prefill
from page_bench.model.scoring import Scorer

TRIED_BUDGET = 0.25


def evicting(subject: Subject, evictor: str) -> PageConfig:
    """The arm at a budget that evicts; another evictor comes without options."""
    page = subject.page if subject.page.budget < 1 else replace(subject.page, budget=TRIED_BUDGET)
    if evictor == page.evictor:
        return page
    return replace(page, evictor=evictor, evictor_args={})


def planned(subject: Subject, page: PageConfig) -> tuple[Prefill, KeepPlan | str]:
    """The prompt after its prefill, and the arm's keep sets."""
    evictor, n_keep = page.make_evictor(), budget_for(page, subject.ids.shape[1])
    filled = prefill(
        subject.lm.model,
        subject.ids,
        window=page.window,
        room=subject.new_tokens,
        scorers=[Scorer(evictor, n_keep)] if isinstance(n_keep, int) else [],
        prompt_seed=subject.prompt.seed,
    )
    return filled, positions_to_keep(evictor, filled, page)


def kept_by(subject: Subject, page: PageConfig) -> list[int]:
    """Positions that the arm keeps in every layer and head."""
    with subject.engine(page):
        _, plan = planned(subject, page)
    if isinstance(plan, str):
        return list(range(subject.ids.shape[1]))
    kept: list[int] = plan.members[0, 0].nonzero().flatten().tolist()
    return kept
