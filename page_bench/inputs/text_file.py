"""Text files of users: UTF-8, with or without a byte order mark, lines ending in LF or CRLF."""

from __future__ import annotations

import codecs
from pathlib import Path

# UTF-32 first: its mark begins with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
_ALL_MARKS = (codecs.BOM_UTF8, *(mark for mark, _ in _MARKS))


class NotText(ValueError):
    """What a file holds instead of UTF-8.

    Attributes:
        line: number of the line, from 1 on.
        what: a phrase without its subject, such as `is UTF-16, not UTF-8`.
    """

    def __init__(self, line: int, what: str) -> None:
        super().__init__(f"line {line} {what}")
        self.line, self.what = line, what


def read(path: Path) -> str:
    """The text of a file; see `text_of`.

    Raises:
        OSError: it cannot be read.
        NotText: it is not UTF-8.
    """
    return text_of(path.read_bytes())


def text_of(data: bytes) -> str:
    """Bytes as a text, without a byte order mark at its beginning; CRLF becomes LF.

    Raises:
        NotText: it is UTF-16 or UTF-32, is not UTF-8, or holds a NUL.
    """
    if data.startswith(_ALL_MARKS):
        for mark, name in _MARKS:
            if data.startswith(mark):
                raise NotText(1, f"is {name}, not UTF-8")
        data = data.removeprefix(codecs.BOM_UTF8)
    # UTF-16 without a mark shows itself by these; so does what a crash leaves of a file.
    if (at := data.find(b"\0")) >= 0:
        line = data.count(b"\n", 0, at) + 1
        raise NotText(line, "holds a NUL, as UTF-16 does and no UTF-8 text")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        what = f"holds the byte 0x{data[error.start]:02x}, which is not UTF-8"
        raise NotText(line, what) from error
    return text.replace("\r\n", "\n")
