"""Values that page tasks read from a run's metadata, checked."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from page_bench.inputs.errors import UsageError

NAMES = (
    *("protocol", "draw_seed", "prompt_tokens"),
    *("ruler_data", "ruler_seed", "num_samples", "near_tie_keys", "essays", "squad", "hotpotqa"),
    *("longbench_data", "longbench_max_length", "longbench_skip_above"),
)
"""Those that are no model argument."""

# lm-eval's models and configurations of transformers have no argument as near as this.
_NEAR = 0.75


def check_names(metadata: Mapping[str, Any]) -> None:
    """Raise UsageError for a key that is almost one of `NAMES`, which no task would read.

    Others cannot be told from model arguments, which lm-eval hands to tasks as well.
    """
    for given in metadata:
        near = difflib.get_close_matches(
            str(given).lower().replace("-", "_"), NAMES, n=1, cutoff=_NEAR
        )
        if near and given not in NAMES:
            raise UsageError(
                f"no task reads {given!r} from its metadata: write {near[0]!r}, or leave it out."
            )


def path_in(metadata: Mapping[str, Any], name: str) -> str | None:
    """The path or name of a data set; None for none, UsageError for what is no text or empty."""
    value = metadata.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise UsageError(f"{name}={value!r} is not a path; give one, or leave it out.")
    return value


def number_in(
    metadata: Mapping[str, Any], name: str, at_least: int = 1, at_most: int | None = None
) -> int | None:
    """A whole number; None for none, UsageError for anything else or one out of bounds."""
    value = metadata.get(name)
    if value is None:
        return None
    from page_bench.config import check_integer  # loads torch

    check_integer(name, value, at_least)
    if at_most is not None and value > at_most:
        raise UsageError(f"{name}={value} is not possible; give at most {at_most:,}.")
    return int(value)


def protocol_in(metadata: Mapping[str, Any], choices: tuple[str, ...], benchmark: str) -> str:
    """The protocol named under `protocol`, the first by default; UsageError for an unknown one."""
    name = str(metadata.get("protocol", choices[0]))
    if name not in choices:
        near = difflib.get_close_matches(name, choices, n=1, cutoff=0.0)[0]
        raise UsageError(
            f"{benchmark} has no protocol {name!r}: choose one of {', '.join(choices)}, for "
            f'example --metadata \'{{"protocol": "{near}"}}\'.'
        )
    return name


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its type."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
