"""Keys of the run store: everything that determines what a prefill shows or an arm answers."""

from __future__ import annotations

import array
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

import torch

from page_bench.config import PageConfig
from page_bench.engine.checksums import evictor_checksums, tokenizer_checksum, weights_checksum
from page_bench.engine.decode_batches import DECODE_ROWS
from page_bench.engine.prefilled_prompt import ArmAnswer
from page_bench.engine.prompt import Prompt
from page_bench.gating.fingerprint import Fingerprint, model_fingerprint
from page_bench.model.continuations import ContinuationRequest
from page_bench.model.prefill import base_model, text_config
from page_bench.model.provenance import device_name, versions
from page_bench.records.store.key import NUMERICS_VERSION, Key
from page_bench.records.trace import KNOWN_LATER, Seen

__all__ = ["NUMERICS_VERSION", "Key", "StoredModel", "answer_key", "seen_key"]

# What says where an adapter comes from, not what it computes.
_NOT_THE_ADAPTER = ("base_model_name_or_path", "revision", "inference_mode")


@dataclass(frozen=True)
class StoredModel:
    """What a loaded model and its tokenizer contribute to an answer.

    Attributes:
        name: as given, for people; two names may be one model.
        fingerprint: its configuration, and a sample of its weights.
        weights: checksum of all its weights, buffers and adapters.
        adapters: configurations of PEFT's adapters that are active; empty without.
        dtype: of the weights, and of mixed precision, as in the trace.
        attn_implementation: as in the trace.
        tokenizer: checksum of the tokenizer.
        generation: the model's own generation config, which takes part in decoding.
        setting: what else the numbers depend on, by name: devices, precision of matrix products,
            versions of the libraries that compute.
    """

    name: str
    fingerprint: Fingerprint
    weights: str
    dtype: str
    attn_implementation: str
    tokenizer: str
    generation: Mapping[str, Any]
    setting: Mapping[str, Any]
    adapters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, model: Any, tokenizer: Any, *, name: str, dtype: str, attn_implementation: str
    ) -> StoredModel:
        """The facts of a loaded model; reads all its weights, so ask once.

        Args:
            model: of transformers, or PEFT's wrapper around one.
            tokenizer: its tokenizer.
            name, dtype, attn_implementation: as in the trace.

        Raises:
            UsageError: weights of a kind that cannot be read.
        """
        inner = base_model(model)
        adapters = {
            key: _without(value.to_dict(), _NOT_THE_ADAPTER)
            for key, value in getattr(model, "peft_config", {}).items()
            if key in _active_adapters(model)
        }
        return cls(
            name=name,
            fingerprint=model_fingerprint(model),
            weights=weights_checksum(model, name),
            dtype=dtype,
            attn_implementation=attn_implementation,
            tokenizer=tokenizer_checksum(tokenizer),
            generation=_generation_config(inner),
            setting={
                "class": f"{type(inner).__module__}.{type(inner).__qualname__}",
                "devices": sorted({_device_name(p.device) for p in inner.parameters()}),
                "matmul_precision": torch.get_float32_matmul_precision(),
                "experts": getattr(text_config(inner), "_experts_implementation", None),
                "kernels": bool(getattr(inner, "use_kernels", False)),
                "versions": versions(model),
            },
            adapters=adapters,
        )

    @cached_property
    def part(self) -> dict[str, Any]:
        """What enters a key: all but the name, and the generation config, which has its place."""
        return {k: v for k, v in asdict(self).items() if k not in ("name", "generation")}

    @property
    def is_exact(self) -> bool:
        """Whether an answer does not depend on what is decoded with it: all products in fp32."""
        precise = self.setting.get("matmul_precision", "highest") == "highest"
        return precise and self.dtype in ("float32", "float64")


def seen_key(model: StoredModel, prompt: Prompt, config: PageConfig) -> Key:
    """Key of what the prefill of a prompt shows, whatever is evicted afterwards."""
    return Key(
        {
            **_common("seen", Seen, model, prompt),
            "observation": {
                "window": config.window,
                "signals": list(config.signal_names),
                "level": config.signals,
                "drop": asdict(config.drop_options),
            },
        },
        _about(model, prompt),
    )


def answer_key(
    model: StoredModel,
    prompt: Prompt,
    config: PageConfig | None,
    sampling_seed: int = 0,
    decode_rows: int = DECODE_ROWS,
) -> Key:
    """Key of the answer to a prompt under one eviction; gate and threshold are no part of it.

    Args:
        model: the model.
        prompt: the prompt.
        config: the arm whose evictor acts; None for the full cache.
        sampling_seed: of the run; like the prompt's `repeat`, no part of a greedy answer.
        decode_rows: of a prompt's answers that are decoded together, at most; no part of an answer
            in fp32.

    Raises:
        UsageError: generation arguments or an evictor that cannot be compared.
    """
    return Key(
        {
            **_common("answer", ArmAnswer, model, prompt),
            "generation": _generation(model, prompt, sampling_seed),
            "decode_rows": None if model.is_exact else decode_rows,
            "eviction": None if config is None else _eviction(config),
        },
        _about(model, prompt),
    )


def _generation(model: StoredModel, prompt: Prompt, sampling_seed: int) -> dict[str, Any]:
    request = prompt.request
    if isinstance(request, ContinuationRequest):
        return {
            "continuations": [list(ids) for ids in request.continuations],
            "softmax_dtype": str(request.softmax_dtype),
        }
    sampled = request.arguments.get("do_sample")
    if sampled is None:
        sampled = model.generation.get("do_sample")
    return {
        "max_new_tokens": request.max_new_tokens,
        "stop": list(request.stop),
        "arguments": dict(request.arguments),
        "model": dict(model.generation),
        "seed": [prompt.repeat, sampling_seed] if sampled else None,
    }


def _common(record: str, value: type, model: StoredModel, prompt: Prompt) -> dict[str, Any]:
    ids = array.array("q", prompt.input_ids).tobytes()
    return {
        "record": record,
        # A value of other fields than these could not be read.
        "fields": {f.name: str(f.type) for f in fields(value) if f.name not in KNOWN_LATER},
        "numerics": NUMERICS_VERSION,
        "model": model.part,
        "prompt": {
            "text": prompt.sha256,
            "ids": hashlib.sha256(ids).hexdigest(),
            "tokens": len(prompt.input_ids),
            "context_tokens": prompt.context_tokens,
        },
    }


def _eviction(config: PageConfig) -> dict[str, Any]:
    evictor = config.make_evictor()
    return {
        "evictor": evictor.title,
        "options": asdict(evictor),
        "code": evictor_checksums(evictor),
        "granularity": config.granularity,
        "score_norm": config.score_norm,
        "budget": config.budget,
        "n_sink": config.n_sink,
        "recent": config.n_recent,
        "window": config.window,
    }


def _about(model: StoredModel, prompt: Prompt) -> dict[str, Any]:
    return {"model": model.name, "task": prompt.task, "doc_id": prompt.doc_id}


def _generation_config(inner: Any) -> dict[str, Any]:
    config = getattr(inner, "generation_config", None)
    if config is None:
        return {}
    content = json.loads(config.to_json_string(use_diff=False))
    return {
        k: v
        for k, v in content.items()
        if v is not None and k != "transformers_version" and not k.startswith("_")
    }


def _active_adapters(model: Any) -> list[str]:
    active = getattr(model, "active_adapters", [])
    names = active() if callable(active) else active
    return [names] if isinstance(names, str) else list(names)


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"cuda {device_name(device)}"
    return device.type


def _without(content: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {k: v for k, v in content.items() if k not in names}
