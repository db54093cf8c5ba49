"""How a report's sections resample inputs, and how they say so."""

from __future__ import annotations

from page_bench.analysis.resampling import Resampling
from page_bench.report.settings import Settings


def resampling_of(settings: Settings) -> Resampling:
    """How inputs are resampled."""
    return Resampling(settings.draws, settings.seed, settings.stratified)


def how(settings: Settings) -> str:
    """The same in words."""
    by = "task by task" if settings.stratified else "all tasks together"
    return (
        f"Intervals, 95 %: percentiles of {settings.draws} draws of whole inputs (task and "
        f"document, with all its budgets), {by}, seed {settings.seed}; shares of distinct inputs "
        "have Wilson's. An interval without width is of equal values, which is no certainty."
    )
