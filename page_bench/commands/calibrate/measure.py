"""Measure the signals of a pilot, and what τ each rule makes of them.

One run of lm-eval with the gate closed and one answer token each: documents that the test will not
see, drawn without looking at their labels, and for the midpoint generated inputs of two tasks.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from page_bench import __version__
from page_bench.commands.calibrate.answers import arms_of, direction_on, traces_of
from page_bench.commands.calibrate.documents import (
    GENERATED,
    Request,
    generated_tasks,
    length_of,
    load_tasks,
    midpoint_documents,
    pilot_pool,
)
from page_bench.commands.calibrate.pilots import PILOTS, PilotRow, compare, draw, members
from page_bench.config import PageConfig, is_ours
from page_bench.engine.summary import FEW_LAYERS, per_bin
from page_bench.gating.calibration import (
    MEASURED_RULES,
    Calibration,
    ModelFacts,
    PilotInput,
    Setting,
    threshold_from,
)
from page_bench.gating.fingerprint import model_fingerprint
from page_bench.gating.gate import Gate
from page_bench.gating.gates import make_gate
from page_bench.gating.match import LENGTH_FACTOR, settings_of
from page_bench.gating.profile import bin_size
from page_bench.gating.rules import CAPACITY_BOUND, DILUTION_PRONE
from page_bench.gating.signal_gates import SIDES, Page
from page_bench.gating.threshold import Side, Threshold

_NOT_MEASURED = (
    *("evictor", "granularity", "score_norm", "budget", "n_sink", "recent"),
    *("tau", "theta_z", "open_rate", "pilot_size", "calibration", "calibration_mismatch"),
    *("trace", "signals", "doc_ids"),
)
"""Model arguments of an arm that no signal depends on."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    """What came of it.

    Attributes:
        calibration: for the file.
        comparison: one row per pilot; empty where none was asked for.
        notes: sentences that a reader must know.
    """

    calibration: Calibration
    comparison: tuple[PilotRow, ...]
    notes: tuple[str, ...]


def measure(request: Request, task_manager: Any = None) -> Result:
    """Measure a calibration.

    Args:
        request: what to calibrate.
        task_manager: knows the tasks; None for lm-eval's own, with page-bench's tasks added.

    Raises:
        UsageError: tasks or documents that do not exist, or a model that cannot be run.
    """
    from page_bench.harness import hooks, plugin

    plugin.install()
    import lm_eval
    from lm_eval.tasks import TaskManager

    from page_bench.harness.lm import PageLM

    arguments, settings, gate = _measuring(request.model_args, request.answers)
    # Before anything is loaded.
    arms = arms_of(request.model_args) if request.answers else []
    completed = hooks.complete_call({"model_args": arguments, "tasks": ["-"]})["model_args"]
    manager = task_manager or TaskManager(
        metadata={**completed, "pretrained": completed["pretrained"], **request.metadata}
    )
    names = request.tasks or generated_tasks(request)
    tested = load_tasks(manager, names)
    length = request.length or length_of(tested)
    notes: list[str] = []
    probing: dict[str, Any] = {}
    if request.midpoint_size and length is None:
        notes.append(
            "tau=midpoint was not measured: its inputs are generated for one length; give --length."
        )
    elif request.midpoint_size:
        wanted = [f"{GENERATED}_{length}_{task}" for task in (CAPACITY_BOUND, DILUTION_PRONE)]
        probing = load_tasks(manager, wanted)
    pool = pilot_pool(tested, request)
    pilot = draw(pool, request.pilot, request.pilot_size, request.seed)
    others = [
        sample
        for name in (PILOTS if request.compare else ())
        for sample in draw(pool, name, request.pilot_size, request.seed)
    ]
    probes = midpoint_documents(probing, tested, request)
    chosen: dict[str, set[int]] = defaultdict(set)
    for task, doc_id in [*pilot, *others, *probes]:
        chosen[task].add(doc_id)
    samples = {task: sorted(ids) for task, ids in chosen.items()}
    # Of a task without chosen documents lm-eval would run all.
    tasks = [task for name, task in {**tested, **probing}.items() if name in samples]
    device = {} if request.device is None else {"device": request.device}
    lm = PageLM(**completed, doc_ids=samples, **device)
    results = lm_eval.simple_evaluate(
        model=lm,
        tasks=tasks,
        task_manager=manager,
        samples=samples,
        gen_kwargs={"max_gen_toks": 1},
        bootstrap_iters=0,
        apply_chat_template=request.chat,
    )
    traces = traces_of(results)
    some = next(iter(traces.values()))
    facts = ModelFacts(
        some.model, model_fingerprint(lm.model), some.dtype, some.attn_implementation
    )
    sides = _sides(gate)
    calibration, without_tau = _with_thresholds(
        Calibration(
            model=facts,
            settings={**settings, "chat": request.chat},
            protocols=tuple(sorted({traces[s].protocol for s in pilot if traces[s].protocol})),
            tasks=tuple(sorted({task for task, _ in members(pool, request.pilot)})),
            pilot=request.pilot,
            pilot_kind="in-run" if request.in_run else "held-out",
            test_limit=request.test_limit,
            seed=request.seed,
            inputs=tuple(_measured(traces[sample]) for sample in pilot),
            probes=tuple(_measured(traces[sample]) for sample in probes),
            page_bench=__version__,
        ),
        request,
        sides,
    )
    notes += without_tau
    notes += _notes(calibration, request, {traces[s].protocol for s in probes})
    if arms:
        # Anew: those above have been told to answer by one token.
        untold = load_tasks(manager, names)
        direction = direction_on(lm, arms, calibration, request, untold, manager)
        calibration = dataclasses.replace(calibration, direction=direction)
        notes.append(str(direction))
    layers = bin_size(len(some.agreement), lm.page.drop_options)
    notes += [
        f"D compares {per_bin(layers, lm.page.drop_options)}, of {len(some.agreement)} with full "
        f"attention."
    ]
    if layers < FEW_LAYERS and not arms:
        notes.append(
            f"D of fewer than {FEW_LAYERS} layers may point the wrong way; --answers, with evictor "
            f"and budget in the model arguments, says whether it does."
        )
    rows: list[PilotRow] = []
    if request.compare:
        everything = [_measured(traces[sample]) for sample in dict.fromkeys([*pilot, *others])]
        rows = compare(
            everything,
            [*PILOTS],
            request.pilot_size,
            request.seed,
            option=request.theta_z,
            side=sides["drop"],
        )
    return Result(calibration, tuple(rows), tuple(notes))


def _measuring(
    given: Mapping[str, Any], answers: bool
) -> tuple[dict[str, Any], dict[str, Setting], Gate]:
    """Model arguments that measure and evict nothing, how they take the signals, and for whom."""
    dropped = sorted(k for k in given if k in _NOT_MEASURED or k.startswith("evictor."))
    if dropped and not answers:
        _log.warning("no signal depends on %s: left out of the calibration", ", ".join(dropped))
    kept = {k: v for k, v in given.items() if k not in dropped}
    options = {k.removeprefix("gate."): kept.pop(k) for k in [*kept] if k.startswith("gate.")}
    gate = make_gate(kept.pop("gate", "page"), options)
    arguments = {**kept, "evictor": "none", "budget": 1.0, "gate": "closed", "signals": "all"}
    if isinstance(gate, Page) and gate != Page():
        # Only its own gate takes D another way; with nothing to evict, its τ does not matter.
        arguments |= {"gate": "page", "tau": 0.0, **{f"gate.{k}": v for k, v in options.items()}}
    config = PageConfig.from_arguments({k: v for k, v in arguments.items() if is_ours(k)})
    settings = settings_of(
        window=config.window, top_k=config.top_k, compress=config.compress, gate=gate
    )
    return arguments, settings, gate


def _measured(trace: Any) -> PilotInput:
    return PilotInput(
        trace.task, trace.doc_id, trace.prompt_tokens, trace.prompt_sha256, dict(trace.signals)
    )


def _sides(gate: Gate) -> dict[str, Side]:
    """On which side of τ a run opens, by signal: what the gate was told, defaults for the rest."""
    sides = dict(SIDES)
    if gate.signal is not None and gate.side is not None:
        sides[gate.signal] = gate.side
    return sides


def _with_thresholds(
    calibration: Calibration, request: Request, sides: Mapping[str, Side]
) -> tuple[Calibration, list[str]]:
    """Adds τ by every rule for every signal that is a number everywhere; a note on the others."""
    found: list[Threshold] = []
    notes: list[str] = []
    for signal in calibration.inputs[0].signals:
        for rule in MEASURED_RULES:
            inputs = calibration.probes if rule == "midpoint" else calibration.inputs
            odd = sum(not math.isfinite(one.signals[signal]) for one in inputs)
            if odd:
                notes.append(
                    f"tau={rule} of {signal} was not measured: {signal} is not a number on {odd} "
                    f"of {len(inputs)} inputs."
                )
            elif inputs:
                found.append(
                    threshold_from(
                        calibration,
                        rule,
                        signal=signal,
                        side=sides[signal],
                        theta_z=request.theta_z,
                        open_rate=request.open_rate,
                    )
                )
    return dataclasses.replace(calibration, thresholds=tuple(found)), notes


def _notes(
    calibration: Calibration, request: Request, probe_protocols: set[str | None]
) -> list[str]:
    notes = []
    if len(calibration.inputs) < request.pilot_size:
        notes.append(f"the pilot has {len(calibration.inputs)} prompts: there are no more.")
    if calibration.probes:
        probed = statistics.median(one.prompt_tokens for one in calibration.probes)
        typical = calibration.lengths[1]
        if max(probed, typical) > LENGTH_FACTOR * min(probed, typical):
            notes.append(
                f"the midpoint's inputs have {probed:g} tokens typically, the pilot's {typical:g}, "
                f"and D moves with length; give --length the pilot's."
            )
    different = {p for p in probe_protocols if p} - {*calibration.protocols}
    if different and calibration.protocols:
        notes.append(
            f"the midpoint's inputs are worded by protocol {', '.join(sorted(different))}, the "
            f"pilot's by {', '.join(calibration.protocols)}; give --metadata one protocol."
        )
    return notes
