"""The sweeps of the paper's tables: what they ask, what they cost, and what the guide says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from lm_eval.tasks import TaskManager

from page_bench.harness import plugin
from page_bench.harness.hooks import TASKS_FOLDER
from page_bench.leaderboard.counterpart import attention_of
from page_bench.leaderboard.published import MODELS, Published, paper_name, read_published
from page_bench.sweep.arms import Arm, arms_of
from page_bench.sweep.file import read_sweep
from page_bench.sweep.plan import plan_sweep
from page_bench.tasks import ruler

ROOT = Path(__file__).resolve().parent.parent
SWEEPS = ROOT / "sweeps" / "paper"
GUIDE = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
PUBLISHED = read_published()
CONTEXTS = {"ruler_4k": "4K", "ruler_16k": "16K", "ruler_32k": "32K", "longbench": "LongBench"}


def rows_under(heading: str) -> list[dict[str, str]]:
    """The lines of the table that follows a heading of the guide, by column."""
    section = GUIDE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    split = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(split[0], cells, strict=True)) for cells in split[2:]]


COSTS = rows_under("Which file gives which table, and what it costs")
EXPECTED = rows_under("What to expect")


def files_of(cell: str) -> list[Path]:
    return [SWEEPS / f"{name}.yaml" for name in re.findall(r"`([\w]+)`", cell)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RULER's layout with 120 rows per task and length: more than any file asks for."""
    root = tmp_path_factory.mktemp("ruler")
    for length in (4096, 16384):
        path = root / str(length) / "test.jsonl"
        path.parent.mkdir()
        rows = [
            {
                "context": f"{task} {i}\n",
                "question": "What is it? ",
                "answer_prefix": "It is",
                "answer": ["this"],
                "task": task,
                "max_new_tokens": ruler.RULES[task].max_new_tokens,
            }
            for task in ruler.RULES
            for i in range(120)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for task in ruler.RULES:
        path = root / "32768" / task / "validation.jsonl"
        path.parent.mkdir(parents=True)
        row = json.dumps({"index": 0, "input": "text", "outputs": ["this"], "length": 32000})
        path.write_text(f"{row}\n" * 120, encoding="utf-8")
    return root


@pytest.fixture(autouse=True)
def environment(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGE_BENCH_RULER", str(data))
    monkeypatch.setenv("DRAW_SEED", "1")


@pytest.fixture(scope="module")
def manager() -> Any:
    """lm-eval's index of tasks, which takes seconds to make."""
    plugin.install()
    return TaskManager(include_path=str(TASKS_FOLDER))


def arms(path: Path, folder: Path) -> list[Arm]:
    return arms_of(read_sweep(path), folder)


@pytest.mark.parametrize("path", sorted(SWEEPS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_file_asks_what_the_paper_asked(path: Path, tmp_path: Path) -> None:
    found = arms(path, tmp_path)
    assert found
    for arm in found:
        config, page = arm.config, arm.page
        model = paper_name(config.model_args["pretrained"])
        assert model is not None
        (context,) = {
            name for key, name in CONTEXTS.items() for task in config.tasks if key in task
        }
        assert config.model_args["dtype"] == "bfloat16"
        assert config.model_args["attn_implementation"] == attention_of(model, context)
        assert config.apply_chat_template
        assert config.log_samples
        assert page.gate in ("open", "closed", "page")
        assert page.tau == 0.07 or page.gate != "page"
        if page.gate != "closed":
            form = page.make_evictor()
            assert getattr(form, "variant", "paper") == "paper"
            assert getattr(getattr(form, "base", None), "variant", "paper") == "paper"
        assert (page.n_sink, page.n_recent, page.window, page.top_k) == (4, 32, 32, 32)
        suites = ("mixed4", "partition6", "longbench_page")
        for task in config.tasks:
            assert any(s in task for s in suites) or config.metadata["protocol"] == "page"


@pytest.mark.parametrize("line", COSTS, ids=lambda line: line["files"])
def test_the_costs_in_the_guide_are_those_of_the_planner(
    line: dict[str, str], tmp_path: Path, manager: Any
) -> None:
    paths = files_of(line["files"])
    assert all(path.exists() for path in paths)
    if "table_11" in line["files"]:
        pytest.skip("LongBench's inputs above 24,000 tokens are told by the model's tokenizer")
    chosen = [arm for path in paths for arm in arms(path, tmp_path)]
    plans = plan_sweep(chosen, manager)
    models = {arm.config.model_args["pretrained"] for arm in chosen}
    # Every model prefills once for all files of a line, the full cache among them.
    assert len(plans) == len(models)
    assert all(plan.full for plan in plans)
    prefills, decodes = (sum(getattr(p, name) for p in plans) for name in ("prompts", "decodes"))
    assert (line["prefills"], line["decodes"]) == (f"{prefills:,}", f"{decodes:,}")


def test_every_file_stands_in_the_guide_once_as_what_it_reproduces() -> None:
    named = [path for line in COSTS for path in files_of(line["files"])]
    assert set(named) == set(SWEEPS.glob("*.yaml"))
    known = {row.table for row in PUBLISHED}
    for line in COSTS:
        tables = re.findall(r"(Table|Figure) (\d+)", line["gives"])
        assert tables or "text" in line["gives"]
        # Figures 3 and tables of statistics of D are not among the numbers that are compared.
        for kind, number in tables:
            name = f"{kind} {number}"
            assert name in known or name in ("Figure 3", "Table 5", "Table 9", "Table 10"), name


def test_the_numbers_to_expect_are_the_reported_ones() -> None:
    assert len(EXPECTED) > 20
    for line in EXPECTED:
        found = [row for row in PUBLISHED if _fits(row, line)]
        assert found, line
        values = {f"{row.value:.3f}" for row in found}
        assert line["value"] in values, (line, values)
        (path,) = files_of(line["file"])
        assert path.exists()
        models = path.read_text(encoding="utf-8")
        assert MODELS[line["model"]] in models


def _fits(row: Published, line: dict[str, str]) -> bool:
    tasks = {"mixed4": "niah_multikey_3 vt fwe qa_1"}.get(line["tasks"], line["tasks"])
    budgets = row.budgets or ()
    wanted = line["budgets"]
    if wanted.endswith("budgets"):
        same = len(budgets) == int(wanted.split()[0])
    else:
        same = " ".join(f"{b:g}" for b in budgets) == wanted.strip("–")
    return (
        same
        and (row.table, row.model, row.metric) == (line["where"], line["model"], line["metric"])
        and row.evictor == line["evictor"].strip("–")
        and row.gate == line["gate"].replace("plain", "open").replace("gated", "page").strip("–")
        and " ".join(row.tasks) == tasks
        and str(row.n) == line["n"]
        and row.setting == ""
        and row.tau in ("", "0.07")
    )


def test_one_command_runs_the_headline_cell(tmp_path: Path, manager: Any) -> None:
    words = "page-bench sweep sweeps/paper/figure_3.yaml sweeps/paper/figure_3_full.yaml"
    assert words in GUIDE
    chosen = [
        arm for path in files_of("`figure_3` `figure_3_full`") for arm in arms(path, tmp_path)
    ]
    (plan,) = plan_sweep(chosen, manager)
    assert {arm.config.model_args["pretrained"] for arm in chosen} == {MODELS["Mistral-7B-v0.3"]}
    assert {task for arm in chosen for task in arm.config.tasks} == {
        "page_ruler_4k_mixed4_niah_multikey_3"
    }
    assert (plan.prompts, plan.evictions, plan.decodes) == (100, 8, 900)


def test_draws_of_other_inputs_follow_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = []
    for seed in ("1", "2"):
        monkeypatch.setenv("DRAW_SEED", seed)
        seeds.append(arms(SWEEPS / "table_30.yaml", tmp_path)[0].config.metadata["draw_seed"])
    assert seeds == [1, 2]
