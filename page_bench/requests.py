"""From lm-eval's requests to the engine's prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs

from page_bench.boundary import context_tokens
from page_bench.config import PageConfig
from page_bench.decode import AnswerRequest
from page_bench.errors import UsageError
from page_bench.prompt import Prompt
from page_bench.tasks.scorers import is_correct, printable, recall


class PromptMaker:
    """Makes prompts of requests, with token ids equal to those of lm-eval's `hf` model.

    Args:
        encode: text → token ids.
        text_of: token ids and stop strings → the answer's text, as the task gets it.
        tokenizer: for the boundary of a prompt's context.
        eos: the end-of-sequence string.
        max_length: positions for prompt and answer.
        max_gen_toks: answer tokens where a task does not say.
    """

    def __init__(
        self,
        encode: Callable[[str], list[int]],
        text_of: Callable[[Sequence[int], Sequence[str]], str],
        tokenizer: Any,
        eos: str,
        max_length: int,
        max_gen_toks: int,
    ) -> None:
        self._encode, self._text_of, self._tokenizer = encode, text_of, tokenizer
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

    def _prompt(self, request: Instance, repeat: int, config: PageConfig) -> Prompt:
        text = request.args[0]
        where = f"{request.task_name} document {request.doc_id}"
        how = self._answer_request(request, where)
        ids = self._encode(text) if text else []
        if not ids:
            raise UsageError(f"the prompt of {where} is empty; leave the document out.")
        boundary = None
        if config.compress == "context":
            boundary = context_tokens(self._tokenizer, text, ids, request.doc, where)
        limit = self._max_length - how.max_new_tokens
        kept = _fit(range(len(ids)), limit, config.truncation)
        if kept is None:
            raise UsageError(
                f"the prompt of {where} has {len(ids)} tokens, but {self._max_length} positions "
                f"less {how.max_new_tokens} answer tokens leave {limit}; give truncation=left or "
                f"truncation=middle, or leave the document out."
            )
        if boundary is not None:
            boundary = sum(i < boundary for i in kept)
            if not 0 < boundary < len(kept):
                raise UsageError(
                    f"truncation leaves nothing of the context or of the question of {where}; "
                    f"give a larger max_length, or use compress=prompt."
                )
        doc_ids = config.doc_ids.get(request.task_name or "")
        return Prompt(
            task=request.task_name or "",
            doc_id=request.doc_id if doc_ids is None else doc_ids[request.doc_id],
            repeat=repeat,
            protocol=request.doc.get("protocol") if isinstance(request.doc, Mapping) else None,
            text=text,
            input_ids=tuple(ids[i] for i in kept),
            context_tokens=boundary,
            truncated_tokens=len(ids) - len(kept),
            request=how,
            score=self._score(request.doc, how.stop),
        )

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

    def _score(self, doc: object, stop: Sequence[str]) -> Callable[[Sequence[int]], float] | None:
        """How an answer would be scored, where the document says which references it needs."""
        if not isinstance(doc, Mapping) or not {"answers", "match"} <= {*doc}:
            return None

        def score(ids: Sequence[int]) -> float:
            found = recall(printable(self._text_of(ids, stop)), doc["answers"])
            return found if doc["match"] == "all" else is_correct(found, doc["match"])

        return score


def _fit(positions: range, limit: int, truncation: str | None) -> list[int] | None:
    """Positions that are left when cut to `limit`; None where they may not be cut."""
    if len(positions) <= limit:
        return list(positions)
    if truncation is None or limit < 1:
        return None
    head = 0 if truncation == "left" else limit // 2
    return [*positions[:head], *positions[len(positions) - (limit - head) :]]
