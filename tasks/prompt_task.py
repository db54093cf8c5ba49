"""The classes of our lm-eval tasks: what their YAML files cannot say."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

from page_bench.inputs.errors import UsageError
from page_bench.tasks import protocols
from page_bench.tasks.turns import FOLDED, Messages, rendered

_log = logging.getLogger(__name__)


class WholeTask(ConfigurableTask):
    """A task none of whose words a chat template leaves out, see `turns`.

    A YAML names this class as `class`. Where a system message had to move into the user's turn, a
    document says so under `FOLDED`, and so does the task's metadata in the results.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        # lm-eval leaves its own key `class` in the configuration, but cannot read it there.
        super().__init__(config={k: v for k, v in config.items() if k != "class"})

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Make the documents, as the base class does.

        That one explains `--metadata` each time, by an example with a key that is not ours.
        """
        make = self.config.custom_dataset
        if make is None:
            super().download(dataset_kwargs, **kwargs)
        else:
            given = {**(self.config.metadata or {}), **(self.config.dataset_kwargs or {})}
            self.dataset = make(**given)

    def fewshot_context(
        self,
        doc: dict[str, Any],
        num_fewshot: int,
        system_instruction: str | None = None,
        apply_chat_template: bool = False,
        **kwargs: Any,
    ) -> Any:
        """The prompt of one document; UsageError: the chat template leaves out a part of it."""
        if apply_chat_template and kwargs.get("chat_template") is not None:
            kwargs["chat_template"] = partial(self._rendered, doc, kwargs["chat_template"])
        return super().fewshot_context(
            doc,
            num_fewshot,
            system_instruction=system_instruction,
            apply_chat_template=apply_chat_template,
            **kwargs,
        )

    def _rendered(
        self,
        doc: dict[str, Any],
        chat_template: Callable[..., str],
        messages: Messages,
        add_generation_prompt: bool = True,
    ) -> str:
        given = partial(chat_template, add_generation_prompt=add_generation_prompt)
        text, is_folded = rendered(messages, given, f"a document of {self.config.task}")
        doc[FOLDED] = is_folded
        known = self.config.metadata or {}
        if is_folded and not known.get(FOLDED):
            _log.warning(
                "The chat template shows no system message, so that of %s is put at the beginning "
                "of the user's turn.",
                self.config.task,
            )
        if is_folded or FOLDED in known:
            self.config.metadata = {**known, FOLDED: is_folded}
        return text


class PromptTask(WholeTask):
    """A task whose prompt is exact without a chat template, too.

    With a chat template lm-eval makes messages of the YAML's `description`, `doc_to_text` and
    `gen_prefix`. Without one it would join them itself: the system message to the user turn with
    nothing between. A YAML names this class as `class`; its documents hold `protocol`, `system`,
    `prompt` and `answer_prefix` (see `protocols`), or no `protocol` where lm-eval's own joining is
    exact. Where a document says how long its answer may be (`max_new_tokens`) and where it ends
    (`until`), that goes before the YAML, and --gen_kwargs before both.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        # What lm-eval shows and records; its documents are read only as far as they are asked for.
        fixed = _generation(self.task_docs[0])
        self.config.generation_kwargs = {**(self.config.generation_kwargs or {}), **fixed}
        self._given: frozenset[str] = frozenset()

    def set_config(self, key: str, value: Any, update: bool = False) -> None:
        """As in the base class; what is set of `generation_kwargs` holds for all documents."""
        super().set_config(key, value, update=update)
        if key == "generation_kwargs":
            self._given |= frozenset(value or ())

    def construct_requests(self, doc: dict[str, Any], ctx: Any, **kwargs: Any) -> Any:
        """The request of one document, with its own answer length and stop strings."""
        request: Instance = super().construct_requests(doc, ctx, **kwargs)
        own = {k: v for k, v in _generation(doc).items() if k not in self._given}
        prompt, settings, *rest = request.arguments
        request.arguments = (prompt, {**settings, **own}, *rest)
        shown = self.config.generation_kwargs
        for name in [name for name, value in own.items() if shown.get(name, value) != value]:
            # One value would be untrue of the others.
            del shown[name]
        return request

    def fewshot_docs(self) -> None:
        """No examples: lm-eval would make every document of the task when it is built."""

    def fewshot_context(
        self,
        doc: dict[str, Any],
        num_fewshot: int,
        system_instruction: str | None = None,
        apply_chat_template: bool = False,
        **kwargs: Any,
    ) -> Any:
        """The prompt of one document; see the base class."""
        if num_fewshot:
            raise UsageError(f"{self.config.task} has no examples to show; leave num_fewshot out.")
        if not apply_chat_template:
            system_instruction = f"{system_instruction}\n\n" if system_instruction else None
            if "protocol" in doc:
                return (system_instruction or "") + protocols.plain_text(doc)
        return super().fewshot_context(
            doc, num_fewshot, system_instruction, apply_chat_template, **kwargs
        )


def _generation(doc: dict[str, Any]) -> dict[str, Any]:
    """How a document wants its answer generated, as far as it says."""
    names = {"max_new_tokens": "max_gen_toks", "until": "until"}
    return {theirs: doc[ours] for ours, theirs in names.items() if ours in doc}
