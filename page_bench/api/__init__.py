"""One prompt in Python: load a model, answer under any arms, look at what was kept."""

from page_bench.api.answer import Answer
from page_bench.api.model import Model, load

__all__ = ["Answer", "Model", "load"]
