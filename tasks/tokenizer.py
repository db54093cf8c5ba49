"""The tokenizer of the model that a run is about, for tasks that are sized to it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

from page_bench import default_model
from page_bench.errors import UsageError

# What of the model arguments also decides how its tokenizer is loaded.
_LOADER_ARGUMENTS = ("revision", "subfolder", "gguf_file", "trust_remote_code")

_log = logging.getLogger(__name__)


def tokenizer_of(metadata: Mapping[str, Any]) -> Any:
    """The tokenizer that a task's metadata names.

    Args:
        metadata: `tokenizer`, `pretrained` or `model` (left out: the default model), the first
            that is there, a name or a tokenizer of transformers; and arguments that load it.

    Raises:
        UsageError: it cannot be loaded.
    """
    names = (metadata.get(key) for key in ("tokenizer", "pretrained", "model"))
    name = next((n for n in names if n), None)
    if name is None:
        name = default_model.default_pretrained()
        _warn_of_default(name)
    if not isinstance(name, str):
        if not callable(name):
            raise UsageError(f"tokenizer={name!r} is no tokenizer; give the name of one.")
        return name
    options = {k: metadata[k] for k in _LOADER_ARGUMENTS if metadata.get(k) is not None}
    for key, value in options.items():
        wanted = bool if key == "trust_remote_code" else str
        if not isinstance(value, wanted):
            what = "true or false" if wanted is bool else "a text"
            raise UsageError(f"{key}={value!r:.60} loads no tokenizer; give {what}.")
    # Without a word of it, transformers asks at the keyboard whether to run the model's own code.
    options.setdefault("trust_remote_code", False)
    return load(name, tuple(sorted(options.items())))


@cache  # once for all tasks of a run
def _warn_of_default(name: str) -> None:
    _log.warning(
        "Prompts are sized with the tokenizer of %s, because no model is named to the tasks, as "
        "when simple_evaluate is given a model object or a task_manager: name another by the "
        "metadata key tokenizer.",
        name,
    )


@lru_cache(maxsize=1)  # one for all tasks of a run
def load(name: str, options: tuple[tuple[str, Any], ...]) -> Any:
    """A tokenizer by name, loaded once."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(default_model.resolve(name), **dict(options))
    except (OSError, ValueError) as error:  # ValueError where a folder holds other things
        reason = str(error).strip().partition("\n")[0]
        raise UsageError(
            f"the tokenizer of {name} could not be loaded ({reason}); tasks sized to a model need "
            f"it: name one with pretrained=NAME, or tokenizer=NAME in --metadata."
        ) from error
