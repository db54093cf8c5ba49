"""What decides in a run: the gate, its τ, and where these come from."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from page_bench.config import PageConfig
from page_bench.engine.prompt import Prompt, PromptFacts
from page_bench.gating import calibration as calibration_file
from page_bench.gating.gate import Facts, Gate
from page_bench.gating.match import mismatches, overlap, refuse_mismatch, settings_of
from page_bench.gating.rules import known_threshold, quantile_threshold, with_interval
from page_bench.gating.signal_gates import Static, unrouted
from page_bench.gating.threshold import Threshold, select_pilot, zscore_threshold


@dataclass(frozen=True)
class Decision:
    """A gate with all that it needs to decide.

    Attributes:
        gate: the rule.
        threshold: τ; None where the gate reads none.
        task_means: mean of the gate's signal over the pilot prompts of each task; empty where no
            pilot was measured.
    """

    gate: Gate
    threshold: Threshold | None = None
    task_means: Mapping[str, float] = field(default_factory=dict)

    def check_tasks(self, tasks: Iterable[str]) -> None:
        """Refuse a run before anything is answered, if its gate cannot decide on all of its tasks.

        Args:
            tasks: lm-eval's names, of all prompts of the run.

        Raises:
            UsageError: the gate goes by the means of tasks, and some have no pilot prompt.
        """
        lacking = {*tasks} - {*self.task_means}
        if isinstance(self.gate, Static) and lacking:
            raise unrouted(lacking)

    def opens(self, prompt: Prompt, signals: Mapping[str, float]) -> bool:
        """Whether the gate opens for a prompt whose prefill showed these signals."""
        return self.gate.opens(
            Facts(
                prompt.task,
                prompt.doc_id,
                prompt.seed,
                signals,
                self.threshold,
                self.task_means.get(prompt.task),
            )
        )


def without_pilot(config: PageConfig) -> Decision:
    """The decision where nothing has to be measured first."""
    gate = config.make_gate()
    if gate.side is None:
        return Decision(gate)
    return Decision(gate, known_threshold(config.tau, str(gate.signal), gate.side))


def from_pilot(
    config: PageConfig, tasks: Sequence[str], values: Sequence[float], final: bool = True
) -> Decision:
    """The decision that a pilot's values of the gate's signal lead to.

    Args:
        config: gate and rule for τ.
        tasks: task of each pilot prompt.
        values: the signal on each.
        final: whether the bootstrap interval of τ is wanted.

    Raises:
        UsageError: too few prompts for the rule.
    """
    gate = config.make_gate()
    assert gate.side is not None
    signal = str(gate.signal)
    by_task: dict[str, list[float]] = defaultdict(list)
    for task, value in zip(tasks, values, strict=True):
        by_task[task].append(value)
    means = {task: statistics.fmean(group) for task, group in by_task.items()}
    if config.tau == "zscore":
        threshold = zscore_threshold(values, config.theta_z, signal, gate.side)
    elif config.tau == "quantile":
        threshold = quantile_threshold(values, config.open_rate, signal, gate.side)
    else:
        return Decision(gate, known_threshold(config.tau, signal, gate.side), means)
    return Decision(gate, with_interval(threshold, values) if final else threshold, means)


def from_calibration(config: PageConfig) -> Decision:
    """The decision that a calibration file leads to; whether it is this run's is asked elsewhere.

    Raises:
        UsageError: the file cannot be read, or lacks what the gate or the rule needs.
    """
    assert config.calibration is not None
    calibration = calibration_file.load(Path(config.calibration))
    gate = config.make_gate()
    assert gate.side is not None
    signal = str(gate.signal)
    means = calibration.task_means(signal)
    if config.tau not in calibration_file.MEASURED_RULES:
        return Decision(gate, known_threshold(config.tau, signal, gate.side), means)
    threshold = calibration_file.threshold_from(
        calibration,
        str(config.tau),
        signal=signal,
        side=gate.side,
        theta_z=config.theta_z,
        open_rate=config.open_rate,
    )
    return Decision(gate, threshold, means)


def check_arm(
    config: PageConfig, model: calibration_file.ModelFacts, prompts: Sequence[Prompt], chat: bool
) -> None:
    """Raise for what would keep an arm from deciding, before anything is run.

    Args:
        config: the arm.
        model: the run's model.
        prompts: all that the arm is asked.
        chat: whether a chat template was applied.

    Raises:
        UsageError: too few prompts for a pilot, a calibration that cannot be read or is another
            run's, or tasks without a pilot prompt where the gate needs one of each.
    """
    tasks = {prompt.task for prompt in prompts}
    if config.needs_pilot:
        asked = [(prompt.task, prompt.doc_id) for prompt in prompts if prompt.repeat == 0]
        pilot = [asked[i][0] for i in select_pilot(asked, config.pilot_size)]
        # The values do not matter: what may be wrong is the number and the tasks.
        from_pilot(config, pilot, [0.0] * len(pilot), final=False).check_tasks(tasks)
    elif config.calibration is not None:
        calibration_warnings(config, model, [prompt.facts for prompt in prompts], chat)
        from_calibration(config).check_tasks(tasks)


def calibration_warnings(
    config: PageConfig,
    model: calibration_file.ModelFacts,
    prompts: Sequence[PromptFacts],
    chat: bool,
) -> list[str]:
    """What a reader must know of the run's calibration file: how it differs, what it has seen.

    Args:
        config: the arm.
        model: the run's model.
        prompts: the run's prompts.
        chat: whether a chat template was applied.

    Raises:
        UsageError: there are differences, and `calibration_mismatch` is `error`.
    """
    if config.calibration is None:
        return []
    calibration = calibration_file.load(Path(config.calibration))
    differences = mismatches(
        calibration,
        model,
        [prompt.tokens for prompt in prompts],
        settings_of(
            window=config.window,
            top_k=config.top_k,
            compress=config.compress,
            gate=config.make_gate(),
            chat=chat,
        ),
        {prompt.protocol for prompt in prompts if prompt.protocol is not None},
    )
    warning = refuse_mismatch(config.calibration, differences, config.calibration_mismatch)
    warnings = [] if warning is None else [warning]
    if calibration.direction is not None and calibration.direction.verdict == "wrong":
        warnings.append(f"{config.calibration}: {calibration.direction}")
    hashes = {prompt.sha256 for prompt in prompts}
    readers = {str(config.tau): "τ has"}
    if isinstance(config.make_gate(), Static):
        readers[Static.name] = "the means of tasks have"
    for rule, who in readers.items():
        shared = overlap(calibration, hashes, rule)
        if shared:
            where = "the midpoint's inputs" if rule == "midpoint" else "the pilot"
            warnings.append(
                f"{shared} prompts of this run stand in {where} of {config.calibration} as well: "
                f"{who} seen them."
            )
    return warnings
