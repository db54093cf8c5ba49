"""The trace of one answer, put together from what the run, the prompt and the engine know."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, replace
from typing import Any

from page_bench.config import PageConfig
from page_bench.engine.engine import Outcome
from page_bench.engine.prompt import Prompt
from page_bench.gating.calibration import ModelFacts
from page_bench.gating.threshold import Threshold
from page_bench.records.trace import Trace


def trace_of(
    model: ModelFacts,
    page: PageConfig,
    prompt: Prompt,
    outcome: Outcome,
    threshold: Threshold | None,
    text: str,
    chat_template: bool | None = None,
    cut: bool | None = None,
) -> Trace:
    """The record of one sample, before the task has scored it.

    Args:
        model: the model.
        page: the arm.
        prompt: the sample.
        outcome: what came of it.
        threshold: τ and its origin; None where the gate reads none.
        text: the answer as it will be scored.
        chat_template: whether one was applied; None where that is not known.
        cut: see `Trace`.
    """
    seen, answer = asdict(outcome.seen), asdict(outcome.answer)
    ids = answer.pop("answer_ids")
    z = None
    if threshold is not None:
        z = threshold.z(outcome.seen.signals.get(threshold.signal, math.nan))
    return Trace(
        model=model.name,
        dtype=model.dtype,
        attn_implementation=model.attn_implementation,
        task=prompt.task,
        doc_id=prompt.doc_id,
        protocol=prompt.protocol,
        system_in_user_turn=prompt.system_in_user_turn,
        repeat=prompt.repeat,
        prompt_sha256=prompt.sha256,
        evictor=page.evictor,
        evictor_args=asdict(page.make_evictor()),
        granularity=page.granularity,
        score_norm=page.score_norm,
        budget=page.budget,
        n_sink=page.n_sink,
        recent=page.n_recent,
        window=page.window,
        top_k=page.top_k,
        compress=page.compress,
        gate=page.gate,
        gate_args=asdict(page.make_gate()),
        tau_variant=None if threshold is None else threshold.rule,
        tau=None if threshold is None else threshold.tau,
        gate_open=outcome.gate_open,
        discarded_s=outcome.discarded_s,
        z=z,
        truncated_tokens=prompt.truncated_tokens,
        new_tokens=len(ids),
        answer=text,
        chat_template=chat_template,
        asked=prompt.request.record,
        cut=cut,
        no_evidence=_no_evidence(prompt, outcome),
        **seen,
        **answer,
    )


def _no_evidence(prompt: Prompt, outcome: Outcome) -> str | None:
    """Why an answer does not say how much of the evidence was kept."""
    if prompt.evidence and outcome.answer.evidence_kept is None:
        return "the answer comes from a store that does not hold it for this evidence"
    return prompt.no_evidence


def brief(trace: Trace) -> Trace:
    """The trace without what is long, for a summary over several processes.

    The answer is its hash, so that equal ones and empty ones can be told.
    """
    said = trace.answer.strip()
    digest = hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest() if said else ""
    return replace(trace, answer=digest, pair_agreement=None, margin=None)


def settings_of(page: PageConfig) -> dict[str, Any]:
    """An arm's settings with the options of its evictor and gate, for results and trackers.

    Those that its gate and its rule for τ do not read are None.
    """
    unread = _unread(page)
    return {
        **{
            name: None if name in unread else value
            for name, value in asdict(page).items()
            if name != "doc_ids"
        },
        "evictor_args": asdict(page.make_evictor()),
        "gate_args": asdict(page.make_gate()),
        "gate_labels": page.make_gate().labels,
        "recent": page.n_recent,
    }


def _unread(page: PageConfig) -> set[str]:
    """Names of settings that change nothing in this arm."""
    compares = page.make_gate().side is not None
    read = {
        "tau": compares,
        "theta_z": compares and page.tau == "zscore",
        "open_rate": compares and page.tau == "quantile",
        "pilot_size": page.needs_pilot,
        "calibration_mismatch": page.calibration is not None,
    }
    return {name for name, is_read in read.items() if not is_read}
