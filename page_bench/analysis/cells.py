"""The table that all statistics of a report are taken from: inputs under one evictor and gate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Cell:
    """Inputs of one model and suite under one evictor, at several budgets, and a gate over them.

    Attributes:
        model: its name.
        suite: tasks that belong together, of one prompt length: `page_ruler_4k`; for the authors'
            logs the context, `4K`.
        evictor: name, and what else tells it from the report's other cells.
        gate: name and τ's rule.
        tau: τ; None where the gate reads none.
        seed: of a replicate; None where the runs do not say.
        metric: what `plain` and `full` hold, one of `outcomes.METRICS`.
        rows: one row per input and budget, ordered by input and budget, columns:
            `task` str, without the suite's name;
            `doc_id`, `repeat` int;
            `input` int, numbered from 0 on, the same for all budgets of an input;
            `budget` float, nominal, some 1 where the runs hold it;
            `prompt_tokens` int;
            `drop` float, D;
            `open` bool, whether the gate gives the plain answer;
            `plain`, `full` float, the metric of both answers; `full` is NaN where the gate opens
            and a log does not hold the full cache's answer (see `knows_full`);
            `plain_score`, `full_score` float, the benchmark's own; NaN where not recorded;
            `plain_kept`, `full_kept` float, kept_kv;
            `evidence` float, share of the evidence that the plain answer's cache kept; NaN where
            it is not known, and no column of the authors' logs;
            `plain_bytes`, `full_bytes` float, of the prompt's keys and values; NaN if unknown;
            `prefill_s`, `gate_s`, `plain_s`, `full_s` float, seconds; the last two after the
            prefill; NaN if unknown.
        agreement: fp64 `[inputs, layers]`, head agreement by layer; None where not recorded.
    """

    model: str
    suite: str
    evictor: str
    gate: str
    tau: float | None
    seed: int | None
    metric: str
    rows: pd.DataFrame
    agreement: NDArray[np.float64] | None

    @property
    def label(self) -> str:
        """What tells it from other cells."""
        seed = "" if self.seed is None else f" seed {self.seed}"
        return f"{self.model} {self.suite} {self.evictor}, {self.gate}{seed}"

    @property
    def knows_full(self) -> bool:
        """Whether the full cache's answer to every input is known, not only where it is given."""
        return not bool(self.rows["full"].isna().any())

    @property
    def evicted(self) -> pd.DataFrame:
        """The rows of budgets below 1, on which Δ, harm and ρ are taken, with `gated` added."""
        rows = self.rows[self.rows["budget"] < 1]
        opened = rows["open"]
        return rows.assign(
            gated=np.where(opened, rows["plain"], rows["full"]),
            gated_kept=np.where(opened, rows["plain_kept"], rows["full_kept"]),
        )

    @property
    def tasks(self) -> list[str]:
        """Names, sorted."""
        return sorted(self.rows["task"].unique())
