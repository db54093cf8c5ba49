"""W&B's own record of a run on this machine, and whether it was written to its end."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path

PATIENCE_S = 10.0

_BLOCK = 32_768
_FILE_HEADER = 7
_FRAGMENT = struct.Struct("<IHB")  # checksum, length, kind
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def becomes_whole(path: Path, patience_s: float = PATIENCE_S) -> bool:
    """Whether the file soon tells how the run ended, which W&B writes last.

    W&B says nothing when it cannot write, as on a full disk, and may still be writing when
    `Run.finish` returns.

    Args:
        path: a file `run-ID.wandb`.
        patience_s: seconds to wait for it.
    """
    end = time.monotonic() + patience_s
    while not _is_whole(path):
        if time.monotonic() >= end:
            return False
        time.sleep(0.05)
    return True


def _is_whole(path: Path) -> bool:
    from google.protobuf.message import DecodeError
    from wandb.proto.wandb_internal_pb2 import Record

    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            # The last record is short: it ends in the last block, or began in the one before.
            start = max(0, (size - 1) // _BLOCK - 1) * _BLOCK
            file.seek(start)
            data = file.read()
    except OSError:
        return False
    for text in records(data, _FILE_HEADER if start == 0 else 0):
        record = Record()
        try:
            record.ParseFromString(text)
        except DecodeError:
            return False
        if record.HasField("exit"):
            return True
    return False


def records(data: bytes, offset: int = _FILE_HEADER) -> Iterator[bytes]:
    """The records of a run file, in LevelDB's log format.

    Blocks of 32 KiB hold fragments, each with a checksum, its length and its kind: a whole record,
    or its first, middle or last part.

    Args:
        data: the file, or some of it from the beginning of a block on. A record that began before
            that, or does not end in it, is left out.
        offset: where the first fragment is; the file begins with a header.
    """
    parts: list[bytes] | None = None
    while offset + _FRAGMENT.size <= len(data):
        left = _BLOCK - offset % _BLOCK
        if left < _FRAGMENT.size:
            offset += left
            continue
        _, length, kind = _FRAGMENT.unpack_from(data, offset)
        offset += _FRAGMENT.size
        part = data[offset : offset + length]
        offset += length
        if len(part) < length or not _WHOLE <= kind <= _LAST:
            return
        if kind == _WHOLE:
            yield part
        elif kind == _FIRST:
            parts = [part]
        elif parts is not None:
            parts.append(part)
            if kind == _LAST:
                yield b"".join(parts)
                parts = None
