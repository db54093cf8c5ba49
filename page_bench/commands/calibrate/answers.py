"""The pilot answered both ways, by an evictor and by the full cache."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from page_bench.commands.calibrate.documents import Request
from page_bench.config import PageConfig, is_ours
from page_bench.gating.calibration import Calibration
from page_bench.gating.direction import Direction, direction_of
from page_bench.gating.signal_gates import SIDES
from page_bench.inputs.errors import UsageError

_NOT_OF_AN_EVICTION = (
    *("tau", "theta_z", "open_rate", "pilot_size", "calibration", "calibration_mismatch"),
    *("trace", "signals", "doc_ids", "store"),
)


def traces_of(results: Any) -> dict[tuple[str, int], Any]:
    """By sample, what its answer carries."""
    answers = (
        answer
        for rows in results["samples"].values()
        for row in rows
        for answers in row["resps"]
        for answer in answers
    )
    return {(a.trace.task, a.trace.doc_id): a.trace for a in answers if a.trace.repeat == 0}


def arms_of(given: Mapping[str, Any]) -> list[PageConfig]:
    """The arm of the model arguments with its gate open, and closed."""
    own = {
        k: v
        for k, v in given.items()
        if is_ours(k) and k.partition(".")[0] not in ("gate", *_NOT_OF_AN_EVICTION)
    }
    return [PageConfig.from_arguments({**own, "gate": gate}) for gate in ("open", "closed")]


def direction_on(
    lm: Any,
    arms: Sequence[PageConfig],
    calibration: Calibration,
    request: Request,
    tasks: Mapping[str, Any],
    manager: Any,
) -> Direction:
    """Which way D points on the pilot, by what an eviction does to its answers.

    Args:
        lm: the model, a `PageLM`.
        arms: see `arms_of`.
        calibration: the pilot, with its signals.
        request: what was asked for.
        tasks: by name, those of the pilot, not run before.
        manager: knows the tasks.

    Raises:
        UsageError: the tasks do not say whether an answer is right.
    """
    import lm_eval

    chosen: dict[str, list[int]] = defaultdict(list)
    for one in sorted(calibration.inputs, key=lambda one: one.doc_id):
        chosen[one.task].append(one.doc_id)
    right = []
    for arm in arms:
        results = lm_eval.simple_evaluate(
            model=lm.with_page(dataclasses.replace(arm, doc_ids=dict(chosen))),
            tasks=[task for name, task in tasks.items() if name in chosen],
            task_manager=manager,
            samples=dict(chosen),
            bootstrap_iters=0,
            apply_chat_template=request.chat,
        )
        scored = {sample: trace.correct for sample, trace in traces_of(results).items()}
        right.append({sample: value for sample, value in scored.items() if value is not None})
    if not right[0]:
        raise UsageError(
            "--answers needs tasks that score an answer as right or wrong, which these do not; "
            "leave it out, or name others."
        )
    drops = {(one.task, one.doc_id): one.signals["drop"] for one in calibration.inputs}
    name = f"{arms[0].evictor} at budget {arms[0].budget:g}"
    side = next((t.side for t in calibration.thresholds if t.signal == "drop"), SIDES["drop"])
    return direction_of(name, drops, right[1], right[0], side, request.seed)
