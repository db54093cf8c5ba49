"""Model arguments of every kind: a configuration that holds what was asked, or one sentence."""

from __future__ import annotations

import contextlib
import io
import json
import typing
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from fuzzing import HOSTILE_NAMES, atoms, fuzzed, outcome, texts, values
from hypothesis import example, given
from hypothesis import strategies as st
from lm_eval._cli.harness import HarnessCLI
from lm_eval.models.huggingface import HFLM

from page_bench import evictors
from page_bench.config import (
    COMPRESSIONS,
    MISMATCHES,
    SCORE_NORMS,
    SIGNAL_LEVELS,
    TAU_VARIANTS,
    TRUNCATIONS,
    PageConfig,
    is_ours,
)
from page_bench.evictors.base import GRANULARITIES, Evictor, Wrapper
from page_bench.gating.gates import GATES
from page_bench.harness import hooks
from page_bench.harness.lm import PageLM
from page_bench.inputs.options import option_types

EVICTORS = evictors.own_names()
WRAPPERS = [name for name in EVICTORS if issubclass(evictors.evictor_class(name), Wrapper)]
PLAIN = [name for name in EVICTORS if name not in WRAPPERS]


def _options(fields: Mapping[str, Any]) -> st.SearchStrategy[tuple[str, Any]]:
    """An option, mostly one that there is, with a value that may fit."""
    fitting = [st.tuples(st.just(name), _fitting(kind)) for name, kind in fields.items()]
    wild = st.tuples(st.sampled_from(sorted(fields)) if fields else texts, values)
    return st.one_of(*fitting, *fitting, wild, st.tuples(texts, values))


def _fitting(kind: Any) -> st.SearchStrategy[Any]:
    """Values that an option of a type may have."""
    if typing.get_origin(kind) is typing.Literal:
        return st.sampled_from(typing.get_args(kind))
    if parts := typing.get_args(kind):
        return st.one_of(*map(_fitting, parts))
    found: dict[Any, st.SearchStrategy[Any]] = {
        bool: st.booleans(),
        int: st.integers(0, 64),
        float: st.floats(0, 1) | st.integers(0, 3),
        str: st.sampled_from(["vt", "a+b", "gates"]),
        type(None): st.sampled_from([None, "none"]),
    }
    return found[kind]


@st.composite
def titled(draw: st.DrawFn) -> dict[str, Any]:
    """An evictor, often wrapped, with options of every level."""
    wrappers = draw(st.lists(st.sampled_from(WRAPPERS), max_size=3))
    names = [*wrappers, draw(st.sampled_from(PLAIN) | texts)]
    args: dict[str, Any] = {"evictor": "(".join(names) + ")" * (len(names) - 1)}
    for depth, name in enumerate(names):
        fields = evictors.option_types(evictors.evictor_class(name)) if name in EVICTORS else {}
        for option, value in draw(st.lists(_options(fields), max_size=2)):
            args[f"evictor.{'base.' * depth}{option}"] = value
    return args


@st.composite
def gated(draw: st.DrawFn) -> dict[str, Any]:
    gate = draw(st.sampled_from(sorted(GATES)) | values)
    fields = option_types(GATES[gate]) if isinstance(gate, str) and gate in GATES else {}
    options = draw(st.lists(_options(fields), max_size=2))
    return {"gate": gate, **{f"gate.{name}": value for name, value in options}}


_CHOICES: dict[str, st.SearchStrategy[Any]] = {
    "granularity": st.sampled_from(GRANULARITIES),
    "score_norm": st.sampled_from(SCORE_NORMS),
    "budget": st.floats(0.01, 1),
    "tau": st.sampled_from([*TAU_VARIANTS, 0.07]),
    "theta_z": st.floats(-2, 2),
    "open_rate": st.floats(0, 1),
    "pilot_size": st.integers(2, 100),
    "calibration": st.just("tau.json"),
    "calibration_mismatch": st.sampled_from(MISMATCHES),
    "signals": st.sampled_from(SIGNAL_LEVELS),
    "n_sink": st.integers(0, 8),
    "window": st.integers(1, 64),
    "recent": st.integers(1, 64),
    "top_k": st.integers(1, 64),
    "compress": st.sampled_from(COMPRESSIONS),
    "truncation": st.sampled_from(TRUNCATIONS),
    "trace": st.just("traces"),
    "store": st.just("runs.sqlite"),
}


@st.composite
def model_args(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of which at most a few are wild, so that wild ones get past the first check."""
    args = dict(draw(titled() | st.just({})) | draw(gated() | st.just({})))
    for name in draw(st.lists(st.sampled_from(sorted(_CHOICES)), max_size=5, unique=True)):
        args[name] = draw(_CHOICES[name])
    if draw(st.integers(0, 3)) == 0:
        args[draw(st.sampled_from([*_CHOICES, "evictor", "gate"]))] = draw(values)
    return args


def holds(config: PageConfig, asked: Mapping[str, Any]) -> None:
    """Fail where something asked for is not what the configuration does."""
    for name, value in asked.items():
        if name.startswith("evictor."):
            holder: Any = config.make_evictor()
            *outer, option = name.split(".")[1:]
            for part in outer:
                holder = getattr(holder, part)
            assert isinstance(holder, Evictor)
            _same(getattr(holder, option), value, name)
        elif name.startswith("gate."):
            _same(getattr(config.make_gate(), name.removeprefix("gate.")), value, name)
        elif name in ("evictor", "score_norm") and value is None:
            assert getattr(config, name) == "none"
        elif name == "evictor":
            wanted = "".join(str(value).split())
            assert config.make_evictor().title == wanted or ".py:" in wanted
        else:
            _same(getattr(config, name), value, name)


def _same(got: object, asked: object, name: str) -> None:
    if asked is None or asked == "none" or asked is False:
        # Of an option, None stands for the default that depends on the rest.
        assert got in (None, "none", False) or (asked is not False and "." in name), name
        return
    assert got == asked, name
    assert isinstance(got, bool) == isinstance(asked, bool), name


def checked(args: Mapping[str, Any]) -> None:
    """A configuration that holds the arguments, or a sentence."""
    config = outcome(lambda: PageConfig.from_arguments(args))
    if config is not None:
        holds(config, args)


@fuzzed(100)
@given(model_args())
def test_model_args_as_a_dict(args: dict[str, Any]) -> None:
    checked(args)


@cache
def parser() -> Any:
    return HarnessCLI()._parser


def as_lm_eval_reads(words: list[str]) -> dict[str, Any] | None:
    """Model arguments as lm-eval's own command line reads them; None where it refuses them."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            given = parser().parse_args(["run", "--model", "page_hf", "--model_args", *words])
    except SystemExit:
        return None
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None  # lm-eval's own parser, before anything of ours
    found: dict[str, Any] = given.model_args or {}
    return found


def completed(args: Any) -> dict[str, Any]:
    """What `simple_evaluate` hands to the model."""
    called = {"model": "page_hf", "model_args": args, "tasks": ["x"]}
    made: dict[str, Any] = hooks.complete_call(called)["model_args"]
    return made


@fuzzed(80)
@given(st.lists(st.tuples(st.sampled_from([*_CHOICES, "evictor", "gate"]), texts), max_size=4))
def test_model_args_as_words(pairs: list[tuple[str, str]]) -> None:
    args = as_lm_eval_reads([",".join(f"{k}={v}" for k, v in [*pairs, ("pretrained", "x")])])
    if args is not None:
        ours = {k: v for k, v in (outcome(lambda: completed(args)) or {}).items() if is_ours(k)}
        checked(ours)


@fuzzed(80)
@given(model_args())
def test_model_args_as_json(args: dict[str, Any]) -> None:
    try:
        text = json.dumps({"pretrained": "x", **args})
    except ValueError:
        return
    read = as_lm_eval_reads([text])
    if read is not None:
        checked({k: v for k, v in (outcome(lambda: completed(read)) or {}).items() if is_ours(k)})


@fuzzed(150)
@given(st.lists(st.tuples(st.sampled_from([*_CHOICES, "evictor", "gate"]), texts), max_size=4))
def test_model_args_as_one_text(pairs: list[tuple[str, str]]) -> None:
    text = ",".join(f"{k}={v}" for k, v in [("pretrained", "x"), *pairs])
    args = outcome(lambda: completed(text))
    if args is not None:
        checked({k: v for k, v in args.items() if is_ours(k)})


class _Reached(Exception):
    """The model would be loaded now."""


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def reached(*args: object, **kwargs: object) -> None:
        raise _Reached

    monkeypatch.setattr(HFLM, "__init__", reached)


_HF = st.fixed_dictionaries(
    {},
    optional={
        "pretrained": atoms,
        "dtype": atoms,
        "max_length": atoms,
        "attn_implementation": atoms,
        "tp_plan": atoms,
        "backend": atoms,
        "device": atoms,
        "peft": atoms,
        "token": atoms,
        "budgett": atoms,
    },
)


@pytest.mark.usefixtures("no_model")
@fuzzed(150)
@given(_HF)
def test_arguments_of_the_model_before_it_is_loaded(args: dict[str, Any]) -> None:
    with contextlib.suppress(_Reached):
        outcome(lambda: PageLM(**args))


@fuzzed(60)
@given(st.sampled_from(HOSTILE_NAMES))
@example("x" * 5000)
def test_names_of_evictor_files(name: str) -> None:
    checked({"evictor": f"{name}.py:Evictor"})
    checked({"evictor": f"adakv({name}/x.py:Evictor)", "granularity": "head"})
    assert not Path("outside").exists()
