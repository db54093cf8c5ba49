"""Fixtures, and the environment that keeps every test off the network."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

# Read when the libraries are imported, so set before any of them is.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "offline"
os.environ["WANDB_SILENT"] = "true"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pytest


@pytest.fixture(scope="session", autouse=True)
def _without_what_takes_seconds() -> Iterator[None]:
    """Within the tests' own process: lm-eval's 13,000 task files stay unread, its look at the
    machine is taken once. Commands in processes of their own do both.
    """
    from lm_eval.tasks import manager
    from torch.utils import collect_env

    defaults, files = Path(str(manager.__file__)).parent, manager.TaskIndex._iter_yaml_files

    def without_defaults(root: Path) -> Iterator[Path]:
        return iter(()) if root == defaults else files(root)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manager.TaskIndex, "_iter_yaml_files", staticmethod(without_defaults))
        patch.setattr(collect_env, "get_pretty_env_info", cache(collect_env.get_pretty_env_info))
        yield


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Family of `tiny_models.FAMILIES` → folder with model, tokenizer and generation config."""
    from tiny_models import save_tiny

    @cache
    def folder(family: str) -> Path:
        return save_tiny(tmp_path_factory.mktemp(f"tiny_{family}"), family)

    return folder


@pytest.fixture(scope="session")
def default_model_folder() -> Path:
    """The default model's local folder; a missing wheel is an error, not a skip.

    Tests that use it carry the marker `real_model`.
    """
    from page_bench.model.default_model import INSTALL_COMMAND, default_pretrained, resolve

    folder = Path(resolve(default_pretrained()))
    if not folder.is_dir():
        pytest.fail(f"the default model is not installed: run `{INSTALL_COMMAND}`")
    return folder


@pytest.fixture(autouse=True)
def _wandb_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that a test tracks are written to its own folder."""
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """By evictor, a folder with retention gates for the tiny Llama, in their published layout."""
    from retention_checkpoint import random_gates, write_checkpoint
    from tiny_models import tiny_config

    config = tiny_config("llama")
    shape = config.num_hidden_layers, config.hidden_size, config.num_key_value_heads
    return {
        evictor: str(write_checkpoint(tmp_path_factory.mktemp(kind), random_gates(kind, *shape)))
        for evictor, kind in (("trimkv", "rg"), ("dbtrimkv", "rg10"))
    }
