"""Models and tokenizers given as objects: what lm-eval's `hf` takes is run, sized and recorded."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lm_eval
import pytest
import torch
from lm_eval.loggers import EvaluationTracker
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from test_quickstart import Parrot
from tiny_models import tiny_model, tiny_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from page_bench.harness import plugin
from page_bench.harness.hooks import TASKS_FOLDER
from page_bench.harness.lm import PageLM
from page_bench.inputs.errors import UsageError
from page_bench.leaderboard.results import read_results
from page_bench.model.given_object import GivenObject, named, objects_of
from page_bench.tasks.tokenizer import tokenizer_of

TASK = "page_quickstart_needle_number"
LIMIT = 700
"""Tokens, each a byte here, and a fifth as many of the default model."""

TinyFolder = Callable[[str], Path]


@pytest.fixture(autouse=True)
def _installed() -> None:
    plugin.install()


def run(
    model: Any, model_args: Any = None, out: Path | None = None, with_manager: bool = False
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Samples and results; these as a file holds them, where there is a folder for it."""
    tracker = EvaluationTracker(output_path=None if out is None else str(out))
    metadata = {"prompt_tokens": LIMIT}
    results: Any = lm_eval.simple_evaluate(
        model=model,
        model_args=model_args,
        tasks=[TASK],
        limit=1,
        bootstrap_iters=0,
        evaluation_tracker=tracker,
        metadata=metadata,
        task_manager=TaskManager(metadata=dict(metadata)) if with_manager else None,
    )
    samples = results.pop("samples")
    if out is not None:
        tracker.save_results_aggregated(results=results, samples=samples)
        (file,) = out.rglob("results_*.json")
        results = json.loads(file.read_text())
    return samples[TASK], results


def loaded(folder: Path) -> tuple[Any, Any]:
    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def by_name(tiny_folder: TinyFolder) -> Callable[[], dict[str, Any]]:
    """The sample of the model by its name, under lm-eval's own model."""

    @functools.cache
    def sample() -> dict[str, Any]:
        return run(HFLM(str(tiny_folder("llama")), device="cpu"))[0][0]

    return sample


@pytest.mark.parametrize(
    ("model", "tokenizer", "with_manager"),
    [
        *(("page_hf", tokenizer, False) for tokenizer in (None, "name", "object", "another")),
        *(("page_hf", tokenizer, True) for tokenizer in (None, "another")),
        *(("hf", None, False), ("hf", "another", True)),
    ],
)
def test_a_model_object_runs_as_its_name_does(
    model: str,
    tokenizer: str | None,
    with_manager: bool,
    tiny_folder: TinyFolder,
    by_name: Callable[[], dict[str, Any]],
) -> None:
    folder = tiny_folder("llama")
    held, own = loaded(folder)
    args: dict[str, Any] = {"pretrained": held}
    # Of as many tokens, under no name at all.
    made = {"name": str(folder), "object": own, "another": tiny_tokenizer(True)}
    if tokenizer is not None:
        args["tokenizer"] = made[tokenizer]
    if model == "page_hf":
        args["gate"] = "closed"
    before = dict(args)
    (sample,), _ = run(model, args, with_manager=with_manager)
    assert args == before
    assert 0.8 * LIMIT < len(sample["arguments"][0][0].encode()) < LIMIT
    assert sample["arguments"] == by_name()["arguments"]
    assert sample["resps"] == by_name()["resps"]


@pytest.mark.parametrize(("kind", "with_manager"), [(PageLM, False), (HFLM, True)])
def test_a_made_model_sizes_its_tasks_by_the_tokenizer_that_it_has(
    kind: type[Any], with_manager: bool
) -> None:
    arm = {"gate": "closed"} if kind is PageLM else {}
    lm = kind(pretrained=tiny_model("llama"), tokenizer=tiny_tokenizer(True), **arm)
    (sample,), _ = run(lm, with_manager=with_manager)
    assert 0.8 * LIMIT < len(sample["arguments"][0][0].encode()) < LIMIT


def test_records_name_what_was_given(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    held, tokenizer = loaded(tiny_folder("llama"))
    args = {"pretrained": held, "tokenizer": tokenizer, "dtype": None, "gate": "open"}
    _, results = run("page_hf", {**args, "softmax_dtype": torch.float32}, tmp_path)
    config, name = results["config"], str(tiny_folder("llama"))
    assert config["model_args"]["pretrained"] == config["model_args"]["tokenizer"] == name
    assert config["model_args"]["softmax_dtype"] == "float32"
    assert config["page"]["model"] == results["model_name"] == name
    assert config["page"]["objects"] == ["pretrained", "tokenizer"]
    assert results["configs"][TASK]["metadata"]["pretrained"] == name
    (trace,) = tmp_path.rglob("trace_*.jsonl")
    assert json.loads(trace.read_text())["model"] == name
    assert "LlamaModel" not in json.dumps(results)
    (file,) = tmp_path.rglob("results_*.json")
    with pytest.raises(UsageError, match="given as an object, which no command can name"):
        read_results(file)


def test_records_of_a_name_tell_of_no_object(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    args = {"pretrained": str(tiny_folder("llama")), "gate": "open", "device": "cpu"}
    _, results = run("page_hf", args, tmp_path)
    assert "objects" not in results["config"]["page"]
    (file,) = tmp_path.rglob("results_*.json")
    assert read_results(file)["config"]["page"]["model"] == args["pretrained"]


def test_a_model_without_a_name_asks_for_its_tokenizer() -> None:
    with pytest.raises(UsageError, match="LlamaForCausalLM object that does not say where it came"):
        run("page_hf", {"pretrained": tiny_model("llama")})
    with pytest.raises(UsageError, match="give one as tokenizer=, an object or a name"):
        tokenizer_of({"pretrained": tiny_model("llama")})


def test_what_is_no_model_is_refused() -> None:
    for wrong in (5, object(), tiny_tokenizer(True)):
        with pytest.raises(UsageError, match="is no model; give the name of one"):
            run("page_hf", {"pretrained": wrong})
    args = {"pretrained": tiny_model("llama"), "tokenizer": tiny_model("llama")}
    with pytest.raises(UsageError, match=r"tokenizer=.* is not what lm-eval's hf model takes"):
        run("page_hf", args)


def test_an_adapter_on_an_object_is_part_of_its_name() -> None:
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(tiny_model("llama"), LoraConfig(target_modules=["q_proj"]))
    made = PageLM(pretrained=adapted, tokenizer=tiny_tokenizer(True))
    assert made.model_name.endswith(" peft=default")


def test_a_task_manager_of_ones_own_is_told_the_whole_tokenizer(tmp_path: Path) -> None:
    """The tokenizer that is given beside a model, not the model's own."""
    from page_bench.harness.hooks import complete_call

    given = {"pretrained": "a/b", "tokenizer": "c/d", "revision": "r"}
    own = TaskManager(include_path=str(TASKS_FOLDER), include_defaults=False)
    completed = complete_call(
        {"model": "page_hf", "model_args": given, "tasks": [TASK], "task_manager": own}
    )
    assert completed["task_manager"].metadata == given


def test_tasks_under_another_model_fall_back_on_what_it_says_of_itself() -> None:
    parrot = Parrot("Rome", False)
    parrot.tokenizer = tiny_tokenizer(True)
    (sample,), _ = run(parrot, with_manager=True)
    assert 0.8 * LIMIT < len(sample["arguments"][0][0].encode()) < LIMIT


def test_a_given_object_is_its_name_to_all_that_copies_or_writes_it() -> None:
    held = tiny_tokenizer(True)
    given = named({"tokenizer": held, "pretrained": "a/b", "dtype": torch.bfloat16})
    assert given == {"tokenizer": type(held).__name__, "pretrained": "a/b", "dtype": "bfloat16"}
    assert copy.deepcopy(given)["tokenizer"].held is held
    assert json.dumps(given["tokenizer"]) == f'"{type(held).__name__}"'
    assert objects_of({**given, "config": held, "budget": 0.5, "trace": Path("x")}) == [
        "config",
        "tokenizer",
    ]
    assert isinstance(given["tokenizer"], GivenObject)
