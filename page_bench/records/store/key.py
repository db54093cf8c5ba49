"""What a record of the run store stands under: a key, equal where all its parts are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from page_bench.inputs.errors import UsageError

NUMERICS_VERSION = 3
"""Raised with every change to page-bench by which a signal, a keep set or an answer may change.

Where one evictor alone changes, raise its `revision` instead.
"""


@dataclass(frozen=True, eq=False)
class Key:
    """What one record of the store belongs to. Equal where all parts are.

    Attributes:
        parts: by name, values that JSON can hold.
        about: what people want to know of the record and what determines nothing, such as the
            name of the model.
    """

    parts: Mapping[str, Any]
    about: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def part_digests(self) -> dict[str, str]:
        """SHA-256 of each part, by name."""
        return {name: digest_of(part) for name, part in self.parts.items()}

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all parts."""
        return digest_of(self.part_digests)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def canonical_json(value: Any) -> str:
    """The one text that stands for a value: equal numbers are written alike, sets are sorted.

    Raises:
        UsageError: the value holds something that JSON has no word for.
    """
    try:
        return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"))
    except TypeError as error:
        raise UsageError(
            f"a run store cannot compare {value}: {error}; leave store out, or give generation "
            f"arguments and options that are numbers or text."
        ) from error


def digest_of(value: Any) -> str:
    """SHA-256 of `canonical_json`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((_plain(v) for v in value), key=canonical_json)
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if type(value).__name__ == "dtype":  # torch's, which need not be imported for this
        return str(value)
    return value
