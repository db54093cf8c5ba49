"""What loads a model: which arguments there are, which are refused, and how a model is named."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM
from transformers import PreTrainedModel

from page_bench.config import check_integer, refuse_secrets, unknown_argument
from page_bench.inputs.errors import UsageError
from page_bench.model import attention, quantization, support

HF_ARGUMENTS = tuple(inspect.signature(HFLM.__init__).parameters)
"""Arguments of lm-eval's `hf` model."""
_HF_TYPES = typing.get_type_hints(HFLM.__init__)
LOADER_ARGUMENTS = (
    *inspect.signature(PreTrainedModel.from_pretrained).parameters,
    *("attn_implementation", "code_revision", "device_map", "experts_implementation"),
    *("key_mapping", "max_memory", "offload_buffers", "proxies", "quantization_config", "variant"),
)
"""What transformers' `from_pretrained` takes besides attributes of the configuration."""
_LOADER_PREFIXES = ("load_in_", "bnb_")
_KINDS = {str: "a text", int: "a whole number", bool: "true or false", dict: "an object"}
_WHILE_LOADING = (
    *("dtype", "attn_implementation", "revision", "subfolder", "gguf_file", "peft", "delta"),
    *("autogptq", "gptqmodel"),
)
FAILURES = (ImportError, ValueError, TypeError, KeyError, RuntimeError)
"""What the libraries that load weights raise where these do not fit."""
_NAMING = ("revision", "subfolder", "gguf_file", "peft", "delta")


def configuration_arguments(arguments: Mapping[str, Any]) -> list[str]:
    """Names that only the model's configuration can still make sense of."""
    known = {*HF_ARGUMENTS, *LOADER_ARGUMENTS}
    return [n for n in arguments if n not in known and not n.startswith(_LOADER_PREFIXES)]


def refuse_unknown(names: list[str], config: Any) -> None:
    """Raise for a name that is not an attribute of the model's configuration (None: of any)."""
    places = [] if config is None else [config, config.get_text_config()]
    for name in names:
        if not any(hasattr(place, name) for place in places):
            raise unknown_argument(name, [*HF_ARGUMENTS, *LOADER_ARGUMENTS])


def refuse_unsupported(arguments: Mapping[str, Any], by_name: bool) -> None:
    """Raise for arguments that page_hf cannot honour.

    Args:
        arguments: those of lm-eval's `hf` model that were given.
        by_name: whether the model is loaded by name; a model object comes as it is.
    """
    _check_types(arguments)
    refuse_secrets(arguments)
    if arguments.get("tp_plan") is not None:
        raise UsageError(
            "tp_plan splits the heads that the gate compares; leave it out, or use "
            "parallelize=True for a model larger than one device."
        )
    if arguments.get("backend") == "seq2seq":
        raise UsageError("backend=seq2seq has no decoder-only KV cache; leave it out.")
    if arguments.get("max_length") is not None:
        check_integer("max_length", arguments["max_length"], at_least=1)
    for name in arguments if not by_name else ():
        acts = name in _WHILE_LOADING or quantization.asks(name)
        if acts and arguments[name] not in (None, False):
            raise UsageError(
                f"{name} acts while a model is loaded, but this model is loaded already; leave it "
                f"out, and load the model as it is to be run."
            )
    dtype = arguments.get("dtype") or "auto"
    named = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype != "auto" and not (isinstance(named, torch.dtype) and named.is_floating_point):
        raise UsageError(
            f"dtype={dtype} is no dtype of weights; give auto, float32, bfloat16 or float16."
        )
    if arguments.get("attn_implementation") is not None:
        check_implementation(str(arguments["attn_implementation"]))


def _check_types(arguments: Mapping[str, Any]) -> None:
    """Raise for a value of a type that lm-eval's `hf` model does not take there."""
    for name, value in arguments.items():
        wanted = _HF_TYPES.get(name, Any)
        parts = typing.get_args(wanted) or (wanted,)
        if typing.get_origin(wanted) is typing.Literal or wanted is Any:
            continue
        kinds = tuple(typing.get_origin(part) or part for part in parts)
        # To Python a bool is a whole number as well.
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            known = [_KINDS[kind] for kind in kinds if kind in _KINDS]
            raise UsageError(
                f"{name}={value!r:.60} is not what lm-eval's hf model takes; give "
                f"{' or '.join(known)}."
            )


def check_implementation(name: str) -> None:
    """Raise for an attention implementation that cannot be observed."""
    if name not in attention.IMPLEMENTATIONS:
        raise UsageError(
            f"attn_implementation={name} cannot be observed; allowed are "
            f"{', '.join(attention.IMPLEMENTATIONS)}."
        )


def check_adapter(name: str | None, revision: str) -> None:
    """Check that an adapter is there and changes weights, before any weight is loaded.

    Args:
        name: folder or name of a PEFT adapter; None means that there is none.
        revision: of the adapter.

    Raises:
        UsageError: it cannot be read, or it adds entries to the KV cache.
    """
    if name is None:
        return
    try:
        from peft import PeftConfig

        adapter = PeftConfig.from_pretrained(name, revision=revision)
    except (OSError, *FAILURES) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"the adapter peft={name} cannot be read: {reason}") from error
    support.check_adapter_type(adapter)


def full_name(name: str, arguments: Mapping[str, Any]) -> str:
    """The model's name with all that makes it another model: revision, adapter, file."""
    parts = [f"{key}={arguments[key]}" for key in _NAMING if arguments.get(key)]
    return " ".join([name, *parts])
