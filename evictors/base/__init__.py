"""All that a method from elsewhere imports: the classes it inherits and the types it reads."""

from page_bench.evictors.base.budget import BudgetPlan
from page_bench.evictors.base.evictor import GRANULARITIES, Evictor, Granularity, Wrapper
from page_bench.evictors.base.layer_view import LayerView, Need

__all__ = [
    "GRANULARITIES",
    "BudgetPlan",
    "Evictor",
    "Granularity",
    "LayerView",
    "Need",
    "Wrapper",
]
