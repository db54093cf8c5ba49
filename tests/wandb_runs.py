"""Short tasks for tracked runs, and W&B's run files read back."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import lm_eval.tasks
import pytest
import test_lm
import wandb
from lm_eval._cli.harness import HarnessCLI
from lm_eval.tasks import TaskManager
from torch.utils import collect_env
from wandb.proto.wandb_internal_pb2 import Record
from wandb.sdk.lib.module import unset_globals

from page_bench.harness import plugin
from page_bench.harness.hooks import TASKS_FOLDER
from page_bench.harness.lm import PageLM
from page_bench.harness.wandb.run_file import becomes_whole, records

TASKS = ("tracked_a", "tracked_b")
PROMPTS = 6
GENERATION = {"until": ["zz"], "max_gen_toks": 24}
ARM = {"evictor": "snapkv", "budget": 0.25, "window": 8, "dtype": "float32"}

NEVER = "never said"
_DOCUMENTS = "TRACKED_DOCUMENTS"
_TASK = """\
include: {metrics}
task: {task}
output_type: generate_until
test_split: test
custom_dataset: !function wandb_runs.{task}
doc_to_text: prompt
doc_to_target: "{{{{answers[0]}}}}"
process_results: !function page_bench.tasks.scorers.reference_match
generation_kwargs: {{until: ["zz"], max_gen_toks: 24}}
metadata: {{version: 1.0}}
"""
_MISSING = """\
include: tracked_a.yaml
task: tracked_missing
metric_list:
  - metric: score
    aggregation: mean
    higher_is_better: true
  - metric: "8192"
    aggregation: mean
    higher_is_better: true
"""
_CHOICE = """\
task: tracked_choice
output_type: multiple_choice
test_split: test
custom_dataset: !function wandb_runs.tracked_a
doc_to_text: prompt
doc_to_choice: "{{[answers[0], 'another']}}"
doc_to_target: 0
metric_list:
  - metric: acc
metadata: {version: 1.0}
"""


def tracked_a(**metadata: Any) -> dict[str, datasets.Dataset]:
    """The first half of the documents that the environment names."""
    return {"test": datasets.Dataset.from_list(_documents()[: PROMPTS // 2])}


def tracked_b(**metadata: Any) -> dict[str, datasets.Dataset]:
    """The second half."""
    return {"test": datasets.Dataset.from_list(_documents()[PROMPTS // 2 :])}


def _documents() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(Path(os.environ[_DOCUMENTS]).read_text())
    return found


def write_tasks(folder: Path, model: Path) -> None:
    """Tasks and documents: some right with the full cache alone, some always, some never."""
    folder.mkdir()
    for task in TASKS:
        text = _TASK.format(metrics=TASKS_FOLDER / "_metrics.yaml", task=task)
        (folder / f"{task}.yaml").write_text(text)
    (folder / "tracked_missing.yaml").write_text(_MISSING)
    (folder / "tracked_choice.yaml").write_text(_CHOICE)
    texts = [f"{'A fox and a dog. ' * (4 + 3 * i)}Who is {i}?" for i in range(PROMPTS)]
    answers = []
    for gate in ("closed", "open"):
        lm = PageLM(str(model), device="cpu", gate=gate, **ARM)
        asked = test_lm.requests(texts, **GENERATION)
        answers.append([str(a) for a in lm.generate_until(asked, disable_tqdm=True)])
    documents = []
    for i, (full, plain) in enumerate(zip(*answers, strict=True)):
        said = [c for c in full.strip() if c.isprintable()]
        alone = [c for c in said if c.lower() not in plain.lower()]
        shared = [c for c in said if c not in alone]
        answer = ([*alone, NEVER], [*shared, NEVER], [NEVER])[i % 3][0]
        documents.append({"prompt": texts[i], "answers": [answer], "match": "any"})
    (folder / "documents.json").write_text(json.dumps(documents))


def environment(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """All that W&B writes goes below a folder; it reads the environment once for all its runs."""
    patch.setenv("WANDB_DIR", str(folder))
    patch.setenv("WANDB_DATA_DIR", str(folder / "data"))
    patch.setenv("WANDB_CACHE_DIR", str(folder / "cache"))
    fresh()


def fresh() -> None:
    """Let W&B start anew, with another core."""
    with suppress(ConnectionError):  # there is nobody to say goodbye to
        wandb.teardown()
    unset_globals()  # else a run whose core is gone stays the open one


def lm_eval_run(
    monkeypatch: pytest.MonkeyPatch,
    tasks: Path,
    out: Path,
    model_args: Mapping[str, Any],
    *words: str,
    tracked: str = "project=test",
) -> None:
    """lm-eval's own command in this process, on the short tasks alone."""
    plugin.install()

    def few_tasks(metadata: dict[str, Any], include_path: str | None = None) -> TaskManager:
        return TaskManager(include_path=str(tasks), include_defaults=False, metadata=metadata)

    monkeypatch.setenv(_DOCUMENTS, str(tasks / "documents.json"))
    monkeypatch.setattr(lm_eval.tasks, "TaskManager", few_tasks)
    monkeypatch.setattr(collect_env, "get_pretty_env_info", lambda: "environment")
    if "--tasks" not in words:
        words = ("--tasks", ",".join(TASKS), *words)
    given = [f"{name}={value}" for name, value in model_args.items()]
    cli = HarnessCLI()
    cli.execute(
        cli._parser.parse_args(
            [
                *("run", "--model", "page_hf", "--device", "cpu", "--log_samples"),
                *("--output_path", str(out), "--wandb_args", tracked, *words),
                *("--model_args", *given),
            ]
        )
    )


def results_of(out: Path) -> dict[str, Any]:
    """The newest results file below a folder."""
    path = max(out.rglob("results_*.json"), key=lambda path: path.name)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def rows_of(out: Path) -> list[dict[str, Any]]:
    """The newest trace below a folder."""
    path = max(out.rglob("trace_*.jsonl"), key=lambda path: path.name)
    return [json.loads(line) for line in path.read_text().splitlines()]


@dataclass
class Logged:
    """What a run file holds.

    Attributes:
        file: the run file.
        run: W&B's record of the run.
        history: rows that were logged.
        summary, config: by key; nested keys are joined by a dot.
        artifacts: name → W&B's record.
        is_ended: whether the file tells how the run ended.
    """

    file: Path
    run: Any = None
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[str, Any] = field(default_factory=dict)
    is_ended: bool = False

    @property
    def values(self) -> dict[str, Any]:
        """All of history, later rows over earlier ones, without the times."""
        rows = {key: value for row in self.history for key, value in row.items()}
        return {key: value for key, value in rows.items() if not key.startswith("_")}

    def table(self, key: str) -> list[dict[str, Any]]:
        """The rows of a table."""
        path = self.file.parent / "files" / self.values[f"{key}.path"]
        found = json.loads(path.read_text())
        return [dict(zip(found["columns"], row, strict=True)) for row in found["data"]]

    def artifact(self, name: str) -> str:
        """The text of an artifact's one file."""
        (entry,) = self.artifacts[name].manifest.contents
        return Path(entry.local_path).read_text(encoding="utf-8")


def logged_in(folder: Path) -> list[Logged]:
    """The runs of a W&B folder, oldest first."""
    found = [logged(path) for path in folder.glob("wandb/*run-*/run-*.wandb")]
    # Names hold whole seconds, in which two short runs may begin.
    return sorted(found, key=lambda one: one.history[0]["_timestamp"] if one.history else 0.0)


def logged(path: Path) -> Logged:
    """One run file; W&B may still be writing when a run has finished."""
    becomes_whole(path, patience_s=5)
    found = Logged(path)
    for data in records(path.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found.run = record.run
            found.config |= _items(record.run.config.update)
        elif kind == "history":
            found.history.append(_items(record.history.item))
        elif kind == "summary":
            found.summary |= _items(record.summary.update)
            for item in record.summary.remove:
                found.summary.pop(".".join(item.nested_key) or item.key, None)
        elif kind == "config":
            found.config |= _items(record.config.update)
        elif kind == "artifact":
            found.artifacts[record.artifact.name] = record.artifact
        elif kind == "exit":
            found.is_ended = True
    return found


def _items(items: Any) -> dict[str, Any]:
    return {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items}
