"""Rotary embeddings whose frequencies depend on the length of the sequence.

Two rope types of transformers do: `longrope` has two sets of frequencies, one for sequences up to
an original length and one for longer ones; `dynamic` (NTK) stretches them with every token beyond
the original length, and keeps what the longest sequence so far has made of them. So what a prompt
is answered could depend on the prompts before it. Here a model always rotates as one that is fresh
does, and for as long as asked as if the sequence had one given length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from page_bench.inputs.errors import UsageError

_NEVER = 2**62
"""A length that no sequence has."""
_HELD = ("config", "original_max_seq_len")
"""Attributes of a rotary embedding that are set while it is held."""


class Rotation:
    """The rotary embeddings of a model that change with length, as a fresh model has them.

    Attributes:
        original_lengths: rope type → the longest sequence that it does not change for.

    Args:
        model: possibly inside a wrapper.
    """

    def __init__(self, model: nn.Module) -> None:
        self._parts = [part for module in model.modules() for part in _changing(module)]
        self.original_lengths: dict[str, int] = {}
        for part in self._parts:
            known = self.original_lengths.get(part.kind, part.original_length)
            self.original_lengths[part.kind] = min(known, part.original_length)

    def change(self, length: int, longer: int) -> int | None:
        """The shortest sequence above `length` that is rotated otherwise; None up to `longer`."""
        found = [
            max(part.original_length, length) + 1
            for part in self._parts
            if part.kind != "longrope" or length <= part.original_length
        ]
        return min((change for change in found if change <= longer), default=None)

    @contextmanager
    def of_length(self, length: int) -> Iterator[None]:
        """Let the model rotate as for a sequence of so many tokens, whatever positions come."""
        before = [
            (part.module, {k: v for k, v in vars(part.module).items() if k in _HELD})
            for part in self._parts
        ]
        # Tensors made in inference mode could not be written to outside.
        with torch.inference_mode(False):
            for part in self._parts:
                part.hold(length)
        try:
            yield
        finally:
            for module, values in before:
                vars(module).update(values)
            self.refresh()

    def refresh(self) -> None:
        """Set the frequencies to those of a model that has seen nothing."""
        with torch.inference_mode(False):
            for part in self._parts:
                part.refresh()


def check_rotation(model: nn.Module, text: PreTrainedConfig) -> None:
    """Check that a loaded model's rotation can be held still where it changes with length.

    Args:
        model: without a wrapper.
        text: configuration of its language model.

    Raises:
        UsageError: it may change in code of the model's own.
    """
    kinds = {kind for kind in rope_types(text) if _changes(kind)}
    if kinds and not any(hasattr(module, "rope_type") for module in model.modules()):
        raise UsageError(
            f"model type {text.model_type!r} rotates by rope_type={', '.join(sorted(kinds))}, "
            f"which changes with length, in code of its own, so that an answer could depend on the "
            f"prompts before it; choose a model whose rotary embedding is transformers' own."
        )


def rope_types(text: PreTrainedConfig) -> set[str]:
    """Kinds of a language model's rotary embeddings, which may differ by layer type."""
    # The older name is left to code that comes with a model.
    found = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    parts = [part for part in found.values() if isinstance(part, Mapping)] or [found]
    return {str(part.get("rope_type") or part.get("type") or "default") for part in parts}


@dataclass(frozen=True)
class _Part:
    """The frequencies of one rotary embedding for one layer type, or for all (None)."""

    module: Any
    layer_type: str | None
    kind: str
    original_length: int

    @property
    def prefix(self) -> str:
        return _prefix(self.layer_type)

    def set_frequencies(self, values: Tensor) -> None:
        self.module.register_buffer(f"{self.prefix}inv_freq", values, persistent=False)

    def refresh(self) -> None:
        """Set the frequencies to those of a module that has seen nothing."""
        used = getattr(self.module, f"{self.prefix}inv_freq")
        original = getattr(self.module, f"{self.prefix}original_inv_freq")
        # A copy: `longrope` writes into it.
        self.set_frequencies(original.to(used.device, copy=True))
        if self.kind != "longrope":
            kept = f"{self.prefix}max_seq_len_cached"
            setattr(self.module, kept, self.module.original_max_seq_len)

    def hold(self, length: int) -> None:
        """Fix the frequencies to those of a sequence of `length`."""
        self.refresh()
        if self.kind == "longrope":
            self.module.config = self._decided(length > self.original_length)
            return
        if length > self.original_length:
            device = getattr(self.module, f"{self.prefix}inv_freq").device
            options = {} if self.layer_type is None else {"layer_type": self.layer_type}
            # A tensor, as transformers passes it, for the same rounding.
            grown, _ = ROPE_INIT_FUNCTIONS[self.kind](
                self.module.config, device, seq_len=torch.tensor(length, device=device), **options
            )
            self.set_frequencies(grown)
        # Neither growth nor a return to the original frequencies.
        setattr(self.module, f"{self.prefix}max_seq_len_cached", _NEVER)
        self.module.original_max_seq_len = 0

    def _decided(self, is_long: bool) -> Any:
        """A copy of the configuration under which every sequence is long, or none is."""
        original = 0 if is_long else _NEVER
        # The factor only scales attention, which was decided when the module was built.
        changes = {"original_max_position_embeddings": original, "factor": 1.0}
        config = copy(self.module.config)
        if hasattr(config, "original_max_position_embeddings"):
            # Phi-3 has it there, too, and lets it win.
            config.original_max_position_embeddings = original
        given = config.rope_parameters
        if self.layer_type is None:
            config.rope_parameters = {**given, **changes}
        else:
            parameters = {**given[self.layer_type], **changes}
            config.rope_parameters = {**given, self.layer_type: parameters}
        return config


def _changing(module: nn.Module) -> Iterator[_Part]:
    kinds = getattr(module, "rope_type", None)
    for layer_type, kind in kinds.items() if isinstance(kinds, dict) else [(None, kinds)]:
        if not _changes(str(kind)) or not hasattr(
            module, f"{_prefix(layer_type)}original_inv_freq"
        ):
            continue
        original: Any = module.original_max_seq_len
        if kind == "longrope":
            given: Any = module.config
            parameters = given.rope_parameters
            parameters = parameters if layer_type is None else parameters[layer_type]
            original = parameters["original_max_position_embeddings"]
        yield _Part(module, layer_type, str(kind), int(original))


def _prefix(layer_type: str | None) -> str:
    return "" if layer_type is None else f"{layer_type}_"


def _changes(kind: str) -> bool:
    # As transformers asks.
    return kind == "longrope" or "dynamic" in kind
