"""The numbers that the PAGE paper and its authors' repository report, as a table.

`published.csv` has one line per number:

- `table`: `Table N` or `Figure N` of arXiv 2609.22157v1, `text`, or `repository` where only the
  authors' repository has it;
- `model`, `context`: the paper's names; the latter `4K`, `16K`, `32K` or `LongBench`;
- `evictor`, `granularity`: this project's names; empty where the number does not depend on them;
- `gate`: `open` (plain eviction), `page`, `closed` (full cache), `oracle`, or of a difference
  `A-B`;
- `tau`: the threshold of `page`: a number, or `z=θ`;
- `tasks`: names without suite, separated by spaces; a number over several is their plain mean;
- `budgets`: likewise; `b<1` or `b<=0.25` where the source does not list them; empty where the
  number does not depend on them;
- `metric`: see `METRICS` for those that can be compared; others stand for the record;
- `setting`: what else the number belongs to, such as a seed;
- `value`, `low`, `high`: the number and its 95 % interval where one is reported;
- `n`: inputs, of all tasks together;
- `source`: file of the repository or of the paper's source.
"""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass
from pathlib import Path

from page_bench.inputs import text_file
from page_bench.inputs.errors import UsageError

PUBLISHED = Path(__file__).with_name("published.csv")
COLUMNS = (
    *("table", "model", "context", "evictor", "granularity", "gate", "tau", "tasks", "budgets"),
    *("metric", "setting", "value", "low", "high", "n", "source"),
)
METRICS = ("accuracy", "delta", "rho", "harm", "open", "kept_kv", "compression", "drop")
"""`accuracy`: mean of 0/1. `delta`: difference of two gates' accuracies. `rho`: share wrong with
the full cache and right at one of the budgets. `harm`: share right with the full cache and wrong
under the gate. `open`: share of inputs whose gate opens. `kept_kv`: mean kept share of the cache;
`compression` is its reciprocal. `drop`: mean D."""
GATES = (
    *("", "open", "page", "closed", "oracle", "page-open", "oracle-open", "task_oracle-open"),
    "page-task_oracle",
)
_BUDGETS = re.compile(r"|b<1|b<=0\.25|(0\.\d+|1)( (0\.\d+|1))*")
_TAU = re.compile(r"|0\.\d+|z=-?\d+\.\d+")
_TABLE = re.compile(r"(Table|Figure) \d+|text|repository")

MODELS = {
    "Qwen2.5-1.5B": "Qwen/Qwen2.5-1.5B-Instruct",
    "Qwen2.5-3B": "Qwen/Qwen2.5-3B-Instruct",
    "Qwen2.5-14B": "Qwen/Qwen2.5-14B-Instruct",
    "Qwen2.5-32B": "Qwen/Qwen2.5-32B-Instruct",
    "Mistral-7B-v0.3": "mistralai/Mistral-7B-Instruct-v0.3",
    "Llama-3.1-8B": "meta-llama/Llama-3.1-8B-Instruct",
    "Yi-1.5-9B": "01-ai/Yi-1.5-9B-Chat",
    "Qwen3-4B": "Qwen/Qwen3-4B-Instruct-2507",
}
"""The paper's names and the Hub's."""


@dataclass(frozen=True)
class Published:
    """One reported number; the attributes are the columns of `published.csv`.

    Attributes:
        tasks, budgets: apart; `budgets` is None where the source does not list them.
        low, high, n: None where not reported.
    """

    table: str
    model: str
    context: str
    evictor: str
    granularity: str
    gate: str
    tau: str
    tasks: tuple[str, ...]
    budgets: tuple[float, ...] | None
    metric: str
    setting: str
    value: float
    low: float | None
    high: float | None
    n: int | None
    source: str

    @property
    def threshold(self) -> float | None:
        """τ; None where the gate reads none, or where it is found by a rule."""
        return float(self.tau) if self.tau and not self.tau.startswith("z") else None

    @property
    def where(self) -> str:
        """What to call it in a message."""
        return self.table if self.table != "repository" else f"repository, {Path(self.source).name}"


def read_published(path: Path = PUBLISHED) -> list[Published]:
    """All reported numbers, in the file's order.

    Raises:
        UsageError: the file cannot be read, or a line is not what the module describes.
    """
    try:
        text = text_file.read(path)
    except (OSError, text_file.NotText) as error:
        raise UsageError(f"{path} cannot be read ({error}); install page-bench anew.") from error
    lines = csv.reader(text.splitlines())
    if tuple(next(lines, [])) != COLUMNS:
        raise UsageError(f"{path} does not begin with the columns {','.join(COLUMNS)}; restore it.")
    return [_published(row, f"{path} line {number}") for number, row in enumerate(lines, start=2)]


def paper_name(model: str) -> str | None:
    """The paper's name of a model that goes by the Hub's name or by a folder called like it.

    A revision or an adapter in the name makes it another model. None if the paper has no such.
    """
    last = model.rstrip("/").rpartition("/")[2]
    names = {hub.rpartition("/")[2]: name for name, hub in MODELS.items()}
    return names.get(last)


def _published(cells: list[str], where: str) -> Published:
    if len(cells) != len(COLUMNS):
        raise UsageError(f"{where} has {len(cells)} fields, not {len(COLUMNS)}; restore the file.")
    row = dict(zip(COLUMNS, cells, strict=True))
    for name, allowed in (("table", _TABLE), ("tau", _TAU), ("budgets", _BUDGETS)):
        if not allowed.fullmatch(row[name]):
            raise UsageError(f"{where}: {name} is {row[name]!r}; restore the file.")
    if row["gate"] not in GATES:
        raise UsageError(f"{where}: gate is {row['gate']!r}, not one of {', '.join(GATES[1:])}.")
    numbers = {name: _number(row[name], f"{where}: {name}") for name in ("value", "low", "high")}
    if numbers["value"] is None:
        raise UsageError(f"{where} has no value; restore the file.")
    if row["n"] and not row["n"].isdecimal():
        raise UsageError(f"{where}: n is {row['n']!r}, not a whole number; restore the file.")
    budgets = row["budgets"]
    return Published(
        **{name: row[name] for name in COLUMNS[:7]},
        tasks=tuple(row["tasks"].split()),
        budgets=None if budgets.startswith("b") else tuple(map(float, budgets.split())),
        metric=row["metric"],
        setting=row["setting"],
        value=numbers["value"],
        low=numbers["low"],
        high=numbers["high"],
        n=int(row["n"]) if row["n"] else None,
        source=row["source"],
    )


def _number(text: str, where: str) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{where} is {text!r}, not a number; restore the file.")
    return value
