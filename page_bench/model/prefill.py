"""One dense pass over a prompt: its cache, its next-token logits and what was observed."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from page_bench.evictors.base import Evictor
from page_bench.evictors.base.layer_view import READ_IN_PASS, LayerView, Need
from page_bench.inputs.errors import UsageError
from page_bench.model import capture
from page_bench.model.attention import MEAN_ALONE, OBSERVABLE, AttentionRecorder, SpreadOptions
from page_bench.model.cache import empty_cache
from page_bench.model.evicted_attention import CacheReader
from page_bench.model.rotation import Rotation
from page_bench.model.scoring import LayerScores, Scorer, score_layer
from page_bench.model.support import layer_windows


@dataclass(frozen=True)
class Observation:
    """What the prefill showed of the layers with full attention.

    Attributes:
        layers: their indices in the model, L of them.
        window: observation window w.
        window_attention: fp32 `[L, H, T]`, per query head the attention averaged over the last
            w query rows.
        row_entropy: fp32 `[L, H]`, nats, entropy of these rows, averaged; None unless asked for.
        margin: fp32 `[L, H]`, κ of these rows; None unless asked for.
        recorded: per layer, what an evictor reads besides.
        attention_of_rows: per layer, as in `layer_view.LayerView`.
        scaling: per layer, the factor of the attention logits.
        latent: whether the cache holds latents that the model unfolds before it attends.
    """

    layers: tuple[int, ...]
    window: int
    window_attention: Tensor
    row_entropy: Tensor | None
    margin: Tensor | None
    recorded: tuple[Mapping[Need, Tensor], ...]
    attention_of_rows: tuple[Mapping[int, Tensor], ...]
    scaling: tuple[float, ...]
    latent: bool


@dataclass(frozen=True)
class Prefill:
    """A prompt after its dense pass.

    Attributes:
        prompt_tokens: T.
        prompt_seed: a number that depends on the prompt alone.
        cache: all entries of each layer, with room for the answer.
        logits: `[1, vocab]`, for the first answer token under the full cache.
        observation: see `Observation`.
        scores: by scorer, per layer; those that had to score during the pass stand here from the
            start, others once they have been asked for.
    """

    prompt_tokens: int
    prompt_seed: int
    cache: Cache
    logits: Tensor
    observation: Observation
    scores: dict[tuple[Evictor, int | None], list[LayerScores]]

    @property
    def shape(self) -> tuple[int, int]:
        """L, layers with full attention, and H_kv, the KV heads of each."""
        layers = self.observation.layers
        return len(layers), int(self.cache.layers[layers[0]].keys.shape[1])

    def view(self, number: int) -> LayerView:
        """The `number`-th layer with full attention, as an evictor sees it."""
        seen = self.observation
        return _view(
            self.cache,
            seen.layers,
            number,
            seen.scaling[number],
            seen.window,
            seen.window_attention[number],
            seen.recorded[number],
            seen.attention_of_rows[number],
            self.prompt_seed,
        )

    def scored_by(self, evictor: Evictor, n_keep: int) -> list[LayerScores]:
        """What an evictor makes of each layer."""
        scorer = Scorer(evictor, n_keep)
        if scorer.key not in self.scores:
            views = (self.view(i) for i in range(len(self.observation.layers)))
            self.scores[scorer.key] = [score_layer(evictor, view, n_keep) for view in views]
        return self.scores[scorer.key]


def prefill(
    model: PreTrainedModel,
    input_ids: Tensor,
    *,
    window: int,
    room: int,
    scorers: Sequence[Scorer] = (),
    prompt_seed: int = 0,
    spread: SpreadOptions = MEAN_ALONE,
    prompt_tokens: int | None = None,
) -> Prefill:
    """Run the prompt through the model once.

    Args:
        model: a model whose attention implementation is one of `attention.register`.
        input_ids: int64 `[1, T]`.
        window: observation window w.
        room: entries the cache must have room for besides the prompt's.
        scorers: what they need is recorded; one with a need of `READ_IN_PASS` scores at once.
        prompt_seed: a number that depends on the prompt alone.
        spread: what is measured of the window's rows besides their mean.
        prompt_tokens: of the whole prompt, where `input_ids` are its beginning; a rotation that
            changes with length is that of the whole.

    Raises:
        UsageError: the model does not hand its attention's inputs to the observing function in
            every layer, or its attention is not a number.
    """
    windows = layer_windows(text_config(model))
    layers = tuple(i for i, width in enumerate(windows) if width is None)
    cache = empty_cache(windows, input_ids.shape[1] + room)
    distinct = {scorer.key: scorer for scorer in scorers}
    at_once = {k: s for k, s in distinct.items() if s.evictor.all_needs & READ_IN_PASS}
    later = [s.evictor for k, s in distinct.items() if k not in at_once]
    scores: dict[tuple[Evictor, int | None], list[LayerScores]] = {key: [] for key in at_once}

    # Takes the recorder as an argument: holding it would keep the cache alive in a cycle.
    def score(recorder: AttentionRecorder, layer: int) -> None:
        """Score one layer and let go of what only its score reads."""
        if not at_once:
            return
        view = _view(
            cache,
            layers,
            layers.index(layer),
            recorder.scaling[layer],
            window,
            recorder.window_attention[layer],
            recorder.recorded[layer],
            recorder.attention_of_rows[layer],
            prompt_seed,
        )
        for key, scorer in at_once.items():
            scores[key].append(score_layer(scorer.evictor, view, scorer.n_keep))
        recorder.recorded[layer] = _kept_for(later, view.recorded)

    recorder = AttentionRecorder(
        window,
        layers,
        frozenset().union(*(s.evictor.all_needs for s in distinct.values())),
        {s.evictor.query_rows for s in distinct.values()} - {0},
        cache,
        score,
        spread,
    )
    rotated = Rotation(model).of_length(prompt_tokens or input_ids.shape[1])
    with rotated, capture.calls_of(model, recorder.needs, layers) as recorder.calls:
        logits = forward(model, input_ids, cache, observed=recorder)[:, -1]
    if sorted(recorder.window_attention) != list(layers):
        raise UsageError(
            f"{type(model).__name__} showed the attention of {len(recorder.window_attention)} of "
            f"its {len(layers)} layers; only models that are not compiled, with softmax attention "
            f"over a KV cache in every layer, called through transformers' attention interface, "
            f"can be run."
        )
    return Prefill(
        prompt_tokens=input_ids.shape[1],
        prompt_seed=prompt_seed,
        cache=cache,
        logits=logits,
        observation=Observation(
            layers=layers,
            window=window,
            window_attention=_stack([recorder.window_attention[i] for i in layers]),
            row_entropy=_together(recorder.row_entropy, layers),
            margin=_together(recorder.margin, layers),
            recorded=tuple(recorder.recorded[i] for i in layers),
            attention_of_rows=tuple(recorder.attention_of_rows[i] for i in layers),
            scaling=tuple(recorder.scaling[i] for i in layers),
            latent=recorder.latent,
        ),
        scores=scores,
    )


def _kept_for(later: Sequence[Evictor], recorded: Mapping[Need, Tensor]) -> dict[Need, Tensor]:
    """What evictors that score after the pass read of one layer."""
    needs = frozenset().union(*(evictor.all_needs for evictor in later))
    kept = {need: value for need, value in recorded.items() if need in needs}
    if "window_queries" in kept:
        rows = max(evictor.query_rows for evictor in later)
        kept["window_queries"] = kept["window_queries"][:, -rows:].clone()
    return kept


def forward(
    model: PreTrainedModel,
    input_ids: Tensor,
    cache: Cache,
    position_ids: Tensor | None = None,
    observed: AttentionRecorder | None = None,
    last: int = 1,
) -> Tensor:
    """Logits `[B, last, vocab]` after the last of `input_ids` `[B, n]`; the cache grows by n.

    Args:
        model: the model.
        input_ids: int64 `[B, n]`.
        cache: filled in place.
        position_ids: int64 `[B, n]`, true positions; None means 0 … n-1.
        observed: records a prompt's first pass. Without it, each layer attends to what is left
            in its cache.
        last: how many of the n tokens are followed by logits.

    Raises:
        UsageError: a layer attended to something else than its cache.
    """
    # The argument was renamed in transformers 5.24.
    accepted = inspect.signature(base_model(model).forward).parameters
    kwargs: dict[str, Any] = {}
    kwargs["cache" if "cache" in accepted else "past_key_values"] = cache
    if position_ids is not None:
        kwargs["position_ids"] = position_ids
    if "logits_to_keep" in accepted:
        kwargs["logits_to_keep"] = last
    reader = CacheReader(cache)
    kwargs |= reader.as_argument() if observed is None else observed.as_argument()
    with torch.inference_mode():
        logits: Tensor = model(input_ids=input_ids, use_cache=True, **kwargs).logits
    inner = base_model(model)
    # Under its own attention a model reads a full cache as any other.
    if observed is None and inner.config._attn_implementation in OBSERVABLE:
        reader.check(type(inner).__name__)
    # A view would keep the logits of a whole prompt alive, from a model that gives them all.
    return logits if logits.shape[1] == last else logits[:, -last:].clone()


def base_model(model: Any) -> PreTrainedModel:
    """The transformers model inside a PEFT wrapper, or the model itself."""
    inner: PreTrainedModel = model.get_base_model() if hasattr(model, "get_base_model") else model
    return inner


def device_of(model: Any) -> torch.device:
    """Where a model takes its input."""
    device: torch.device = base_model(model).device
    # Weights that lie on disk are read to where they are needed.
    return torch.device("cpu") if device.type == "meta" else device


def devices_of(model: Any) -> tuple[torch.device, ...]:
    """All devices that a model's work is queued on; a model may be spread over several."""
    placed = {weight.device for weight in base_model(model).parameters()}
    return tuple(sorted({d for d in placed if d.type != "meta"} | {device_of(model)}, key=str))


def text_config(model: PreTrainedModel) -> Any:
    """The configuration of the language model, also where it is nested (multimodal models)."""
    return model.config.get_text_config()


def _view(
    cache: Cache,
    layers: tuple[int, ...],
    number: int,
    scaling: float,
    window: int,
    window_attention: Tensor,
    recorded: Mapping[Need, Tensor],
    attention_of_rows: Mapping[int, Tensor],
    prompt_seed: int,
) -> LayerView:
    layer = cache.layers[layers[number]]
    return LayerView(
        index=number,
        layer=layers[number],
        n_layers=len(layers),
        n_model_layers=len(cache.layers),
        prompt_tokens=window_attention.shape[-1],
        keys=layer.keys[0],
        values=layer.values[0],
        scaling=scaling,
        window=window,
        window_attention=window_attention,
        prompt_seed=prompt_seed,
        recorded=recorded,
        attention_of_rows=attention_of_rows,
    )


def _together(by_layer: Mapping[int, Tensor], layers: tuple[int, ...]) -> Tensor | None:
    """`[L, H]` on the CPU; None where nothing was measured."""
    return torch.stack([by_layer[i].cpu() for i in layers]) if by_layer else None


def _stack(attention: list[Tensor]) -> Tensor:
    """One tensor `[L, H, T]` on the first layer's device, checked for NaN."""
    stacked = torch.stack([layer.to(attention[0].device) for layer in attention])
    # A sum is not finite if any of its terms is not: one pass, no mask.
    if not torch.isfinite(stacked.sum()):
        raise UsageError(
            "the model's attention is not a number on this prompt; some models overflow in half "
            "precision: try dtype=float32."
        )
    return stacked
