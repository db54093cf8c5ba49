"""The layers of a KV cache: preallocated, of unequal heads, sliding, and several caches as one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin


class PromptLayer(CacheLayerMixin):
    """One layer of a cache that knows its own mask and what it holds."""

    is_sliding = False

    @property
    @abstractmethod
    def entries(self) -> int:
        """Entries (one key and one value each) in use, over all KV heads."""

    @property
    @abstractmethod
    def bytes_in_use(self) -> int:
        """Bytes of the keys and values in use."""

    @property
    @abstractmethod
    def bytes_allocated(self) -> int:
        """Bytes of the buffers, room for the answer included."""

    @abstractmethod
    def mark(self) -> Any:
        """Its state, for `rewind`."""

    @abstractmethod
    def rewind(self, mark: Any) -> None:
        """Forget what was appended since `mark`."""

    def full_entries(self, length: int) -> int:
        """Entries that this layer of the model holds of a prompt, where nothing is evicted."""
        return self.keys.shape[1] * length

    def mask(self, rows: int, keys: int, like: Tensor) -> Tensor | None:
        """What the last `rows` of `keys` entries may see: all before them and themselves.

        Returns:
            Additive, `[1, 1, rows, keys]`, dtype and device of `like`; None where all see all.
        """
        if rows == 1:
            return None
        hidden = torch.ones(rows, keys, dtype=torch.bool, device=like.device).triu(keys - rows + 1)
        return _additive(hidden, like)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        # Not the capacity: transformers would take a bounded cache for one of static shape.
        return -1

    def get_max_cache_shape(self) -> int:
        return self.get_max_length()


class PreallocatedLayer(PromptLayer):
    """Keys and values in buffers of fixed capacity, filled from the front.

    A step writes in place; nothing is concatenated, so a decode step moves no old entry.

    Attributes:
        length: entries in use, the same for every KV head.
        capacity: entries there is room for.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.length = 0
        self._buffers: tuple[Tensor, Tensor] | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self._buffers = _room_for(key_states, self.capacity), _room_for(value_states, self.capacity)
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append `[1, H_kv, n, head_dim]` and return all keys and values in use."""
        if self._buffers is None:
            self.lazy_initialization(key_states, value_states)
        assert self._buffers is not None
        key_buffer, value_buffer = self._buffers
        end = self.length + key_states.shape[-2]
        if end > self.capacity:
            raise RuntimeError(f"the cache has room for {self.capacity} entries, not for {end}")
        key_buffer[:, :, self.length : end] = key_states
        value_buffer[:, :, self.length : end] = value_states
        self._end_at(end)
        return self.keys, self.values

    def mark(self) -> int:
        return self.length

    def rewind(self, mark: int) -> None:
        self._end_at(mark)

    def _end_at(self, length: int) -> None:
        assert self._buffers is not None
        self.length = length
        self.keys, self.values = (buffer[:, :, :length] for buffer in self._buffers)

    @property
    def entries(self) -> int:
        return int(self.keys.shape[1]) * self.length

    @property
    def bytes_in_use(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.keys, self.values))

    @property
    def bytes_allocated(self) -> int:
        return sum(t.untyped_storage().nbytes() for t in self._buffers or ())

    def get_seq_length(self) -> int:
        return self.length


class GroupedLayer(PromptLayer):
    """KV heads that keep different numbers of entries: one part per number, none padded.

    Attributes:
        heads: per part, int64 indices of its KV heads.
        parts: the entries of these heads.
        n_kv_heads: KV heads of the layer.
    """

    def __init__(self, heads: Sequence[Tensor], parts: Sequence[PreallocatedLayer]) -> None:
        super().__init__()
        self.heads, self.parts = list(heads), list(parts)
        self.n_kv_heads = sum(len(group) for group in heads)
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the parts exist already."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append `[1, H_kv, n, head_dim]` and return only these: attention reads the parts."""
        for group, part in zip(self.heads, self.parts, strict=True):
            part.update(key_states[:, group], value_states[:, group])
        return key_states, value_states

    def mark(self) -> list[int]:
        return [part.mark() for part in self.parts]

    def rewind(self, mark: list[int]) -> None:
        for part, length in zip(self.parts, mark, strict=True):
            part.rewind(length)

    @property
    def entries(self) -> int:
        return sum(part.entries for part in self.parts)

    @property
    def bytes_in_use(self) -> int:
        return sum(part.bytes_in_use for part in self.parts)

    @property
    def bytes_allocated(self) -> int:
        return sum(part.bytes_allocated for part in self.parts)

    def full_entries(self, length: int) -> int:
        return self.n_kv_heads * length

    def get_seq_length(self) -> int:
        return max(part.length for part in self.parts)


class SlidingLayer(PromptLayer):
    """A layer whose queries see the last `window` positions only; no evictor touches it.

    The oldest of the window's entries stays one step longer than the model needs it, so that the
    last prompt token can be taken out and fed again.
    """

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append `[1, H_kv, n, head_dim]` and return what the new queries may see of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        past = max(0, self.keys.shape[2] - self.window + 1)
        keys = torch.cat([self.keys[:, :, past:], key_states], dim=2)
        values = torch.cat([self.values[:, :, past:], value_states], dim=2)
        # Copies: views would keep a whole prompt alive.
        self.keys = keys[:, :, -self.window :].clone()
        self.values = values[:, :, -self.window :].clone()
        return keys, values

    def mark(self) -> tuple[Tensor, Tensor]:
        # Never written to in place.
        return self.keys, self.values

    def rewind(self, mark: tuple[Tensor, Tensor]) -> None:
        self.keys, self.values = mark

    def copied(self, without_last: bool) -> SlidingLayer:
        """The same, or the same without the last entry, for another cache to append to."""
        layer = SlidingLayer(self.window)
        layer.lazy_initialization(self.keys, self.values)
        end = self.keys.shape[2] - without_last
        layer.keys, layer.values = self.keys[:, :, :end], self.values[:, :, :end]
        return layer

    def mask(self, rows: int, keys: int, like: Tensor) -> Tensor | None:
        if rows == 1:
            return None
        row = torch.arange(keys - rows, keys, device=like.device)[:, None]
        column = torch.arange(keys, device=like.device)
        return _additive((column > row) | (column <= row - self.window), like)

    @property
    def entries(self) -> int:
        return int(self.keys.shape[1] * self.keys.shape[2])

    @property
    def bytes_in_use(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.keys, self.values))

    @property
    def bytes_allocated(self) -> int:
        return self.bytes_in_use

    def full_entries(self, length: int) -> int:
        return int(self.keys.shape[1]) * min(length, self.window)

    def get_seq_length(self) -> int:
        return int(self.keys.shape[2]) if self.is_initialized else 0


class BatchedLayer(PromptLayer):
    """The same layer of several caches, one row each; every row as long as it is.

    Attributes:
        rows: the layers, none of them batched itself.
        seen: per row, what `update` of that row returned last.
    """

    def __init__(self, rows: Sequence[PromptLayer]) -> None:
        super().__init__()
        self.rows = list(rows)
        self.seen: list[tuple[Tensor, Tensor]] = []
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the rows exist already."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append `[B, H_kv, n, head_dim]` and return only these: attention reads the rows."""
        self.seen = [
            row.update(key_states[i : i + 1], value_states[i : i + 1])
            for i, row in enumerate(self.rows)
        ]
        return key_states, value_states

    def mark(self) -> list[Any]:
        return [row.mark() for row in self.rows]

    def rewind(self, mark: list[Any]) -> None:
        for row, one in zip(self.rows, mark, strict=True):
            row.rewind(one)

    @property
    def entries(self) -> int:
        return sum(row.entries for row in self.rows)

    @property
    def bytes_in_use(self) -> int:
        return sum(row.bytes_in_use for row in self.rows)

    @property
    def bytes_allocated(self) -> int:
        return sum(row.bytes_allocated for row in self.rows)

    def get_seq_length(self) -> int:
        return max(row.get_seq_length() for row in self.rows)


def _additive(hidden: Tensor, like: Tensor) -> Tensor:
    """A mask for attention logits, `[1, 1, rows, keys]`, from what each row must not see."""
    mask = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device)
    return mask.masked_fill_(hidden, torch.finfo(like.dtype).min)[None, None]


def _room_for(states: Tensor, capacity: int) -> Tensor:
    """An uninitialised buffer like `states` `[B, H, n, d]`, with `capacity` entries."""
    batch, heads, _, dim = states.shape
    return torch.empty((batch, heads, capacity, dim), dtype=states.dtype, device=states.device)
