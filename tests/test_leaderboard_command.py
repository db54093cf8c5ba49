"""The command of a row: lm-eval reads back what the run was given, and running it repeats it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lm_eval.tasks
import pytest
import yaml
from finished_runs import answers, edited, write_run
from lm_eval._cli.harness import HarnessCLI
from lm_eval.config.evaluate_config import EvaluatorConfig
from lm_eval.tasks import TaskManager
from torch.utils import collect_env

from page_bench import plugin
from page_bench.harness import TASKS_FOLDER
from page_bench.leaderboard import command
from page_bench.leaderboard.check import read_board
from page_bench.leaderboard.reproduce import command_of, named_arm, without_folders, without_path
from page_bench.leaderboard.row import Row
from page_bench.sweep import command as sweep_command


def parsed(text: str) -> Any:
    """lm-eval's own reading of a command."""
    words = shlex.split(text)
    assert words[0] == "lm_eval"
    return EvaluatorConfig.from_cli(HarnessCLI()._parser.parse_args(words[1:]))


def results_with(folder: Path, **changes: Any) -> dict[str, Any]:
    """A gated run's results, changed as by `finished_runs.edited`."""
    path = write_run(folder, answers("page"))
    edited(path, **changes)
    read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return read


def test_lm_eval_reads_back_what_the_run_was_given(tmp_path: Path) -> None:
    config = parsed(command_of(results_with(tmp_path)))
    args = {"pretrained": "tiny", "evictor": "snapkv", "granularity": "shared", "budget": 0.25}
    assert config.model_args == {**args, "gate": "page", "tau": 0.07}
    assert config.model == "page_hf"
    assert config.tasks == ["page_ruler_4k_vt", "page_ruler_4k_niah_multikey_3"]
    assert config.limit == 4
    assert config.metadata["protocol"] == "page"
    assert config.apply_chat_template is True
    assert config.seed == [0, 1234, 1234, 1234]
    assert config.output_path is None
    assert (config.gen_kwargs, config.num_fewshot, config.samples) == ({}, None, None)


@pytest.mark.parametrize(
    "args",
    [
        {"evictor": "adakv(snapkv)", "evictor.base.kernel_size": 7, "granularity": "head"},
        {"gate": "task_oracle", "gate.closed": "niah_multikey_3+vt"},
        {"max_length": 4096, "parallelize": True, "dtype": "bfloat16", "tau": -0.5},
        {"chat_template_args": {"enable_thinking": False}},
        {"truncation": "left", "subfolder": "a,b", "theta_z": -0.69},
        {"variant": "true", "revision": "0.1"},
        {"tau": 1e-05, "signals": None},
    ],
)
def test_model_arguments_of_every_kind_come_back_as_they_were(
    tmp_path: Path, args: dict[str, Any]
) -> None:
    given = {"pretrained": "tiny", "evictor": "snapkv", "budget": 0.25, "gate": "page", **args}
    results = results_with(tmp_path, config_model_args=given)
    read = parsed(command_of(results)).model_args
    assert {name: read[name] for name in given} == given
    assert [type(read[name]) for name in given] == [type(value) for value in given.values()]


def test_all_that_changes_answers_is_in_the_command(tmp_path: Path) -> None:
    results = results_with(
        tmp_path,
        config_limit=0.5,
        config_gen_kwargs={"max_gen_toks": 64, "until": ["\n", "it's"]},
        config_random_seed=7,
        config_fewshot_seed=None,
        system_instruction="Answer with one word; it's short.",
    )
    results["n-shot"] = dict.fromkeys(results["n-shot"], 2)
    for task in results["configs"].values():
        task["metadata"] |= {"essays": "synthetic", "squad": "/data/sets/dev-v2.0.json"}
    config = parsed(command_of(results))
    assert config.limit == 0.5
    assert config.gen_kwargs == {"max_gen_toks": 64, "until": ["\n", "it's"]}
    assert config.seed == [7, 1234, 1234, None]
    assert config.system_instruction == "Answer with one word; it's short."
    assert config.num_fewshot == 2
    assert config.metadata["essays"] == "synthetic"
    assert config.metadata["squad"] == "dev-v2.0.json"


def test_what_single_tasks_are_made_with_is_their_own(tmp_path: Path) -> None:
    results = results_with(tmp_path)
    one, other = results["configs"].values()
    one["metadata"] |= {"protocol": "ruler", "draw_seed": 3}
    assert "--metadata" not in command_of(results)
    other["metadata"] |= {"protocol": "ruler", "draw_seed": 3}
    assert parsed(command_of(results)).metadata["draw_seed"] == 3


def test_chosen_documents_take_the_place_of_the_limit(tmp_path: Path) -> None:
    chosen = {"page_ruler_4k_vt": [1, 5]}
    results = results_with(tmp_path, config_limit=None)
    results["config"]["model_args"]["doc_ids"] = chosen
    config = parsed(command_of(results))
    assert config.samples == chosen
    assert "doc_ids" not in config.model_args


def test_a_group_whose_tasks_were_run_is_named(tmp_path: Path) -> None:
    results = results_with(tmp_path)
    vt, multikey = results["configs"]
    groups = {"page_outer": ["page_inner"], "page_inner": [vt], "page_empty": []}
    results["group_subtasks"] = {"mine": ["page_outer", multikey], **groups}
    assert parsed(command_of(results)).tasks == ["page_outer", multikey]


def test_paths_of_the_machine_are_cut_to_names() -> None:
    paths = ["/a/b.json", "~/b.json", "./b.json", "../x/b.json", r"C:\x\b.json", "/a/b.json/"]
    assert without_folders(paths) == ["b.json"] * len(paths)
    kept = ["Qwen/Qwen2.5-1.5B-Instruct", "synthetic", 3, None, {"a": ["/b/c"]}]
    assert without_folders(kept) == [*kept[:-1], {"a": ["c"]}]
    assert without_path("adakv(/x/norms.py:Norms)") == "adakv(norms.py:Norms)"
    assert without_path("/x/norms.py:Norms") == "norms.py:Norms"
    assert without_path("adakv(snapkv)") == "adakv(snapkv)"


def test_a_command_says_which_arm_it_names(tmp_path: Path) -> None:
    named = named_arm(command_of(results_with(tmp_path)))
    tasks = ["page_ruler_4k_vt", "page_ruler_4k_niah_multikey_3"]
    assert named == {
        "pretrained": "tiny",
        "evictor": "snapkv",
        "granularity": "shared",
        "score_norm": "none",
        "budget": 0.25,
        "gate": "page",
        "tasks": tasks,
    }


class OurTasks(TaskManager):
    """Without lm-eval's own thousands of files, whose indexing takes many seconds."""

    def __init__(self, metadata: dict[str, Any], include_path: str | None = None) -> None:
        super().__init__(include_path=str(TASKS_FOLDER), include_defaults=False, metadata=metadata)


@pytest.fixture
def _few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin.install()
    monkeypatch.setattr(lm_eval.tasks, "TaskManager", OurTasks)
    monkeypatch.setattr(collect_env, "get_pretty_env_info", lambda: "environment")


@pytest.mark.usefixtures("_few_tasks")
def test_the_command_of_a_row_gives_its_numbers_again(
    tmp_path: Path, tiny_folder: Callable[[str], Path]
) -> None:
    model = str(tiny_folder("llama"))
    sweep, out = tmp_path / "sweep.yaml", tmp_path / "out"
    words = ["${env}", "lm_eval", "run", "--model", "page_hf", "--tasks", "page_quickstart"]
    words += ["--limit", "2", "--log_samples", "--device", "cpu", "--gen_kwargs", "max_gen_toks=6"]
    words += ["--model_args", f"pretrained={model}", "dtype=float32", "${args_no_hyphens}"]
    parameters = {"budget": {"value": 0.25}, "gate": {"values": ["page", "open", "closed"]}}
    content = {"method": "grid", "command": words, "parameters": parameters}
    sweep.write_text(yaml.safe_dump(content), encoding="utf-8")
    assert sweep_command.run([str(sweep), "--output_path", str(out)]) == 0

    file = tmp_path / "board" / "leaderboard.csv"
    assert command.run(["add", str(out), "--file", str(file)]) == 0
    assert command.run(["check", "--file", str(file)]) == 0
    rows = {str(row["gate"]): row for row in read_board(file).rows}
    gated = rows["page"]
    assert [row["n"] for row in rows.values()] == [6, 6, 6]
    assert all(row["full_correct"] is not None for row in rows.values())
    assert gated["tau_variant"] == "zscore"
    assert gated["page_bench"] is not None
    assert json.loads(str(gated["gate_args"]))["pilot_size"] == 100

    again = shlex.split(str(gated["command"]))[1:]
    again[again.index("--model_args") + 1] = again[again.index("--model_args") + 1].replace(
        f"pretrained={Path(model).name}", f"pretrained={model}"
    )
    cli = HarnessCLI()
    other = tmp_path / "again"
    words = [*again, "--device", "cpu", "--output_path", str(other), "--log_samples"]
    cli.execute(cli._parser.parse_args(words))
    command.run(["add", str(other), "--file", str(other / "gated.csv")])
    (repeated,) = read_board(other / "gated.csv").rows
    assert identical(repeated, gated)


def identical(one: Row, other: Row) -> bool:
    """Whether two rows are of one arm with the same answers."""
    names = ("row", "n", "tau", "score", "correct", "open", "kept_kv", "kv_bytes", "tasks")
    return [one[name] for name in names] == [other[name] for name in names]
