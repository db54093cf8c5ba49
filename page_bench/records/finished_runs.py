"""Traces of finished runs, read back as typed records."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from page_bench.inputs import json_text
from page_bench.inputs.errors import UsageError
from page_bench.inputs.text_file import NotText
from page_bench.inputs.user_path import user_path
from page_bench.records.trace import LARGEST_SCORE, SCHEMA_VERSION, Trace

TRACE_PATTERN = "trace_*.jsonl"
UNSAID = "unsaid"
"""Wording of a prompt where its record does not say."""

_LONGEST_S = 1e9
_HEX = re.compile(r"[0-9a-f]{64}")
_POSSIBLE: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("budget", "kept_kv"), lambda share: 0 < share <= 1),
    **dict.fromkeys(("prompt_tokens", "decode_rows"), lambda count: count >= 1),
    **dict.fromkeys(("doc_id", "repeat"), lambda number: number >= 0),
    **dict.fromkeys(("correct", "correct_paper"), lambda share: share is None or 0 <= share <= 1),
    **dict.fromkeys(
        ("prefill_s", "gate_s", "evict_s", "decode_s", "discarded_s"),
        lambda seconds: not (seconds < 0 or seconds > _LONGEST_S),
    ),
    "decode_rows_limit": lambda count: count is None or count >= 1,
    "score": lambda score: score is None or not abs(score) > LARGEST_SCORE,
    "drop": lambda drop: not abs(drop) > 1,
    "prompt_sha256": lambda text: _HEX.fullmatch(text) is not None,
}
"""What a run can have recorded, where other values would end in numbers that mean nothing."""
_SORTED = json.JSONEncoder(sort_keys=True)
_OF_TOKENS = ("answer", "asked")
"""Fields whose texts may hold half of a surrogate pair: a tokenizer may make one of any tokens."""


@dataclass(frozen=True)
class Record:
    """A trace and where it stands.

    Attributes:
        trace: the trace.
        path: file that holds it.
        line: number of its line, from 1 on.
    """

    trace: Trace
    path: Path
    line: int

    @property
    def where(self) -> str:
        """File and line, for messages."""
        return f"{self.path} line {self.line}"


@dataclass(frozen=True, order=True)
class Arm:
    """What an eviction is made of, apart from the gate that decides over it.

    The attributes are those of `Trace`; `evictor_args` is JSON with sorted keys, `protocol` and
    `chat_template` (`true` or `false`) are `UNSAID` where the record does not say.
    """

    model: str
    dtype: str
    attn_implementation: str
    compress: str
    protocol: str
    chat_template: str
    window: int
    top_k: int
    evictor: str
    evictor_args: str
    granularity: str
    score_norm: str
    n_sink: int
    recent: int
    budget: float

    @classmethod
    def of(cls, trace: Trace) -> Arm:
        """The arm of a trace."""
        values = {name: getattr(trace, name) for name in _OF_ARM}
        values["evictor_args"] = _SORTED.encode(trace.evictor_args)
        values["protocol"] = UNSAID if trace.protocol is None else trace.protocol
        templated = trace.chat_template
        values["chat_template"] = UNSAID if templated is None else str(templated).lower()
        return cls(**values)

    def label(self, among: Iterable[Arm]) -> str:
        """The evictor, and what besides it and the budget differs among these arms."""
        arms = list(among)
        names = (f.name for f in dataclasses.fields(self))
        differing = (
            f"{name}={getattr(self, name)}"
            for name in names
            if name not in ("evictor", "budget")
            and any(getattr(arm, name) != getattr(self, name) for arm in arms)
        )
        return " ".join([self.evictor, *differing])


@dataclass(frozen=True, order=True)
class Sample:
    """One input, as a model saw it.

    Attributes:
        task, doc_id, repeat, prompt_sha256, prompt_tokens: as in `Trace`; the last tells prompts
            apart that truncation or a chat template made different.
    """

    task: str
    doc_id: int
    repeat: int
    prompt_sha256: str
    prompt_tokens: int

    @classmethod
    def of(cls, trace: Trace) -> Sample:
        """The sample of a trace."""
        return cls(*(getattr(trace, name) for name in _OF_SAMPLE))

    @property
    def prompt_seed(self) -> int:
        """The number below 2**56 that depends on the prompt's text alone, as during the run."""
        return int(self.prompt_sha256[:14], 16)

    def __str__(self) -> str:
        repeat = f" (repeat {self.repeat})" if self.repeat else ""
        return f"{self.task} document {self.doc_id}{repeat}"


_OF_ARM = tuple(f.name for f in dataclasses.fields(Arm))
_OF_SAMPLE = tuple(f.name for f in dataclasses.fields(Sample))


def read_runs(places: Sequence[str | Path]) -> list[Record]:
    """All traces of files, and of folders with all below them.

    Args:
        places: files of any name, and folders, whose `trace_*.jsonl` are read. A file that is
            named twice is read once.

    Raises:
        UsageError: nothing is there, or a line is not a trace of this version.
    """
    return [record for path in trace_files(places) for record in read_traces(path)]


def trace_files(places: Sequence[str | Path]) -> list[Path]:
    """The files that `read_runs` reads, in the order given, those of a folder by name.

    Raises:
        UsageError: a place does not exist, or a folder holds no trace.
    """
    found: dict[Path, Path] = {}
    for place in places:
        path = user_path(place)
        if path.is_dir():
            files = sorted(path.rglob(TRACE_PATTERN))
            if not files:
                raise UsageError(
                    f"{path} holds no {TRACE_PATTERN}; give a folder that a run with trace=FOLDER "
                    f"or --output_path has written, or a file."
                )
        elif path.is_file():
            files = [path]
        else:
            raise UsageError(f"{path} does not exist; give files or folders with traces.")
        for file in files:
            found.setdefault(file.resolve(), file)
    return list(found.values())


def read_traces(path: Path, without: Collection[str] = ()) -> list[Record]:
    """The traces of one file.

    Args:
        path: the file.
        without: fields that may be None and are, to save memory.

    Raises:
        UsageError: a line is not a trace of this version, or there is none.
    """
    records = []
    # Only "\n" ends a line: an answer may hold anything else.
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            trace = parse_trace(line, f"{path} line {number}", without)
            records.append(Record(trace, path, number))
    if not records:
        raise UsageError(f"{path} is empty; leave it out, or run again what should have filled it.")
    return records


def parse_trace(line: str | bytes, where: str = "the line", without: Collection[str] = ()) -> Trace:
    """The trace that `Trace.to_json` wrote; null stands for NaN where a number is due.

    Args:
        line: one line of JSON.
        where: what to call it in a message.
        without: see `read_traces`.

    Raises:
        UsageError: it is not complete, of another schema version, or has other fields or types.
    """
    try:
        row = json_text.parse(line, halves=_OF_TOKENS)
    except NotText as error:
        raise UsageError(
            f"{where} {error.what}; restore the file, save it as UTF-8, or run again."
        ) from error
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{where} is not complete JSON ({error.msg} at column {error.colno}), as when a run "
            f"was killed while writing; delete the line or run again."
        ) from error
    except ValueError as error:
        raise UsageError(
            f"{where} is not as page-bench writes it ({error}); restore the file, or run again."
        ) from error
    if not isinstance(row, dict) or "schema_version" not in row:
        raise UsageError(f"{where} is not a trace: it has no schema_version; leave the file out.")
    version = row["schema_version"]
    if version != SCHEMA_VERSION:
        raise UsageError(
            f"{where} has schema version {version}, but this page-bench reads version "
            f"{SCHEMA_VERSION}; run again, or read it with the page-bench that wrote it."
        )
    hints = _hints()
    required = _required()
    wrong = sorted(required - row.keys()) or sorted(row.keys() - hints.keys())
    if wrong:
        verb = "lacks" if required - row.keys() else "has the unknown field"
        raise UsageError(f"{where} {verb} {', '.join(wrong)}; leave the file out, or run again.")
    plain, values = _plain_types(), {}
    for name, given in row.items():
        if type(given) in plain[name]:
            values[name] = given
            continue
        try:
            values[name] = None if name in without else _typed(given, hints[name])
        except TypeError as error:
            raise UsageError(
                f"{where}: {name} is {given!r:.60}, not {_name(hints[name])}; run again."
            ) from error
    for name, fits in _POSSIBLE.items():
        if name in values and not fits(values[name]):
            raise UsageError(f"{where}: {name} cannot be {values[name]!r:.60}; leave the run out.")
    return Trace(**values)


@cache
def _hints() -> dict[str, Any]:
    return typing.get_type_hints(Trace)


@cache
def _plain_types() -> dict[str, frozenset[type]]:
    """By field, types of JSON that are taken as they are; most values have one of them."""
    found = {}
    for name, hint in _hints().items():
        options = set(typing.get_args(hint) or (hint,))
        if isinstance(hint, types.UnionType) or hint in options:
            found[name] = frozenset(options & {str, int, float, bool, type(None)})
        else:
            found[name] = frozenset()
    return found


@cache
def _required() -> frozenset[str]:
    fields = dataclasses.fields(Trace)
    return frozenset(f.name for f in fields if f.default is dataclasses.MISSING)


def _typed(given: Any, hint: Any) -> Any:
    """A value of JSON as its annotation wants it; TypeError if it cannot be that."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return given
    if origin in (typing.Union, types.UnionType):
        if given is None and type(None) in arguments:
            return None
        (wanted,) = (part for part in arguments if part is not type(None))
        return _typed(given, wanted)
    if origin is list and isinstance(given, list):
        if {arguments[0]} == set(map(type, given)):
            return given
        return [_typed(item, arguments[0]) for item in given]
    if origin is dict and isinstance(given, dict):
        return {key: _typed(item, arguments[1]) for key, item in given.items()}
    if hint is float and given is None:
        return math.nan
    if hint is float and isinstance(given, int) and not isinstance(given, bool):
        return float(given)
    if isinstance(hint, type) and type(given) is hint:
        return given
    raise TypeError


def _name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
