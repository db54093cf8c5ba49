"""Sweeps on a tiny model: files as of `lm_eval run` on each arm alone, plans and restarts."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lm_eval.tasks
import pytest
import wandb
import wandb_runs
import yaml
from lm_eval._cli.harness import HarnessCLI
from lm_eval.tasks import TaskManager
from torch.utils import collect_env

from page_bench.commands import sweep as sweep_command
from page_bench.commands.wandb_import import command as wandb_import
from page_bench.engine import engine
from page_bench.engine.prefilled_prompt import PromptPass
from page_bench.gating.calibration import Calibration, ModelFacts, PilotInput
from page_bench.gating.fingerprint import Fingerprint
from page_bench.harness import plugin, run_output
from page_bench.harness.hooks import TASKS_FOLDER, complete_call
from page_bench.harness.lm import PageLM
from page_bench.inputs.errors import UsageError
from page_bench.sweep import basis
from page_bench.sweep import runner as sweep
from page_bench.sweep.arms import Arm, arms_of
from page_bench.sweep.file import read_sweep
from page_bench.sweep.output import MARKER, is_finished, write_results
from page_bench.sweep.plan import GroupPlan, plan_sweep
from page_bench.sweep.tasks import SharedTasks, tracker_of

TASK = "page_quickstart"
PROMPTS = 6
"""Two of each of the group's three tasks."""
PARAMETERS = {
    "evictor": {"values": ["snapkv", "knorm"]},
    "budget": {"values": [0.25, 0.5]},
    "gate": {"values": ["page", "open"]},
}
_MEASURED = ("prefill_s", "gate_s", "evict_s", "decode_s", "decode_rows", "discarded_s")


class Near(float):
    """Equal to what rounding in a batch of another size may make of it."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and math.isclose(self, other, abs_tol=1e-5)

    __hash__ = None  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def _few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexing lm-eval's own thousands of files takes many seconds and adds nothing here."""
    plugin.install()
    monkeypatch.setattr(lm_eval.tasks, "TaskManager", few_tasks)
    # Asks other programs for a second or more, each time with the same answer.
    monkeypatch.setattr(collect_env, "get_pretty_env_info", lambda: "environment")


def few_tasks(metadata: dict[str, Any], include_path: str | None = None) -> TaskManager:
    return TaskManager(include_path=str(TASKS_FOLDER), include_defaults=False, metadata=metadata)


@pytest.fixture(scope="module")
def model(tiny_folder: Callable[[str], Path]) -> str:
    return str(tiny_folder("llama"))


def sweep_file(path: Path, model: str, *words: str, **parameters: Any) -> Path:
    """A sweep over the quickstart, W&B's way."""
    command = [
        *("${env}", "lm_eval", "run", "--model", "page_hf", "--tasks", TASK),
        *("--limit", "2", "--log_samples", "--device", "cpu", "--output_path", "unused"),
        *(*words, "--model_args", f"pretrained={model}", "dtype=float32", "${args_no_hyphens}"),
    ]
    content = {"method": "grid", "command": command, "parameters": parameters or PARAMETERS}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def run(file: Path, out: Path, *words: str) -> int:
    return sweep_command.run([str(file), "--output_path", str(out), *words])


def contents(folder: Path) -> dict[str, Any]:
    """All that lm-eval and page_hf wrote below a folder, without times, paths and the store."""
    found: dict[str, Any] = {}
    for path in folder.rglob("*_????-??-??T*.json*"):
        name = f"{path.parent.relative_to(folder)}/{path.name.rsplit('_', 1)[0]}"
        assert name not in found, f"{name} was written twice"
        text = path.read_text(encoding="utf-8").replace(str(folder), "FOLDER")
        lines = [text] if path.suffix == ".json" else text.splitlines()
        found[name] = [without_times(json.loads(line)) for line in lines]
    return found


def without_times(row: dict[str, Any]) -> dict[str, Any]:
    row = {k: v for k, v in row.items() if k not in (*_MEASURED, "date")}
    row.pop("total_evaluation_time_seconds", None)
    if row.get("mean_token_entropy") is not None:
        row["mean_token_entropy"] = Near(row["mean_token_entropy"])
    if "config" in row:
        row["config"]["page"].pop("store")
        row["config"]["page"]["trace_file"] = row["config"]["page"]["trace_file"].rsplit("_")[0]
    return row


def alone(arm: Arm, folder: Path, extra: tuple[str, ...] = ()) -> dict[str, Any]:
    """The files of lm-eval's own `run` command on one arm."""
    config = arm.config
    words = [
        *("run", "--model", "page_hf", "--tasks", TASK, "--limit", "2", "--log_samples"),
        *("--device", "cpu", "--output_path", str(folder), *extra, "--model_args"),
        *(f"{name}={value}" for name, value in config.model_args.items()),
    ]
    cli = HarnessCLI()
    cli.execute(cli._parser.parse_args(words))
    return contents(folder)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, model: str) -> tuple[Path, Path]:
    """A sweep file and the folder of its unbroken run."""
    folder = tmp_path_factory.mktemp("sweep")
    file = sweep_file(folder / "sweep.yaml", model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lm_eval.tasks, "TaskManager", few_tasks)
        patch.setattr(collect_env, "get_pretty_env_info", lambda: "environment")
        assert run(file, folder / "out") == 0
    return file, folder / "out"


def test_an_arm_is_what_lm_eval_writes_of_it_alone(
    swept: tuple[Path, Path], tmp_path: Path
) -> None:
    file, out = swept
    arms = arms_of(read_sweep(file), out)
    assert len(arms) == 8
    distinct = set()
    for number, arm in enumerate(arms):
        written = contents(arm.folder)
        if number in (0, 3, 5, 6):  # of each evictor a plain and a gated arm
            assert written == alone(arm, tmp_path / arm.name)
        kinds = sorted(name.partition("/")[2].partition("_")[0] for name in written)
        assert kinds == ["results", "samples", "samples", "samples", "trace"]
        (trace,) = (rows for name, rows in written.items() if name.endswith("/trace"))
        assert len(trace) == PROMPTS
        distinct.add(json.dumps([row["answer"] for row in trace]))
    assert len(distinct) > 3  # a sweep that answered every arm alike would pass all else
    assert {path.name for path in out.iterdir()} >= {arm.name for arm in arms}


def copied(out: Path, folder: Path) -> Path:
    """A sweep's folder, to be broken."""
    shutil.copytree(out, folder)
    return folder


def test_a_finished_sweep_does_nothing(
    swept: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = swept
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert run(file, out) == 0
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    assert "8 of 8 arms are finished; 0 are left" in capsys.readouterr().err


def test_a_finished_sweep_can_be_imported_to_wandb(
    swept: tuple[Path, Path], tmp_path: Path
) -> None:
    file, whole = swept
    out = copied(whole, tmp_path / "out")
    arms = {arm.name: arm for arm in arms_of(read_sweep(file), out)}
    wandb_runs.fresh()
    assert wandb_import.run([str(out), "--project", "test", "--group", "a sweep"]) == 0
    runs = wandb_runs.logged_in(tmp_path)
    assert {run.run.display_name for run in runs} == {*arms}
    assert len(runs) == len(arms)
    for run in runs:
        arm = arms[run.run.display_name]
        parameters = {name: run.config[name] for name in arm.parameters}
        assert parameters == arm.parameters
        assert run.config["page"]["evictor"] == parameters["evictor"]
        assert len(run.table("page/samples")) == PROMPTS
        assert run.run.run_group == "a sweep"
    assert all(map(is_finished, arms.values()))


def test_what_is_missing_or_half_written_is_made_again_from_the_store(
    swept: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, whole = swept
    out = copied(whole, tmp_path / "out")
    arms = arms_of(read_sweep(file), out)
    assert all(map(is_finished, arms))
    broken = arms[:5]
    shutil.rmtree(broken[0].folder)
    (broken[1].folder / MARKER).unlink()  # killed before the last step
    (results,) = broken[2].folder.rglob("results_*.json")
    results.write_text(results.read_text()[:-100])
    next(broken[3].folder.rglob("samples_*.jsonl")).unlink()
    (broken[4].folder / MARKER).write_text("{")
    # What a killed run leaves behind would count twice for whoever reads the folder.
    (trace,) = broken[1].folder.rglob("trace_*.jsonl")
    shutil.copy(trace, trace.with_name("trace_2020-01-01T00-00-00.jsonl"))
    assert [is_finished(arm) for arm in arms] == [False] * 5 + [True] * 3
    untouched = {path: path.stat().st_mtime_ns for arm in arms[5:] for path in files(arm)}

    monkeypatch.setattr(engine, "PromptPass", forbidden)  # all answers stand in the store
    assert run(file, out) == 0
    assert all(map(is_finished, arms))
    assert {path: path.stat().st_mtime_ns for path in untouched} == untouched
    for arm in broken:
        assert contents(arm.folder) == contents(whole / arm.name)


def files(arm: Arm) -> list[Path]:
    return [path for path in arm.folder.rglob("*") if path.is_file() and path.name != ".lock"]


def forbidden(*args: object, **kwargs: object) -> None:
    raise AssertionError("the model was to be left alone")


def test_a_sweep_that_was_stopped_goes_on(
    swept: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, whole = swept
    out = tmp_path / "out"
    prompts = Counter[str]()
    original = PromptPass

    def stopping(*args: Any, **kwargs: Any) -> Any:
        if len(prompts) == 4:
            raise KeyboardInterrupt
        prompts[args[2].text] += 1
        return original(*args, **kwargs)

    monkeypatch.setattr(engine, "PromptPass", stopping)
    with pytest.raises(KeyboardInterrupt):
        run(file, out)
    assert not list(out.rglob("results_*.json"))

    monkeypatch.setattr(engine, "PromptPass", counting := Counting(original))
    written: list[str] = []

    def stopping_late(arm: Arm, *args: Any) -> None:
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(arm.name)
        write_results(arm, *args)

    monkeypatch.setattr(sweep, "write_results", stopping_late)
    with pytest.raises(KeyboardInterrupt):
        run(file, out)
    assert counting.prefills == PROMPTS - 4
    assert sum(map(is_finished, arms_of(read_sweep(file), out))) == 3

    monkeypatch.setattr(sweep, "write_results", write_results)
    monkeypatch.setattr(engine, "PromptPass", forbidden)
    assert run(file, out) == 0
    for arm in arms_of(read_sweep(file), out):
        assert contents(arm.folder) == contents(whole / arm.name)


class Counting:
    """Stands for `PromptPass`, and counts prefills and the answers asked of them."""

    def __init__(self, original: Any) -> None:
        self.original = original
        self.prefills = self.answers = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.prefills += 1
        made = self.original(*args, **kwargs)
        answers = made.answers

        def counted(evictions: Any, last: bool) -> Any:
            self.answers += len(evictions)
            return answers(evictions, last)

        made.answers = counted
        return made


def test_the_plan_counts_what_a_run_then_takes(
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = sweep_file(
        tmp_path / "sweep.yaml",
        model,
        window={"values": [8, 16]},
        budget={"values": [0.25, 0.5]},
        gate={"values": ["page", "open", "closed"]},
    )
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(PageLM, "create_from_arg_obj", forbidden)
        assert run(file, out, "--plan") == 0
        table = capsys.readouterr().out
        (first, second) = plan_sweep(arms_of(read_sweep(file), out))
    assert not out.exists()
    assert first == second == GroupPlan(6, 0, PROMPTS, evictions=2, full=True, gated=2)
    assert (first.decodes, first.look_ups) == (18, 12)
    assert table.splitlines()[3].split() == ["all", "12", "0", "12", "36", "24"]

    counting = Counting(PromptPass)
    monkeypatch.setattr(engine, "PromptPass", counting)
    assert run(file, out) == 0
    # The full cache answers alike whatever the window, so the second group finds that stored.
    assert (counting.prefills, counting.answers) == (12, 36 - PROMPTS)
    (done, _) = plan_sweep(arms_of(read_sweep(file), out))
    assert (done.finished, done.prompts, done.decodes) == (6, 0, 0)


def test_files_that_cannot_be_written_stop_the_sweep(
    swept: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, whole = swept
    out = copied(whole, tmp_path / "out")
    arms = arms_of(read_sweep(file), out)
    shutil.rmtree(arms[0].folder)
    write_text = Path.write_text

    def full(path: Path, text: str, **kwargs: Any) -> int:
        if path.name.startswith("results_"):
            write_text(path, text[:50], **kwargs)
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_text(path, text, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(UsageError, match=f"{arms[0].name}.*No space left on device"):
            run(file, out)
    assert [is_finished(arm) for arm in arms] == [False] + [True] * 7
    assert run(file, out) == 0
    assert contents(arms[0].folder) == contents(whole / arms[0].name)


def test_lm_eval_is_called_as_its_own_command_calls_it(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (
        *("--num_fewshot", "0", "--apply_chat_template", "--system_instruction", "Be brief."),
        *("--gen_kwargs", "max_gen_toks=5", "--seed", "1,2,3,4", "--metadata", "essays=synthetic"),
        *("--predict_only", "--batch_size", "2", "--max_batch_size", "4", "--write_out"),
        "--confirm_run_unsafe_code",
    )
    file = sweep_file(tmp_path / "sweep.yaml", model, *words, budget={"value": 0.5})
    (arm,) = arms_of(read_sweep(file), tmp_path / "out")
    ours = SharedTasks(arm).arguments(arm)

    class Called(Exception):
        pass

    theirs: dict[str, Any] = {}

    def called(**arguments: Any) -> None:
        theirs.update(complete_call(arguments))
        raise Called

    monkeypatch.setattr(lm_eval, "simple_evaluate", called)
    with pytest.raises(Called):
        alone(arm, arm.folder, words)
    for arguments in (ours, theirs):
        manager, tracker = arguments.pop("task_manager"), arguments.pop("evaluation_tracker")
        arguments["told to tasks"] = manager.metadata, manager._factory._meta
        arguments["tracker"] = {**vars(tracker), "general_config_tracker": None}
    assert ours == theirs


def test_every_gate_of_a_group_reads_what_it_needs(model: str, tmp_path: Path) -> None:
    file = sweep_file(
        tmp_path / "sweep.yaml",
        model,
        "--apply_chat_template",
        gate={"values": ["page", "entropy_norm", "keynorm_disp", "random"]},
        granularity={"values": ["shared", "head"]},
    )
    assert run(file, tmp_path / "out") == 0
    arms = arms_of(read_sweep(file), tmp_path / "out")
    assert len(arms) == 8
    for arm in arms[::3]:
        written = contents(arm.folder)
        assert written == alone(arm, tmp_path / arm.name, ("--apply_chat_template",))


def test_a_local_sweep_says_that_it_reports_to_no_server(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wandb, "init", forbidden)
    file = sweep_file(
        tmp_path / "sweep.yaml", model, "--wandb_args", "project=x", budget={"value": 0.5}
    )
    assert run(file, tmp_path / "out") == 0
    assert "--wandb_args: left out" in capsys.readouterr().err


def test_a_task_that_does_not_exist_is_named(model: str, tmp_path: Path) -> None:
    file = sweep_file(tmp_path / "sweep.yaml", model, budget={"value": 0.5})
    file.write_text(file.read_text().replace(TASK, "page_quikstart"))
    for words in (["--plan"], []):
        with pytest.raises(UsageError, match="page_quikstart"):
            run(file, tmp_path / "out", *words)


def test_the_same_warning_of_many_arms_is_shown_once(
    swept: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, whole = swept
    out = copied(whole, tmp_path / "out")
    for arm in arms_of(read_sweep(file), out):
        shutil.rmtree(arm.folder)
    with caplog.at_level(logging.WARNING):
        assert run(file, out) == 0
    few = [r.getMessage() for r in caplog.records if "measured on 6 prompts" in r.getMessage()]
    assert len(few) == 1
    assert few[0].startswith("budget=0.25,evictor=snapkv,gate=page-")


def with_folder(file: Path, folder: Path) -> Path:
    """A sweep file whose command names an output folder."""
    file.write_text(file.read_text().replace("unused", str(folder)))
    return file


def test_files_with_folders_of_their_own_have_one_prefill_and_all_their_arms(
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    budgets = sweep_file(
        tmp_path / "budgets.yaml", model, budget={"values": [0.25, 0.5]}, gate={"value": "open"}
    )
    gates = sweep_file(
        tmp_path / "gates.yaml", model, budget={"value": 0.5}, gate={"values": ["open", "page"]}
    )
    monkeypatch.setattr(engine, "PromptPass", counting := Counting(PromptPass))
    words = [str(with_folder(file, tmp_path / file.stem)) for file in (budgets, gates)]
    assert sweep_command.run(words) == 0
    # Two evictions and the full cache; the arm that both files name is computed once.
    assert (counting.prefills, counting.answers) == (PROMPTS, 3 * PROMPTS)
    stores = sorted(tmp_path.rglob("store.sqlite"))
    assert stores == [tmp_path / "budgets" / "store.sqlite"]
    assert f"one run store for all files: {stores[0]}" in capsys.readouterr().err
    arms = [arms_of(read_sweep(file), None) for file in (budgets, gates)]
    assert all(is_finished(arm) for group in arms for arm in group)
    (shared,) = {arm.digest for arm in arms[0]} & {arm.digest for arm in arms[1]}
    first, second = (contents(a.folder) for group in arms for a in group if a.digest == shared)
    assert first == second

    # A folder for all would count an arm twice that stood there under two names.
    monkeypatch.setattr(engine, "PromptPass", Counting(PromptPass))
    assert sweep_command.run([*words, "--output_path", str(tmp_path / "one"), "--plan"]) == 0
    assert capsys.readouterr().out.splitlines()[-2].split()[:2] == ["all", "3"]


EVICTOR = """
from dataclasses import dataclass
from typing import ClassVar
from page_bench.evictors.base import Evictor

@dataclass(frozen=True)
class Mine(Evictor):
    name: ClassVar[str] = "mine"

    def score(self, layer, n_keep=None):
        return layer.keys.float().norm(dim=-1)
"""


def test_an_arm_of_an_evictor_that_was_edited_is_run_anew(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evictor = tmp_path / "mine.py"
    file = sweep_file(
        tmp_path / "sweep.yaml",
        model,
        evictor={"values": [f"{evictor}:Mine", "snapkv"]},
        gate={"value": "open"},
        budget={"value": 0.3},
    )

    def answers(out: Path) -> list[list[str]]:
        sys.modules.pop(f"page_bench_evictor_file:{evictor.resolve()}", None)  # a new process
        assert run(file, out) == 0
        arms = [contents(arm.folder) for arm in arms_of(read_sweep(file), out)]
        return [[row["answer"] for row in of(arm, "trace")] for arm in arms]

    evictor.write_text(EVICTOR)
    before = answers(tmp_path / "out")
    assert answers(tmp_path / "out") == before
    assert "2 of 2 arms are finished" in capsys.readouterr().err

    evictor.write_text(EVICTOR.replace("return ", "return -"))
    after = answers(tmp_path / "out")
    told = capsys.readouterr().err
    assert "1 finished arms are run anew, for they were run with another evictor" in told
    assert "1 of 2 arms are finished; 1 are left" in told
    assert after[0] != before[0]
    assert after[1] == before[1]
    assert after == answers(tmp_path / "afresh")


def of(written: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """The rows of an arm's one file of a kind."""
    (rows,) = (rows for name, rows in written.items() if name.endswith(f"/{kind}"))
    found: list[dict[str, Any]] = rows
    return found


def test_what_results_rest_on_is_told_apart(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = shutil.copytree(model, tmp_path / "model")
    file = tmp_path / "tau.json"
    file.write_text("{}")
    sweep_yaml = sweep_file(
        tmp_path / "sweep.yaml", str(own), calibration={"value": str(file)}, tau={"value": "zscore"}
    )
    (arm,) = arms_of(read_sweep(sweep_yaml), tmp_path / "out")
    then = basis.basis_of(arm)
    assert basis.changes(then, basis.basis_of(arm)) == []
    assert basis.changes(None, then) == ["calibration", "evictor", "model", "numerics"]
    assert basis.changes(json.loads(json.dumps(then)), then) == []

    file.write_text("{ }")
    assert basis.changes(then, basis.basis_of(arm)) == ["calibration"]
    file.unlink()
    assert basis.changes(then, basis.basis_of(arm)) == ["calibration"]
    file.write_text("{}")
    weights = next(own.glob("*.safetensors"))
    time = weights.stat().st_mtime_ns
    os.utime(weights, ns=(time, time + 10**9))
    assert basis.changes(then, basis.basis_of(arm)) == ["model"]
    os.utime(weights, ns=(time, time))
    (own / "results.sqlite").touch()  # what a sweep writes there is no part of the model
    monkeypatch.setattr(basis, "NUMERICS_VERSION", -1)
    assert basis.changes(then, basis.basis_of(arm)) == ["numerics"]


def calibration_of_another_model(path: Path) -> Path:
    inputs = [PilotInput(f"{TASK}_needle_word", i, 100, str(i), {"drop": 0.1 * i}) for i in (1, 2)]
    Calibration(
        model=ModelFacts("another", Fingerprint("a", "b"), "float32", "sdpa"),
        settings={},
        protocols=(),
        tasks=(inputs[0].task,),
        pilot=None,
        pilot_kind="held-out",
        test_limit=100,
        seed=0,
        inputs=tuple(inputs),
    ).save(path)
    return path


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("calibration", "missing", r"calibration=.*missing\.json.*cannot be read"),
        ("calibration", "other", r"calibration=.*other\.json.*belongs to another run: model"),
        ("gate", "page", r"gate=page.*at least 2 prompts, but this run has 1"),
        ("gate", "static", r"gate=static has no pilot prompt of page_quickstart_repeated_fact"),
    ],
)
def test_an_arm_that_cannot_decide_ends_the_sweep_before_it_begins(
    name: str,
    content: str,
    message: str,
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calibration_of_another_model(tmp_path / "other.json")
    is_file = name == "calibration"
    values = ["none", str(tmp_path / f"{content}.json")] if is_file else ["open", content]
    file = sweep_file(
        tmp_path / "sweep.yaml",
        model,
        tau={"value": "quantile" if is_file else "zscore"},
        **{name: {"values": values}},
        **({"pilot_size": {"value": 2}} if content == "static" else {}),
    )
    words = ["--limit", "1"]
    if content == "page":
        file.write_text(file.read_text().replace(TASK, f"{TASK}_needle_word"))
    monkeypatch.setattr(engine, "PromptPass", forbidden)
    if content == "missing":
        monkeypatch.setattr(PageLM, "create_from_arg_obj", forbidden)
    with pytest.raises(UsageError, match=message):
        run(file, tmp_path / "out", *words)


def test_results_are_pushed_with_the_token_that_lm_eval_takes(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushing = ("--hf_hub_log_args", "push_results_to_hub=True,hub_results_org=some")
    file = sweep_file(tmp_path / "sweep.yaml", model, *pushing, budget={"value": 0.5})
    monkeypatch.setenv("HF_TOKEN", "hf_of_nobody")
    (arm,) = arms_of(read_sweep(file), tmp_path / "out")
    tracker = tracker_of(arm)
    assert (tracker.api.token, tracker.output_path) == ("hf_of_nobody", str(arm.folder))

    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(PageLM, "create_from_arg_obj", forbidden)
    with pytest.raises(UsageError, match="hf_hub_log_args: Hugging Face token is not defined"):
        run(file, tmp_path / "out")


def test_the_plan_counts_all_of_a_task_that_samples_do_not_name(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = json.dumps({f"{TASK}_needle_word": [0, 3]})
    file = sweep_file(tmp_path / "sweep.yaml", model, "--samples", samples, budget={"value": 0.5})
    content = yaml.safe_load(file.read_text())
    at = content["command"].index("--limit")
    del content["command"][at : at + 2]
    content["command"][content["command"].index(TASK)] = f"{TASK}_needle_word,{TASK}_repeated_fact"
    file.write_text(yaml.safe_dump(content))
    (arm,) = arms_of(read_sweep(file), tmp_path / "out")
    (planned,) = plan_sweep([arm])
    monkeypatch.setattr(engine, "PromptPass", counting := Counting(PromptPass))
    assert run(file, tmp_path / "out") == 0
    assert planned.prompts == counting.prefills > 2


def test_an_arm_without_its_trace_is_not_finished(
    swept: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, whole = swept
    out = copied(whole, tmp_path / "out")
    arms = arms_of(read_sweep(file), out)
    shutil.rmtree(arms[0].folder)

    def full(path: Path, traces: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(run_output, "write_traces", full)
        with pytest.raises(UsageError, match=rf"{arms[0].name}.*trace.*No space left on device"):
            run(file, out)
    assert [is_finished(arm) for arm in arms] == [False] + [True] * 7
    assert run(file, out) == 0
    assert contents(arms[0].folder) == contents(whole / arms[0].name)


def test_the_same_run_twice_writes_the_same(tmp_path: Path, model: str) -> None:
    file = sweep_file(tmp_path / "sweep.yaml", model, gate={"values": ["page"]})
    (arm,) = arms_of(read_sweep(file), tmp_path / "out")
    # As text, so that every digit counts.
    first, second = (
        repr(sorted(alone(arm, tmp_path / name).items())) for name in ("first", "second")
    )
    assert first == second
    assert "page_bench_commit" in first
