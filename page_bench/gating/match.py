"""Whether a calibration is one of this run: same model, numbers, length and way of measuring."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Collection, Mapping, Sequence

from page_bench.gating.calibration import Calibration, ModelFacts, Setting
from page_bench.gating.gate import Gate
from page_bench.gating.signal_gates import Page, Static
from page_bench.inputs.errors import UsageError

LENGTH_FACTOR = 1.5
"""Prompts whose typical length differs by more than this are of another length."""
POLICIES = ("error", "warn")
"""Values of `calibration_mismatch`."""


def mismatches(
    calibration: Calibration,
    model: ModelFacts,
    prompt_tokens: Sequence[int],
    settings: Mapping[str, Setting] | None = None,
    protocols: Collection[str] = (),
) -> list[str]:
    """What a run does not share with a calibration, one phrase each; empty where all agrees.

    Args:
        calibration: the file's content.
        model: the run's.
        prompt_tokens: lengths of the run's prompts; none are compared if it is empty.
        settings: how the run takes the signals; names that one side lacks are not compared.
        protocols: how the run's tasks word their prompts; compared where both sides say.
    """
    there = calibration.model
    pairs: list[tuple[str, object, object]] = [
        ("dtype", there.dtype, model.dtype),
        ("attention implementation", there.attn_implementation, model.attn_implementation),
    ]
    found = [_phrase(*pair) for pair in pairs if pair[1] != pair[2]]
    # Other dtypes are other numbers, so the weights can be compared in the same dtype only.
    same = there.fingerprint.configuration == model.fingerprint.configuration and (
        there.dtype != model.dtype or there.fingerprint.weights == model.fingerprint.weights
    )
    if not same:
        found.insert(0, _phrase("model", _identity(there), _identity(model)))
    if prompt_tokens:
        ours, theirs = statistics.median(prompt_tokens), calibration.lengths[1]
        if max(ours, theirs) > LENGTH_FACTOR * min(ours, theirs):
            found.append(_phrase("typical prompt length", f"{theirs:g}", f"{ours:g} tokens"))
    for name, value in (settings or {}).items():
        if name in calibration.settings and calibration.settings[name] != value:
            found.append(_phrase(name, calibration.settings[name], value))
    if protocols and calibration.protocols and {*protocols} != {*calibration.protocols}:
        found.append(
            _phrase(
                "protocol", " and ".join(calibration.protocols), " and ".join(sorted(protocols))
            )
        )
    return found


def settings_of(
    *, window: int, top_k: int, compress: str, gate: Gate | None = None, **more: Setting
) -> dict[str, Setting]:
    """How a run takes its signals, by model argument: what a calibration must share with it.

    Args:
        window, top_k, compress: the run's.
        gate: the run's; what else than `page` takes D as the paper does.
        more: further settings, such as `chat`.
    """
    options = dataclasses.asdict(gate if isinstance(gate, Page) else Page())
    options.pop("open_when")
    taken = {f"gate.{name}": value for name, value in options.items()}
    return {"window": window, "top_k": top_k, "compress": compress, **taken, **more}


def refuse_mismatch(path: object, differences: Sequence[str], policy: str) -> str | None:
    """What comes of differences: an error, or with policy `warn` a sentence for the log.

    Returns:
        The sentence; None without differences.

    Raises:
        UsageError: there are differences and the policy is `error`, or there is no such policy.
    """
    if policy not in POLICIES:
        raise UsageError(
            f"calibration_mismatch={policy} does not exist; give {' or '.join(POLICIES)}."
        )
    if not differences:
        return None
    sentence = f"calibration={path} belongs to another run: {'; '.join(differences)}"
    if policy == "warn":
        return f"{sentence}."
    raise UsageError(f"{sentence}; calibrate anew, or give calibration_mismatch=warn.")


def overlap(calibration: Calibration, sha256s: set[str], rule: str) -> int:
    """How many of a run's prompts are among those that the decision was measured on.

    Args:
        calibration: the file's content.
        sha256s: hashes of the run's prompts.
        rule: for τ, or `static` for the means of tasks that this gate decides by. `midpoint` reads
            the probes, a number or `fixed` nothing, everything else the pilot.
    """
    readers = {"midpoint": calibration.probes} | dict.fromkeys(
        ("zscore", "quantile", Static.name), calibration.inputs
    )
    return len({one.prompt_sha256 for one in readers.get(rule, ())} & sha256s)


def _phrase(what: str, there: object, here: object) -> str:
    return f"{what} {there} in the file, {here} in this run"


def _identity(model: ModelFacts) -> str:
    prints = model.fingerprint
    return f"{model.name} ({prints.configuration[:8]}/{prints.weights[:8]})"
