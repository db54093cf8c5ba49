"""Whether answers that are decoded together are what each of them is alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from page_bench.commands.doctor import references
from page_bench.commands.doctor.arms import evicting, kept_by
from page_bench.commands.doctor.subject import Subject
from page_bench.commands.doctor.verdict import Verdict
from page_bench.config import PageConfig, budget_for
from page_bench.engine.grid_work import Work

BUDGETS = (0.25, 0.5)


def decoded_together(subject: Subject) -> Verdict:
    """Whether rows of unequal length in one batch say what masking says of each alone."""
    if subject.slides:
        return Verdict("skip", "some layers see a sliding window only")
    length = subject.ids.shape[1]
    pages = [replace(evicting(subject, subject.page.evictor), budget=budget) for budget in BUDGETS]
    if not all(isinstance(budget_for(page, length), int) for page in pages):
        return Verdict("skip", "the prompt is too short to evict from")
    arms: list[PageConfig | None] = [*pages, None]
    with subject.engine(pages[0]) as engine:
        answers = engine.compute(Work(subject.prompt, [], arms)).answers
    rows = max(answer.decode_rows for answer in answers)
    worst, parted = 0.0, 0
    for arm, answer in zip(arms, answers, strict=True):
        tokens, logits = subject.expected(None if arm is None else kept_by(subject, arm))
        gap, place = references.first_gap(answer.answer_ids, tokens, logits)
        if place is None:
            gap = abs(answer.mean_token_entropy - references.mean_entropy(logits))
        worst, parted = max(worst, gap), parted + (place is not None)
    figures: dict[str, Any] = {"rows": rows, "parted": parted, "largest_gap": worst}
    if rows < 2:
        return Verdict("skip", "this model's answers are decoded one by one", figures)
    said = f"{len(arms)} answers, {rows} rows at a time"
    if worst > subject.closeness:
        return Verdict("fail", f"{said}, differ from those of each alone by {worst:.2g}", figures)
    if parted:
        near = f"{parted} part from those of each alone at near ties, logits apart by {worst:.2g}"
        return Verdict("warn", f"{said}; {near}", figures)
    return Verdict("pass", f"{said}, are those of each alone, entropies to {worst:.2g}", figures)
