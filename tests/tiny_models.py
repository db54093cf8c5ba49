"""Tiny randomly initialised models and tokenizers, built in place: no download, no network."""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

MAX_POSITIONS = 8192
_ANSWER_HEADER = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
_TURNS = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
)
# User and assistant only, no line breaks, and the end of a turn only after an answer.
_INSTRUCTIONS = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}[INST] {{ message['content'] }} [/INST]"
    "{% elif message['role'] == 'assistant' %} {{ message['content'] }}{{ eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}"
    "{% endfor %}"
)


@dataclass(frozen=True)
class TinyFamily:
    """How one architecture is shrunk.

    Attributes:
        model_type: as in transformers' configuration mapping.
        with_bos: the tokenizer puts a BOS first *and* the chat template writes one, so that
            careless encoding of a templated prompt doubles it. Without, there is no BOS at all.
        config: what differs from `_SHAPE`.
        generation: the saved generation config; sampling defaults and penalties included,
            as published models carry them.
    """

    model_type: str
    with_bos: bool
    config: dict[str, Any]
    generation: dict[str, Any]


_SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": MAX_POSITIONS,
    "tie_word_embeddings": False,
}

FAMILIES: dict[str, TinyFamily] = {
    "llama": TinyFamily("llama", True, {}, {}),
    # Biased projections, and a generation config that samples and penalises repetition.
    "qwen2": TinyFamily(
        "qwen2",
        False,
        {"num_hidden_layers": 3},
        {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "repetition_penalty": 1.05},
    ),
    # Normed queries and keys; the heads together are wider than the hidden state.
    "qwen3": TinyFamily("qwen3", False, {"hidden_size": 48}, {}),
    # All query heads share one KV head.
    "mistral": TinyFamily("mistral", True, {"num_key_value_heads": 1, "sliding_window": None}, {}),
}


def tiny_tokenizer(with_bos: bool) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer (one token per byte) with a chat template.

    Args:
        with_bos: see `TinyFamily`.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] + (["<s>"] if with_bos else [])
    backend.add_special_tokens(special)
    if with_bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A",
            pair="<s> $A $B",
            special_tokens=[("<s>", backend.token_to_id("<s>"))],
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>" if with_bos else None,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_POSITIONS,
    )
    tokenizer.chat_template = ("{{ bos_token }}" if with_bos else "") + _TURNS + _ANSWER_HEADER
    return tokenizer


def trained_tokenizer(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """A BPE tokenizer in SentencePiece's manner, trained in place: the same texts, the same tokens.

    Spaces begin the tokens of the words after them, digits may share a token, a line break is a
    token of its own, every text gets a BOS. The chat template writes the BOS as well, has no
    header before an answer and refuses system messages.

    Args:
        texts: to train on. What is not printable ASCII and not in them becomes `<unk>`.
        vocabulary: tokens, special ones included.
    """
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("\n", "isolated"),
            pre_tokenizers.Metaspace(prepend_scheme="first"),
        ]
    )
    backend.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=list(string.printable),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", backend.token_to_id("<s>"))]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = _INSTRUCTIONS
    return tokenizer


def tiny_config(family: str, **changes: Any) -> PreTrainedConfig:
    """The configuration of a tiny model of `FAMILIES`, with the ids of its tokenizer."""
    spec = FAMILIES[family]
    tokenizer = tiny_tokenizer(spec.with_bos)
    values = {
        **_SHAPE,
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        **spec.config,
        **changes,
    }
    return CONFIG_MAPPING[spec.model_type](**values)


def tiny_model(family: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A tiny model with random fp32 weights, in evaluation mode.

    Args:
        family: key of `FAMILIES`.
        seed: of the weights.
        changes: configuration values that differ.
    """
    return randomised(tiny_config(family, **changes), seed)


def randomised(
    config: PreTrainedConfig, seed: int = 0, std: float = 0.2, attn_implementation: str = "sdpa"
) -> PreTrainedModel:
    """A causal language model of this configuration with random fp32 weights.

    The default spread gives attention that is far from uniform and clear winners among the next
    tokens; biases and norm weights are random as well, so that none of them can be forgotten.
    The global random state stays as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(
            config, attn_implementation=attn_implementation, dtype=torch.float32
        )
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter.data, std=std)
            else:
                parameter.data += torch.randn_like(parameter) * std / 2
            if name.endswith(("q_norm.weight", "k_norm.weight")):
                # Normed queries and keys are too short for sharp attention.
                parameter.data *= 1.7
    return model.eval()


def save_tiny(folder: Path, family: str, seed: int = 0, **changes: Any) -> Path:
    """Write model, tokenizer and generation config of a tiny model, as `from_pretrained` reads.

    Returns:
        `folder`.
    """
    spec = FAMILIES[family]
    tokenizer = tiny_tokenizer(spec.with_bos)
    model = tiny_model(family, seed, **changes)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        # Like most published chat models: either token ends an answer.
        eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id],
        pad_token_id=tokenizer.pad_token_id,
        **spec.generation,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def random_prompt(length: int, seed: int = 0) -> Tensor:
    """int64 `[1, length]`, token ids of plain bytes, the same for every tokenizer here."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (1, length), generator=generator)


_SMALL: dict[str, Any] = {
    **_SHAPE,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "vocab_size_per_layer_input": 128,
    "hidden_size_per_layer_input": 16,
    # Names of older configurations.
    "n_embd": 64,
    "n_layer": 4,
    "n_head": 4,
    "n_inner": 96,
    "n_positions": 256,
    "dff": 96,
    "ffn_dim": 96,
    "ffn_hidden_size": 96,
    "word_embed_proj_dim": 64,
    "rotary_dim": 8,
    # Mixtures of experts.
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_topk": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "expert_ffn_hidden_size": 32,
    # Multi-head latent attention.
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "qk_head_dim": 32,
    "v_head_dim": 16,
}


def small_config(model_type: str, **changes: Any) -> PreTrainedConfig:
    """A small configuration of any model type, as far as its fields have the usual names."""
    config_class = CONFIG_MAPPING[model_type]
    names = {field.name for field in dataclasses.fields(config_class)}
    names |= set(config_class.attribute_map)
    values = {name: value for name, value in _SMALL.items() if name in names}
    for alias, name in config_class.attribute_map.items():
        if name in values:
            values.pop(alias, None)
    if "kv_lora_rank" in names:
        # Latent attention has no grouped heads.
        values["num_key_value_heads"] = values["num_attention_heads"]
    return config_class(**{**values, **changes})
