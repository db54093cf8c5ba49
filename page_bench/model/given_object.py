"""A model or tokenizer that was given as an object, under the name that records know it by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAMING = ("pretrained", "tokenizer")
"""Model arguments that may be objects which have a name of their own."""


class GivenObject(str):
    """The name of an object, with the object.

    lm-eval writes model arguments into its log, its results and the metadata of every task, and
    trackers copy them. All of these see a name; `held_by` gives the object to whoever needs it.

    Attributes:
        held: the object.
    """

    held: Any

    def __new__(cls, held: Any) -> GivenObject:
        made = super().__new__(cls, name_of(held))
        made.held = held
        return made

    def __deepcopy__(self, memo: object) -> GivenObject:
        # lm-eval copies what a task was configured with.
        return self


def held_by(given: Any) -> Any:
    """The object that an argument stands for; any other argument as it is."""
    return given.held if isinstance(given, GivenObject) else given


def is_model(given: Any) -> bool:
    """Whether this is a model of transformers or PEFT, or what looks like one."""
    return hasattr(given, "config") and hasattr(given, "forward")


def name_of(held: Any) -> str:
    """Where a model or tokenizer came from, by its own word; its class where it does not say."""
    name = str(getattr(held, "name_or_path", None) or type(held).__name__)
    # PEFT's wrapper answers with the name of the model that it changes.
    adapters = ",".join(getattr(held, "peft_config", None) or ())
    return f"{name} peft={adapters}" if adapters else name


def named(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Model arguments in which `NAMING` are names, and so are dtypes of torch."""
    made = dict(arguments)
    for name, value in arguments.items():
        if name in NAMING and (is_model(value) or callable(value)):
            made[name] = GivenObject(value)
        elif type(value).__module__ == "torch" and type(value).__name__ == "dtype":
            made[name] = str(value).removeprefix("torch.")
    return made


def objects_of(arguments: Mapping[str, Any]) -> list[str]:
    """Names of arguments that were given as objects, which no command line can name."""
    plain = (str, int, float, bool, type(None), list, tuple, dict)
    return sorted(
        name
        for name, value in arguments.items()
        if isinstance(value, GivenObject)
        or not (isinstance(value, plain) or hasattr(value, "__fspath__") or _is_number(value))
    )


def _is_number(value: Any) -> bool:
    """Whether this is NumPy's or torch's number, or a dtype, all of which texts can say."""
    return getattr(value, "ndim", None) == 0 or type(value).__name__ == "dtype"
