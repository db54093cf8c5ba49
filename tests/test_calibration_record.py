"""JSON read back as dataclasses, type by type."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pytest

from page_bench.inputs.typed_json import Misfit, read


@dataclass(frozen=True)
class Part:
    size: int
    weight: float = 1.0


@dataclass(frozen=True)
class Whole:
    parts: tuple[Part, ...]
    by_name: Mapping[str, float]
    ends: tuple[float, float] | None = None
    kind: Literal["a", "b"] = "a"


def test_every_type_of_field_comes_back() -> None:
    record = {
        "parts": [{"size": 2}, {"size": 3, "weight": 2}],
        "by_name": {"x": 0.5, "y": None},
        "ends": [0, 1.5],
        "kind": "b",
    }
    found = read(Whole, record, "it")
    assert (found.parts, found.ends, found.kind) == ((Part(2), Part(3, 2.0)), (0, 1.5), "b")
    assert found.by_name["x"] == 0.5
    assert math.isnan(found.by_name["y"])
    assert read(float | None, None, "it") is None


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (int, True, "it is True, not a whole number"),
        (int, 1.0, "it is 1.0, not a whole number"),
        (int, None, "it is None, not a whole number"),
        (float, "1", "it is '1', not a number"),
        (float, False, "it is False, not a number"),
        (float, math.inf, "it is inf, not a number"),
        (float, 10**400, "it is 10+, not a number"),
        (str | None, 1, "it is 1, not a text or null"),
        (tuple[float, float], [1, 2, 3], r"it is \[1, 2, 3\], not a list"),
        (tuple[int, ...], "12", "it is '12', not a list"),
        (Mapping[str, float], [1], r"it is \[1\], not an object"),
        (Literal["a", "b"], "c", "it is 'c', not a or b"),
        (Part, {}, "it.size is missing"),
        (Part, {"size": 1, "shape": 2}, "it.shape does not exist"),
        (tuple[Part, ...], [{"size": 1}, {"size": "x"}], r"it\[1\].size is 'x', not a whole"),
    ],
)
def test_what_does_not_fit_is_named(kind: object, value: object, said: str) -> None:
    with pytest.raises(Misfit, match=f"^{said}"):
        read(kind, value, "it")
