"""lm-eval gets our model, tasks and defaults, and stays as it is for all else."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from page_bench.harness import hooks
from page_bench.inputs.errors import UsageError
from page_bench.model.default_model import LOCAL_NAME

DEFAULT = "Some-Default-Model"


@pytest.fixture(autouse=True)
def default_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("page_bench.model.default_model.default_pretrained", lambda: DEFAULT)
    hooks._say_once.cache_clear()


@pytest.fixture
def loggers() -> Iterator[tuple[logging.Logger, logging.Logger]]:
    """The loggers of page_bench and lm_eval, given back as they were."""
    pair = (logging.getLogger("page_bench"), logging.getLogger("lm_eval"))
    before = [(log, log.handlers[:], log.level, log.propagate) for log in pair]
    yield pair
    for log, handlers, level, propagate in before:
        log.handlers[:], log.propagate = handlers, propagate
        log.setLevel(level)


def module(name: str, **attributes: object) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(attributes)
    return made


# What a call of simple_evaluate leaves out


def complete(**given: Any) -> dict[str, Any]:
    return hooks.complete_call({"model": "page_hf", **given})


def test_without_tasks_the_quickstart_runs_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    given: list[dict[str, Any]] = [{}, {"tasks": None}, {"tasks": []}]
    for nothing in given:
        caplog.clear()
        hooks._say_once.cache_clear()
        assert complete(**nothing)["tasks"] == ["page_quickstart"]
        assert "page_quickstart" in caplog.text
        assert caplog.records[0].levelno == logging.WARNING  # shown without any logging set up


def test_given_tasks_stay(caplog: pytest.LogCaptureFixture) -> None:
    assert complete(tasks=["gsm8k"])["tasks"] == ["gsm8k"]
    assert not [record for record in caplog.records if "tasks" in record.message]


@pytest.mark.parametrize(
    "given", [{"evictor": "h2o", "tau": 0.5}, "evictor=h2o,tau=0.5"], ids=["dict", "string"]
)
def test_missing_model_is_filled_into_a_copy(given: dict[str, Any] | str) -> None:
    before = given if isinstance(given, str) else dict(given)
    assert complete(model_args=given)["model_args"] == {
        "evictor": "h2o",
        "tau": 0.5,
        "pretrained": DEFAULT,
    }
    assert given == before


def test_the_numbers_of_chosen_documents_reach_the_model() -> None:
    completed = complete(samples={"vt": [5, 3, 5]})
    # In the data set's order, or lm-eval would name them wrongly.
    assert completed["model_args"]["doc_ids"] == {"vt": [3, 5]}
    assert completed["samples"] == {"vt": [3, 5]}


def test_model_is_filled_in_only_where_missing() -> None:
    assert complete()["model_args"] == {"pretrained": DEFAULT}
    assert complete(model_args={"pretrained": None})["model_args"] == {"pretrained": DEFAULT}
    assert complete(model_args="pretrained=a/b")["model_args"] == {"pretrained": "a/b"}


@pytest.mark.parametrize("flag", ["use_cache", "cache_requests", "rewrite_requests_cache"])
def test_caches_are_refused(flag: str) -> None:
    with pytest.raises(UsageError, match="leave it out"):
        complete(**{flag: "answers" if flag == "use_cache" else True})


def test_deleting_a_cache_is_allowed() -> None:
    assert complete(use_cache=None, cache_requests=False, delete_requests_cache=True)


def test_device_among_the_model_args_points_to_the_flag() -> None:
    with pytest.raises(UsageError, match="use --device cpu"):
        complete(model_args={"device": "cpu"}, device="cuda:0")
    assert complete(model_args={"device": "cpu"}, device=None)["model_args"]["device"] == "cpu"


@pytest.mark.parametrize("output", ["out", "out/r.json"], ids=["folder", "file"])
@pytest.mark.parametrize(
    "model_args", [{}, {"pretrained": "org/a model"}, {"peft": "x/y"}], ids=str
)
def test_trace_goes_where_lm_eval_writes_the_samples(
    output: str, model_args: dict[str, str], tmp_path: Path
) -> None:
    from lm_eval.loggers import EvaluationTracker

    tracker = EvaluationTracker(output_path=str(tmp_path / output))
    completed = complete(model_args=model_args, evaluation_tracker=tracker)["model_args"]
    tracker.general_config_tracker.log_experiment_args("page_hf", completed, None, None, False)
    tracker.save_results_aggregated(results={})
    tracker.save_results_samples("some_task", samples={})
    (samples,) = tmp_path.rglob("samples_*.jsonl")
    assert completed["trace"] == str(samples.parent)


def test_trace_is_set_only_where_missing_and_needed() -> None:
    class Tracker:
        output_path: str | None = "out"

    chosen = complete(model_args={"trace": "mine"}, evaluation_tracker=Tracker())
    assert chosen["model_args"]["trace"] == "mine"
    Tracker.output_path = None
    assert "trace" not in complete(evaluation_tracker=Tracker())["model_args"]


PROBE_TASK = """
task: probe
custom_dataset: !function probe.dataset
test_split: test
output_type: generate_until
doc_to_text: "{{text}}"
doc_to_target: ""
metadata: {version: 1}
"""
PROBE_DATASET = """
import datasets
def dataset(**metadata):
    return {"test": datasets.Dataset.from_list([{"text": str(metadata.get("pretrained"))}])}
"""


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [(None, DEFAULT), ({}, DEFAULT), ({"pretrained": "own"}, "own")],
    ids=["none", "empty", "own"],
)
def test_tasks_are_told_the_model(
    metadata: dict[str, str] | None, expected: str, tmp_path: Path
) -> None:
    from lm_eval.tasks import TaskManager

    (tmp_path / "probe.yaml").write_text(PROBE_TASK)
    (tmp_path / "probe.py").write_text(PROBE_DATASET)
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False, metadata=metadata)
    completed = complete(tasks=["probe"], task_manager=manager)["task_manager"]
    (doc,) = completed.load(["probe"])["tasks"]["probe"].test_docs()
    assert doc["text"] == expected
    assert manager.metadata == metadata
    if expected == DEFAULT:  # other tasks load the tokenizer by what they are told
        assert completed.metadata["tokenizer"] == DEFAULT


# Attaching to lm-eval's modules


def recording_evaluator() -> tuple[ModuleType, list[dict[str, Any]]]:
    calls: list[dict[str, Any]] = []

    def simple_evaluate(
        model: Any, model_args: Any = None, tasks: Any = None, use_cache: Any = None
    ) -> str:
        calls.append({"model_args": model_args, "tasks": tasks, "use_cache": use_cache})
        return "results"

    evaluator = module("lm_eval.evaluator", simple_evaluate=simple_evaluate)
    hooks.complete_evaluations(evaluator)
    return evaluator, calls


def test_positional_and_named_arguments_are_completed_alike() -> None:
    evaluator, calls = recording_evaluator()
    assert evaluator.simple_evaluate("page_hf", "evictor=h2o", ["t"]) == "results"
    evaluator.simple_evaluate(tasks=["t"], model_args={"evictor": "h2o"}, model="page_hf")
    assert calls[0] == calls[1]
    assert calls[0]["model_args"] == {"evictor": "h2o", "pretrained": DEFAULT}


def test_other_models_get_what_was_given() -> None:
    evaluator, calls = recording_evaluator()
    evaluator.simple_evaluate("hf", "pretrained=gpt2", use_cache="answers")
    assert calls == [{"model_args": "pretrained=gpt2", "tasks": None, "use_cache": "answers"}]


def test_a_baseline_may_name_our_default_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("page_bench.model.default_model.resolve", lambda name: f"/copies/{name}")
    evaluator, calls = recording_evaluator()
    for given in (f"pretrained={LOCAL_NAME}", {"pretrained": LOCAL_NAME}):
        evaluator.simple_evaluate("hf", given)
    assert [call["model_args"] for call in calls] == [{"pretrained": f"/copies/{LOCAL_NAME}"}] * 2


def test_a_page_lm_object_refuses_caches_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class PageLM:
        pass

    monkeypatch.setitem(
        sys.modules, "page_bench.harness.lm", module("page_bench.harness.lm", PageLM=PageLM)
    )
    evaluator, calls = recording_evaluator()
    evaluator.simple_evaluate(PageLM(), tasks=["t"])
    assert calls == [{"model_args": None, "tasks": ["t"], "use_cache": None}]
    with pytest.raises(UsageError):
        evaluator.simple_evaluate(PageLM(), use_cache="answers")


def test_attaching_twice_is_attaching_once() -> None:
    evaluator, _ = recording_evaluator()
    once = evaluator.simple_evaluate
    hooks.complete_evaluations(evaluator)
    assert evaluator.simple_evaluate is once


def test_model_is_registered_unless_lm_eval_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from lm_eval.api import registry

    models: Any = registry.Registry("model")
    monkeypatch.setattr(registry, "model_registry", models)
    monkeypatch.setattr(registry, "load_plugins", print, raising=False)
    hooks.register_model(module("lm_eval.models"))
    assert "page_hf" not in models
    monkeypatch.delattr(registry, "load_plugins")
    hooks.register_model(module("lm_eval.models"))
    hooks.register_model(module("lm_eval.models"))
    assert list(models.keys()) == ["page_hf"]


def test_task_folder_stands_between_the_defaults_and_the_users() -> None:
    class TaskIndex:
        @staticmethod
        def build(paths: list[Path]) -> list[Path]:
            return paths

    class TaskManager:
        def match_tasks(self, task_list: list[str]) -> list[str]:
            return task_list

    defaults, users, ours = Path("/lm_eval/tasks"), Path("/users"), hooks.TASKS_FOLDER
    classes = {"TaskIndex": TaskIndex, "TaskManager": TaskManager}
    hooks.add_tasks(
        module("lm_eval.tasks.manager", __file__=str(defaults / "manager.py"), **classes)
    )
    assert TaskIndex().build([defaults, users]) == [defaults, ours, users]
    assert TaskIndex().build([users]) == [users]
    assert TaskIndex().build([defaults, ours]) == [defaults, ours]


def test_task_manager_finds_our_tasks_and_the_users_win(tmp_path: Path) -> None:
    from lm_eval.tasks import manager

    hooks.add_tasks(manager)
    found = manager.TaskManager().task_index["page_quickstart"]
    assert found.yaml_path.is_relative_to(hooks.TASKS_FOLDER)
    (tmp_path / "own.yaml").write_text("group: page_quickstart\ntask: []\n")
    own = manager.TaskManager(include_path=str(tmp_path)).task_index["page_quickstart"]
    assert own.yaml_path == tmp_path / "own.yaml"
    assert not manager.TaskManager(include_defaults=False).all_tasks


def test_only_patterns_that_say_page_find_our_tasks(tmp_path: Path) -> None:
    from lm_eval.tasks import manager

    hooks.add_tasks(manager)
    text = "task: a_needle\ndataset_path: x\n"
    (tmp_path / "a_needle.yaml").write_text(text)
    (tmp_path / "page_own.yaml").write_text(text.replace("a_needle", "page_own"))
    folders = [str(tmp_path), str(hooks.TASKS_FOLDER)]
    known = manager.TaskManager(include_path=folders, include_defaults=False)
    assert known.match_tasks(["*needle*"]) == ["a_needle"]
    assert known.match_tasks(["*own"]) == ["page_own"]
    number, word = (f"page_quickstart_needle_{kind}" for kind in ("number", "word"))
    assert known.match_tasks(["page_quick*needle*"]) == [number, word]
    assert known.match_tasks(["*_word", number]) == [number]


def harness_module(error: Exception | None) -> ModuleType:
    class HarnessCLI:
        def execute(self, args: object) -> object:
            if error is not None:
                raise error
            return args

    made = module("lm_eval._cli.harness", HarnessCLI=HarnessCLI)
    hooks.end_cleanly(made)
    return made


def test_usage_error_ends_the_command_without_a_traceback(
    capsys: pytest.CaptureFixture[str], loggers: object
) -> None:
    with pytest.raises(SystemExit) as ended:
        harness_module(UsageError("no such evictor.")).HarnessCLI().execute(None)
    assert ended.value.code == 1
    assert capsys.readouterr().err == "page-bench: no such evictor.\n"


def test_a_task_that_does_not_exist_ends_a_command_of_ours_likewise(
    capsys: pytest.CaptureFixture[str], loggers: object, tmp_path: Path
) -> None:
    missing = harness_module(ValueError("Tasks not found: page_x")).HarnessCLI()
    of_file = tmp_path / "run.yaml"
    of_file.write_text("model: page_hf\ntasks: [x]\n")
    for ours in (
        argparse.Namespace(model="page_hf", tasks="x"),
        argparse.Namespace(model="hf", tasks="x,page_x"),
        argparse.Namespace(tasks=["x", "page_x"]),
        argparse.Namespace(config=str(of_file)),
    ):
        with pytest.raises(SystemExit) as ended:
            missing.execute(ours)
        assert ended.value.code == 1
        assert capsys.readouterr().err.startswith("Tasks not found: page_x; `lm_eval ls tasks`")
        with pytest.raises(ValueError, match="another"):
            harness_module(ValueError("another")).HarnessCLI().execute(ours)
    for others in (argparse.Namespace(model="hf", tasks="x"), argparse.Namespace(config="none")):
        with pytest.raises(ValueError, match="Tasks not found"):
            missing.execute(others)


def test_a_token_is_refused_before_lm_eval_logs_it() -> None:
    with pytest.raises(UsageError, match="token would stand in the results"):
        hooks.complete_call({"model": "page_hf", "model_args": "token=hf_1,pretrained=x"})


def test_other_errors_keep_their_traceback(loggers: object) -> None:
    with pytest.raises(ZeroDivisionError):
        harness_module(ZeroDivisionError()).HarnessCLI().execute(None)
    assert harness_module(None).HarnessCLI().execute("args") == "args"


def test_our_log_shows_where_lm_evals_does(loggers: tuple[logging.Logger, logging.Logger]) -> None:
    ours, theirs = loggers
    shown: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: shown.append(record.getMessage())  # type: ignore[method-assign]
    ours.handlers[:], theirs.handlers[:] = [], [handler]
    theirs.setLevel(logging.INFO)
    theirs.propagate = False
    for _ in range(2):
        harness_module(None).HarnessCLI().execute(None)
    logging.getLogger("page_bench.engine.engine").info("told once")
    logging.getLogger("page_bench.engine.engine").debug("not told")
    assert shown == ["told once"]
