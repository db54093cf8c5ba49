"""r(x), whether the best of all budgets beats or misses the full cache (paper, appendix A.7.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from page_bench.analysis.intervals import DRAWS, SEED, Estimate
from page_bench.analysis.pools import rate

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Recovery:
    """r(x) = sign(max over b of the gated answer − the answer from the full cache), by task.

    Attributes:
        task: its name.
        n: inputs.
        with_full: whether b = 1 is among the budgets, as in the paper. There the gated answer is
            the full one, so that r(x) ≥ 0 whatever the gate does.
        lost, same, gained: share of inputs with r(x) = −1, 0 and +1.
    """

    task: str
    n: int
    with_full: bool
    lost: Estimate
    same: Estimate
    gained: Estimate


def signs(frame: pd.DataFrame, with_full: bool) -> NDArray[np.int_]:
    """r(x) of each input of `pools.inputs`: −1, 0 or +1.

    Args:
        frame: one row per input.
        with_full: whether b = 1 is among the budgets.
    """
    full, best = frame["full"].to_numpy(), frame["best_gated"].to_numpy()
    return np.sign((np.maximum(best, full) if with_full else best) - full).astype(np.int_)


def recoveries(
    frames: Sequence[pd.DataFrame], draws: int = DRAWS, seed: int = SEED
) -> list[Recovery]:
    """r(x) by task without and with b = 1, the inputs of all frames taken together.

    Args:
        frames: from `pools.inputs`, of one cell, or of several of one gate that share no input.
        draws, seed: of the bootstrap where a document stands there several times.
    """
    import pandas as pd

    found = []
    for task, rows in pd.concat(frames).groupby("task", sort=True):
        clusters = list(rows["unit"])
        for with_full in (False, True):
            r = signs(rows, with_full)
            lost, same, gained = (rate(r == sign, clusters, draws, seed) for sign in (-1, 0, 1))
            found.append(Recovery(str(task), len(rows), with_full, lost, same, gained))
    return found
