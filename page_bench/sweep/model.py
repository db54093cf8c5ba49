"""The model of a sweep, loaded once for all its arms."""

from __future__ import annotations

from typing import Any

from page_bench.config import PageConfig
from page_bench.harness import plugin
from page_bench.harness.lm import PageLM

_CONSTRUCTOR = ("batch_size", "max_batch_size", "device")
MODEL_ARGUMENTS = ("model_args", *_CONSTRUCTOR)
"""Arguments of `simple_evaluate` that the model is made from."""


def load_model(arguments: dict[str, Any], page: PageConfig) -> PageLM:
    """The model as lm-eval creates it, without an arm's own trace.

    Args:
        arguments: those of `simple_evaluate`; `MODEL_ARGUMENTS` are read.
        page: the arm whose store it has.
    """
    plugin.install()
    model_args = {k: v for k, v in arguments["model_args"].items() if k != "trace"}
    lm: PageLM = PageLM.create_from_arg_obj(
        {**model_args, "store": page.store},
        {name: arguments[name] for name in _CONSTRUCTOR},
    )
    return lm
