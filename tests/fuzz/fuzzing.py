"""What all fuzz tests share: how many examples, damage of every kind, and what a clear error is.

In the suite a few derandomised examples run. `PAGE_BENCH_FUZZ=5000 pytest tests/fuzz` is a long
campaign: so many random examples per test (`--hypothesis-show-statistics` counts them).
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from page_bench.inputs.errors import UsageError

CAMPAIGN = int(os.environ.get("PAGE_BENCH_FUZZ", "0"))
"""Examples per test; 0 in the suite."""

T = TypeVar("T")
_LONGEST = 2500
"""Characters of a sentence."""

HOSTILE_NAMES = (
    *("../../outside", "/tmp/outside", "a\x00b", "x" * 5000, "CON", "~nobody_of_that_name/x"),
    *("..", ".", "", " ", "a/b", "a\\b", "a\nb", "\x1b[31mred", "<script>alert(1)</script>"),
    *("=1+1", "-rf", "${HOME}", "$(touch outside)", "`touch outside`", "\ud800", "\u202eevil"),
    *("é" * 200, "%2e%2e%2f", "a:b", "nul.txt", "-"),
)


def fuzzed(examples: int) -> settings:
    """Settings of a test with so many examples in the suite; those of a campaign are random."""
    return settings(
        max_examples=CAMPAIGN or examples,
        derandomize=not CAMPAIGN,
        deadline=None,
        database=None,
        print_blob=bool(CAMPAIGN),
        suppress_health_check=list(HealthCheck),
    )


def outcome(call: Callable[[], T]) -> T | None:
    """What a call gives; None where it ends with one clear sentence. Other exceptions pass."""
    try:
        return call()
    except UsageError as error:
        check_sentence(str(error))
        return None


@contextlib.contextmanager
def fresh(place: Path) -> Iterator[Path]:
    """A folder beside which nothing may be written."""
    with tempfile.TemporaryDirectory(dir=place) as name:
        inside = Path(name) / "inside"
        inside.mkdir()
        yield inside
        assert [path.name for path in Path(name).iterdir()] == ["inside"]


def quiet(call: Callable[[], T]) -> T | None:
    """The outcome of a call that prints."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return outcome(call)


def check_sentence(text: str) -> None:
    """Fail unless a message is one line that a terminal shows as it is."""
    assert text.strip(), "an empty message"
    assert len(text) <= _LONGEST, f"{len(text)} characters: {text[:200]}"
    wild = sorted({unicodedata.category(c) for c in text} & {"Cc", "Cs", "Cf", "Zl", "Zp"})
    assert not wild, f"{wild} in {text!r:.300}"


texts = st.one_of(
    st.sampled_from(HOSTILE_NAMES),
    st.text(max_size=12),
    st.text("()[]{}.,:=_adkvsnpkv/~-0123456789", max_size=24),
)
numbers = st.one_of(
    st.integers(-3, 300),
    st.sampled_from([10**12, 2**63, -(2**63), 10**30, 10**400, -(10**400), 0]),
    st.floats(),
    st.sampled_from([0.0, -0.0, 1.0, 1e308, -1e308, 5e-324, 1e-300, 0.5]),
)
atoms = st.one_of(st.none(), st.booleans(), numbers, texts)
values = st.recursive(
    atoms,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=4,
)

_DEEP, _LONG, _INFINITE = "\x01deep", "\x01long", "\x01infinite"
json_values = values | st.sampled_from([_DEEP, _LONG, _INFINITE])


def json_text(value: Any, depth: int = 20_000) -> str:
    """JSON, or almost: with what no JSON writer writes.

    Args:
        value: some of `json_values` are marks that stand for such things.
        depth: of the list that is nested too deeply.
    """
    text = json.dumps(value)
    raw = {_DEEP: "[" * depth + "]" * depth, _LONG: "9" * 6000, _INFINITE: "1e999"}
    for mark, written in raw.items():
        text = text.replace(json.dumps(mark), written)
    return text


@st.composite
def damaged(draw: st.DrawFn, whole: Any, most: int = 3) -> Any:
    """A value of JSON of which some parts are other than they were, gone, new or doubled."""
    value = copy.deepcopy(whole)
    for _ in range(draw(st.sampled_from([1, 1, *range(1, most + 1)]))):
        places = list(_places(value))
        if not places:
            return draw(json_values)
        holder, key = draw(st.sampled_from(places))
        match draw(st.integers(0, 8)):
            case 6 | 7 | 8:
                holder[key] = draw(_alike(holder[key]))
            case 0 if isinstance(holder, dict):
                del holder[key]
            case 0:
                holder.pop(key)
            case 1 if isinstance(holder, dict):
                holder[draw(texts)] = draw(json_values)
            case 1:
                holder.insert(key, copy.deepcopy(holder[key]))
            case 2:
                other, name = draw(st.sampled_from(places))
                if name in other if isinstance(other, dict) else name < len(other):
                    holder[key] = copy.deepcopy(other[name])
            case _:
                holder[key] = draw(json_values)
    return value


def _alike(value: Any) -> st.SearchStrategy[Any]:
    """Values of the same type, which get past a check of types."""
    match value:
        case bool():
            return st.just(not value)
        case int():
            return st.integers(-3, 3) | st.sampled_from([10**6, 2**62, 10**30, -(2**62)])
        case float():
            return st.floats(-1, 2) | st.sampled_from([1e308, -1e308, 5e-324, 0.0, 1e18])
        case str():
            return texts
        case list():
            return st.sampled_from([[], value[:1], value + value, value[::-1]])
        case dict():
            return st.sampled_from([{}, dict(list(value.items())[:1])])
    return atoms


def _places(value: Any) -> Any:
    """Every (container, key) of a value."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    if isinstance(value, dict | list):
        for key, inner in pairs:
            yield value, key
            if isinstance(inner, dict | list):
                yield from _places(inner)


@st.composite
def damaged_bytes(draw: st.DrawFn, whole: bytes, most: int = 3) -> bytes:
    """A file that was cut off, overwritten, doubled in places or mixed with something else."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, most))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.sampled_from([0, 1, 2, 7, 40, 400, 10**9])))
        match draw(st.integers(0, 5)):
            case 0:
                del data[start:]
            case 1:
                del data[start:end]
            case 2:
                data[start:start] = data[start:end]
            case 3:
                data[start:end] = draw(st.binary(max_size=8))
            case 4:
                data[start:start] = draw(
                    st.sampled_from(
                        [b"\x00" * 9, b"\xff\xfe", b"\xc3", b"\r", b"NaN", b"[" * 20_000]
                    )
                )
            case _ if start < len(data):
                data[start] ^= 1 << draw(st.integers(0, 7))
    return bytes(data)
