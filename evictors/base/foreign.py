"""Evictors from elsewhere: they get tensors of their own, and their errors name them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from page_bench.evictors.base.layer_view import LayerView
from page_bench.inputs.errors import UsageError

if TYPE_CHECKING:
    from page_bench.evictors.base import Evictor

_OURS = "page_bench.evictors."


def is_foreign(evictor: Evictor) -> bool:
    """Whether an evictor, or one that it wraps, is not page-bench's own."""
    base: Evictor | None = getattr(evictor, "base", None)
    own = type(evictor).__module__.startswith(_OURS)
    return not own or (base is not None and is_foreign(base))


def lent(evictor: Evictor, tensor: Tensor) -> Tensor:
    """A tensor for an evictor to read; a copy for one from elsewhere, which may write to it."""
    return tensor.clone() if is_foreign(evictor) else tensor


def lent_view(evictor: Evictor, view: LayerView) -> LayerView:
    """A layer for an evictor to read; copies for one from elsewhere, of what it needs."""
    if not is_foreign(evictor):
        return view
    needs = evictor.all_needs
    return dataclasses.replace(
        view,
        keys=view.keys.clone(),
        values=view.values.clone(),
        window_attention=view.window_attention.clone(),
        recorded={need: seen.clone() for need, seen in view.recorded.items() if need in needs},
        attention_of_rows={rows: seen.clone() for rows, seen in view.attention_of_rows.items()},
    )


@contextmanager
def blaming(name: str, deed: str) -> Iterator[None]:
    """Turn an exception into a UsageError: the evictor's name, a deed (`failed in score`), why."""
    try:
        yield
    except (UsageError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        cause = str(error).strip().partition("\n")[0]
        said = f"{type(error).__name__}: {cause}" if cause else type(error).__name__
        raise UsageError(
            f"evictor {name} {deed} ({said}); mend it, or choose another evictor."
        ) from error
