"""What an evictor is, and what it may use: all that a method from elsewhere imports."""

from page_bench.evictors.base.budget import BudgetPlan
from page_bench.evictors.base.evictor import GRANULARITIES, Evictor, Granularity, Wrapper
from page_bench.evictors.base.layer_view import READ_IN_PASS, LayerView, Need

__all__ = [
    "GRANULARITIES",
    "READ_IN_PASS",
    "BudgetPlan",
    "Evictor",
    "Granularity",
    "LayerView",
    "Need",
    "Wrapper",
]
