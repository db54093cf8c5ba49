"""The names of what page tasks read from a run's metadata."""

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
    """Refuse a key that is almost one of `NAMES`: it would be passed over without a word.

    Others cannot be told from model arguments, which lm-eval hands to tasks as well.

    Raises:
        UsageError: such a key.
    """
    for given in metadata:
        near = difflib.get_close_matches(
            str(given).lower().replace("-", "_"), NAMES, n=1, cutoff=_NEAR
        )
        if near and given not in NAMES:
            raise UsageError(
                f"no task reads {given!r} from its metadata: write {near[0]!r}, or leave it out."
            )


def check_path(metadata: Mapping[str, Any], name: str) -> str | None:
    """The path or name of a data set that the metadata gives; None for none.

    Raises:
        UsageError: it is no text, or an empty one.
    """
    value = metadata.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise UsageError(f"{name}={value!r} is not a path; give one, or leave it out.")
    return value
