"""The command of a row: lm-eval reads back what the run was given, and running it repeats it."""

from __future__ import annotations

import json
import shlex
import subprocess
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

from page_bench.commands import leaderboard
from page_bench.commands import sweep as sweep_command
from page_bench.harness import plugin
from page_bench.harness.hooks import TASKS_FOLDER
from page_bench.leaderboard.add import rows_of
from page_bench.leaderboard.check import read_board
from page_bench.leaderboard.paths import is_local, without_folders, without_path
from page_bench.leaderboard.reproduce import command_of, named_arm
from page_bench.leaderboard.row import Row
from page_bench.leaderboard.run import read_finished


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
    # No lm-eval writes groups within themselves; they do not end in an endless search.
    results["group_subtasks"] = {**groups, "page_inner": ["page_a"], "page_a": ["page_inner", vt]}
    assert parsed(command_of(results)).tasks == ["page_outer", multikey]


@pytest.mark.parametrize(
    ("limit", "written", "read"),
    [
        (1_234_567.0, "1234567", 1_234_567),
        (20.0, "20", 20),
        (1.0, "1", 1),
        (0.123456789, "0.123456789", 0.123456789),
        (1e-05, "1e-05", 1e-05),
    ],
)
def test_the_limit_is_written_in_full(
    tmp_path: Path, limit: float, written: str, read: float
) -> None:
    text = command_of(results_with(tmp_path, config_limit=limit))
    assert f" --limit {written} " in text
    assert parsed(text).limit == read


def test_the_number_of_examples_is_told_where_tasks_have_one_of_their_own(tmp_path: Path) -> None:
    def told(**shots: int) -> Any:
        results = results_with(tmp_path)
        (config, *_) = results["configs"].values()
        results |= {"configs": dict.fromkeys(shots, config), "n-shot": shots}
        return parsed(command_of(results)).num_fewshot

    assert told(gsm8k=0) == 0
    assert told(gsm8k=5, arc_easy=5) == 5
    assert told(gsm8k=5, arc_easy=0) is None
    assert told(page_ruler_4k_vt=0) is None
    # lm-eval leaves LongBench's 0 as it is.
    assert told(page_longbench_qasper=0, gsm8k=3) == 3


def test_examples_in_one_turn_are_told_where_a_template_would_part_them(tmp_path: Path) -> None:
    results = results_with(tmp_path, fewshot_as_multiturn=False)
    config = parsed(command_of(results))
    assert (config.fewshot_as_multiturn, config.apply_chat_template) == (False, True)
    assert named_arm(command_of(results))["gate"] == "page"
    assert "multiturn" not in command_of({**results, "fewshot_as_multiturn": True})
    results["config"]["page"]["chat_template"] = False
    assert "multiturn" not in command_of(results)


def test_a_token_is_never_published(tmp_path: Path) -> None:
    args = {
        "pretrained": "tiny",
        "gate": "open",
        "budget": 0.25,
        "evictor": "snapkv",
        "token": "hf_secret",
    }
    path = write_run(tmp_path / "run", answers("open"))
    edited(path, config_model_args=args)
    assert leaderboard.run(["add", str(tmp_path), "--file", str(tmp_path / "rows.csv")]) == 0
    assert "hf_secret" not in (tmp_path / "rows.csv").read_text(encoding="utf-8")


ODD = [
    "a\nb\t'c' \\ \r",
    "\u202eabc",
    "\U000e0041",
    "plain",
    "it's $'x'",
    "",
    "$'a'",
    'x"y\\z',
    "né",
]


def words_of(text: str) -> list[str]:
    """A command as bash reads it."""
    asked = ["bash", "-c", f"printf '%s\\0' {text}"]
    printed = subprocess.run(asked, capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"})
    return printed.stdout.decode("utf-8").split("\0")[:-1]


@pytest.mark.parametrize("word", ODD)
def test_a_shell_reads_the_words_of_a_command_as_they_were(tmp_path: Path, word: str) -> None:
    args = {"pretrained": f"tiny{word}", "evictor": "snapkv", "budget": 0.25, "gate": "page"}
    results = results_with(tmp_path, config_model_args=args, system_instruction=f"a{word}")
    text = command_of(results)
    assert not {c for c in text if ord(c) < 32 or c in "\u202e\U000e0041"}
    words = words_of(text)
    assert words[words.index("--system_instruction") + 1] == f"a{word}"
    # So does page-bench, as far as it names the arm.
    named = named_arm(text)
    assert named["pretrained"] == without_folders(f"tiny{word}")
    assert named["tasks"] == list(results["configs"])


@pytest.mark.parametrize("unclosed", ["lm_eval 'b", 'lm_eval "b'])
def test_a_command_with_an_open_quote_is_none(unclosed: str) -> None:
    with pytest.raises(ValueError, match=r"no shell command .*No closing quotation"):
        named_arm(unclosed)


def test_an_instruction_of_several_lines_can_be_added(tmp_path: Path) -> None:
    told = "Answer in one word.\nIt's short;\tno \\n."
    path = write_run(tmp_path / "run", answers("open"))
    edited(path, system_instruction=told)
    file = tmp_path / "board" / "leaderboard.csv"
    assert leaderboard.run(["add", str(path), "--file", str(file)]) == 0
    (row,) = read_board(file).rows
    assert json.loads(str(row["data"]))["system_instruction"] == told
    words = words_of(str(row["command"]))
    assert words[words.index("--system_instruction") + 1] == told


@pytest.mark.parametrize(
    "path",
    [
        *("/a/b.json", "~/b.json", "./b.json", "../x/b.json", r"C:\x\b.json", "/a/b.json/"),
        *("x/y/b.json", "x/b.json", "file:///x/b.json", "file:x/b.json", "FILE:b.json"),
        *("$HOME/b.json", r"\\host\x\b.json", r"x\y\b.json", "my x/y z/b.json", "x//b.json"),
    ],
)
def test_paths_of_the_machine_are_cut_to_names(path: str) -> None:
    assert without_folders({"one": [path]}) == {"one": ["b.json"]}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        *(("x/b.txt", "b.txt"), ("x/b.pt", "b.pt"), ("x/b.yaml", "b.yaml"), ("x/B.PT", "B.PT")),
        *(("models/mine/tiny", "tiny"), ("models/tiny/", "tiny"), ("x/n.py:Norms", "n.py:Norms")),
    ],
)
def test_relative_paths_are_told_by_their_parts_or_their_ending(path: str, name: str) -> None:
    assert without_folders(path) == name


@pytest.mark.parametrize(
    "name",
    [
        *("Qwen/Qwen2.5-1.5B-Instruct", "org/name", "tiny", "b.json", "synthetic", "</think>"),
        *("https://host/x/b.json", "hf://datasets/org/name/b.json", "01/02/2026", "a: b", ""),
        *("org/model.v2", 3, None, 0.5, True),
    ],
)
def test_names_on_the_hub_and_addresses_stay(name: object) -> None:
    assert without_folders([name]) == [name]


def test_slashes_inside_a_repository_of_the_hub_stay() -> None:
    inside = {"revision": "refs/pr/1", "subfolder": "a/b/c", "gguf_file": "x/y.gguf"}
    assert without_folders(inside) == inside
    assert without_folders({"gguf_file": "/home/me/y.gguf"}) == {"gguf_file": "y.gguf"}


def test_classes_in_files_go_by_the_names_of_the_files() -> None:
    assert without_path("adakv(/x/norms.py:Norms)") == "adakv(norms.py:Norms)"
    assert without_path("/x/norms.py:Norms") == "norms.py:Norms"
    assert without_path("x/norms.py:Norms") == "norms.py:Norms"
    assert without_path("/x (y)/norms.py:Norms") == "norms.py:Norms"
    assert without_path("/x/wrap.py:Wrap(snapkv)") == "wrap.py:Wrap(snapkv)"
    assert without_path("adakv(/x/wrap.py:Wrap(/y/n.py:N))") == "adakv(wrap.py:Wrap(n.py:N))"
    assert without_path("adakv(snapkv)") == "adakv(snapkv)"
    assert not is_local("adakv(snapkv)")


def test_relative_paths_stay_out_of_rows_and_commands(tmp_path: Path) -> None:
    model = "private/models/tiny revision=refs/pr/1 peft=private/x/adapter"
    traces = answers(
        "page",
        model=model,
        evictor="adakv(private/norms.py:Norms)",
        granularity="head",
        gate_args={"tau": 0.07, "table": "private/table.pt"},
    )
    path = write_run(tmp_path / "run", traces)
    args: dict[str, Any] = {
        "pretrained": "private/models/tiny",
        "revision": "refs/pr/1",
        "gate": "page",
    }
    args |= {"peft": "private/x/adapter", "evictor": traces[0].evictor, "tau": 0.07}
    args |= {"budget": 0.25, "granularity": "head", "gate.table": "private/table.pt"}
    edited(path, config_model_args=args)
    results = json.loads(path.read_text(encoding="utf-8"))
    for config in results["configs"].values():
        config["metadata"]["squad"] = "private/sets/dev-v2.0.json"
    edited(path, configs=results["configs"])
    (row,) = rows_of(read_finished([path])[0]).rows
    assert "private" not in json.dumps(dict(row))
    assert row["model"] == "tiny revision=refs/pr/1 peft=adapter"
    assert row["evictor"] == "adakv(norms.py:Norms)"
    read = parsed(str(row["command"]))
    assert read.model_args["pretrained"] == "tiny"
    assert read.model_args["revision"] == "refs/pr/1"
    assert read.metadata["squad"] == "dev-v2.0.json"


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
    assert leaderboard.run(["add", str(out), "--file", str(file)]) == 0
    assert leaderboard.run(["check", "--file", str(file)]) == 0
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
    leaderboard.run(["add", str(other), "--file", str(other / "gated.csv")])
    (repeated,) = read_board(other / "gated.csv").rows
    assert identical(repeated, gated)


def identical(one: Row, other: Row) -> bool:
    """Whether two rows are of one arm with the same answers."""
    names = ("row", "n", "tau", "score", "correct", "open", "kept_kv", "kv_bytes", "tasks")
    return [one[name] for name in names] == [other[name] for name in names]
