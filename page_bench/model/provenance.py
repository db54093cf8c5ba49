"""What a number came from besides its settings: versions, commit and device."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from page_bench import __version__

_ROOT = Path(__file__).resolve().parents[2]
_QUANTISERS = [
    *("bitsandbytes", "torchao", "optimum-quanto", "hqq", "compressed-tensors", "gptqmodel"),
]
"""Packages that compute with quantised weights, as far as they are installed."""
_PROCESSORS = Path("/proc/cpuinfo")


def versions(model: Any) -> dict[str, str]:
    """Versions of the libraries that compute a model's answers, by name."""
    names = ["torch", "transformers", "lm_eval"]  # lm-eval's criteria end an answer
    names += ["peft"] if hasattr(model, "peft_config") else []
    names += _QUANTISERS if getattr(model.config, "quantization_config", None) else []
    known = {}
    for name in names:
        with suppress(importlib.metadata.PackageNotFoundError):
            known[name] = importlib.metadata.version(name)
    return known


@functools.cache
def commit() -> str | None:
    """Commit of the checkout that page-bench runs from; None where it is installed.

    `-dirty` at its end says that files differ from it.
    """
    if not (_ROOT / ".git").exists():
        return None
    command = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.strip() or None


def device_name(device: torch.device) -> str:
    """Name of the accelerator, or of the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type
    with suppress(OSError):
        for line in _PROCESSORS.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def provenance(model: Any, device: torch.device) -> dict[str, Any]:
    """For results and trackers.

    Args:
        model: of transformers, or PEFT's wrapper around one.
        device: where it runs.
    """
    return {
        "page_bench": __version__,
        "page_bench_commit": commit(),
        "versions": versions(model),
        "device": str(device),
        "device_name": device_name(device),
    }
