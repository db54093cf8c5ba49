"""page-bench: what KV-cache eviction does to a language model, input by input.

This module is imported at every interpreter start (see `harness.plugin`), so it imports nothing
until `load`, `Model` or `Answer` is asked for.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from page_bench.api import Answer, Model, load

__all__ = ["Answer", "Model", "__version__", "load"]


def __getattr__(name: str) -> object:
    if name in ("Answer", "Model", "load"):
        from page_bench import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
