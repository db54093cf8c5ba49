"""What the paper's logs of one model and context should share, and where they do not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from page_bench.analysis.cells import Cell

NOTABLE = 0.10
"""Difference of two accuracies of the same inputs from which on something else must differ."""
SAME_DROP = 1e-3
SHARED, SNAPKV = "shared", "snapkv"


def compared(found: Sequence[tuple[Path, Cell]]) -> list[str]:
    """Sentences on logs of one model, suite and seed that contradict each other.

    Prompt lengths, D and the full cache's accuracy belong to the model and its inputs whatever is
    evicted, and Ada-KV's shared arm is SnapKV. Bugs of a run show in one of these alone: a second
    BOS in the length, a broken decode in the full cache's accuracy, a mask by layer in the plain
    accuracy of a single budget.
    """
    groups: dict[tuple[str, str, int | None], list[tuple[Path, Cell]]] = defaultdict(list)
    for path, cell in found:
        groups[cell.model, cell.suite, cell.seed].append((path, cell))
    notes = []
    for own in groups.values():
        # What has the most rows is likeliest to be the main run.
        own = sorted(own, key=lambda one: (-len(one[1].rows), one[0]))
        (first, reference), *others = own
        for path, cell in others:
            if path != first:
                notes += _differences(reference, cell, path.name, first.name)
        snapkv = [one for one in own if one[1].evictor == SNAPKV]
        for path, cell in own:
            if cell.evictor == SHARED and snapkv:
                notes += _plain(snapkv[0][1], cell, path.name, snapkv[0][0].name)
    return list(dict.fromkeys(notes))


def _differences(one: Cell, other: Cell, name: str, reference: str) -> list[str]:
    keys = ["task", "doc_id"]
    both = pd.merge(one.rows.drop_duplicates(keys), other.rows.drop_duplicates(keys), on=keys)
    if both.empty:
        return []
    notes = []
    longer = both["prompt_tokens_y"] - both["prompt_tokens_x"]
    if (longer != 0).any():
        differ = int((longer != 0).sum())
        doubled = differ == len(both) and (longer == 1).all()
        what = ", always 1 more, as with a second BOS token" if doubled else ""
        notes.append(
            f"{name}: {differ} of {len(both)} prompts have another length than in {reference}"
            f"{what}."
        )
    gap = (both["drop_x"] - both["drop_y"]).abs()
    if gap.max() > SAME_DROP:
        notes.append(
            f"{name}: D differs from {reference} by up to {gap.max():.4f} on the same inputs, as "
            f"with other hardware or attention implementation."
        )
    for task, own in both.groupby("task", sort=True):
        full, wanted = own["full_y"].mean(), own["full_x"].mean()
        if abs(full - wanted) > NOTABLE:
            notes.append(
                f"{name}: the full cache gives {full:.2f} on {task} (n = {len(own)}), and "
                f"{wanted:.2f} in {reference}: one of them decodes otherwise."
            )
    return notes


def _plain(snapkv: Cell, shared: Cell, name: str, reference: str) -> list[str]:
    """By task and budget, since a mask by layer shows in the plain answers alone."""
    keys = ["task", "doc_id", "budget"]
    both = pd.merge(snapkv.evicted, shared.evicted, on=keys)
    notes = []
    for (task, budget), own in both.groupby(["task", "budget"], sort=True):
        plain, wanted = own["plain_y"].mean(), own["plain_x"].mean()
        if abs(plain - wanted) > NOTABLE:
            notes.append(
                f"{name}: the shared arm gives {plain:.2f} on {task} at budget {budget:g} (n = "
                f"{len(own)}), and SnapKV {wanted:.2f} in {reference}: the two are not one method."
            )
    return notes
