"""The checks, each of which holds page-bench against something that it does not share code with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from page_bench.commands.doctor import references
from page_bench.commands.doctor.arms import TRIED_BUDGET, evicting, kept_by, planned
from page_bench.commands.doctor.shape import changing_rotation, layers_compared
from page_bench.commands.doctor.subject import Subject
from page_bench.commands.doctor.together import decoded_together
from page_bench.commands.doctor.tokens import published_tokens
from page_bench.commands.doctor.verdict import Status, Verdict
from page_bench.config import PageConfig, budget_for
from page_bench.inputs.errors import UsageError
from page_bench.model.keep_plan import evict
from page_bench.model.quantization import weights_name

Check = Callable[[Subject], Verdict]

EXACT_DROP = 1e-5
"""D of the recording path against eager attention in fp32 (design of the observation)."""
NEAR_DROP = 1e-3
"""A key set that differs by one key near its cut moves D by less."""
NEAR_DROP_IN_HALF = 0.03
"""The paper's authors saw 0.015 between SDPA and eager attention in bf16."""
TIED = 0.01
"""Above this share of rows decided by ties, what is kept depends on the order of positions."""


def plain_generation(subject: Subject) -> Verdict:
    """Whether nothing evicted is nothing changed: `gate=closed` and budget 1 against `generate`."""
    expected, logits = subject.expected()
    worst, places = 0.0, []
    for name, page in (
        ("gate=closed", replace(subject.page, gate="closed")),
        ("budget=1", replace(subject.page, budget=1.0)),
    ):
        gap, place = references.first_gap(subject.answer(page).answer.answer_ids, expected, logits)
        worst = max(worst, gap)
        places += [] if place is None else [f"{name} at token {place + 1}"]
    figures: dict[str, Any] = {"new_tokens": len(expected), "largest_gap": worst}
    if not places:
        return Verdict("pass", f"{len(expected)} of {len(expected)} tokens equal", figures)
    said = f"leaves generate's answer ({', '.join(places)}), logits apart by {worst:.2g}"
    status: Status = "warn" if worst <= subject.closeness else "fail"
    return Verdict(status, f"{said}; near ties are up to {subject.closeness:g}", figures)


def drop_against_eager(subject: Subject) -> Verdict:
    """Whether the recorded agreement and D are those of eager attention matrices."""
    if subject.slides:
        return Verdict("skip", "some layers see a sliding window only")
    page = subject.page
    seen = subject.answer(page).seen
    third = len(seen.agreement) // 3
    if not third:
        return Verdict("skip", f"{len(seen.agreement)} layers have no thirds to compare")
    with subject.precision():
        expected = references.eager_agreement(subject.model, subject.ids, page.window, page.top_k)
    drop = sum(expected[:third]) / third - sum(expected[-third:]) / third
    layers = [abs(a - b) for a, b in zip(seen.agreement, expected, strict=True)]
    recorded = sum(seen.agreement[:third]) / third - sum(seen.agreement[-third:]) / third
    gap = max(abs(seen.drop - drop), abs(recorded - drop))
    figures: dict[str, Any] = {"drop": seen.drop, "eager": drop, "largest_layer_gap": max(layers)}
    said = f"D {seen.drop:.5f}, eager {drop:.5f}; agreement of a layer differs by {max(layers):.2g}"
    if gap <= EXACT_DROP:
        return Verdict("pass", said, figures)
    half = subject.computes_in != torch.float32
    if gap <= (NEAR_DROP_IN_HALF if half else NEAR_DROP):
        belongs = "; τ belongs to this dtype and attention implementation" if half else ""
        return Verdict("warn", said + belongs, figures)
    return Verdict("fail", said, figures)


def masking_equals_removal(subject: Subject) -> Verdict:
    """Whether evicted entries are gone as if masked, and every key keeps its true position."""
    if subject.slides:
        return Verdict("skip", "some layers see a sliding window only")
    length, worst, parted, controls = subject.ids.shape[1], 0.0, False, []
    names = ["streamingllm", subject.page.evictor]
    for name in dict.fromkeys(names):
        page = evicting(subject, name)
        n_keep = budget_for(page, length)
        if not isinstance(n_keep, int):
            return Verdict("skip", f"the prompt is too short to evict from ({n_keep})")
        answer = subject.answer(page).answer
        if name == "streamingllm":
            # Known without asking the evictor: sinks, and the end of the prompt.
            keep = [*range(page.n_sink), *range(length - n_keep + page.n_sink, length)]
        else:
            keep = kept_by(subject, page)
        tokens, logits = subject.expected(keep)
        gap, place = references.first_gap(answer.answer_ids, tokens, logits)
        if place is None:
            gap = abs(answer.mean_token_entropy - references.mean_entropy(logits))
        worst, parted = max(worst, gap), parted or place is not None
        _, shifted = subject.expected(keep, shift=n_keep - length)
        entropies = [references.mean_entropy(one) for one in (shifted, logits)]
        controls.append(abs(entropies[0] - entropies[1]))
    figures: dict[str, Any] = {
        "largest_gap": worst,
        "gap_of_shifted_positions": min(controls),
    }
    said = (
        "answers part at a near tie, logits apart by" if parted else "answers equal, entropies to"
    )
    said = f"{said} {worst:.2g}; shifted positions would differ by {min(controls):.2g}"
    if worst > subject.closeness:
        return Verdict("fail", f"removal and masking differ by {worst:.2g}", figures)
    if min(controls) <= subject.closeness:
        return Verdict("warn", f"{said}, so this model shows no wrong positions", figures)
    return Verdict("warn" if parted else "pass", said, figures)


def positions(subject: Subject) -> Verdict:
    """Whether the last prompt token is read at T−1, and the answer at T, T+1, …"""
    length = subject.ids.shape[1]
    wrong = []
    for name, page, first in (
        ("gate=closed", replace(subject.page, gate="closed"), length),
        ("evicted", evicting(subject, subject.page.evictor), length - 1),
    ):
        with _positions_of(subject.model) as calls:
            subject.answer(page)
        if not calls:
            return Verdict("skip", "the adapter runs the model in a way that is not seen here")
        seen = [position for call in calls for position in call]
        expected = list(range(first, length + subject.new_tokens - 1))
        if seen != expected:
            wrong.append(f"{name} {seen[:3]} for {expected[:3]}")
    figures: dict[str, Any] = {"prompt_tokens": length}
    if wrong:
        return Verdict("fail", f"positions are {', '.join(wrong)}", figures)
    return Verdict("pass", f"{length - 1}, {length}, … as in an undivided sequence", figures)


def one_bos(subject: Subject) -> Verdict:
    """Whether no prompt begins with two BOS tokens, with a chat template or without."""
    tokenizer = subject.lm.tokenizer
    bos = tokenizer.bos_token_id
    counts: dict[str, Any] = {}
    texts = {"plain": subject.text}
    if getattr(tokenizer, "chat_template", None):
        texts["templated"] = subject.templated(subject.text)
    for name, text in texts.items():
        ids = subject.prompt_of(text).input_ids
        leading = next((i for i, token in enumerate(ids) if token != bos), len(ids))
        counts[name] = 0 if bos is None else leading
    said = ", ".join(f"{name}: {count}" for name, count in counts.items())
    if any(count > 1 for count in counts.values()):
        return Verdict("fail", f"leading BOS tokens {said}; one at most is right", counts)
    return Verdict("pass", f"leading BOS tokens {said}", counts)


def tied_scores(subject: Subject) -> Verdict:
    """How many keep sets are decided by ties, in this dtype and in fp32."""
    page, model = replace(subject.page, budget=TRIED_BUDGET), subject.model
    if not isinstance(budget_for(page, subject.ids.shape[1]), int):
        return Verdict("skip", "the prompt is too short to evict from")
    figures: dict[str, Any] = {subject.lm.model_facts().dtype: _tied(subject, page)}
    plain = weights_name(model) is None and subject.lm.mixed_precision_dtype is None
    if plain and model.dtype != torch.float32:
        try:
            with references.in_fp32(model):
                figures["float32"] = _tied(subject, page)
        except RuntimeError as error:  # no memory
            figures["float32"] = None
            figures["float32_not_tried"] = str(error).partition("\n")[0][:120]
    share = max(value for value in figures.values() if isinstance(value, float))
    shown = ", ".join(f"{k} {v:.1%}" for k, v in figures.items() if isinstance(v, float))
    said = f"rows of {page.evictor} scores cut through a tie: {shown}"
    if share > TIED:
        return Verdict("warn", f"{said}; lower positions win there", figures)
    return Verdict("pass", said, figures)


def bytes_freed(subject: Subject) -> Verdict:
    """Whether the kept-KV that is reported is what the memory shows."""
    page, length = evicting(subject, subject.page.evictor), subject.ids.shape[1]
    outcome = subject.answer(page)
    answer, seen = outcome.answer, outcome.seen
    with subject.engine(page):
        filled, plan = planned(subject, page)
        if isinstance(plan, str):
            return Verdict("skip", f"nothing is evicted ({plan})")
        room = subject.new_tokens
        cache = evict(filled, plan, room, without_last=False)
        full, kept = references.storage_bytes(filled.cache), references.storage_bytes(cache)
    freed, counted = full - kept, seen.kv_bytes_full - answer.kv_bytes_kept
    figures: dict[str, Any] = {"kept_kv": answer.kept_kv, "freed": freed, "counted": counted}
    said = f"kept-KV {answer.kept_kv:.4f} of {length} tokens; {freed:,} bytes freed"
    same_share = abs(answer.kv_bytes_kept / seen.kv_bytes_full - answer.kept_kv) < 1e-9
    if freed == counted and same_share:
        return Verdict("pass", said, figures)
    return Verdict("fail", f"{said}, {counted:,} counted", figures)


def outcome(check: Check, subject: Subject) -> Verdict:
    """What a check finds; what cannot be run, and a fault of ours that shows itself, is a fail."""
    try:
        return check(subject)
    except (UsageError, RuntimeError) as error:
        return Verdict("fail", str(error).partition("\n")[0])


CHECKS: dict[str, Check] = {
    "plain_generation": plain_generation,
    "changing_rotation": changing_rotation,
    "drop_against_eager": drop_against_eager,
    "layers_compared": layers_compared,
    "masking_equals_removal": masking_equals_removal,
    "decoded_together": decoded_together,
    "positions": positions,
    "published_tokens": published_tokens,
    "one_bos": one_bos,
    "tied_scores": tied_scores,
    "bytes_freed": bytes_freed,
}


def _tied(subject: Subject, page: PageConfig) -> float:
    """Share of rows (layer, KV head) whose cut falls between equal scores."""
    length = subject.ids.shape[1]
    n_keep = budget_for(page, length)
    assert isinstance(n_keep, int)
    with subject.engine(page):
        filled, _ = planned(subject, page)
        rows = [layer.score for layer in filled.scored_by(page.make_evictor(), n_keep)]
    free = torch.cat([row.cpu() for row in rows])[:, page.n_sink : length - page.n_recent]
    wanted = n_keep - page.n_sink - page.n_recent
    ordered = free.sort(dim=-1, descending=True).values
    return float((ordered[:, wanted - 1] == ordered[:, wanted]).float().mean())


@contextmanager
def _positions_of(model: Any) -> Iterator[list[list[int]]]:
    """By call of the model, positions of its tokens; none for the prefill, which gives none."""
    calls: list[list[int]] = []

    def look(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = kwargs.get("position_ids")
        calls.append([] if given is None else given[0].tolist())

    handle = model.register_forward_pre_hook(look, with_kwargs=True)
    try:
        yield calls
    finally:
        handle.remove()
