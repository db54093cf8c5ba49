"""What W&B's agents would run: each sweep file's command as W&B's own code fills it in."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lm_eval.tasks
import pytest
import test_longbench
import test_ruler
import wandb
import wandb_runs
import yaml
from lm_eval._cli.harness import HarnessCLI
from test_sweep import few_tasks
from test_sweep_file import SWEEPS, by_wandb
from torch.utils import collect_env

from page_bench.config import PageConfig
from page_bench.harness import plugin
from page_bench.sweep.file import read_sweep


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Local copies of what the sweeps' tasks load, by environment variable."""
    folder = tmp_path_factory.mktemp("data")
    test_ruler.write(folder / "ruler" / "4096.jsonl", test_ruler.split(4096))
    return {
        "PAGE_BENCH_RULER": str(folder / "ruler"),
        "PAGE_BENCH_LONGBENCH": str(test_longbench.write(folder / "longbench")),
        "HF_DATASETS_CACHE": str(folder / "datasets"),
    }


@pytest.mark.parametrize("path", sorted(SWEEPS.glob("*.yaml")), ids=lambda path: path.stem)
def test_an_agent_runs_the_arm_it_names(
    path: Path,
    data: dict[str, str],
    tiny_folder: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plugin.install()
    monkeypatch.setattr(lm_eval.tasks, "TaskManager", few_tasks)
    monkeypatch.setattr(collect_env, "get_pretty_env_info", lambda: "environment")
    for name, value in data.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    tracked, ran, real = [], 0, wandb.init

    def init(*args: Any, **kwargs: Any) -> Any:
        tracked.append(real(*args, **kwargs))
        return tracked[-1]

    monkeypatch.setattr(wandb, "init", init)
    sweep = read_sweep(path)
    rows = sweep.draws(None, 0)
    tau = {"tau": 0.0} if all(row.get("tau") == "midpoint" for row in rows) else {}
    for row in {json.dumps(row): row for row in (rows[0], rows[-1])}.values():
        arm = {**row, "pretrained": str(tiny_folder("llama")), **tau}
        words = by_wandb(sweep, arm)[3:]
        words = [
            *words,
            "truncation=left",
            "max_length=700",
            "dtype=float32",
            "--limit",
            "2",
            "--device",
            "cpu",
        ]
        cli = HarnessCLI()
        cli.execute(cli._parser.parse_args(["run", *words]))
        found = sorted((tmp_path / "results").rglob("results_*.json"))[-1]
        page = json.loads(found.read_text())["config"]["page"]
        asked = PageConfig.from_arguments({k: v for k, v in arm.items() if k != "pretrained"})
        assert page["evictor"] == asked.evictor
        assert page["granularity"] == asked.granularity
        assert page["budget"] == asked.budget
        assert page["gate"] == asked.gate
        assert tracked[-1].settings.project == "page-bench"
        assert not [warning for warning in page["warnings"] if "W&B" in warning]
        logged = wandb_runs.logged(Path(tracked[-1].settings.sync_file))
        metric = yaml.safe_load(path.read_text(encoding="utf-8"))["metric"]["name"]
        assert math.isfinite(logged.summary[metric])
        assert logged.config["page"] == page
        ran += 1
    assert len(tracked) == ran
