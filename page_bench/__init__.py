"""page-bench: what KV-cache eviction does to a language model, input by input.

This module is imported at every interpreter start (see `plugin`), so it imports nothing.
"""

__version__ = "0.1.0"
