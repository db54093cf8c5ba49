"""Quantised weights: how they are asked for, whether they load here, what they are called."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from transformers import BitsAndBytesConfig
from transformers.quantizers import AutoHfQuantizer, AutoQuantizationConfig
from transformers.utils.quantization_config import QuantizationConfigMixin

from page_bench.inputs.errors import UsageError

LOAD_IN = ("load_in_4bit", "load_in_8bit")
_BITSANDBYTES = tuple(
    name
    for name in inspect.signature(BitsAndBytesConfig.__init__).parameters
    if name.startswith(("bnb_", "llm_int8_")) or name in LOAD_IN
)
_CANNOT = (ImportError, ValueError, TypeError, AttributeError, NotImplementedError, RuntimeError)
"""What transformers raises where weights cannot be quantised as asked."""


def asks(name: str) -> bool:
    """Whether a model argument says how weights are to be quantised."""
    return name == "quantization_config" or name.startswith(("load_in_", "bnb_", "llm_int8_"))


def asked_for(arguments: Mapping[str, Any]) -> Any:
    """What model arguments ask for.

    Args:
        arguments: those for which `asks` holds, by name.

    Returns:
        A quantisation configuration of transformers; None where none is asked for.

    Raises:
        UsageError: arguments that mean nothing, or that contradict each other.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    whole = given.pop("quantization_config", None)
    if unknown := sorted(set(given) - set(_BITSANDBYTES)):
        raise UsageError(
            f"{unknown[0]} is not an argument of bitsandbytes; allowed are "
            f"{', '.join(_BITSANDBYTES)}."
        )
    if not any(given.get(name) for name in LOAD_IN):
        if any(name not in LOAD_IN for name in given):
            raise UsageError(
                f"{', '.join(sorted(given))} alone quantises nothing; add load_in_4bit=True."
            )
        return None if whole is None else _configuration(whole)
    if whole is not None:
        raise UsageError(
            f"quantization_config and {', '.join(sorted(given))} both say how weights are "
            f"quantised; give one of them."
        )
    try:
        return BitsAndBytesConfig(**given)
    except _CANNOT as error:
        said = ", ".join(f"{name}={value}" for name, value in sorted(given.items()))
        raise UsageError(f"{said} is no way to quantise: {_reason(error)}") from error


def check_quantization(config: Any, asked: Any, device: str) -> None:
    """Check that weights can be loaded as a configuration says, before any of them is.

    Args:
        config: the model's configuration; nested ones (multimodal models) are looked into.
        asked: see `asked_for`.
        device: where the weights will lie.

    Raises:
        UsageError: they cannot, or would be taken for plain ones.
    """
    own = _own(config)
    if own is None and asked is None:
        return
    try:
        if own is not None and asked is not None:
            AutoHfQuantizer.merge_quantization_configs(deepcopy(own), asked)
        # It notes on the configuration what it finds.
        found = deepcopy(own if own is not None else asked)
        quantizer = AutoHfQuantizer.from_config(found, pre_quantized=own is not None)
        quantizer.validate_environment(device_map={"": device}, weights_only=True)
    except _CANNOT as error:
        raise UsageError(
            f"weights quantised with {_method(own if own is not None else asked)} cannot be loaded "
            f"here; install what is missing, or name a model with plain weights: {_reason(error)}"
        ) from error


def weights_name(model: Any, checkpoint: Any = None) -> str | None:
    """What quantised weights are called beside the dtype that is computed in; None for plain ones.

    Args:
        model: of transformers, without a wrapper.
        checkpoint: the configuration that the model was loaded by. transformers expands some
            weights where a device has no kernels for them, and the model itself then tells no more.
    """
    held = getattr(getattr(model, "hf_quantizer", None), "quantization_config", None)
    if held is None:
        declared = _own(checkpoint) if checkpoint is not None else None
        return None if declared is None else f"{_method(declared)} weights expanded"
    if _method(held) == "gguf":
        # The file stands in the model's name; expanded, its weights are plain ones.
        packed = any("gguf" in type(module).__module__ for module in model.modules())
        return "gguf weights" if packed else None
    return f"{_method(held)} weights"


def _own(config: Any) -> Any:
    """What a model's configuration says of its weights; None where it says nothing."""
    places = (config, config.get_text_config())
    return next((q for p in places if (q := getattr(p, "quantization_config", None))), None)


def _configuration(given: Any) -> Any:
    if isinstance(given, QuantizationConfigMixin):
        return given
    try:
        return AutoQuantizationConfig.from_dict(deepcopy(given))
    except _CANNOT as error:
        raise UsageError(
            f"quantization_config={given!r:.80} is no quantisation that transformers knows; give "
            f"an object with quant_method, or leave it out: {_reason(error)}"
        ) from error


def _method(config: Any) -> str:
    values = config if isinstance(config, dict) else vars(config)
    method = values.get("quant_method")
    name = str(getattr(method, "value", method))
    if name != "bitsandbytes":
        return name
    eight = values.get("load_in_8bit") or values.get("_load_in_8bit")
    return f"{name} {'8' if eight else '4'}-bit"


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") + "."
