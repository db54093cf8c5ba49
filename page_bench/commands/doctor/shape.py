"""What a model's own shape asks of it: layers enough for D, and a rotation that may change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from page_bench.commands.doctor import references
from page_bench.commands.doctor.subject import Subject
from page_bench.commands.doctor.verdict import Status, Verdict
from page_bench.engine.summary import FEW_LAYERS, per_bin
from page_bench.gating.profile import bin_size
from page_bench.model.prefill import text_config
from page_bench.model.rotation import Rotation
from page_bench.model.support import layer_windows

MOST_TOKENS = 16_384
"""Where rotations change after more tokens than this, it is not tried."""


def layers_compared(subject: Subject) -> Verdict:
    """Over how many layers D is taken: one layer alone can turn its sign."""
    layers = layer_windows(text_config(subject.model)).count(None)
    options = subject.lm.page.drop_options
    size = bin_size(layers, options)
    figures: dict[str, Any] = {"layers_per_bin": size, "full_attention_layers": layers}
    if not size:
        return Verdict("skip", f"{layers} layers have no thirds to compare", figures)
    said = f"D compares {per_bin(size, options)}, of {layers} with full attention"
    if size < FEW_LAYERS:
        return Verdict("warn", f"{said}; from fewer than {FEW_LAYERS} it may mislead", figures)
    return Verdict("pass", said, figures)


def changing_rotation(subject: Subject) -> Verdict:
    """Whether a prompt whose answer crosses the rotation's boundary is answered as by `generate`.

    A longer prompt comes first: what it leaves behind must not be seen.
    """
    rotation = Rotation(subject.model)
    if not rotation.original_lengths:
        return Verdict("skip", "the rotation is the same at every length")
    boundary = min(rotation.original_lengths.values())
    kinds = ", ".join(rotation.original_lengths)
    figures: dict[str, Any] = {"boundary": boundary}
    if boundary > MOST_TOKENS or boundary <= subject.new_tokens:
        return Verdict("skip", f"{kinds} changes after {boundary:,} tokens, not tried", figures)
    worst, places = 0.0, []
    for above in (subject.new_tokens, -(subject.new_tokens // 2)):
        prompt = subject.prompt_of_length(boundary + above)
        outcome = subject.answer(replace(subject.page, gate="closed"), prompt)
        ids = torch.tensor([prompt.input_ids], device=subject.ids.device)
        expected, logits = subject.expected(ids=ids)
        rotation.refresh()
        gap, place = references.first_gap(outcome.answer.answer_ids, expected, logits)
        worst = max(worst, gap)
        places += [] if place is None else [f"{ids.shape[1]} tokens at token {place + 1}"]
    figures["largest_gap"] = worst
    said = f"{kinds} changes after {boundary:,} tokens"
    if not places:
        return Verdict(
            "pass",
            f"{said}; across it, generate's answer; an evicted cache keeps its prompt's rotation",
            figures,
        )
    status: Status = "warn" if worst <= subject.closeness else "fail"
    return Verdict(
        status, f"{said}; leaves generate's answer ({', '.join(places)}) by {worst:.2g}", figures
    )
