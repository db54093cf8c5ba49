"""What later releases of lm-eval read themselves: entry points for the model and the tasks."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from lm_eval.api.registry import Registry

from page_bench.harness import hooks, own_runs

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def declared(group: str) -> dict[str, str]:
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    points: dict[str, str] = project["entry-points"][group]
    return points


def test_the_declared_model_loads_from_a_placeholder_as_the_loader_makes_it() -> None:
    (name, value), *others = declared("lm_eval.models").items()
    assert (name, value, others) == (own_runs.MODEL, hooks.MODEL_TARGET, [])
    models: Any = Registry("model")
    models.register(name, target=EntryPoint(name, value, "lm_eval.models"))
    assert models.get(name).__name__ == "PageLM"


def test_the_declared_tasks_are_the_folder_that_the_hook_adds() -> None:
    (package,) = declared("lm_eval.tasks").values()
    module = __import__(package, fromlist=["__path__"])
    assert Path(module.__path__[0]).resolve() == hooks.TASKS_FOLDER.resolve()


def test_tasks_that_lm_eval_found_behind_the_symlink_are_indexed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class TaskIndex:
        @staticmethod
        def build(paths: list[Path]) -> list[Path]:
            return paths

    class TaskManager:
        def match_tasks(self, task_list: list[str]) -> list[str]:
            return task_list

    defaults, real, link = tmp_path / "lm_eval", tmp_path / "tasks", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    monkeypatch.setattr(hooks, "TASKS_FOLDER", link)
    manager = ModuleType("lm_eval.tasks.manager")
    vars(manager).update(
        __file__=str(defaults / "manager.py"), TaskIndex=TaskIndex, TaskManager=TaskManager
    )
    hooks.add_tasks(manager)
    assert TaskIndex().build([defaults, real, tmp_path]) == [defaults, link, tmp_path]
    assert TaskIndex().build([real]) == [real]
