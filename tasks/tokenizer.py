"""The tokenizer of the run's model, for tasks that are sized to it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from typing import Any

from page_bench.inputs.errors import UsageError
from page_bench.model import default_model
from page_bench.model.given_object import held_by, is_model
from page_bench.tasks.metadata import first_line

# Model arguments that also decide how the tokenizer is loaded.
_LOADER_ARGUMENTS = ("revision", "subfolder", "gguf_file", "trust_remote_code")

_NAMING = ("tokenizer", "pretrained", "model")

_log = logging.getLogger(__name__)

_of_the_run: ContextVar[Callable[[], Mapping[str, Any]]] = ContextVar("_of_the_run", default=dict)


@contextmanager
def sized_for(model: Callable[[], Mapping[str, Any]]) -> Iterator[None]:
    """Let tasks that are built meanwhile fall back on a model where their metadata names none.

    `model` gives what `tokenizer_of` reads, and is called only where a task needs it.
    """
    token = _of_the_run.set(model)
    try:
        yield
    finally:
        _of_the_run.reset(token)


def tokenizer_of(metadata: Mapping[str, Any]) -> Any:
    """The tokenizer that a task's metadata names.

    Args:
        metadata: `tokenizer`, `pretrained` or `model`, the first that is there: a name, or a
            tokenizer or model of transformers; and arguments that load it. Without any of them,
            what `sized_for` was given, else the default model.

    Raises:
        UsageError: it cannot be loaded, or a model object does not say what its tokenizer is.
    """
    name = _named(metadata)
    if name is None:
        metadata = _of_the_run.get()()
        name = _named(metadata)
    if name is None:
        name = default_model.default_pretrained()
        _warn_of_default(name)
    if is_model(name):
        name = tokenizer_name(name)
    if not isinstance(name, str):
        if not callable(name):
            raise UsageError(f"tokenizer={name!r:.60} is no tokenizer; give the name of one.")
        return name
    options = {k: metadata[k] for k in _LOADER_ARGUMENTS if metadata.get(k) is not None}
    for key, value in options.items():
        wanted = bool if key == "trust_remote_code" else str
        if not isinstance(value, wanted):
            what = "true or false" if wanted is bool else "a text"
            raise UsageError(f"{key}={value!r:.60} loads no tokenizer; give {what}.")
    # Left out, transformers asks at the keyboard whether to run the model's own code.
    options.setdefault("trust_remote_code", False)
    return load(name, tuple(sorted(options.items())))


def tokenizer_name(model: Any) -> str:
    """The name of a model object's tokenizer; UsageError: the model does not say its origin."""
    name = getattr(model, "name_or_path", None)
    if not name:
        raise UsageError(
            f"pretrained is a {type(model).__name__} object that does not say where it came from, "
            f"so there is no tokenizer for it; give one as tokenizer=, an object or a name."
        )
    return str(name)


def _named(metadata: Mapping[str, Any]) -> Any:
    """The first of `_NAMING` that is there; None where there is none."""
    return held_by(next((metadata[key] for key in _NAMING if metadata.get(key)), None))


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
        raise UsageError(
            f"the tokenizer of {name} could not be loaded ({first_line(error)}); tasks sized to a "
            f"model need it: name one with pretrained=NAME, or tokenizer=NAME in --metadata."
        ) from error
