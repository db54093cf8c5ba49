"""One sample to answer, as the engine sees it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from page_bench.model.continuations import ContinuationRequest
from page_bench.model.decode import AnswerRequest


def text_sha256(text: str) -> str:
    """The hash by which a trace and a store know a prompt."""
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class PromptFacts:
    """What a calibration compares of a prompt.

    Attributes:
        tokens: how many it has, after truncation.
        protocol, sha256: as in `Prompt`.
    """

    tokens: int
    protocol: str | None
    sha256: str


@dataclass(frozen=True)
class Prompt:
    """One sample to answer.

    Attributes:
        task, doc_id: the sample.
        repeat: 0, or which of several answers to the same sample, or of several contexts of one
            multiple-choice document, this is. The pilot takes the first alone.
        protocol: how the task words its prompts; None where it does not say.
        text: the prompt's text.
        input_ids: its tokens, after truncation.
        context_tokens: how many of them are the context, with all before it; None where the whole
            prompt is compressed.
        truncated_tokens: tokens that truncation removed.
        request: how to answer, or whose likelihood to give.
        score, correct: the task's two scores of an answer's token ids; None where the document does
            not say how.
        evidence: places in `input_ids` of the tokens that the answer needs; empty where they are
            not known, and `no_evidence` says why.
        system_in_user_turn: whether the system message had to move there, since the chat template
            shows none; None where the task does not say.
    """

    task: str
    doc_id: int
    repeat: int
    protocol: str | None
    text: str
    input_ids: tuple[int, ...]
    context_tokens: int | None
    truncated_tokens: int
    request: AnswerRequest | ContinuationRequest
    score: Callable[[Sequence[int]], float] | None = field(default=None, compare=False, repr=False)
    correct: Callable[[Sequence[int]], float] | None = field(
        default=None, compare=False, repr=False
    )
    system_in_user_turn: bool | None = None
    evidence: tuple[int, ...] = ()
    no_evidence: str | None = None

    @property
    def evidence_sha256(self) -> str | None:
        """Tells stored shares of other evidence of the same prompt apart; None without any."""
        return text_sha256(repr(self.evidence)) if self.evidence else None

    @property
    def sha256(self) -> str:
        """Hash of the prompt's text."""
        return text_sha256(self.text)

    @property
    def facts(self) -> PromptFacts:
        """What a calibration compares of it."""
        return PromptFacts(len(self.input_ids), self.protocol, self.sha256)

    @property
    def seed(self) -> int:
        """A number below 2**56 that depends on the prompt's text alone."""
        return int(self.sha256[:14], 16)

    @property
    def compressed_tokens(self) -> int:
        """Tokens that are observed and evicted: the context, or the whole prompt."""
        return len(self.input_ids) if self.context_tokens is None else self.context_tokens
