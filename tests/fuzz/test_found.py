"""What fuzzing has found, each with the sentence that stands there now."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lm_eval.models.huggingface import HFLM

from page_bench.config import PageConfig
from page_bench.harness.hooks import complete_call
from page_bench.harness.lm import PageLM
from page_bench.inputs import json_text
from page_bench.inputs.errors import UsageError
from page_bench.inputs.user_path import is_file, is_there, user_path
from page_bench.tasks import quickstart
from page_bench.tasks.rulergen import dataset
from page_bench.tasks.tokenizer import tokenizer_of

DEEP = "[" * 20_000 + "]" * 20_000


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"gate": []}, "gate=\\[\\] does not exist"),
        ({"granularity": {"a": 1}}, "granularity={'a': 1} does not exist"),
        ({"tau": 10**400}, "tau is a whole number of more than 18 digits"),
        ({"evictor.base.kernel_size": 10**30}, "more than 18 digits"),
        ({"tau": np.array([1, 2])}, "tau=\\[1 2\\] does not exist"),
        ({1: 2}, "the model argument 1 is no name"),
        ({"evictor": "x" * 300 + ".py:X"}, "too long for a path"),
        ({"evictor": "~nobody_of_that_name/e.py:X"}, "home folder of a user who is not known"),
        ({"evictor": "a\x00b.py:X"}, "holds a NUL character"),
        ({"trace": "a\x00b"}, "trace a\\\\x00b holds a NUL character"),
        ({"store": "\ud800"}, "holds no text"),
        ({"budget": "\x1b[31m\nred"}, "budget=\\\\x1b\\[31m red is not allowed"),
        ({"score_norm": "x" * 10_000}, "score_norm=x+ … .*allowed are none, sum"),
    ],
)
def test_arguments(args: dict[Any, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as told:
        PageConfig.from_arguments(args)
    assert len(str(told.value)) < 2100
    assert str(told.value).isprintable()


def test_numbers_of_numpy_are_numbers() -> None:
    assert PageConfig.from_arguments({"budget": np.float32(0.5)}).budget == 0.5
    assert PageConfig.from_arguments({"window": np.array(8)}).window == 8


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"device": 5}, "device=5 is not what lm-eval's hf model takes; give a text"),
        ({"revision": [1]}, "revision=\\[1\\]"),
        ({"batch_size": True}, "batch_size=True .* give a whole number or a text"),
        ({"dtype": "int8"}, "dtype=int8 is no dtype of weights"),
        ({"dtype": "nn"}, "dtype=nn is no dtype"),
        ({"dtype": 5}, "dtype=5"),
        ({"pretrained": 5}, "pretrained=5 is no model"),
        ({"pretrained": ""}, "pretrained='' is no model"),
    ],
)
def test_arguments_of_the_model(
    args: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HFLM, "__init__", lambda *args, **kwargs: pytest.fail("was loaded"))
    with pytest.raises(UsageError, match=message):
        PageLM(**{"pretrained": "x", "device": "cpu", **args})


def test_a_folder_that_holds_no_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match=r"could not be loaded: .*model_type"):
        PageLM(str(tmp_path), device="cpu")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (DEEP, "nested too deeply"),
        ('{"a": 1, "a": 2}', "'a' stands in it twice"),
        ("NaN", "NaN is not JSON"),
        ("1e999", "1e999 is too large"),
        ("9" * 6000, "the whole number 9{40} is too large"),
        ("[9223372036854775808]", "is too large"),
        ('"\\ud800"', "half of a surrogate pair"),
        (b'"\xff"', "line 1 holds the byte 0xff, which is not UTF-8"),
    ],
)
def test_json(text: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        json_text.parse(text)


def test_json_that_is_sound() -> None:
    text = (
        '{"a": [1, -0.5, 1e300, null, true, "\\ud83d\\ude00 é"], "b": {"a": 9223372036854775807}}'
    )
    assert json_text.parse(text) == json.loads(text)
    assert json_text.parse(text.encode()) == json.loads(text)
    assert np.isnan(json_text.parse("NaN", nan=True))
    assert json_text.parse('{"a": 1, "a": 2}', twice=True) == {"a": 2}


def test_sizes_of_tasks() -> None:
    with pytest.raises(UsageError, match="give at most 100,000"):
        dataset.load(512, "vt", num_samples=10**12)
    with pytest.raises(UsageError, match="give at most 1,000,000"):
        quickstart.needle_word(prompt_tokens=10**12)
    with pytest.raises(UsageError, match=r"revision=\[1\] loads no tokenizer; give a text"):
        tokenizer_of({"tokenizer": "x", "revision": [1]})


def test_paths() -> None:
    assert user_path("~/x") == Path.home() / "x"
    assert user_path("é" * 127) == Path("é" * 127)
    with pytest.raises(UsageError, match="too long"):
        user_path("é" * 128)
    assert is_there("/")
    assert not is_there("x" * 5000)
    assert not is_file("x" * 5000)
    assert not is_file("a\x00b")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model_args": "evictor=snapkv,evictor=h2o"}, "name evictor twice"),
        ({"model_args": {"doc_ids": {"x": [1]}}}, "doc_ids is set by page-bench"),
        ({"model_args": {}, "samples": {"x": "12"}}, "list of whole numbers"),
        ({"model_args": {}, "samples": {"x": [-1]}}, "list of whole numbers"),
        ({"model_args": {}, "samples": [1]}, "no object of tasks"),
    ],
)
def test_a_call_that_says_two_things_is_refused(given: dict[str, Any], message: str) -> None:
    call = {"model": "page_hf", "tasks": ["x"], **given}
    if isinstance(call["model_args"], dict):
        call["model_args"] = {"pretrained": "x", **call["model_args"]}
    else:
        call["model_args"] += ",pretrained=x"
    with pytest.raises(UsageError, match=message):
        complete_call(call)
