"""Checksums of what lies behind an answer: weights, tokenizer, an evictor's code and files."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from page_bench.evictors._retention import RetentionEvictor
from page_bench.evictors._retention_checkpoint import load_gates
from page_bench.evictors._source import source_checksum
from page_bench.evictors.base import Evictor, Wrapper
from page_bench.inputs.errors import UsageError
from page_bench.inputs.options import option_types

_ROW = 2**16
"""Numbers of a tensor that are summed into one, few enough for a CPU's cache."""
_FACTOR = 0x1E3779B97F4A7C15
_AS_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def weights_checksum(model: Any, name: str) -> str:
    """SHA-256 that changes with any number of the model's state, buffers and adapters included.

    Every number is read: half a second per GB on one CPU core, far less on a GPU.

    Args:
        model: of transformers, or PEFT's wrapper around one.
        name: stands for what cannot be read, parameters that are offloaded to disk.
    """
    digest = hashlib.sha256()
    for key, value in sorted(model.state_dict().items()):
        if not isinstance(value, Tensor):
            content = repr(value)
        elif value.is_meta:
            content = f"{tuple(value.shape)} {value.dtype} of {name}"
        else:
            content = f"{tuple(value.shape)} {value.dtype} {tensor_checksum(value)}"
        digest.update(f"{key} {content}\n".encode())
    return digest.hexdigest()


def tensor_checksum(tensor: Tensor) -> str:
    """A checksum of a tensor's bits, the same on every device.

    A change of one number is seen for certain, other changes but for a chance of about 2**-64.

    Raises:
        UsageError: the tensor's bits cannot be read.
    """
    try:
        flat = tensor.detach().reshape(-1)
        flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
        rows = _sums(flat.view(_AS_INTEGERS[flat.element_size()]))
        while len(rows) > 1:
            rows = _sums(rows)
        total = int(rows)
    except (KeyError, RuntimeError, NotImplementedError) as error:
        raise UsageError(
            f"weights of type {type(tensor).__name__} ({tensor.dtype}) cannot be compared with "
            f"those of a run store: {str(error).partition(chr(10))[0]}; leave store out."
        ) from error
    return f"{total % 2**64:016x}"


def _sums(numbers: Tensor) -> Tensor:
    """Weighted sums modulo 2**64 of `_ROW` integers each, int64."""
    # Odd factors, all different: no product loses a change, and none equals its neighbour's.
    factors = torch.arange(_ROW, device=numbers.device) * (2 * _FACTOR) + 1
    at_once = _ROW if numbers.device.type == "cpu" else 64 * _ROW
    sums = []
    for start in range(0, len(numbers), at_once):
        part = numbers[start : start + at_once]
        whole = len(part) // _ROW * _ROW
        if whole:
            sums.append((part[:whole].view(-1, _ROW) * factors).sum(1))
        if whole < len(part):
            sums.append((part[whole:] * factors[: len(part) - whole]).sum()[None])
    return torch.cat(sums) if sums else factors.new_zeros(1)


def tokenizer_checksum(tokenizer: Any) -> str:
    """SHA-256 of what turns text into tokens and back; padding and truncation are not part."""
    known: dict[str, Any] = {
        "class": type(tokenizer).__name__,
        "special": {str(k): str(v) for k, v in tokenizer.special_tokens_map.items()},
        "clean_up": getattr(tokenizer, "clean_up_tokenization_spaces", None),
    }
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None:
        known |= {"vocabulary": tokenizer.get_vocab(), "added": tokenizer.get_added_vocab()}
    else:
        content = json.loads(fast.to_str())
        # Each call that encodes sets these two anew.
        known["tokenizer"] = {
            k: v for k, v in content.items() if k not in ("padding", "truncation")
        }
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def evictor_checksums(evictor: Evictor) -> list[dict[str, Any]]:
    """What an evictor is besides its title and options; first itself, then what it wraps.

    That is its class, a hash of its source code as it was imported (see
    `evictors._source.source_checksum`), and one of each file or folder that an option names.

    Raises:
        UsageError: its source code cannot be read.
    """
    parts: list[dict[str, Any]] = []
    part: Evictor | None = evictor
    while part is not None:
        source = source_checksum(type(part))
        if source is None:
            raise UsageError(
                f"the source code of evictor={part.title} cannot be read, so that a run store "
                f"could not tell whether it has changed; leave store out."
            )
        parts.append(
            {
                "class": type(part).__qualname__,
                "source": source,
                "files": _option_files(part),
            }
        )
        part = part.base if isinstance(part, Wrapper) else None
    return parts


def _option_files(evictor: Evictor) -> dict[str, str]:
    """Hashes of the files and folders that options name, by option."""
    found = {}
    for option, wanted in option_types(type(evictor), without=("base",)).items():
        value = getattr(evictor, option)
        # One of a few words is no path, whatever stands in the working directory.
        if not isinstance(value, str) or not value or str not in (wanted, *get_args(wanted)):
            continue
        if option == "checkpoint" and isinstance(evictor, RetentionEvictor):
            found[option] = _gates_checksum(value)
        elif (path := _existing(value)) is not None:
            found[option] = _folder_checksum(path) if path.is_dir() else _file_checksum(path)
    return found


def _existing(value: str) -> Path | None:
    """The file or folder that a text names, if it names one."""
    # Any text may stand here, also one that is too long for a path.
    with suppress(OSError, RuntimeError, ValueError):
        path = Path(value).expanduser().resolve()
        return path if path.is_dir() or path.is_file() else None
    return None


def _folder_checksum(folder: Path) -> str:
    """SHA-256 of all files in a folder, with their names; linked folders are looked into."""
    lines, seen = [], set()
    for here, below, files in os.walk(folder, followlinks=True):
        seen.add(os.path.realpath(here))
        below[:] = [name for name in below if os.path.realpath(Path(here, name)) not in seen]
        for path in (Path(here, name) for name in files):
            if path.is_file():
                lines.append(f"{path.relative_to(folder).as_posix()} {_file_checksum(path)}")
    return hashlib.sha256("\n".join(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest()


def _gates_checksum(checkpoint: str) -> str:
    """Checksum of the gates themselves, wherever they come from."""
    return _modules_checksum(load_gates(checkpoint).gates)


@lru_cache(maxsize=2)
def _modules_checksum(gates: tuple[Any, ...]) -> str:
    texts = (f"{gate.activation} {weights_checksum(gate, 'retention gate')}" for gate in gates)
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _file_checksum(path: Path) -> str:
    stat = path.stat()
    return _read_checksum(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4096)
def _read_checksum(path: Path, mtime_ns: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
