"""SnapKV (arXiv 2404.14469).

`variant=paper` is how the PAGE paper ran it: no pooling kernel, and what the window's own
positions get counts like the rest. `variant=published` is the authors' code, with the keep set
per KV head in place of their copies per query head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from page_bench.evictors._window import WindowAttention


@dataclass(frozen=True)
class SnapKV(WindowAttention):
    """Keeps what the last w query rows attend to.

    Attributes: those of `WindowAttention`.
    """

    name: ClassVar[str] = "snapkv"
    variant_defaults: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "paper": {"kernel_size": 1},
        "published": {"kernel_size": 5},
    }
