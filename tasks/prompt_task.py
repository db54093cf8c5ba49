"""The lm-eval task of documents that bring their own prompt, worded by a protocol."""

from __future__ import annotations

from typing import Any

from lm_eval.api.task import ConfigurableTask

from page_bench.errors import UsageError
from page_bench.tasks import protocols


class PromptTask(ConfigurableTask):
    """A task whose prompt is exact without a chat template, too.

    With a chat template lm-eval makes messages of the YAML's `description`, `doc_to_text` and
    `gen_prefix`. Without one it would join them itself: the system message to the user turn with
    nothing between. A YAML names this class as `class`; its documents hold `protocol`, `system`,
    `prompt` and `answer_prefix` (see `protocols`).
    """

    def __init__(self, config: dict[str, Any]) -> None:
        # lm-eval leaves its own key `class` in the configuration, but cannot read it there.
        super().__init__(config={k: v for k, v in config.items() if k != "class"})
        # Answer length and stop strings belong to the protocol, which the documents know.
        first = self.task_docs[0]
        fixed = {"max_gen_toks": first["max_new_tokens"]}
        if "until" in first:
            fixed["until"] = first["until"]
        self.config.generation_kwargs = {**(self.config.generation_kwargs or {}), **fixed}

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
        """The prompt of one document; see the base class for the arguments."""
        if num_fewshot:
            raise UsageError(f"{self.config.task} has no examples to show; leave num_fewshot out.")
        if apply_chat_template:
            return super().fewshot_context(
                doc,
                num_fewshot,
                system_instruction=system_instruction,
                apply_chat_template=True,
                **kwargs,
            )
        text = protocols.plain_text(doc)
        return f"{system_instruction}\n\n{text}" if system_instruction else text
