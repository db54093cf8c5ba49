"""Model types that an older transformers accepts and `test_support` does not name.

Run by `compat.py` in every environment: a type that is neither proven elsewhere nor refused in
time would give numbers that nobody has checked.
"""

from __future__ import annotations

import contextlib

import pytest
import torch
from test_support import LEFT_TO_THE_PREFILL, OBSERVABLE, SAME_AS, WITH_WINDOWS, default_configs
from tiny_models import random_prompt, randomised, small_config
from transformers import PreTrainedConfig

from page_bench.inputs.errors import UsageError
from page_bench.model import attention
from page_bench.model.prefill import prefill
from page_bench.model.support import check_config

ALIASES = {"code_llama"}
"""Types that load Llama's own classes; newer releases list them no more."""
REFUSED_IN_THE_PREFILL = {"gemma2": "softcap", "vaultgemma": "softcap"}
"""Type whose class says that it supports SDPA → what the prefill finds."""


def test_no_other_type_is_accepted() -> None:
    accepted = set()
    for model_type, config in default_configs():
        # A configuration without layers ends in an AttributeError, in some releases.
        with contextlib.suppress(UsageError, AttributeError):
            check_config(config)
            accepted.add(model_type)
    proven = {*OBSERVABLE, *SAME_AS, *WITH_WINDOWS, *LEFT_TO_THE_PREFILL, *ALIASES}
    assert accepted - proven <= set(REFUSED_IN_THE_PREFILL)


@pytest.mark.parametrize("model_type", REFUSED_IN_THE_PREFILL)
def test_what_the_class_does_not_say_is_refused_in_the_prefill(model_type: str) -> None:
    config = small_config(model_type, layer_types=["full_attention"] * 4)
    with pytest.raises(UsageError, match=f"{REFUSED_IN_THE_PREFILL[model_type]}|_supports_sdpa"):
        check_and_prefill(config)


def check_and_prefill(config: PreTrainedConfig) -> None:
    check_config(config)
    model = randomised(config)
    attention.register()
    with torch.no_grad(), attention.observing(model):
        prefill(model, random_prompt(40) % 90 + 5, window=32, room=1)
