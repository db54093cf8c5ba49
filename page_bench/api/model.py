"""A loaded model that answers one prompt under any arms, from one prefill."""

from __future__ import annotations

import itertools
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance

from page_bench.api.answer import Answer, kept_entries
from page_bench.config import PageConfig, is_ours, unknown_argument
from page_bench.engine.grid_work import Work
from page_bench.engine.keys import StoredModel, answer_key
from page_bench.engine.prompt import Prompt
from page_bench.harness import plugin
from page_bench.harness.lm import PageLM
from page_bench.inputs.errors import UsageError
from page_bench.model.keep_plan import KeepPlan
from page_bench.records import trace as records
from page_bench.records.trace import Seen, Trace

Messages = Sequence[Mapping[str, Any]]

MAX_NEW_TOKENS = 64
_NOT_HERE = ("store", "trace", "doc_ids")
_PLACE = ("prompt", 0, 1)
"""Task, document and repeats, as lm-eval writes them on a request."""
_DECIDED = ("gate", "gate_args", "tau_variant", "tau", "z")


class _AskedLM(PageLM):
    """A model that is asked one prompt at a time, so rates over a run are not worth a warning."""

    def _say(self, summary: object) -> None:
        pass


def load(model: Any = None, tokenizer: Any = None, **arguments: Any) -> Model:
    """A model to ask.

    Args:
        model: a name, a folder, or a model of transformers that is loaded already; None means the
            default model, SmolLM2-135M-Instruct.
        tokenizer: its tokenizer, if `model` does not say.
        arguments: any model argument of `page_hf`: those of lm-eval's `hf` model (`dtype`,
            `device`, `attn_implementation` …) and defaults for the arms (`evictor`, `budget` …).

    Raises:
        UsageError: an argument or a model that cannot be run.
    """
    plugin.install()
    _refuse(arguments)
    given = {} if tokenizer is None else {"tokenizer": tokenizer}
    return Model(
        _AskedLM(model, **given, **arguments), {k: v for k, v in arguments.items() if is_ours(k)}
    )


class Model:
    """A model that answers prompts under arms: evictor, budget, gate, τ.

    Every argument of an arm is a keyword, named and checked as in `--model_args`; names with a dot
    go in by `**{"evictor.variant": "published"}`. `prompt` is a text, or chat messages for the
    model's template. With `context=` and `question=` in its place, the context alone is compressed,
    and the question is read through what is left of it.

    Args:
        lm: the loaded model.
        defaults: of the arms' arguments.
    """

    def __init__(self, lm: PageLM, defaults: Mapping[str, Any] | None = None) -> None:
        self._lm, self._defaults = lm, dict(defaults or {})
        facts = lm.model_facts()
        # Answers are kept for one call, so that nothing need tell this model from others.
        lm.take_for_stored(
            StoredModel(
                facts.name,
                facts.fingerprint,
                weights="",
                dtype=facts.dtype,
                attn_implementation=facts.attn_implementation,
                tokenizer="",
                generation={},
                setting={},
            )
        )

    @property
    def name(self) -> str:
        """As traces name it."""
        return self._lm.model_name

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self._lm.tokenizer

    def answer(
        self,
        prompt: str | Messages | None = None,
        *,
        context: str | None = None,
        question: str | None = None,
        max_new_tokens: int = MAX_NEW_TOKENS,
        stop: Sequence[str] = (),
        **arm: Any,
    ) -> Answer:
        """Answer one prompt under one arm.

        Args:
            prompt, context, question: see the class.
            max_new_tokens: the answer's length at most.
            stop: texts that end the answer.
            arm: arguments of the arm.

        Raises:
            UsageError: arguments that cannot be honoured, or a prompt that cannot be answered.
        """
        for name, value in arm.items():
            if isinstance(value, list | tuple):
                raise UsageError(
                    f"{name}={value} names several arms; give one value, or use answers()."
                )
        (one,) = self.answers(
            prompt,
            context=context,
            question=question,
            max_new_tokens=max_new_tokens,
            stop=stop,
            **arm,
        )
        return one

    def answers(
        self,
        prompt: str | Messages | None = None,
        *,
        context: str | None = None,
        question: str | None = None,
        max_new_tokens: int = MAX_NEW_TOKENS,
        stop: Sequence[str] = (),
        **arms: Any,
    ) -> list[Answer]:
        """Answer one prompt under every combination of arguments that are lists.

        One prefill serves all arms that observe the prompt alike (`window`, `top_k`, `compress`),
        and arms that keep the same entries are decoded once. Other arguments are those of `answer`.

        Returns:
            In the order of the lists, the last varying fastest.
        """
        lm, request, compress = self._asked(prompt, context, question, max_new_tokens, stop)
        pages = [self._page(arm, compress=compress) for arm in _combinations(arms)]
        return self._answers(lm, request, pages)

    def answer_again(self, trace: Trace, text: str, doc: Mapping[str, Any]) -> Answer:
        """The answer of a finished run's sample, computed anew; its gate decides as it did.

        Args:
            trace: the sample's record; of a generated answer that says how it was asked for.
            text: its prompt.
            doc: its document, for where the context ends.
        """
        how = dict(trace.asked or {})
        how |= {"until": how.pop("stop", []), "max_gen_toks": how.pop("max_new_tokens")}
        lm = copy(self._lm)
        lm.take_rendering(chat=bool(trace.chat_template))
        request = Instance("generate_until", dict(doc), (text, how), 0, metadata=_PLACE)
        page = self._page(_arm_of(trace), compress=trace.compress)
        (answer,) = self._answers(lm, request, [page])
        decided = {name: getattr(trace, name) for name in ("task", "doc_id", *_DECIDED)}
        return replace(answer, trace=replace(answer.trace, **decided))

    def _answers(self, lm: PageLM, request: Instance, pages: Sequence[PageConfig]) -> list[Answer]:
        """Answers under some arms, from one prefill for those that observe the prompt alike."""
        answered: dict[int, Answer] = {}
        with _stored(pages) as stored:
            for group in _sharing_a_prefill(stored):
                keeps = _fill(lm, request, [stored[i] for i in group])
                for i in group:
                    others = partial(self._others, lm, request, pages[i])
                    answered[i] = _answer(lm, request, stored[i], keeps, others)
        return [answered[i] for i in range(len(pages))]

    def _others(self, lm: PageLM, request: Instance, page: PageConfig) -> dict[str, Answer]:
        """The full cache's and the plain answer beside one under an arm."""
        pages = [
            replace(page, gate=gate, gate_args={}, calibration=None, tau="fixed")
            for gate in ("closed", "open")
        ]
        full, plain = self._answers(lm, request, pages)
        return {"full cache": full, "plain": plain}

    def observe(
        self,
        prompt: str | Messages | None = None,
        *,
        context: str | None = None,
        question: str | None = None,
        **arm: Any,
    ) -> Seen:
        """D, the agreement of every layer and all signals of a prompt, from one prefill.

        Args are those of `answer`; nothing is evicted or answered.
        """
        lm, request, compress = self._asked(prompt, context, question, 1, ())
        page = self._page({"signals": "all", "gate": "closed", **arm}, compress=compress)
        lm = lm.with_page(page)
        (one,) = lm.prompts([request])
        with lm.engine() as engine:
            (seen,) = engine.compute(Work(one, [page], [])).seen
        return seen

    def _page(self, arm: Mapping[str, Any], **own: Any) -> PageConfig:
        _refuse(arm)
        for name in arm:
            if not is_ours(name):
                raise unknown_argument(name, ())
        known = {**self._defaults, **arm}
        if own.get("compress") is None:
            own.pop("compress", None)
        elif known.get("compress", own["compress"]) != own["compress"]:
            raise UsageError("context= and question= mean compress=context; leave compress out.")
        page = PageConfig.from_arguments({**known, **own})
        if page.needs_pilot:
            raise UsageError(
                f"tau={page.tau} is measured on many prompts, and this is one; give tau=NUMBER, "
                f"tau=fixed or calibration=FILE (page-bench calibrate), or gate=open or closed."
            )
        return page

    def _asked(
        self,
        prompt: str | Messages | None,
        context: str | None,
        question: str | None,
        max_new_tokens: int,
        stop: Sequence[str],
    ) -> tuple[PageLM, Instance, str | None]:
        """Whom lm-eval would ask, what, and what the request says of `compress`."""
        lm = copy(self._lm)
        doc: dict[str, Any] = {}
        if prompt is None:
            if not context or not question:
                raise UsageError("nothing is asked; give a prompt, or both context and question.")
            text, doc = f"{context}\n\n{question}", {"context": context}
        elif context is not None or question is not None:
            raise UsageError("prompt is given beside context or question; give one or the other.")
        elif isinstance(prompt, str):
            text = prompt
        else:
            text = lm.apply_chat_template([dict(message) for message in prompt])
        how = {"until": list(stop), "max_gen_toks": max_new_tokens, "do_sample": False}
        request = Instance("generate_until", doc, (text, how), 0, metadata=_PLACE)
        return lm, request, "context" if doc else None


@contextmanager
def _stored(pages: Sequence[PageConfig]) -> Iterator[list[PageConfig]]:
    """Arms with a store that lasts as long as they are answered."""
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "answers.sqlite")
        yield [replace(page, store=store) for page in pages]


def _fill(lm: PageLM, request: Instance, pages: Sequence[PageConfig]) -> dict[str, KeepPlan]:
    """Prefill once and answer under all evictions into the store; what these keep, by key."""
    keeps: dict[str, KeepPlan] = {}
    lm = lm.with_page(pages[0])

    def note(prompt: Prompt, page: PageConfig, plan: KeepPlan) -> None:
        keeps[answer_key(lm.stored_model(), prompt, page).digest] = plan

    lm.on_plan = note
    lm.fill([request], pages, disable_tqdm=True)
    return keeps


def _answer(
    lm: PageLM,
    request: Instance,
    page: PageConfig,
    keeps: Mapping[str, KeepPlan],
    others: Callable[[], Mapping[str, Answer]],
) -> Answer:
    """The answer under one arm, from the store."""
    lm = lm.with_page(page)
    (prompt,) = lm.prompts([request])
    (said,) = lm.generate_until([request], disable_tqdm=True)
    assert isinstance(said, records.Answer)
    trace = said.trace
    assert trace is not None
    plan = None
    if trace.gate_open:
        plan = keeps.get(answer_key(lm.stored_model(), prompt, page).digest)
    shape = len(trace.full_attention_layers), _kv_heads(lm.model.config.get_text_config())
    tokens = [lm.tokenizer.decode([token]) for token in prompt.input_ids]
    return Answer(str(said), tokens, kept_entries(plan, shape, len(tokens)), trace, others)


def _arm_of(trace: Trace) -> dict[str, Any]:
    """The arguments of a sample's arm, with the gate as it decided."""

    def options(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for name, value in values.items():
            if isinstance(value, Mapping):
                yield from options(value, f"{prefix}{name}.")
            elif value is not None:
                yield f"{prefix}{name}", value

    names = ("evictor", "granularity", "score_norm", "budget", "n_sink", "recent", "window")
    return {
        **{name: getattr(trace, name) for name in (*names, "top_k")},
        **dict(options(trace.evictor_args, "evictor.")),
        "gate": "open" if trace.gate_open else "closed",
    }


def _kv_heads(config: Any) -> int:
    heads = getattr(config, "num_key_value_heads", None)
    return int(config.num_attention_heads if heads is None else heads)


def _refuse(arguments: Iterable[str]) -> None:
    for name in _NOT_HERE:
        if name in arguments:
            raise UsageError(
                f"{name} is for runs of many prompts; leave it out, or use lm_eval --model page_hf."
            )


def _combinations(arms: Mapping[str, Any]) -> list[dict[str, Any]]:
    lists = [list(v) if isinstance(v, list | tuple) else [v] for v in arms.values()]
    return [dict(zip(arms, values, strict=True)) for values in itertools.product(*lists)]


def _sharing_a_prefill(pages: Sequence[PageConfig]) -> list[list[int]]:
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for i, page in enumerate(pages):
        groups[page.window, page.top_k, page.compress].append(i)
    return list(groups.values())
