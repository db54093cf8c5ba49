"""From lm-eval's requests to the engine's prompts."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs

from page_bench.config import PageConfig
from page_bench.engine.prompt import Prompt
from page_bench.harness.context_boundary import context_tokens, token_offsets
from page_bench.inputs.errors import UsageError
from page_bench.inputs.json_text import HALF
from page_bench.model.continuations import ContinuationRequest
from page_bench.model.decode import AnswerRequest
from page_bench.tasks import longbench_scores, scorers
from page_bench.tasks.evidence import evidence_of
from page_bench.tasks.turns import FOLDED


class PromptMaker:
    """Makes prompts of requests, with token ids equal to those of lm-eval's `hf` model.

    Args:
        encode: text → token ids.
        encode_pair: context and continuation → token ids of each.
        text_of: token ids and stop strings → the answer's text, as the task gets it.
        tokenizer: for the boundary of a prompt's context.
        eos: the end-of-sequence string.
        max_length: positions for prompt and answer.
        max_gen_toks: answer tokens where a task does not say.
    """

    def __init__(
        self,
        encode: Callable[[str], list[int]],
        encode_pair: Callable[[str, str], tuple[list[int], list[int]]],
        text_of: Callable[[Sequence[int], Sequence[str]], str],
        tokenizer: Any,
        eos: str,
        max_length: int,
        max_gen_toks: int,
    ) -> None:
        self._encode, self._text_of, self._tokenizer = encode, text_of, tokenizer
        self._encode_pair = encode_pair
        self._eos, self._max_length, self._max_gen_toks = eos, max_length, max_gen_toks

    def prompts(self, requests: Sequence[Instance], config: PageConfig) -> list[Prompt]:
        """One prompt per request; a request that is there several times is answered anew.

        Raises:
            UsageError: a request that cannot be answered.
        """
        seen: Counter[int] = Counter()
        prompts = []
        for request in requests:
            prompts.append(self._prompt(request, seen[id(request)], config))
            seen[id(request)] += 1
        return prompts

    def contexts(
        self, requests: Sequence[Instance], config: PageConfig, softmax_dtype: torch.dtype
    ) -> tuple[list[Prompt], list[tuple[int, int]]]:
        """One prompt per document and context, with all continuations that are asked for.

        Args:
            requests: of `loglikelihood`.
            config: the arm.
            softmax_dtype: see `ContinuationRequest`.

        Returns:
            Prompts, and by request which of them it is and which of its continuations.

        Raises:
            UsageError: a request that cannot be answered.
        """
        groups: dict[tuple[Any, ...], _Group] = {}
        contexts: Counter[tuple[Any, ...]] = Counter()
        places = []
        for request in requests:
            where = _where(request)
            text, continuation = request.args
            _check_text(text + continuation, where)
            ids, given = self._encode_pair(text, continuation)
            if not given:
                raise UsageError(f"a continuation of {where} is empty; leave the document out.")
            if not ids:
                raise UsageError(f"the context of {where} has no tokens; leave the document out.")
            # The last token of a continuation is predicted, not read.
            kept = self._kept(ids, len(given) - 1, config, where)
            key = (request.task_name, request.doc_id, text, tuple(kept))
            if key not in groups:
                groups[key] = _Group(len(groups), request, ids, kept, [], contexts[key[:2]])
                contexts[key[:2]] += 1
            group = groups[key]
            if given not in group.continuations:
                group.continuations.append(given)
            places.append((group.number, group.continuations.index(given)))
        prompts = []
        for group in groups.values():
            how = ContinuationRequest(tuple(map(tuple, group.continuations)), softmax_dtype)
            prompts.append(self._of(group.request, group.place, config, group.ids, group.kept, how))
        return prompts, places

    def _prompt(self, request: Instance, repeat: int, config: PageConfig) -> Prompt:
        text = request.args[0]
        where = _where(request)
        _check_text(text, where)
        how = self._answer_request(request, where)
        ids = self._encode(text) if text else []
        if not ids:
            raise UsageError(f"the prompt of {where} is empty; leave the document out.")
        kept = self._kept(ids, how.max_new_tokens, config, where)
        return self._of(request, repeat, config, ids, kept, how)

    def _kept(self, ids: Sequence[int], n_answer: int, config: PageConfig, where: str) -> list[int]:
        """Positions of a prompt that leave room for so many tokens after it."""
        limit = self._max_length - n_answer
        kept = _fit(range(len(ids)), limit, config.truncation)
        if kept is None:
            if limit < 1:
                raise UsageError(
                    f"the answer of {where} takes {n_answer} tokens, but there are only "
                    f"{self._max_length} positions; leave the document out."
                )
            raise UsageError(
                f"the prompt of {where} has {len(ids)} tokens, but {self._max_length} positions "
                f"less {n_answer} answer tokens leave {limit}; give truncation=left or "
                f"truncation=middle, or leave the document out."
            )
        return kept

    def _of(
        self,
        request: Instance,
        repeat: int,
        config: PageConfig,
        ids: list[int],
        kept: list[int],
        how: AnswerRequest | ContinuationRequest,
    ) -> Prompt:
        """The prompt of a request whose tokens are known."""
        text, where = request.args[0], _where(request)
        boundary = None
        if config.compress == "context":
            boundary = context_tokens(self._tokenizer, text, ids, request.doc, where)
        if boundary is not None:
            boundary = sum(i < boundary for i in kept)
            if not 0 < boundary < len(kept):
                raise UsageError(
                    f"truncation leaves nothing of the context or of the question of {where}; "
                    f"give a larger max_length, or use compress=prompt."
                )
        evidence, no_evidence = self._evidence(request, text, ids, kept)
        doc_ids = config.doc_ids.get(request.task_name or "")
        facts = request.doc if isinstance(request.doc, Mapping) else {}
        return Prompt(
            task=request.task_name or "",
            doc_id=request.doc_id if doc_ids is None else doc_ids[request.doc_id],
            repeat=repeat,
            protocol=facts.get("protocol"),
            system_in_user_turn=facts.get(FOLDED),
            text=text,
            input_ids=tuple(ids[i] for i in kept),
            context_tokens=boundary,
            truncated_tokens=len(ids) - len(kept),
            request=how,
            score=self._judge(request.doc, how, "score"),
            correct=self._judge(request.doc, how, "correct"),
            evidence=evidence,
            no_evidence=no_evidence,
        )

    def _evidence(
        self, request: Instance, text: str, ids: Sequence[int], kept: Sequence[int]
    ) -> tuple[tuple[int, ...], str | None]:
        """Places of the evidence's tokens among those kept; if there are none, why."""
        spans, reason = evidence_of(request.doc, text)
        if not spans:
            return (), reason
        offsets = token_offsets(self._tokenizer, text, ids)
        if offsets is None:
            return (), "the tokenizer does not say where its tokens stand in the text"
        begins, ends = zip(*spans, strict=True)
        inside = set()
        for i, (start, stop) in enumerate(offsets):
            next_span = bisect_right(ends, start)
            if next_span < len(begins) and begins[next_span] < stop:
                inside.add(i)
        places = tuple(place for place, i in enumerate(kept) if i in inside)
        return places, None if places else "truncation removed the evidence"

    def _answer_request(self, request: Instance, where: str) -> AnswerRequest:
        try:
            rest: dict[str, Any] = dict(normalize_gen_kwargs(request.args[1], self._max_gen_toks))
            stop = handle_stop_sequences(rest.pop("until", None), eos=self._eos)
        except (TypeError, ValueError) as error:
            raise UsageError(f"generation arguments of {where} do not fit: {error}") from error
        max_new_tokens = rest.pop("max_gen_toks")
        if not rest.get("do_sample"):
            # Greedy decoding reads no temperature, and transformers warns of one that is set.
            rest.pop("temperature", None)
        if "max_length" in rest or max_new_tokens < 1:
            raise UsageError(
                f"the answer to {where} needs a length: give max_gen_toks as a whole number from 1 "
                f"on (not {rest.get('max_length', max_new_tokens)}, and no max_length)."
            )
        return AnswerRequest(max_new_tokens, tuple(stop), rest)

    def _judge(
        self, doc: object, how: AnswerRequest | ContinuationRequest, metric: str
    ) -> Callable[[Sequence[int]], float] | None:
        """How an answer would be scored, where the document says which references it needs."""
        if isinstance(how, ContinuationRequest) or not isinstance(doc, Mapping):
            return None
        if not {"answers", "match"} <= {*doc}:
            return None
        # What the tasks themselves name as `process_results`.
        scored = longbench_scores.score if "subset" in doc else scorers.reference_match
        known, stop = dict(doc), how.stop

        def judge(ids: Sequence[int]) -> float:
            return scored(known, [self._text_of(ids, stop)])[metric]

        return judge


def without_padding(requests: Sequence[Instance]) -> tuple[list[Instance], list[int]]:
    """Requests without the copies by which lm-eval evens out its processes.

    Returns:
        The requests that count, and for each of `requests` which of them answers it.
    """
    counted: list[Instance] = []
    places, seen = [], defaultdict[int, list[int]](list)
    for request in requests:
        answered_by = seen[id(request)]
        if len(answered_by) < request.repeats:
            answered_by.append(len(counted))
            counted.append(request)
        places.append(answered_by[-1])
    return counted, places


@dataclass(frozen=True)
class _Group:
    """Requests that share a document and a context, the `place`-th of this document."""

    number: int
    request: Instance
    ids: list[int]
    kept: list[int]
    continuations: list[list[int]]
    place: int


def _where(request: Instance) -> str:
    return f"{request.task_name} document {request.doc_id}"


def _check_text(text: str, where: str) -> None:
    if HALF.search(text):
        raise UsageError(
            f"the prompt of {where} holds half of a surrogate pair, which is no text; mend the "
            f"document, or leave it out."
        )


def _fit(positions: range, limit: int, truncation: str | None) -> list[int] | None:
    """Positions that are left when cut to `limit`; None where they may not be cut."""
    if len(positions) <= limit:
        return list(positions)
    if truncation is None or limit < 1:
        return None
    head = 0 if truncation == "left" else limit // 2
    return [*positions[:head], *positions[len(positions) - (limit - head) :]]
