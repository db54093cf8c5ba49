"""Retention as a score, as in TrimKV (arXiv 2512.03324) and DBTrimKV (arXiv 2605.09649).

A learned gate gives each token and KV head a β in (0, 1) when the token is read; Δ tokens later
the head is still interested in it by β^Δ. The gate reads the input of the layer's attention, so it
runs beside any model it was trained for, whose attention stays as it is: β only ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from page_bench.evictors._retention_checkpoint import (
    EXAMPLE,
    GateCheckpoint,
    GateShape,
    load_gates,
)
from page_bench.evictors.base import Evictor, LayerView, Need
from page_bench.evictors.base.precision import double
from page_bench.inputs.errors import UsageError


@dataclass(frozen=True)
class RetentionEvictor(Evictor):
    """Scores by a retention gate.

    The authors run the gate in the model's dtype; here it runs in fp32.

    Attributes:
        checkpoint: the gates: a `trimkv_weights.pth`, a folder that holds one, or a Hub id.
        lookahead_steps: further tokens over which β^Δ is averaged; 1 takes the next one alone.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"hidden_states"})
    kinds: ClassVar[tuple[str, ...]] = ("rg", "rg10")
    """Kinds of gates that the method can use."""

    checkpoint: str = ""
    lookahead_steps: int = 1

    def __post_init__(self) -> None:
        if not self.checkpoint:
            raise UsageError(
                f"evictor={self.name} needs evictor.checkpoint, the gates trained for the model: "
                f"{EXAMPLE}."
            )
        self.check_options("lookahead_steps", at_least=1)

    def check(self, text: Any) -> None:
        kv_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        self._gates(GateShape(text.num_hidden_layers, text.hidden_size, kv_heads))

    def score(self, layer: LayerView, n_keep: int | None = None) -> Tensor:
        x = layer.hidden_states
        # Sliding layers have gates as well, which are left unused.
        model = GateShape(layer.n_model_layers, x.shape[-1], layer.n_kv_heads)
        gates = self._gates(model).gates
        # The gate stays on its layer's device: no copy from the second prompt on.
        log_beta = gates[layer.layer].to(x.device)(x)
        return log_retention(log_beta, self.lookahead_steps)

    def vote(self, scores: Tensor) -> Tensor:
        """β^Δ itself: a mean of its logarithm would let forgetful heads veto."""
        # Where it vanishes in every head, the far smaller second term still ranks.
        return scores.exp() + 1e-30 / (1 + scores.abs())

    def _gates(self, model: GateShape) -> GateCheckpoint:
        loaded = load_gates(self.checkpoint)
        if loaded.shape != model:
            raise UsageError(
                f"evictor.checkpoint={self.checkpoint} holds gates for a model with "
                f"{loaded.shape}, but this one has {model}; give the checkpoint that was trained "
                f"for this model."
            )
        if loaded.kind not in self.kinds:
            raise UsageError(
                f"evictor.checkpoint={self.checkpoint} holds gates of kind {loaded.kind}, trained "
                f"for a budget per head; {self.name} compares entries across heads and layers, for "
                f"which gates of kind {' or '.join(self.kinds)} are trained: give a DBTrimKV "
                f"checkpoint, or use evictor=trimkv."
            )
        return loaded


def log_retention(log_beta: Tensor, steps: int) -> Tensor:
    """Logarithm of β^Δ, or of its mean over the next steps, for each position: fp32 `[..., T]`.

    With one step Δ = T + 1 - i for position i of T, as the authors rank. With more they sum β^Δ
    over Δ = T + 2 - i, …, T + 1 - i + steps, that is, from one token later; the mean taken here is
    that sum over a constant.
    """
    length = log_beta.shape[-1]
    age = torch.arange(length + 1, 1, -1, device=log_beta.device)
    if steps == 1:
        return age * log_beta
    # A geometric series, in fp64: for β near 1 its factors differ from 1 by less than fp32 shows.
    x = double(log_beta)
    mean = torch.log(torch.expm1(steps * x) / torch.expm1(x)) - math.log(steps)
    # For β = 1 the mean is 1, but the quotient 0/0.
    mean = torch.where(x < 0, mean, 0.0)
    return ((age.to(x.device) + 1) * x + mean).float().to(log_beta.device)
