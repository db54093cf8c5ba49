"""Any gate at any τ, from stored plain and full answers: no model is needed.

A gated answer is, input by input, the plain or the full one (paper, appendix F). So the outcome of
a gate follows from one run with `gate=open` and one with `gate=closed`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from page_bench.analysis.outcomes import metric_of
from page_bench.analysis.pairs import Pair
from page_bench.analysis.stored_signals import signal_of
from page_bench.config import PageConfig
from page_bench.engine import decision
from page_bench.engine.decision import Decision
from page_bench.engine.summary import length_warning, tie_warning
from page_bench.gating.calibration import ModelFacts, load
from page_bench.gating.gate import AnswerFacts, Facts, Gate
from page_bench.gating.gates import Oracle, TaskOracle
from page_bench.gating.match import mismatches, overlap, refuse_mismatch, settings_of
from page_bench.gating.rules import (
    CAPACITY_BOUND,
    DILUTION_PRONE,
    MIDPOINT_SIZE,
    OPEN_RATE,
    THETA_Z,
    midpoint_threshold,
    with_interval,
)
from page_bench.gating.signal_gates import Static
from page_bench.gating.threshold import select_pilot
from page_bench.records.finished_runs import Sample
from page_bench.records.trace import Trace

OWN_PILOT = "these inputs: pilot = test inputs"
"""Where the pilot comes from unless there is a calibration."""
LIVE_METRIC = "score"
"""What an actual run's `gate=oracle` compares: no other score is known while it decides."""


@dataclass(frozen=True)
class Tau:
    """How τ is found.

    Attributes:
        value: a number, `fixed`, `zscore`, `midpoint` or `quantile`.
        theta_z: θ_z of `zscore`.
        open_rate: share of the pilot that `quantile` opens.
        pilot_size: inputs that `zscore` and `quantile` measure, at most.
        calibration: file of `page-bench calibrate` whose pilot takes the place of these inputs.
        mismatch: what to do with one of another model, see `match.POLICIES`.
    """

    value: float | str = "zscore"
    theta_z: float = THETA_Z
    open_rate: float = OPEN_RATE
    pilot_size: int = 100
    calibration: Path | None = None
    mismatch: str = "error"


def find_decision(gate: Gate, tau: Tau, pairs: Sequence[Pair]) -> tuple[Decision, list[str]]:
    """The gate with its τ, as a run on these inputs would find it.

    Args:
        gate: the gate.
        tau: how. Without a calibration the pilot is chosen of these inputs, without labels;
            `midpoint` takes those of its two tasks.
        pairs: inputs of one arm; those of several budgets count once.

    Returns:
        What decides, and sentences on what may be wrong.

    Raises:
        UsageError: τ cannot be found so, or the records lack the signal.
    """
    found, warnings = _find_decision(gate, tau, pairs)
    if found.threshold is not None:
        warnings += tie_warning(found.threshold)
        warnings += length_warning([pair.plain for pair in pairs])
    return found, warnings


def pilot_of(gate: Gate, tau: Tau) -> str | None:
    """Where the pilot's inputs come from; None where the decision rests on no pilot."""
    config = config_of(gate, tau)
    return (config.calibration or OWN_PILOT) if config.reads_pilot else None


def config_of(gate: Gate, tau: Tau) -> PageConfig:
    """The settings of an actual run with this gate and τ."""
    return PageConfig(
        gate=gate.name,
        gate_args=dataclasses.asdict(gate),
        tau="zscore" if _by_tasks(tau) else tau.value,
        theta_z=tau.theta_z,
        open_rate=tau.open_rate,
        pilot_size=tau.pilot_size,
        calibration=None if tau.calibration is None else str(tau.calibration),
    )


def _by_tasks(tau: Tau) -> bool:
    return tau.value == "midpoint" and tau.calibration is None


def _find_decision(gate: Gate, tau: Tau, pairs: Sequence[Pair]) -> tuple[Decision, list[str]]:
    config = config_of(gate, tau)
    if gate.signal is None or gate.side is None or not config.reads_pilot:
        return decision.without_pilot(config), []
    if tau.calibration is not None:
        return decision.from_calibration(config), _differences(gate, tau, pairs)
    inputs = {pair.sample: pair for pair in pairs if pair.sample.repeat == 0}
    pilot = _chosen(list(inputs), tau.pilot_size)
    values = [signal_of(inputs[sample].plain, gate.signal, gate) for sample in pilot]
    found = decision.from_pilot(config, [sample.task for sample in pilot], values)
    if _by_tasks(tau):
        low, high = (
            [
                signal_of(inputs[sample].plain, gate.signal, gate)
                for sample in _chosen([s for s in inputs if is_task(name, s.task)], MIDPOINT_SIZE)
            ]
            for name in (CAPACITY_BOUND, DILUTION_PRONE)
        )
        threshold = midpoint_threshold(low, high, gate.signal, gate.side)
        found = dataclasses.replace(found, threshold=with_interval(threshold, low, high))
    return found, []


def decide(pairs: Sequence[Pair], decided: Decision, metric: str = LIVE_METRIC) -> list[bool]:
    """For each pair, whether the gate gives the plain answer.

    Args:
        pairs: inputs of one arm.
        decided: the gate with its τ.
        metric: what `oracle` compares, one of `outcomes.METRICS`.

    Raises:
        UsageError: a record lacks what the gate reads.
    """
    return [_takes_plain(pair, decided, metric) for pair in pairs]


def is_task(pattern: str, task: str) -> bool:
    """Whether lm-eval's name of a task is meant by names or patterns, as in `gate=task_oracle`."""
    return not TaskOracle(pattern).opens(Facts(task, 0, 0, {}))


def _chosen(samples: Sequence[Sample], size: int) -> list[Sample]:
    places = [(sample.task, sample.doc_id) for sample in samples]
    return [samples[i] for i in select_pilot(places, size)]


def _differences(gate: Gate, tau: Tau, pairs: Sequence[Pair]) -> list[str]:
    """What a calibration does not share with stored runs, and what of them its pilot has seen."""
    assert tau.calibration is not None
    calibration, trace = load(tau.calibration), pairs[0].plain
    chat = {} if trace.chat_template is None else {"chat": trace.chat_template}
    # A trace does not say which weights it comes from, so it is names that have to agree.
    model = ModelFacts(
        trace.model, calibration.model.fingerprint, trace.dtype, trace.attn_implementation
    )
    found = mismatches(
        calibration,
        model,
        [pair.sample.prompt_tokens for pair in pairs],
        settings_of(
            window=trace.window, top_k=trace.top_k, compress=trace.compress, gate=gate, **chat
        ),
        {pair.plain.protocol for pair in pairs if pair.plain.protocol},
    )
    if model.name != calibration.model.name:
        names = f"model {calibration.model.name} in the file, {model.name} in this run"
        found = [names, *found]
    warning = refuse_mismatch(tau.calibration, found, tau.mismatch)
    warnings = [] if warning is None else [warning]
    prompts = {pair.sample.prompt_sha256 for pair in pairs}
    readers = {str(tau.value): "τ has"}
    if isinstance(gate, Static):
        readers[Static.name] = "the means of tasks have"
    for rule, who in readers.items():
        if shared := overlap(calibration, prompts, rule):
            where = "the midpoint's inputs" if rule == "midpoint" else "the pilot"
            warnings.append(
                f"{shared} of these {len(prompts)} inputs stand in {where} of {tau.calibration} as "
                f"well: {who} seen them."
            )
    return warnings


def _takes_plain(pair: Pair, decided: Decision, metric: str) -> bool:
    gate, sample = decided.gate, pair.sample
    signals = {} if gate.signal is None else {gate.signal: signal_of(pair.plain, gate.signal, gate)}
    mean = decided.task_means.get(sample.task)
    seed, threshold = sample.prompt_seed, decided.threshold
    if not gate.opens(Facts(sample.task, sample.doc_id, seed, signals, threshold, mean)):
        return False
    if not gate.needs_answers:
        return True
    compared = metric if isinstance(gate, Oracle) else None
    return gate.accepts(_answer_facts(pair.plain, compared), _answer_facts(pair.full, compared))


def _answer_facts(trace: Trace, metric: str | None) -> AnswerFacts:
    score = None if metric is None else metric_of(trace, metric)
    return AnswerFacts(trace.mean_token_entropy, trace.repetition, score)
