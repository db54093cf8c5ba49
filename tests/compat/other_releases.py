"""A pytest plugin for `compat.py`: skips what other releases lack or do themselves, and says why.

The tests name model types as of the transformers in constraints.txt. With an older one, a type may
be missing, its configuration may refuse its own defaults, or `page_bench.model.support` may rightly
refuse it. From that release on nothing is skipped, so that whatever fails there has failed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
_NO_LATENTS = ("5.15", "deepseek_v3 caches whole keys, no latents")
_ACCEPTED = "test_accepted_models_can_be_observed_and_evicted"
PREMISES = {
    "test_latents_are_not_read_as_keys": _NO_LATENTS,
    "test_latent_caches_and_sliding_windows_go_together_too[deepseek_v3]": _NO_LATENTS,
    "test_a_model_spread_over_devices_answers_alike": (
        "5.13",
        "a model that goes to the disk whole stays on the meta device",
    ),
    "test_every_accepted_model_type_is_accounted_for": ("5.24", "see older_types.py"),
    "test_refused_models_are_told_why[gemma2-]": ("5.24", "see older_types.py"),
    f"{_ACCEPTED}[granitemoehybrid]": ("5.8", "granitemoehybrid itself fails without Mamba layers"),
    f"{_ACCEPTED}[lfm2]": ("5.5", "lfm2 itself fails without convolutions"),
    f"{_ACCEPTED}[lfm2_moe]": ("5.5", "lfm2_moe itself fails without convolutions"),
}
"""Test → release from which its premise holds, and what holds before."""
LEFT_TO_LM_EVAL = {
    "test_model_is_known_when_lm_eval_was_imported_before": "finds the model by itself",
    "test_task_manager_finds_our_tasks_and_the_users_win": "finds the tasks by itself",
}
"""Test → what an lm-eval that reads entry points does, so that the hook has nothing to do."""
REFUSALS = ("test_refused_models_are_told_why", "test_models_refused_by_name_do_fail")
"""Tests of what a refusal says, which may be another true objection here."""


@dataclass(frozen=True)
class Lacking:
    """Stands for a configuration that this release cannot make."""

    reason: str
    model_type: str


class KnownConfigs:
    """transformers' `CONFIG_MAPPING`, for tests that name a type which may be missing."""

    def __init__(self, mapping: Any) -> None:
        self._mapping = mapping

    def __getitem__(self, model_type: str) -> Callable[..., Any]:
        if model_type not in self._mapping:
            reason = f"transformers {installed()} has no model type {model_type}"
            if is_running():
                pytest.skip(reason)
            return lambda **values: Lacking(reason, model_type)
        config_class: Callable[..., Any] = self._mapping[model_type]
        if is_running():
            return config_class

        def make(**values: Any) -> Any:
            try:
                return config_class(**values)
            except Exception as error:
                return Lacking(refused(error), model_type)

        return make


def is_running() -> bool:
    """Whether a test runs; while tests are collected, none does."""
    return "PYTEST_CURRENT_TEST" in os.environ


@cache
def installed() -> Version:
    return Version(version("transformers"))


@cache
def is_older() -> bool:
    """Whether the installed transformers is older than the one in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    (known,) = (line.partition("==")[2] for line in lines if line.startswith("transformers=="))
    return installed() < Version(known)


def refused(error: Exception) -> str:
    return f"transformers {installed()} refuses its own configuration: {error}".splitlines()[0]


def pytest_configure(config: pytest.Config) -> None:
    if is_older():
        import transformers

        transformers.CONFIG_MAPPING = KnownConfigs(transformers.CONFIG_MAPPING)


@cache
def reads_entry_points() -> bool:
    """Whether the installed lm-eval looks for plugins itself."""
    from lm_eval.api import registry

    return hasattr(registry, "load_plugins")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.name in LEFT_TO_LM_EVAL and reads_entry_points():
        pytest.skip(f"this lm-eval {LEFT_TO_LM_EVAL[item.name]}")
    if not is_older():
        return
    for name in (item.name, getattr(item, "originalname", "")):
        first, reason = PREMISES.get(name, ("0", ""))
        if installed() < Version(first):
            pytest.skip(f"transformers {installed()}: {reason}")
    for value in getattr(getattr(item, "callspec", None), "params", {}).values():
        if isinstance(value, Lacking):
            pytest.skip(value.reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    from huggingface_hub.errors import StrictDataclassFieldValidationError

    from page_bench.inputs.errors import UsageError

    try:
        return (yield)
    except StrictDataclassFieldValidationError as error:
        if is_older():
            pytest.skip(refused(error))
        raise
    except AssertionError as error:
        other_words = "Regex pattern did not match" in str(error)
        if is_older() and other_words and getattr(item, "originalname", "") in REFUSALS:
            pytest.skip(f"transformers {installed()}: refused in other words")
        raise
    except (UsageError, ValueError) as error:
        # The model class says in this release that it cannot be observed, and is refused for it.
        says_so = "_supports_" in str(error) or "scaled_dot_product_attention" in str(error)
        if is_older() and says_so:
            pytest.skip(f"transformers {installed()}: {error}".partition(";")[0])
        raise
