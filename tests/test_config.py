"""Model arguments: defaults, types, and one clear sentence for each mistake."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lm_eval.utils import simple_parse_args_string

from page_bench.config import PageConfig, is_ours, unknown_argument
from page_bench.engine.decision import without_pilot
from page_bench.engine.make_trace import settings_of
from page_bench.evictors import evictor_class, evictor_names
from page_bench.inputs.errors import UsageError


def test_defaults_are_those_of_the_paper() -> None:
    config = PageConfig.from_arguments({})
    assert (config.evictor, config.budget, config.gate, config.tau) == (
        "snapkv",
        0.125,
        "page",
        "zscore",
    )
    assert (config.theta_z, config.pilot_size) == (-0.69, 100)
    assert (config.n_sink, config.window, config.n_recent, config.top_k) == (4, 32, 32, 32)
    assert config.needs_pilot


def test_recent_follows_the_window_unless_it_is_given() -> None:
    assert PageConfig.from_arguments({"window": 16}).n_recent == 16
    assert PageConfig.from_arguments({"window": 16, "recent": 8.0}).n_recent == 8


@pytest.mark.parametrize(
    ("tau", "value", "rule"),
    [("fixed", 0.07, "fixed"), (0.04, 0.04, "number"), (-1.0, -1.0, "number")],
)
def test_tau_is_a_number_or_a_rule(tau: Any, value: float, rule: str) -> None:
    config = PageConfig.from_arguments({"tau": tau})
    assert not config.needs_pilot
    threshold = without_pilot(config).threshold
    assert threshold is not None
    assert (threshold.tau, threshold.rule) == (value, rule)


def test_no_pilot_is_needed_where_nothing_is_gated() -> None:
    assert not PageConfig.from_arguments({"gate": "open"}).needs_pilot
    assert not PageConfig.from_arguments({"tau": 0.1}).needs_pilot


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"evictor": "snapvk"}, r"did you mean snapkv\?"),
        ({"evictor": 3.0}, "evictor=3.0 does not exist"),
        ({"evictor.kernal": 7}, "evictor.kernal is not an option of snapkv"),
        ({"evictor": "streamingllm", "evictor.fill": 1}, "takes there; give true or false"),
        ({"evictor": "random", "evictor.seed": 0.5}, "takes there; give a whole number"),
        ({"gate": "pgae"}, r"gate=pgae does not exist \(did you mean page\?\)"),
        ({"tau": "zscroe"}, r"did you mean zscore\?.*or a number"),
        ({"tau": float("nan")}, "tau=nan is not allowed"),
        ({"tau": True}, "tau=True does not exist"),
        ({"budget": 0}, r"budget=0 is not allowed; give a number in \(0, 1\]"),
        ({"budget": 1.5}, "budget=1.5 is not allowed"),
        ({"budget": "half"}, "budget=half is not allowed"),
        ({"theta_z": float("inf")}, "theta_z=inf is not allowed"),
        ({"window": -1.0}, "window=-1 is not allowed; give a whole number from 1 on"),
        ({"window": 0}, "window=0 is not allowed"),
        ({"n_sink": -4}, "n_sink=-4 is not allowed"),
        ({"n_sink": 2.5}, "n_sink=2.5 is not allowed"),
        ({"recent": -1}, "recent=-1 is not allowed"),
        ({"recent": 0}, "recent=0 lets evictor=snapkv drop the last position"),
        ({"top_k": 0}, "top_k=0 is not allowed"),
        ({"pilot_size": 1}, "pilot_size=1 is not allowed"),
        ({"truncation": "right"}, "truncation=right does not exist"),
        ({"truncation": True}, "truncation=True does not exist"),
        ({"trace": 7}, "trace=7 is not the name of a folder"),
        ({"trace": ""}, "trace='' is not the name of a folder"),
        (
            {"tau": None},
            "tau=None does not exist; allowed are zscore, fixed, midpoint, quantile or a number",
        ),
        ({"evictor": "SNAPKV"}, r"did you mean snapkv\?"),
        ({"evictor": "../snapkv"}, "does not exist"),
        ({"evictor": "base"}, "evictor=base does not exist"),
        ({"evictor": "pyramidkv", "evictor.top": math.nan}, "takes there; give a number"),
        ({"doc_ids": 5}, "use --samples"),
    ],
)
def test_mistakes_are_named(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        PageConfig.from_arguments(arguments)


def test_unknown_names_come_with_the_nearest_ones() -> None:
    assert "budget" in str(unknown_argument("bugdet", ["dtype"]))
    assert "dtype" in str(unknown_argument("dtpye", ["dtype"]))


def test_only_our_arguments_are_ours() -> None:
    assert is_ours("tau")
    assert is_ours("evictor.seed")
    assert not is_ours("dtype")
    assert not is_ours("evictor_args")


@pytest.mark.parametrize("name", evictor_names())
def test_an_evictor_is_named_like_its_module_and_has_defaults(name: str) -> None:
    cls = evictor_class(name)
    assert cls.name == name
    assert dataclasses.is_dataclass(cls)
    options = [field for field in dataclasses.fields(cls) if field.name != "base"]
    assert all(field.default is not dataclasses.MISSING for field in options)


def test_whole_floats_become_integers_for_integer_options() -> None:
    evictor = PageConfig.from_arguments({"evictor": "random", "evictor.seed": 3.0}).make_evictor()
    assert evictor == evictor_class("random")(seed=3)  # type: ignore[call-arg]


def test_numpy_scalars_and_paths_are_taken_as_what_they_are() -> None:
    arguments = {"budget": np.float64(0.5), "window": np.int64(8), "trace": Path("some/where")}
    assert PageConfig.from_arguments(arguments) == PageConfig(
        budget=0.5, window=8, trace=str(Path("some/where"))
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("evictor=none", PageConfig(evictor="none")),
        ("recent=none,truncation=false,budget=1", PageConfig(budget=1.0)),
        ("tau=-1,window=16", PageConfig(tau=-1, window=16)),
        (
            "evictor=streamingllm,evictor.fill=false",
            PageConfig(evictor="streamingllm", evictor_args={"fill": False}),
        ),
    ],
)
def test_strings_mean_what_they_say_after_lm_evals_parser(text: str, expected: PageConfig) -> None:
    assert PageConfig.from_arguments(simple_parse_args_string(text)) == expected


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        ({"gate": "open"}, set()),
        ({"gate": "closed"}, set()),
        ({"gate": "page"}, {"tau", "theta_z", "pilot_size"}),
        ({"gate": "page", "tau": 0.05}, {"tau"}),
        ({"gate": "page", "tau": "quantile"}, {"tau", "open_rate", "pilot_size"}),
        (
            {"gate": "page", "tau": "midpoint", "calibration": "x.json"},
            {"tau", "calibration_mismatch"},
        ),
    ],
)
def test_results_hold_no_setting_that_the_gate_does_not_read(
    arguments: dict[str, Any], read: set[str]
) -> None:
    names = ("tau", "theta_z", "open_rate", "pilot_size", "calibration_mismatch")
    settings = settings_of(PageConfig.from_arguments(arguments))
    assert {name for name in names if settings[name] is not None} == read
