"""One sweep, one set of prompts: a chat template that prints the time is read once."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from copy import deepcopy
from pathlib import Path
from typing import Any

import lm_eval.tasks
import own_tasks
import pytest
import test_sweep
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks import TaskManager
from test_sweep import PROMPTS, contents, few_tasks, run, sweep_file
from tiny_models import save_tiny
from torch.utils import collect_env
from transformers import AutoTokenizer

from page_bench.analysis.pairs import pair_runs
from page_bench.harness import plugin
from page_bench.harness.hooks import TASKS_FOLDER
from page_bench.inputs.errors import UsageError
from page_bench.records.finished_runs import read_runs
from page_bench.sweep import tasks as sweep_tasks
from page_bench.sweep.arms import arms_of
from page_bench.sweep.file import read_sweep
from page_bench.sweep.output import MARKER
from page_bench.sweep.prompts import FOLDER

ARMS = {"evictor": {"values": ["snapkv", "knorm"]}, "gate": {"values": ["open", "closed"]}}
NUMBER = re.compile(r"-\d+\.\d+")
"""A likelihood among lm-eval's samples, where all are texts."""
FIRST = "page_quickstart_needle_number document 0"


@pytest.fixture(autouse=True)
def _few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin.install()
    monkeypatch.setattr(lm_eval.tasks, "TaskManager", few_tasks)
    monkeypatch.setattr(collect_env, "get_pretty_env_info", lambda: "environment")


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model whose chat template prints the time to the microsecond: no two prompts are alike."""
    folder = save_tiny(tmp_path_factory.mktemp("clock"), "llama")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = "{{ strftime_now('%H:%M:%S.%f') }}\n" + tokenizer.chat_template
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def sweep(clock: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sweep's file and its finished folder."""
    folder = tmp_path_factory.mktemp("sweep")
    file = sweep_file(folder / "sweep.yaml", clock, "--apply_chat_template", **ARMS)
    with pytest.MonkeyPatch.context() as patch:
        plugin.install()
        patch.setattr(lm_eval.tasks, "TaskManager", few_tasks)
        patch.setattr(collect_env, "get_pretty_env_info", lambda: "environment")
        renders = counted(patch)
        assert run(file, folder / "out") == 0
    assert renders["fewshot_context"] == PROMPTS
    return file, folder / "out"


@pytest.fixture
def again(sweep: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """The same, one arm of it unfinished, in a folder of this test's own."""
    file, out = sweep
    own = tmp_path / "out"
    shutil.copytree(out, own)
    arm = arms_of(read_sweep(file), own)[1]
    (arm.folder / MARKER).unlink()
    return file, own


def counted(patch: pytest.MonkeyPatch) -> Counter[str]:
    calls: Counter[str] = Counter()
    original = ConfigurableTask.fewshot_context

    def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls["fewshot_context"] += 1
        return original(self, *args, **kwargs)

    patch.setattr(ConfigurableTask, "fewshot_context", counting)
    return calls


def hashes(out: Path) -> dict[tuple[str, int], set[str]]:
    """The prompts of each document over all arms."""
    found: dict[tuple[str, int], set[str]] = {}
    for record in read_runs([out]):
        place = record.trace.task, record.trace.doc_id
        found.setdefault(place, set()).add(record.trace.prompt_sha256)
    return found


def test_all_arms_share_prompts_that_are_rendered_once(sweep: tuple[Path, Path]) -> None:
    found = hashes(sweep[1])
    assert len(found) == PROMPTS
    assert all(len(own) == 1 for own in found.values())
    assert len(set.union(*found.values())) == PROMPTS
    assert all(record.trace.chat_template for record in read_runs([sweep[1]]))
    arms, notes = pair_runs(read_runs([sweep[1]]))
    assert [len(own) for own in arms.values()] == [PROMPTS, PROMPTS]
    assert not [note for note in notes if "differs between runs" in note]


def test_a_sweep_that_goes_on_keeps_the_prompts_it_began_with(
    again: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    before = hashes(again[1])
    assert run(*again) == 0
    assert hashes(again[1]) == before
    said = capsys.readouterr()
    assert f"{FIRST} would be worded otherwise now" in said.out + said.err


def test_arms_beside_finished_ones_of_other_prompts_are_refused(again: tuple[Path, Path]) -> None:
    shutil.rmtree(again[1] / FOLDER)
    with pytest.raises(UsageError, match=f"finished, but with another prompt of {FIRST}"):
        run(*again)


def test_an_arm_that_asks_otherwise_than_was_answered_is_refused(
    clock: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: Counter[str] = Counter()

    def altered(instances: Any) -> Any:
        own = deepcopy(instances)
        copies[own[0].task_name] += 1
        if copies[own[0].task_name] == 3:  # the second arm's
            own[0].arguments = ("Something else.", *own[0].args[1:])
        return own

    monkeypatch.setattr(sweep_tasks, "deepcopy", altered)
    file = sweep_file(tmp_path / "sweep.yaml", clock, "--apply_chat_template", **ARMS)
    with pytest.raises(UsageError, match=f"asks another prompt of {FIRST} than the one that was"):
        run(file, tmp_path / "out")


OWN = ("own_choice", "own_vote", "own_filtered")
"""Likelihoods, three answers to each document, and two filters over one."""


def test_arms_of_every_kind_of_request_are_as_each_alone(
    tiny_folder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that several arms answer must not keep another's answers."""
    wanted = [own_tasks.Wanted(["x"], "x", "xyz", i) for i in range(2)]
    folder = own_tasks.write_tasks(tmp_path / "tasks", wanted)

    def few_and_own(metadata: dict[str, Any], include_path: str | None = None) -> TaskManager:
        paths = [str(TASKS_FOLDER), str(folder)]
        return TaskManager(include_path=paths, include_defaults=False, metadata=metadata)

    monkeypatch.setattr(lm_eval.tasks, "TaskManager", few_and_own)
    monkeypatch.setattr(test_sweep, "TASK", ",".join(OWN))
    file = sweep_file(tmp_path / "sweep.yaml", str(tiny_folder("llama")), **ARMS)
    renders = counted(monkeypatch)
    assert run(file, tmp_path / "out") == 0
    assert renders["fewshot_context"] == 2 * len(OWN)
    for arm in arms_of(read_sweep(file), tmp_path / "out"):
        written = contents(arm.folder)
        assert sum("/samples_own_" in name for name in written) == len(OWN)
        assert near(written) == near(test_sweep.alone(arm, tmp_path / arm.name))


def near(value: Any) -> Any:
    """The same with likelihoods rounded, which batches of another size shift in the last digits."""
    if isinstance(value, dict):
        return {name: near(part) for name, part in value.items()}
    if isinstance(value, list):
        return [near(part) for part in value]
    is_number = isinstance(value, float) or (isinstance(value, str) and NUMBER.fullmatch(value))
    return round(float(value), 3) if is_number else value
