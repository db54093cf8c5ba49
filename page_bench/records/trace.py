"""The record of one sample under one arm, and the answer that carries it."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from page_bench.inputs import json_text
from page_bench.inputs.errors import UsageError

SCHEMA_VERSION = 2
LARGEST_SCORE = 1e6
"""No metric of a sample is larger; what is, is no score."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the prefill of one prompt showed.

    Attributes:
        prompt_tokens: T, after truncation.
        context_tokens: tokens of the context; None where the whole prompt was compressed.
        agreement: mean head agreement, one value per layer with full attention.
        full_attention_layers: which layers these are; only they are observed and evicted.
        drop: D.
        signals: D and what else was asked for, by name (see `signals.SIGNALS`).
        pair_agreement: per layer, the agreement of each pair of heads i < j in lexicographic
            order; None unless asked for.
        margin: per layer and query head, κ (see `window.window_statistics`); None unless asked
            for.
        kv_bytes_full: bytes of the prompt's keys and values where nothing is evicted.
        prefill_s, gate_s: seconds.
    """

    prompt_tokens: int
    context_tokens: int | None
    agreement: list[float]
    full_attention_layers: list[int]
    drop: float
    signals: dict[str, float]
    pair_agreement: list[list[float]] | None
    margin: list[list[float]] | None
    kv_bytes_full: int
    prefill_s: float
    gate_s: float


@dataclass(frozen=True, kw_only=True)
class Answered:
    """What an answer from an evicted or full cache took.

    Attributes:
        kept_all_because: why nothing was evicted; None where something was.
        must_keep: positions per layer and KV head that the evictor had to keep where the budget
            allows fewer; None where it allows them.
        kept_tokens: kept prompt entries, averaged over layers and KV heads; a sliding-window layer
            counts in full with what the model itself keeps.
        kept_kv: kept entries / full entries, counted in the cache once the prompt is complete.
        kv_bytes_kept: bytes of the keys and values that are left of the prompt.
        kv_bytes_allocated: bytes of the buffers they stand in, room for the answer included.
        evict_s: seconds; scores that several arms of a sweep share count for the first of them.
        decode_s: seconds, of all answers that were decoded together.
        decode_rows: how many these are.
        decode_rows_limit: how many of a prompt's answers could be decoded together; 1 for models
            with latent attention, None where a record does not say.
        decode_rows_lowered: whether memory did not hold so many; None where a record does not say.
        mean_token_entropy: mean over the answer's tokens of the entropy of the distribution that
            each was chosen from, in nats.
        repetition: share of repeated 4-grams of tokens, see `distress.repetition`. Both are NaN
            where continuations were given.
        log_likelihoods: per given continuation the sum over its tokens, in nats; None where the
            answer was generated.
        greedy: per given continuation, whether greedy decoding would give it; None likewise.
        rotation_changed: whether the model rotates tokens of the answer otherwise than a prompt of
            this length (see `rotation`): a full cache follows, as in `generate`, an evicted one
            keeps the prompt's rotation. None where a record does not say.
        evidence_kept: share of the evidence's entries that are left, over the layers with full
            attention and their KV heads; None where the evidence is not known.
        evidence_kept_best_head: the same of the KV head that kept most of it.
        evidence_sha256: which evidence these are of, see `Prompt`.
    """

    kept_all_because: str | None
    kept_tokens: float
    kept_kv: float
    kv_bytes_kept: int
    kv_bytes_allocated: int
    evict_s: float
    decode_s: float
    decode_rows: int
    mean_token_entropy: float
    repetition: float
    log_likelihoods: list[float] | None = None
    greedy: list[bool] | None = None
    decode_rows_limit: int | None = None
    decode_rows_lowered: bool | None = None
    must_keep: float | None = None
    rotation_changed: bool | None = None
    evidence_kept: float | None = None
    evidence_kept_best_head: float | None = None
    evidence_sha256: str | None = None


KNOWN_LATER = frozenset({"evidence_kept", "evidence_kept_best_head", "evidence_sha256"})
"""Fields that came after stores were written, so that no key holds their names."""


@dataclass(frozen=True, kw_only=True)
class Trace(Seen, Answered):
    """All that is known of one sample: what was asked, measured and answered.

    Attributes:
        model: name of the model, as given, with revision and adapter.
        dtype: dtype of the weights, and of mixed precision.
        attn_implementation: `sdpa` or `eager`.
        task, doc_id: the sample.
        protocol: how the task words its prompts; None where it does not say.
        system_in_user_turn: whether the system message stands at the beginning of the user's turn,
            since the chat template shows none; None where that is not known.
        repeat: 0, or which of several answers to the same sample, or of several contexts of one
            multiple-choice document, this is.
        prompt_sha256: hash of the prompt's text.
        evictor, evictor_args, granularity, score_norm, budget: the arm's eviction.
        n_sink, recent, window, top_k: protected positions, observation window, size of key sets.
        compress: `prompt` or `context`, what was observed and evicted.
        chat_template: whether a chat template was applied; None where a record does not say.
        asked: how the answer was asked for: `max_new_tokens`, `stop` and generation arguments, or
            the number of given `continuations`; None where a record does not say.
        gate, gate_args, tau_variant, tau: the arm's gate; tau is None where the gate reads none.
        gate_open: whether the answer is the evictor's; else it is the full cache's.
        discarded_s: seconds spent on answers that a gate read and discarded, a second prefill
            included where the cache would have been gone.
        z: (signal − μ)/σ over the pilot; None without one.
        truncated_tokens: prompt tokens that truncation removed.
        new_tokens: answer tokens, a final end-of-sequence token included.
        answer: the answer as it was scored, halves of surrogate pairs included, which the file has
            as escapes; empty where continuations were given.
        score, correct, correct_paper: the task's scores, the last as the PAGE paper counted; None
            until the task has scored the answer, and where it gives no such number. Of tasks that
            are not ours `score` is lm-eval's value of their first metric, `acc` for multiple
            choice; `correct` is the same where all values of the task in the run are 0 or 1. What
            lm-eval takes of a document as a whole stands at each of its answers that count.
        metric: what `score` is called in lm-eval's results, metric and filter, such as `acc,none`;
            of two filters the first; None where there is no score or a record does not say.
        cut: whether the answer is as long as it may be, and neither an end-of-sequence token nor a
            stop string ended it; None where continuations were given or a record does not say.
        no_evidence: why `evidence_kept` is None; None where it is not or a record does not say.
        schema_version: of this record.
    """

    model: str
    dtype: str
    attn_implementation: str
    task: str
    doc_id: int
    protocol: str | None
    repeat: int
    prompt_sha256: str
    evictor: str
    evictor_args: dict[str, Any]
    granularity: str
    score_norm: str
    budget: float
    n_sink: int
    recent: int
    window: int
    top_k: int
    compress: str
    gate: str
    gate_args: dict[str, Any]
    tau_variant: str | None
    tau: float | None
    gate_open: bool
    discarded_s: float
    z: float | None
    truncated_tokens: int
    new_tokens: int
    answer: str
    score: float | None = None
    correct: float | None = None
    correct_paper: float | None = None
    chat_template: bool | None = None
    system_in_user_turn: bool | None = None
    asked: dict[str, Any] | None = None
    metric: str | None = None
    cut: bool | None = None
    no_evidence: str | None = None
    schema_version: int = SCHEMA_VERSION

    @property
    def answer_limit(self) -> int | None:
        """Tokens that the answer could have; None where none was generated or it is unknown."""
        limit = (self.asked or {}).get("max_new_tokens")
        return limit if isinstance(limit, int) else None

    def to_json(self) -> str:
        """One line of JSON; what is not a number becomes null, see also `json_text.escaped`."""
        text = json_text.escaped(
            json.dumps(_without_nan(dataclasses.asdict(self)), ensure_ascii=False)
        )
        # Legal in JSON, but many readers take these for the end of a line.
        return text.translate({ord(c): f"\\u{ord(c):04x}" for c in "\x85\u2028\u2029"})


class Answer(str):
    """An answer text that carries its trace through lm-eval to the task's scorer.

    Attributes:
        trace: what is known of the sample; None for a text that nobody answered, since lm-eval's
            stock metrics cast references to the type of the answer.
    """

    trace: Trace | None

    def __new__(cls, text: object = "", trace: Trace | None = None) -> Answer:
        answer = super().__new__(cls, text)
        answer.trace = trace
        return answer

    def __getnewargs__(self) -> tuple[str, Trace | None]:  # type: ignore[override]
        return str(self), self.trace


@contextmanager
def scoring(answers: Sequence[Answer]) -> Iterator[None]:
    """Tell scorers that what they are given are answers of `page_hf` to one document.

    Args:
        answers: with their traces; see `answer_of`.
    """
    token = _SCORED.set(answers)
    try:
        yield
    finally:
        _SCORED.reset(token)


def answer_of(text: str) -> Answer | None:
    """The answer with a trace that a scorer's text comes from.

    Args:
        text: as the task's filters left it. One that lost its trace on the way is that of the
            document's only answer.

    Returns:
        None where another model than `page_hf` answered.

    Raises:
        UsageError: the document has several answers of `page_hf`, and nothing tells which of them
            the text comes from.
    """
    if isinstance(text, Answer) and text.trace is not None:
        return text
    answers = _SCORED.get()
    if answers is None:
        return None
    if len(answers) != 1:
        raise UsageError(
            f"the task's filters hand its scorer {str(text)!r:.60}, which cannot be told to be any "
            f"one of {len(answers)} answers, so nobody knows what its cache kept; leave out the "
            f"filter, or `repeats`."
        )
    return answers[0]


_SCORED: ContextVar[Sequence[Answer] | None] = ContextVar("scored answers", default=None)


class Likelihood(tuple[float, bool]):
    """Log-likelihood of a continuation and whether it is the greedy one, with its prompt's answer.

    Attributes:
        answer: carries the trace; shared by all continuations of the prompt.
    """

    answer: Answer

    def __new__(cls, values: tuple[float, bool], answer: Answer) -> Likelihood:
        made = super().__new__(cls, values)
        made.answer = answer
        return made

    @property
    def trace(self) -> Trace:
        """What is known of the sample."""
        assert self.answer.trace is not None
        return self.answer.trace

    @classmethod
    def of(cls, answer: Answer, number: int) -> Likelihood:
        """That of one of a prompt's continuations."""
        trace = answer.trace
        assert trace is not None
        assert trace.log_likelihoods is not None
        assert trace.greedy is not None
        return cls((trace.log_likelihoods[number], trace.greedy[number]), answer)

    def __getnewargs__(self) -> tuple[tuple[float, bool], Answer]:
        return (self[0], self[1]), self.answer


def writable_folder(name: str) -> Path:
    """The folder of this name, made if need be and tried out.

    Raises:
        UsageError: nothing can be written there.
    """
    folder = Path(name).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(
            f"the trace cannot be written to {folder} ({error.strerror or error}); give trace or "
            f"--output_path a folder that is writable."
        ) from error
    return folder


def write_traces(path: Path, traces: Iterable[Trace]) -> None:
    """Write one JSON line per trace; readers see the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as file:
        file.writelines(trace.to_json() + "\n" for trace in traces)
    os.replace(partial, path)


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
