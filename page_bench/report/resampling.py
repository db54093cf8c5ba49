"""How a report's sections resample inputs, and how they say so."""

from __future__ import annotations

from page_bench.analysis.estimates import EXACT, FEW, FLAT, LEAST
from page_bench.analysis.resampling import Resampling
from page_bench.report.settings import Settings


def resampling_of(settings: Settings) -> Resampling:
    """How inputs are resampled."""
    return Resampling(settings.draws, settings.seed)


def how(settings: Settings) -> str:
    """The same in words."""
    return (
        f"Intervals, 95 %: Wilson's for shares of distinct inputs and where all inputs agree, else "
        f"percentiles of {settings.draws} draws of whole inputs (task and document, with all its "
        f"budgets), all tasks together as in the paper, seed {settings.seed}. “{FEW}”: fewer than "
        f"{LEAST} inputs carry the number, and a bootstrap of so few covers too little. “{FLAT}”: "
        f"it is the same in all draws, which is no certainty. “{EXACT}”: settings fix it."
    )
