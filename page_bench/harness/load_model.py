"""A model named by arguments on the command line, for commands that ask lm-eval for no task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from page_bench.harness import hooks, plugin
from page_bench.inputs.errors import UsageError

if TYPE_CHECKING:
    from page_bench.harness.lm import PageLM


def load_lm(model_args: str, device: str | None, command: str) -> PageLM:
    """Load what model arguments name.

    Args:
        model_args: as for lm-eval.
        device: such as `cuda`; None means the GPU, or the CPU where there is none.
        command: whose argument it is, for messages.

    Raises:
        UsageError: arguments that cannot be honoured, or a model that cannot be run.
    """
    plugin.install()
    from lm_eval.utils import simple_parse_args_string

    from page_bench.harness.lm import PageLM

    given = dict(simple_parse_args_string(model_args))
    for name in ("store", "trace"):
        if given.get(name) is not None:
            raise UsageError(f"{name}={given[name]}: {command} keeps no answers; leave it out.")
    if device is not None and given.get("device") is not None:
        raise UsageError("--device and --model_args both give a device; give it once.")
    arguments = hooks.complete_call({"model_args": given, "tasks": ["-"]})["model_args"]
    return PageLM(**arguments, **({} if device is None else {"device": device}))
