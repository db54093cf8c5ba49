"""The numbers that the PAGE paper and its authors' repository report.

`leaderboard/README.md` describes the columns of `published.csv`.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from page_bench.inputs import text_file

PUBLISHED = Path(__file__).with_name("published.csv")
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


def read_published() -> list[Published]:
    """All reported numbers, in the file's order."""
    return [_published(line) for line in csv.DictReader(text_file.read(PUBLISHED).splitlines())]


def paper_name(model: str) -> str | None:
    """The paper's name of a model that goes by the Hub's name or by a folder called like it.

    A revision or an adapter in the name makes it another model. None if the paper has no such.
    """
    last = model.rstrip("/").rpartition("/")[2]
    names = {hub.rpartition("/")[2]: name for name, hub in MODELS.items()}
    return names.get(last)


def _published(line: dict[str, Any]) -> Published:
    def number(name: str) -> float | None:
        return float(line[name]) if line[name] else None

    budgets = line["budgets"]
    return Published(
        **{
            **line,
            "tasks": tuple(line["tasks"].split()),
            "budgets": None if budgets[:1] == "b" else tuple(map(float, budgets.split())),
            "value": float(line["value"]),
            "low": number("low"),
            "high": number("high"),
            "n": int(line["n"]) if line["n"] else None,
        }
    )
