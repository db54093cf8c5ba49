"""A calibration as a file: a pilot's signals, the thresholds they give, and what they hold for.

A threshold belongs to a model in a dtype and with an attention implementation, to prompts of one
length, and to one way of taking the signal: with the same weights the paper's D moved from 0.045
to 0.030 when only the attention's code changed. So a file says all of this, and a run that differs
is refused.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from page_bench.gating.direction import Direction
from page_bench.gating.fingerprint import Fingerprint
from page_bench.gating.rules import (
    CAPACITY_BOUND,
    DILUTION_PRONE,
    OPEN_RATE,
    THETA_Z,
    midpoint_threshold,
    quantile_threshold,
    with_interval,
)
from page_bench.gating.threshold import Side, Threshold, zscore_threshold
from page_bench.inputs import json_text
from page_bench.inputs.errors import UsageError
from page_bench.inputs.typed_json import Misfit, read

FORMAT = 1
"""Version of the file's fields."""
MEASURED_RULES = ("zscore", "midpoint", "quantile")
"""Rules for τ that a calibration serves."""

Setting = str | int | float | bool | None


@dataclass(frozen=True)
class ModelFacts:
    """The model behind a set of signals.

    Attributes:
        name: as given, for people; two names may be one model.
        fingerprint: what tells models apart.
        dtype, attn_implementation: as in the trace.
    """

    name: str
    fingerprint: Fingerprint
    dtype: str
    attn_implementation: str


@dataclass(frozen=True)
class PilotInput:
    """One prompt of a pilot.

    Attributes:
        task, doc_id: the sample.
        prompt_tokens: its length.
        prompt_sha256: hash of its text.
        signals: what its prefill showed, by name.
    """

    task: str
    doc_id: int
    prompt_tokens: int
    prompt_sha256: str
    signals: Mapping[str, float]


@dataclass(frozen=True)
class Calibration:
    """What `page-bench calibrate` measured.

    Attributes:
        model: see `ModelFacts`.
        settings: how the signals were taken, by name of the model argument.
        protocols: how the tasks word their prompts, where they say.
        tasks: those that the pilot was drawn from.
        pilot: its name, such as `six`; None for the tasks as given.
        pilot_kind: `held-out`, disjoint from the first `test_limit` documents of each task, or
            `in-run`, drawn from them.
        test_limit: documents of each task that are left for the test.
        seed: of the draw.
        inputs: the pilot.
        probes: inputs of the two tasks of the midpoint; empty where it was not measured.
        thresholds: τ by every rule for every signal, with the options asked for; for people,
            since `threshold_from` computes it anew.
        direction: which way D points on the pilot; None where it was not looked at.
        page_bench: version that measured.
        format: `FORMAT`.
    """

    model: ModelFacts
    settings: Mapping[str, Setting]
    protocols: tuple[str, ...]
    tasks: tuple[str, ...]
    pilot: str | None
    pilot_kind: Literal["held-out", "in-run"]
    test_limit: int
    seed: int
    inputs: tuple[PilotInput, ...]
    probes: tuple[PilotInput, ...] = ()
    thresholds: tuple[Threshold, ...] = ()
    direction: Direction | None = None
    page_bench: str = ""
    format: int = FORMAT

    @property
    def lengths(self) -> tuple[int, float, int]:
        """Shortest, typical (median) and longest prompt of the pilot, in tokens."""
        tokens = [one.prompt_tokens for one in self.inputs]
        return min(tokens), statistics.median(tokens), max(tokens)

    @property
    def prompt_tokens(self) -> dict[str, float]:
        """The same by name, as in the file."""
        shortest, typical, longest = self.lengths
        return {"typical": typical, "min": shortest, "max": longest}

    def values(self, signal: str) -> list[float]:
        """A signal on the pilot.

        Raises:
            UsageError: it was not measured.
        """
        return _values(self.inputs, signal)

    def task_means(self, signal: str) -> dict[str, float]:
        """Mean of a signal over the pilot prompts of each task."""
        by_task: dict[str, list[float]] = {}
        for one, value in zip(self.inputs, self.values(signal), strict=True):
            by_task.setdefault(one.task, []).append(value)
        return {task: statistics.fmean(values) for task, values in by_task.items()}

    def save(self, path: Path) -> None:
        """Write it as JSON; readers see the old file or the new one, never a part."""
        record = {**_plain(dataclasses.asdict(self)), "prompt_tokens": self.prompt_tokens}
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        partial.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")
        os.replace(partial, path)


def load(path: Path) -> Calibration:
    """Read a calibration.

    Raises:
        UsageError: there is no such file, it is none of ours or of another version, or it has
            been edited so that its parts disagree.
    """
    try:
        record = json_text.parse(path.read_bytes())
    except OSError as error:
        raise UsageError(
            f"the calibration {path} cannot be read ({error.strerror or error}); give the file "
            f"that `page-bench calibrate` wrote."
        ) from error
    except ValueError as error:
        raise _not_ours(path, f"it is not JSON: {error}") from error
    if not isinstance(record, dict) or "format" not in record:
        raise _not_ours(path, "it has no format")
    if record["format"] != FORMAT:
        raise UsageError(
            f"the calibration {path} has format {record['format']!r}, but this version reads "
            f"{FORMAT}; calibrate anew."
        )
    summary = record.pop("prompt_tokens", None)
    try:
        calibration: Calibration = read(Calibration, record, "calibration")
    except Misfit as misfit:
        raise _not_ours(path, str(misfit)) from misfit
    if not calibration.inputs:
        raise _not_ours(path, "it holds no inputs")
    if calibration.seed < 0:
        raise _not_ours(path, f"calibration.seed is {calibration.seed}, but seeds start at 0")
    if summary != calibration.prompt_tokens:
        raise _edited(path, "prompt_tokens", summary, calibration.prompt_tokens)
    _check_thresholds(calibration, path)
    return calibration


def threshold_from(
    calibration: Calibration,
    rule: str,
    *,
    signal: str = "drop",
    side: Side = "above",
    theta_z: float = THETA_Z,
    open_rate: float = OPEN_RATE,
) -> Threshold:
    """τ from a calibration's pilot, with its bootstrap interval.

    Args:
        calibration: the file's content.
        rule: one of `MEASURED_RULES`.
        signal, side: of the gate.
        theta_z: read by `zscore`.
        open_rate: read by `quantile`.

    Raises:
        UsageError: a rule that needs no pilot, or a signal or the midpoint that was not measured.
    """
    if rule not in MEASURED_RULES:
        raise UsageError(
            f"tau={rule} reads no calibration; leave calibration out, or give tau one of "
            f"{', '.join(MEASURED_RULES)}."
        )
    threshold, strata = _threshold(calibration, rule, signal, side, theta_z, open_rate)
    return with_interval(threshold, *strata, seed=calibration.seed)


def _threshold(
    calibration: Calibration,
    rule: str,
    signal: str,
    side: Side,
    theta_z: float,
    open_rate: float,
) -> tuple[Threshold, list[list[float]]]:
    """τ without an interval, and the values that it comes from."""
    if rule == "midpoint":
        if not calibration.probes:
            raise UsageError(
                "the calibration holds no inputs for tau=midpoint; calibrate with --length and "
                "--midpoint_size, or use tau=zscore."
            )
        low, high = (
            _values([p for p in calibration.probes if p.task.endswith(f"_{name}")], signal)
            for name in (CAPACITY_BOUND, DILUTION_PRONE)
        )
        return midpoint_threshold(low, high, signal, side), [low, high]
    values = calibration.values(signal)
    if rule == "zscore":
        return zscore_threshold(values, theta_z, signal, side), [values]
    return quantile_threshold(values, open_rate, signal, side), [values]


def _check_thresholds(calibration: Calibration, path: Path) -> None:
    """Refuse thresholds that the inputs do not give: a run computes τ anew from the inputs."""
    for one in calibration.thresholds:
        name = f"tau={one.rule} of {one.signal}"
        if one.rule not in MEASURED_RULES:
            raise _not_ours(path, f"it has {name}, which no pilot gives")
        theta_z = THETA_Z if one.theta_z is None else one.theta_z
        open_rate = OPEN_RATE if one.open_rate is None else one.open_rate
        try:
            found, _ = _threshold(calibration, one.rule, one.signal, one.side, theta_z, open_rate)
        except UsageError as error:
            raise _not_ours(path, f"its inputs do not give the {name} that it has") from error
        for field in ("tau", "mu", "sigma", "theta_z", "open_rate", "pilot_n"):
            there, given = getattr(one, field), getattr(found, field)
            if there != given and not _close(there, given):
                raise _edited(path, f"{field} of {name}", there, given)


def _close(one: float | None, other: float | None) -> bool:
    # Another version of Python or NumPy may round sums another way.
    if one is None or other is None:
        return False
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)


def _values(inputs: Sequence[PilotInput], signal: str) -> list[float]:
    if any(signal not in one.signals for one in inputs):
        known = sorted({name for one in inputs for name in one.signals})
        raise UsageError(
            f"the calibration does not hold {signal}; it holds {', '.join(known)}: calibrate anew."
        )
    return [one.signals[signal] for one in inputs]


def _plain(value: Any) -> Any:
    """What is not a number becomes null."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _not_ours(path: Path, why: str) -> UsageError:
    return UsageError(
        f"{path} is no calibration ({why}); give the file that `page-bench calibrate` wrote."
    )


def _edited(path: Path, what: str, there: object, given: object) -> UsageError:
    return UsageError(
        f"{path} says {what} {there}, but its inputs give {given}; give the file as `page-bench "
        f"calibrate` wrote it, or calibrate anew."
    )
