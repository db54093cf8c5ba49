"""What loads a model: which arguments there are, which are refused, and how a model is named."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM
from transformers import PreTrainedModel

from page_bench import attention
from page_bench.config import check_integer, unknown_argument
from page_bench.errors import UsageError

HF_ARGUMENTS = tuple(inspect.signature(HFLM.__init__).parameters)
"""Arguments of lm-eval's `hf` model."""
LOADER_ARGUMENTS = (
    *inspect.signature(PreTrainedModel.from_pretrained).parameters,
    *("attn_implementation", "code_revision", "device_map", "experts_implementation"),
    *("key_mapping", "max_memory", "offload_buffers", "proxies", "quantization_config", "variant"),
)
"""What transformers' `from_pretrained` takes besides attributes of the configuration."""
_LOADER_PREFIXES = ("load_in_", "bnb_")
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
    if arguments.get("tp_plan") is not None:
        raise UsageError(
            "tp_plan splits the heads that the gate compares; leave it out, or use "
            "parallelize=True for a model larger than one device."
        )
    if arguments.get("backend") == "seq2seq":
        raise UsageError("backend=seq2seq has no decoder-only KV cache; leave it out.")
    if arguments.get("max_length") is not None:
        check_integer("max_length", arguments["max_length"], at_least=1)
    for name in ("dtype", "attn_implementation"):
        if not by_name and arguments.get(name) is not None:
            raise UsageError(
                f"{name} acts while a model is loaded, but this model is loaded already; leave it "
                f"out, and load the model as it is to be run."
            )
    dtype = arguments.get("dtype") or "auto"
    known = dtype == "auto" or not isinstance(dtype, str) or hasattr(torch, dtype)
    if not known or not isinstance(getattr(torch, str(dtype), torch.float32), torch.dtype):
        raise UsageError(f"dtype={dtype} does not exist; give auto, float32, bfloat16 or float16.")
    if arguments.get("attn_implementation") is not None:
        check_implementation(str(arguments["attn_implementation"]))


def check_implementation(name: str) -> None:
    """Raise for an attention implementation that cannot be observed."""
    if name not in attention.IMPLEMENTATIONS:
        raise UsageError(
            f"attn_implementation={name} cannot be observed; allowed are "
            f"{', '.join(attention.IMPLEMENTATIONS)}."
        )


def full_name(name: str, arguments: Mapping[str, Any]) -> str:
    """The model's name with all that makes it another model: revision, adapter, file."""
    parts = [f"{key}={arguments[key]}" for key in _NAMING if arguments.get(key)]
    return " ".join([name, *parts])
