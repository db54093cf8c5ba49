"""A record of what a set of runs gives, to be compared across a change that should change nothing.

    python tests/record_of_runs.py OUT            # with the environment of either side
    diff -r OLD NEW

Runs tiny models under every evictor, granularity and gate, reads the runs back with every command,
and writes all of it below OUT, without what differs between any two runs: times, dates,
folders. It goes through the doors that users take (`lm_eval`, `page-bench`, files), never through a
module's name. `--real` adds the demo on the default model.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from retention_checkpoint import random_gates, write_checkpoint
from tiny_models import save_tiny, tiny_config

TASK = "page_quickstart"
GATES = (
    *("closed", "static", "random", "entropy_norm", "topk_mass_share", "max_share", "slope"),
    *("keynorm_disp", "entropy_drop", "late_plateau", "monotonicity", "task_oracle", "retry"),
)
PAGES = (
    *("run", "sweep", "calibrate", "regate", "report", "evictors", "latency", "doctor"),
    *("wandb-import", "compare", "leaderboard", "store"),
)
ACTIONS = {
    "leaderboard": ("add", "check", "export", "build"),
    "store": ("ls", "verify", "export", "merge", "prune"),
}
_TIMES = re.compile(r"(_s|_seconds|_time|date|decode_rows|git_hash|pretty_env_info)$")
_WORDS = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d[:-]\d\d[:-]\d\d(\.\d+)?(\+00:00|Z)?"), "<time>"),
    (re.compile(r"\d{4}-\d\d-\d\d:\d\d:\d\d:\d\d"), "<time>"),
    (re.compile(r"\d{4}-\d\d-\d\d"), "<date>"),
    (re.compile(r"\b\d+(\.\d+)? ?(ms|s|min|h)\b"), "<span>"),
    (re.compile(r"\b[0-9a-f]{40}(-dirty)?\b|\b[0-9a-f]{7,12}-dirty\b"), "<commit>"),
    (re.compile(r"\d+(?= per s)|\d+\.\d(?=%\n)"), "<speed>"),
    (re.compile(r" +<span> +<speed>%"), " <span> <speed>%"),
    (re.compile(r"[\d.]+(?= KB)"), "<size>"),
    (re.compile(r"(?<= )Memory[^\n]*|load average [\d.]+"), "<machine>"),
    (re.compile(r"(?<=\[)page_bench[\w.]*:\d+(?=\])"), "<line>"),  # the module that logs
    (re.compile(r"(?<=\[)[\w./]+\.py:\d+(?=\])|[\w./-]+\.py:\d+"), "<line>"),
)

_BAR = re.compile(r"\d%\||examples/s\]")
_IDS = re.compile(r"\bp[0-9a-f]{10}\b")
"""matplotlib's names of clip paths, drawn at random."""


class Recorder:
    """Runs commands below a folder and keeps what they print and write.

    Args:
        out: new, for the record.
    """

    def __init__(self, out: Path) -> None:
        # Folders are named after an arm's arguments, the model's path among them.
        self.runs, self.record = Path(tempfile.gettempdir()) / "page-bench-runs", out
        shutil.rmtree(self.runs, ignore_errors=True)
        self.runs.mkdir()
        self.record.mkdir(parents=True)
        (script,) = importlib.metadata.entry_points(group="console_scripts", name="page-bench")
        self._main = script.load()

    def page_bench(self, name: str, *words: object) -> None:
        """Keep what `page-bench WORDS` prints, as `NAME.txt`."""
        with printed() as texts:
            try:
                status = self._main([str(word) for word in words])
            except SystemExit as stop:
                status = stop.code
        out, err = (self.told(text) for text in texts)
        shown = f"exit {status}\n--- printed\n{out}\n--- said\n{err}"
        (self.record / f"{name}.txt").write_text(shown, encoding="utf-8")

    def keep(self, name: str, folder: Path) -> None:
        """Keep all that was written below a folder."""
        prompts = sorted(
            hashlib.sha256(gzip.decompress(path.read_bytes())).hexdigest()
            for path in folder.rglob("prompts/*.gz")
        )
        if prompts:
            # Their names tell of the times of the model's files.
            (self.record / f"{name}_prompts.txt").write_text("\n".join(prompts), encoding="utf-8")
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            if path.parent.name == "prompts":
                continue
            place = self.record / name / self.told(str(path.relative_to(folder)))
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(self.content(path), encoding="utf-8")

    def content(self, path: Path) -> str:
        """The text of a file without times, or the hash of one that is no text."""
        if path.suffix in {".sqlite", ".db"}:
            return "\n".join(stored(path))
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            return "not text"
        if path.suffix == ".jsonl":
            return "".join(self.row(json.loads(line)) + "\n" for line in text.splitlines())
        if path.suffix != ".json":
            return _IDS.sub("<id>", self.told(text))
        content = json.loads(text)
        if path.name == "finished.json":
            # Names, sizes and times of the model's files, and of the run's.
            content = {k: v for k, v in content.items() if k != "files"}
            content["basis"].pop("model", None)
        return self.row(content, 1)

    def row(self, value: Any, indent: int | None = None) -> str:
        return self.told(json.dumps(timeless(value), ensure_ascii=False, indent=indent))

    def told(self, text: str) -> str:
        """A text without times, dates and folders."""
        text = text.replace(str(self.runs), "<runs>").replace(str(Path.cwd()), "<here>")
        for pattern, word in _WORDS:
            text = pattern.sub(word, text)
        lines = (line.rstrip() for line in text.splitlines() if not _BAR.search(line))
        return "\n".join(lines)

    def stop_clocks(self, folder: Path) -> None:
        """Give all traces below a folder the same times, so that what reads them is equal."""
        for path in folder.rglob("trace_*.jsonl"):
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            for row in rows:
                row |= {k: 0.5 for k, v in row.items() if k.endswith("_s") and v is not None}
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            path.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def printed() -> Iterator[list[str]]:
    """What is written to standard output and error meanwhile, by whatever means."""
    sys.stdout.flush()
    sys.stderr.flush()
    texts: list[str] = ["", ""]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        files = {1: out, 2: err}
        saved = {number: os.dup(number) for number in files}
        for number, file in files.items():
            os.dup2(file.fileno(), number)
        try:
            yield texts
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for i, (number, file) in enumerate(files.items()):
                os.dup2(saved[number], number)
                os.close(saved[number])
                file.seek(0)
                texts[i] = file.read().decode("utf-8")


def timeless(value: Any) -> Any:
    """JSON without fields that measure time."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if not _TIMES.search(k)}
    return [timeless(v) for v in value] if isinstance(value, list) else value


def stored(path: Path) -> Iterator[str]:
    """The records of a store: kind, key and what was computed."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        for kind, digest, value in db.execute(
            "SELECT kind, digest, value FROM records ORDER BY kind, digest"
        ):
            text = json.dumps(timeless(json.loads(value)), sort_keys=True)
            yield f"{kind} {digest} {hashlib.sha256(text.encode()).hexdigest()}"


def evictors(recorder: Recorder) -> list[dict[str, Any]]:
    """As `page-bench evictors --json` lists them."""
    recorder.page_bench("evictors", "evictors")
    with printed() as texts:
        recorder._main(["evictors", "--json"])
    listed: list[dict[str, Any]] = json.loads(texts[0])
    return listed


def sweep_file(path: Path, tasks: str, model: str, *words: str, **parameters: list[Any]) -> Path:
    """A grid over one or two documents of a task."""
    command = [
        *("${env}", "lm_eval", "run", "--model", "page_hf", "--tasks", tasks, "--limit", "1"),
        *("--log_samples", "--device", "cpu", "--output_path", "unused", *words),
        *("--model_args", f"pretrained={model}", "dtype=float32", "tau=0.0", "${args_no_hyphens}"),
    ]
    grid = {name: {"values": values} for name, values in parameters.items()}
    content = {"method": "grid", "command": command, "parameters": grid}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def choice_task(folder: Path) -> Path:
    """A multiple-choice task of eight documents."""
    folder.mkdir()
    rows = [
        {
            "question": "In the box lie " + " and ".join(f"{n + i} nails" for i in range(9)) + ". ",
            "choices": [f"{n} nails", f"{n + 11} nails"],
            "answer": n % 2,
        }
        for n in range(8)
    ]
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    task = {
        "task": "nails",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }
    (folder / "nails.yaml").write_text(yaml.safe_dump(task, sort_keys=False), encoding="utf-8")
    return folder


def make(out: Path, real: bool) -> None:
    """Make all runs and keep them."""
    recorder = Recorder(out)
    runs = recorder.runs
    for page in PAGES:
        recorder.page_bench(f"help/{page}".replace("/", "_"), page, "--help")
        for action in ACTIONS.get(page, ()):
            recorder.page_bench(f"help_{page}_{action}", page, action, "--help")
    model = str(save_tiny(runs / "llama", "llama"))
    listed = evictors(recorder)
    gated = {"trimkv": "rg", "dbtrimkv": "rg10"}
    sweeps = runs / "sweeps"
    files = []
    runs.joinpath("files").mkdir()
    for granularity in ("shared", "layer", "head"):
        titles = [
            f"{e['name']}(snapkv)" if e["wrapper"] else e["name"]
            for e in listed
            if granularity in e["granularities"] and e["name"] not in gated
        ]
        path = runs / "files" / f"{granularity}.yaml"
        gates = ["page", "open"] if granularity == "shared" else ["open"]
        arms = {"evictor": titles, "granularity": [granularity], "gate": gates}
        files.append(sweep_file(path, TASK, model, **arms, budget=[0.25]))
    config = tiny_config("llama")
    shape = config.num_hidden_layers, config.hidden_size, config.num_key_value_heads
    for evictor, kind in gated.items():
        checkpoint = write_checkpoint(runs / kind, random_gates(kind, *shape))
        arms = {"evictor": [evictor], "evictor.checkpoint": [str(checkpoint)], "gate": ["open"]}
        path = runs / "files" / f"{evictor}.yaml"
        files.append(sweep_file(path, TASK, model, **arms, granularity=["head"]))
    path = runs / "files" / "gates.yaml"
    files.append(sweep_file(path, TASK, model, gate=list(GATES), signals=["all"]))
    tasks = choice_task(runs / "tasks")
    words = ("--include_path", str(tasks))
    arms = {"evictor": ["snapkv", "knorm"], "gate": ["page", "open", "closed"]}
    choices = sweep_file(runs / "files" / "choices.yaml", "nails", model, *words, **arms)
    recorder.page_bench("sweep", "sweep", *files, "--output_path", sweeps)
    recorder.keep("sweep", sweeps)
    recorder.page_bench("choices", "sweep", choices, "--output_path", runs / "choices")
    recorder.keep("choices", runs / "choices")
    for folder in (sweeps, runs / "choices"):
        recorder.stop_clocks(folder)
    read_back(recorder, sweeps, runs / "choices")
    if real:
        alone(recorder, runs / "demo", "evictor=snapkv,tau=zscore")


def read_back(recorder: Recorder, sweeps: Path, choices: Path) -> None:
    """Every command that reads finished runs."""
    runs = recorder.runs
    some = [
        arm
        for arm in sorted(sweeps.iterdir())
        if re.search("evictor=(snapkv|h2o|streamingllm),|^gate=", arm.name)
    ]
    for name, folders in (("sweep", some), ("choices", [choices])):
        recorder.page_bench(f"{name}_regate", "regate", *folders, "--tau", "0.0", "--draws", "200")
        recorder.page_bench(
            f"{name}_regate_json", "regate", *folders, "--sweep", "--json", "--draws", "200"
        )
        report = runs / f"{name}_report"
        recorder.page_bench(f"{name}_report", "report", *folders, "-o", report, "--draws", "200")
        if report.exists():
            recorder.keep(f"{name}_report", report)
        table = runs / f"{name}_board"
        table.mkdir()
        for file in ("tasks.csv", "schema.json"):
            shutil.copy(Path(__file__).parent.parent / "leaderboard" / file, table)
        board = ("--file", table / "leaderboard.csv")
        recorder.page_bench(f"{name}_add", "leaderboard", "add", *folders, *board)
        recorder.page_bench(f"{name}_check", "leaderboard", "check", *board)
        recorder.page_bench(f"{name}_export", "leaderboard", "export", *board)
        recorder.keep(f"{name}_board", table)
    recorder.page_bench("compare", "compare", *some, "--any_numerics", "--draws", "200")
    for store in sorted(sweeps.rglob("*.sqlite")):
        recorder.page_bench("store_ls", "store", "ls", store)
        recorder.page_bench("store_verify", "store", "verify", store)


def alone(recorder: Recorder, out: Path, model_args: str) -> None:
    """The plain command, in a process of its own."""
    command = [str(Path(sys.executable).with_name("lm_eval")), "--model", "page_hf"]
    command += ["--model_args", model_args, "--output_path", str(out), "--log_samples"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    text = recorder.told(f"exit {done.returncode}\n{done.stdout}")
    (recorder.record / f"{out.name}.txt").write_text(text, encoding="utf-8")
    recorder.keep(out.name, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="new folder")
    parser.add_argument("--real", action="store_true", help="run the demo as well")
    asked = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled", "COLUMNS": "100"}
    make(asked.out.resolve(), asked.real)


if __name__ == "__main__":
    main()
