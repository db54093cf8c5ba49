"""The task class of LongBench: what its YAML files cannot say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from page_bench.tasks.prompt_task import PromptTask


class LongBenchTask(PromptTask):
    """A LongBench subset.

    Its documents decide on the chat template, which LongBench leaves out on some subsets even when
    one is asked for.
    """

    def fewshot_context(
        self,
        doc: dict[str, Any],
        num_fewshot: int,
        system_instruction: str | None = None,
        apply_chat_template: bool = False,
        chat_template: Callable[..., str] | None = None,
        **kwargs: Any,
    ) -> Any:
        """The prompt of one document; see the base class for the arguments."""
        return super().fewshot_context(
            doc,
            num_fewshot,
            system_instruction=system_instruction,
            apply_chat_template=apply_chat_template and doc["chat"],
            chat_template=chat_template,
            **kwargs,
        )
