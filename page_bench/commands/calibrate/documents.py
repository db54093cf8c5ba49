"""Which documents a calibration measures: a pilot, and the inputs of the midpoint."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from page_bench.commands.calibrate.pilots import PILOTS, ruler_task
from page_bench.gating.rules import MIDPOINT_SIZE, OPEN_RATE, THETA_Z
from page_bench.gating.threshold import PILOT_SEED
from page_bench.inputs.errors import UsageError

GENERATED = "page_rulergen"
"""Group of tasks, by length, that inputs are generated from where none are named."""

Samples = list[tuple[str, int]]
"""(task, doc_id) each."""


@dataclass(frozen=True)
class Request:
    """What to calibrate.

    Attributes:
        model_args: of `page_hf`; those of an arm are passed over.
        tasks: names of lm-eval, groups included; empty for generated RULER.
        pilot: key of `PILOTS`, which of these tasks' RULER tasks to draw from; None for all.
        compare: draw every pilot of `PILOTS` and say what each would change.
        length: such as `4k`, of generated inputs; None to read it from the tasks' names.
        pilot_size: prompts of the pilot.
        test_limit: documents of each task that belong to the test.
        in_run: draw the pilot from these documents and not from the others.
        midpoint_size: generated inputs of each of the midpoint's tasks; 0 for none.
        theta_z, open_rate: of the rules.
        seed: of the draws.
        answers: answer the pilot by the arm of the model arguments and by the full cache, to see
            which way D points.
        chat: apply the chat template.
        metadata: for the tasks.
        device: as lm-eval's.
    """

    model_args: Mapping[str, Any] = field(default_factory=dict)
    tasks: Sequence[str] = ()
    pilot: str | None = None
    compare: bool = False
    length: str | None = None
    pilot_size: int = 100
    test_limit: int = 100
    in_run: bool = False
    midpoint_size: int = MIDPOINT_SIZE
    theta_z: float = THETA_Z
    open_rate: float = OPEN_RATE
    seed: int = PILOT_SEED
    answers: bool = False
    chat: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    device: str | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.theta_z):
            raise UsageError(f"theta_z={self.theta_z} is not allowed; give a finite number.")


def generated_tasks(request: Request) -> list[str]:
    """Names of the tasks that inputs are generated from where none are named."""
    if request.length is None or not (request.pilot or request.compare):
        raise UsageError(
            "say what the pilot is drawn from: --tasks, or --length with --pilot for generated "
            f"RULER (pilots are {', '.join(PILOTS)})."
        )
    tasks = PILOTS["six" if request.compare else str(request.pilot)]
    return [f"{GENERATED}_{request.length}_{task}" for task in tasks]


def load_tasks(manager: Any, names: Sequence[str]) -> dict[str, Any]:
    """Tasks by name, groups taken apart."""
    unknown = [name for name in names if not manager.match_tasks([name])]
    if unknown:
        raise UsageError(f"there is no task {', '.join(unknown)}; `lm_eval ls tasks` lists them.")
    tasks: dict[str, Any] = manager.load(list(names))["tasks"]
    return tasks


def length_of(tasks: Mapping[str, Any]) -> str | None:
    """The length that all tasks have in their names, such as `4k`; None if there is none."""
    found = {re.search(r"_(\d+k)(?:_|$)", name) for name in tasks}
    lengths = {match[1] for match in found if match}
    if len(lengths) > 1:
        raise UsageError(
            f"the tasks have lengths {', '.join(sorted(lengths))}, but D moves with length; "
            f"calibrate each by itself."
        )
    return lengths.pop() if lengths and None not in found else None


def pilot_pool(tasks: Mapping[str, Any], request: Request) -> Samples:
    """Documents that the pilot may be drawn from."""
    pool: Samples = []
    limit = request.test_limit
    for name, task in tasks.items():
        count = len(task.eval_docs)
        ids = range(min(limit, count)) if request.in_run else range(limit, count)
        if not ids:
            raise UsageError(
                f"{name} has {count} documents, so none after the first {limit}, which belong to "
                f"the test; give a smaller --test_limit, or --in_run to draw from the test itself."
            )
        pool += [(name, i) for i in ids]
    for pilot in PILOTS if request.compare else [request.pilot] if request.pilot else []:
        missing = {*PILOTS[pilot]} - {ruler_task(name) for name in tasks}
        if missing:
            raise UsageError(
                f"pilot {pilot} needs {', '.join(sorted(missing))}, which the tasks lack; name "
                f"tasks that have them, or leave --tasks out to generate RULER."
            )
    return pool


def midpoint_documents(
    probing: Mapping[str, Any], tested: Mapping[str, Any], request: Request
) -> Samples:
    """The midpoint's inputs: no test's documents, and first ones of other tasks."""
    probes: Samples = []
    for name, task in probing.items():
        start = request.test_limit if name in tested else 0
        ids = range(start, min(start + request.midpoint_size, len(task.eval_docs)))
        if len(ids) < request.midpoint_size:
            raise UsageError(
                f"{name} has {len(ids)} documents for the midpoint instead of "
                f"{request.midpoint_size}; give a smaller --test_limit or --midpoint_size."
            )
        probes += [(name, i) for i in ids]
    return probes
