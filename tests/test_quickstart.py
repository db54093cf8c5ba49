"""The group `page_quickstart`: its prompts, how lm-eval runs it, and what it shows."""

from __future__ import annotations

import dataclasses
import math
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager
from transformers import AutoTokenizer

from page_bench import tasks
from page_bench.inputs.errors import UsageError
from page_bench.model import default_model
from page_bench.records.trace import Answer, Trace
from page_bench.tasks import quickstart, tokenizer
from page_bench.tasks.tokenizer import load as load_tokenizer

TASKS = ("needle_number", "needle_word", "repeated_fact")
METRICS = {"score", "correct", "kept_kv", "gate_open", "head_drop"}
FACTS = {
    "needle_number": r"The secret number of the (\w+ \w+) is (\d+)\.",
    "needle_word": r"The (\w+) bought a new (\w+)\.",
    "repeated_fact": r"The (\w+) lives in (\w+)\.",
}

TinyFolder = Callable[[str], Path]


def rows(task: str, **metadata: Any) -> list[dict[str, Any]]:
    return list(getattr(quickstart, task)(**metadata)["test"])


@pytest.fixture(scope="module", params=["qwen2", "default"])
def name(request: pytest.FixtureRequest) -> str:
    """A model folder: a tokenizer of one token per byte or so, and the default model's."""
    if request.param == "default":
        return str(request.getfixturevalue("default_model_folder"))
    return str(request.getfixturevalue("tiny_folder")(request.param))


@pytest.mark.real_model
@pytest.mark.parametrize("task", TASKS)
def test_the_answer_can_be_read_from_the_prompt_alone(task: str, name: str) -> None:
    for row in rows(task, pretrained=name):
        text, question = row["prompt"].split("\nQuestion: ")
        facts = re.findall(FACTS[task], text)
        assert len(set(facts)) == 1
        assert len(facts) == 1 or task == "repeated_fact"
        subject, answer = facts[0]
        assert row["answers"] == [answer]
        assert text.lower().count(answer.lower()) == len(facts)
        assert subject in question
        assert subject in row["answer_prefix"]
        assert answer.lower() not in (question + row["answer_prefix"]).lower()


@pytest.mark.real_model
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("limit", [600, 1000])
def test_prompts_fill_their_length_and_never_pass_it(task: str, name: str, limit: int) -> None:
    tokenizer = AutoTokenizer.from_pretrained(name)
    for row in rows(task, pretrained=name, prompt_tokens=limit):
        length = len(tokenizer(row["prompt"] + row["answer_prefix"]).input_ids)
        assert length == row["prompt_tokens"]
        # One more filler sentence, with a repeated fact at most, would not fit.
        unit = max(len(tokenizer(" " + s).input_ids) for s in quickstart._FILLER)
        assert limit - 2 * unit < length <= limit


@pytest.mark.parametrize("task", ["needle_number", "needle_word"])
def test_needles_stand_at_all_depths_outside_the_observation_window(
    task: str, tiny_folder: TinyFolder
) -> None:
    places = []
    for row in rows(task, pretrained=str(tiny_folder("qwen2"))):
        text = row["prompt"].split("\nQuestion: ")[0]
        found = re.search(FACTS[task], text)
        assert found is not None
        places.append(found.start() / len(text))
    assert places == sorted(places)
    assert places[0] < 0.2
    assert 0.8 < places[-1] < 0.97


def test_a_length_without_room_for_text_is_refused(tiny_folder: TinyFolder) -> None:
    with pytest.raises(UsageError, match="prompt_tokens=10 leaves no room"):
        rows("needle_word", pretrained=str(tiny_folder("qwen2")), prompt_tokens=10)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"prompt_tokens": "600"}, "prompt_tokens='600' is not allowed"),
        ({"prompt_tokens": 600.7}, "prompt_tokens=600.7 is not allowed"),
        ({"prompt_token": 600}, "write 'prompt_tokens'"),
        ({"protocol": "page"}, "protocol changes nothing"),
        ({"draw_seed": 1}, "draw_seed changes nothing"),
    ],
)
def test_metadata_that_would_change_nothing_is_refused(
    wrong: dict[str, Any], sentence: str, tiny_folder: TinyFolder
) -> None:
    with pytest.raises(UsageError, match=sentence):
        rows("needle_word", pretrained=str(tiny_folder("qwen2")), **wrong)


@pytest.mark.real_model
def test_the_tokenizer_of_the_default_model_is_never_taken_without_a_word(
    tiny_folder: TinyFolder, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer._warn_of_default.cache_clear()
    rows("needle_word", pretrained=str(tiny_folder("qwen2")))
    assert not caplog.records
    rows("needle_word")
    rows("needle_number")
    (record,) = caplog.records
    assert f"sized with the tokenizer of {default_model.default_pretrained()}" in record.message


def test_samples_depend_on_nothing_but_task_and_index(tiny_folder: TinyFolder) -> None:
    folder = str(tiny_folder("qwen2"))
    code = (
        "import sys, random; random.seed(5); from page_bench.tasks import quickstart as q;"
        "rows = lambda t: list(getattr(q, t)(pretrained=sys.argv[1], evictor='h2o')['test']);"
        f"print({{t: rows(t) for t in {TASKS[::-1]}}})"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run(
        [sys.executable, "-c", code, folder],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert done.stdout.strip() == repr({t: rows(t, pretrained=folder) for t in TASKS[::-1]})


def test_the_global_generator_is_left_alone(tiny_folder: TinyFolder) -> None:
    before = random.getstate()
    rows("needle_number", pretrained=str(tiny_folder("qwen2")))
    assert random.getstate() == before


@pytest.mark.parametrize(
    ("metadata", "loaded", "options"),
    [
        ({}, "default", {}),
        ({"pretrained": "a/model", "evictor": "h2o", "version": 1.0}, "a/model", {}),
        ({"pretrained": "a/model", "tokenizer": "a/tokenizer"}, "a/tokenizer", {}),
        ({"pretrained": "a/model", "revision": "v2"}, "a/model", {"revision": "v2"}),
        ({"pretrained": "m", "trust_remote_code": True}, "m", {"trust_remote_code": True}),
    ],
)
def test_the_tokenizer_is_the_models_own(
    monkeypatch: pytest.MonkeyPatch,
    tiny_folder: TinyFolder,
    metadata: dict[str, Any],
    loaded: str,
    options: dict[str, Any],
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(tiny_folder("qwen2")))
    seen: list[tuple[str, dict[str, Any]]] = []

    def load(name: str, **options: Any) -> Any:
        seen.append((name, options))
        return tokenizer

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", load)
    monkeypatch.setattr(default_model, "default_pretrained", lambda: "default")
    load_tokenizer.cache_clear()
    rows("needle_word", **metadata)
    load_tokenizer.cache_clear()
    assert seen == [(loaded, {"trust_remote_code": False, **options})]


class Parrot(LM):
    """Answers every request with one text; with a trace when told to."""

    def __init__(self, text: str, traced: bool) -> None:
        super().__init__()
        self.text, self.traced = text, traced
        self.contexts: list[str] = []

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        self.contexts += [request.args[0] for request in requests]
        return [Answer(self.text, _trace()) if self.traced else self.text for _ in requests]

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        raise NotImplementedError

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        raise NotImplementedError


def _trace() -> Trace:
    required = [f.name for f in dataclasses.fields(Trace) if f.default is dataclasses.MISSING]
    values: dict[str, Any] = dict.fromkeys(required)
    return Trace(**{**values, "drop": 0.03, "gate_open": True, "kept_kv": 0.125})


def evaluate(
    model: LM,
    pretrained: str | None,
    task: str = "page_quickstart",
    limit: int | None = None,
    **arguments: Any,
) -> Any:
    metadata = {} if pretrained is None else {"pretrained": pretrained}
    manager = TaskManager(
        include_path=str(Path(tasks.__file__).parent), include_defaults=False, metadata=metadata
    )
    return simple_evaluate(
        model, tasks=[task], task_manager=manager, limit=limit, bootstrap_iters=0, **arguments
    )


@pytest.mark.parametrize("traced", [True, False])
def test_lm_eval_reports_five_numbers_of_every_sample(
    tiny_folder: TinyFolder, traced: bool
) -> None:
    from lm_eval.loggers.wandb_logger import WandbLogger

    parrot = Parrot("Rome, or 1234567, or a violin", traced)
    outcome = evaluate(parrot, str(tiny_folder("qwen2")))
    assert len(parrot.contexts) == 24
    assert set(outcome["results"]) == {"page_quickstart", *(f"page_quickstart_{t}" for t in TASKS)}
    for result in outcome["results"].values():
        assert {key.split(",")[0] for key in result if key.endswith(",none")} >= METRICS
    group = outcome["groups"]["page_quickstart"]
    assert group["kept_kv,none"] == (0.125 if traced else 1.0)
    assert group["gate_open,none"] == (1.0 if traced else 0.0)
    if traced:
        assert group["head_drop,none"] == pytest.approx(0.03)
    else:
        assert math.isnan(group["head_drop,none"])
    right = [s["correct"] for samples in outcome["samples"].values() for s in samples]
    assert group["correct,none"] == pytest.approx(sum(right) / 24)
    assert 0 < sum(right) < 24
    for task, samples in outcome["samples"].items():
        table = WandbLogger._generate_dataset(None, samples, outcome["configs"][task])
        assert set(table.columns) >= METRICS
        assert len(table) == 8


def test_the_prompt_ends_with_the_beginning_of_the_answer(tiny_folder: TinyFolder) -> None:
    parrot = Parrot("", False)
    evaluate(parrot, str(tiny_folder("qwen2")), limit=1)
    expected = [rows(task, pretrained=str(tiny_folder("qwen2")))[0] for task in TASKS]
    assert parrot.contexts == [row["prompt"] + row["answer_prefix"] for row in expected]
    assert all(re.search(r"\?\nAnswer: The [\w ]+$", context) for context in parrot.contexts)


@pytest.mark.real_model
@pytest.mark.usefixtures("default_model_folder")
def test_eviction_loses_the_number_and_the_gate_saves_it() -> None:
    from page_bench.harness.lm import PageLM

    def run(group: str, **arm: Any) -> dict[str, list[tuple[float, float]]]:
        samples = evaluate(PageLM(device="cpu", evictor="snapkv", **arm), None, group, 1)["samples"]
        return {
            task: [(sample["correct"], round(sample["kept_kv"], 2)) for sample in answered]
            for task, answered in samples.items()
        }

    assert run("page_quickstart_needle_number", gate="open") == {
        "page_quickstart_needle_number": [(0.0, 0.12)]
    }
    # The fixed threshold, since three samples are few to measure one on.
    assert run("page_quickstart", gate="page", tau="fixed") == {
        "page_quickstart_needle_number": [(1.0, 1.0)],
        "page_quickstart_needle_word": [(1.0, 0.12)],
        "page_quickstart_repeated_fact": [(1.0, 0.12)],
    }


def test_a_system_instruction_stands_in_a_paragraph_of_its_own(tiny_folder: TinyFolder) -> None:
    task, folder = "page_quickstart_needle_word", str(tiny_folder("qwen2"))
    alone, instructed = Parrot("x", False), Parrot("x", False)
    evaluate(alone, folder, task, limit=1)
    evaluate(instructed, folder, task, limit=1, system_instruction="Be brief.")
    assert alone.contexts[0].startswith("Read the text")
    assert instructed.contexts == [f"Be brief.\n\n{alone.contexts[0]}"]
