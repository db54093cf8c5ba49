"""RULER from fixed data sets: the same rows for every model and every tokenizer.

Two data sets of the Hub hold RULER's 13 tasks as they were generated once: `HUB` for 4K to 16K
tokens and `HUB_32K`, whose rows are whole prompts that are not split into context, question and
answer prefix. Rows keep the data set's order.

A local copy is named by the metadata key `ruler_data` or by the environment variable
`PAGE_BENCH_RULER`: a parquet or JSON-lines file, or a folder of such files at any depth. What a
file holds is read from its path: a length (`4096/test.parquet`, `ruler-4096.jsonl`), and for rows
without a column `task` also the task (`niah_single_1/validation.jsonl`). A file whose path names
no length is taken to have the length that is asked for. Hidden files (`.name`) are left out.
"""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset

from page_bench.inputs.errors import UsageError
from page_bench.inputs.user_path import user_path
from page_bench.tasks import protocols
from page_bench.tasks.local_rows import SUFFIXES, table_of
from page_bench.tasks.metadata import check_names, first_line, number_in, path_in, protocol_in

HUB = "simonjegou/ruler"
HUB_32K = "SaylorTwift/RULER-32768-Qwen2.5-3B-tokenizer"
LENGTHS = (4096, 8192, 16384, 32768)
VARIABLE = "PAGE_BENCH_RULER"
METADATA_KEY = "ruler_data"

_COLUMNS = {"context", "question", "answer_prefix", "answer", "task", "max_new_tokens"}
_WHOLE_PROMPT_COLUMNS = {"input", "outputs"}

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rule:
    """How a task's answers are generated and judged.

    Attributes:
        max_new_tokens: RULER's limit on the answer's length, in tokens.
        match: how references count in `correct`: "all" or "any" (see `scorers.reference_match`).
        match_paper: the same in the PAGE paper.
    """

    max_new_tokens: int
    match: str = "all"
    match_paper: str = "all"


RULES: Mapping[str, Rule] = {
    **{f"niah_{kind}_{n}": Rule(128) for kind in ("single", "multikey") for n in (1, 2, 3)},
    "niah_multivalue": Rule(128),
    "niah_multiquery": Rule(128, match_paper="any"),
    "vt": Rule(30),
    "cwe": Rule(120),
    "fwe": Rule(50),
    "qa_1": Rule(32, match="any", match_paper="any"),
    "qa_2": Rule(32, match="any", match_paper="any"),
}
"""RULER's 13 tasks."""


def fixed(ruler_length: int, ruler_task: str, **metadata: Any) -> dict[str, Dataset]:
    """The data set of one task at one length, as lm-eval's `custom_dataset` wants it.

    Args:
        ruler_length: one of `LENGTHS`, in tokens of the data set's own tokenizer.
        ruler_task: a key of `RULES`.
        metadata: what lm-eval passes. Read are `protocol` (see `protocols`), `ruler_data` (the
            local copy), and `draw_seed`: the rows of the full split are shuffled by that seed
            before the task's are taken, so that `--limit` draws others than the first.

    Returns:
        {"test": rows made as they are read: the fields of `doc_of`}.

    Raises:
        UsageError: no data, or rows that are not RULER's.
    """
    check_names(metadata)
    protocol = protocol_in(metadata, protocols.PROTOCOLS, "RULER")
    source = path_in(metadata, METADATA_KEY) or os.environ.get(VARIABLE) or None
    table = _load(ruler_length, ruler_task, source)
    _check_columns(table.column_names)
    seed = number_in(metadata, "draw_seed", at_least=0)
    if seed is not None:
        table = table.shuffle(seed=seed)
    if "task" in table.column_names:
        table = table.select([i for i, task in enumerate(table["task"]) if task == ruler_task])
    if not len(table):
        raise UsageError(
            f"the data holds no rows of {ruler_task} at {ruler_length} tokens; name a copy that "
            f"does by {VARIABLE} or the metadata key {METADATA_KEY}."
        )
    make = functools.partial(_docs, length=int(ruler_length), task=ruler_task, protocol=protocol)
    return {"test": table.with_transform(make)}


def doc_of(row: Mapping[str, Any], task: str, length: int, protocol: str) -> dict[str, Any]:
    """A row of RULER as a document of lm-eval.

    Args:
        row: `context`, `question`, `answer_prefix`, `answer` (list of references),
            `max_new_tokens`; further fields are kept.
        task: a key of `RULES`.
        length: the row's nominal length in tokens.
        protocol: one of `protocols.PROTOCOLS`.

    Returns:
        The row with the protocol's `system`, `prompt` and `answer_prefix`, and with `answers`,
        `match`, `match_paper`, `max_new_tokens`, `task`, `length` and `protocol`.

    Raises:
        UsageError: a part of the prompt is no text; the answer's length is none; or the row has no
            reference, or one that is no text or blank, which almost every answer would contain.
    """
    where = f"a row of {task} at {length} tokens"
    answers, longest = row["answer"], row["max_new_tokens"]
    several = isinstance(answers, list | tuple) and len(answers) > 0
    if not several or not all(isinstance(text, str) and text.strip() for text in answers):
        raise UsageError(
            f"{where} has the references {answers!r}: `answer` must be a list of texts that are "
            "not empty; mend the data."
        )
    for name in ("context", "question", "answer_prefix"):
        if not isinstance(row[name], str):
            raise UsageError(
                f"{where} has {row[name]!r} as its `{name}`, which must be a text; mend the data."
            )
    if type(longest) is not int or longest < 1:
        raise UsageError(
            f"{where} has {longest!r} as its `max_new_tokens`, which must be a whole number from "
            "1 on; mend the data."
        )
    rule = RULES[task]
    return {
        **{key: value for key, value in row.items() if key != "answer"},
        "task": task,
        "length": length,
        "protocol": protocol,
        **vars(protocols.render(row, protocol)),
        "answers": list(answers),
        "max_new_tokens": protocols.answer_tokens(protocol, longest),
        "match": rule.match,
        "match_paper": rule.match_paper,
    }


def _docs(
    batch: Mapping[str, Sequence[Any]], length: int, task: str, protocol: str
) -> dict[str, list[Any]]:
    """Columns of rows to columns of documents."""
    rows = [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]
    docs = [doc_of(_split(row, task), task, length, protocol) for row in rows]
    for row, doc in zip(rows, docs, strict=True):
        if "context" not in row:  # the question is in there: it is not what compress=context means
            doc["context"] = ""
    return {key: [doc[key] for doc in docs] for key in docs[0]}


def _split(row: Mapping[str, Any], task: str) -> Mapping[str, Any]:
    """A row with context and question, as `protocols.render` takes it."""
    if "context" in row:
        return row
    return {
        "context": row["input"],
        "question": "",
        "answer_prefix": "",
        "answer": row["outputs"],
        "max_new_tokens": RULES[task].max_new_tokens,
    }


def _load(length: int, task: str, source: str | None) -> Dataset:
    if source is None:
        if length == LENGTHS[-1]:
            return _from_hub(HUB_32K, None, task)
        return _from_hub(HUB, str(length), "test")
    root = user_path(source, METADATA_KEY)
    files = _files(root, length)
    ours = [file for file in files if _named(_TASK, _below(file, root)) == task]
    files = ours or [file for file in files if _named(_TASK, _below(file, root)) is None]
    formats = {file.suffix for file in files}
    if len(formats) != 1:
        found = "files of two formats" if formats else "no file"
        raise UsageError(
            f"{source} has {found} for {task} at {length} tokens: it should be, or contain, "
            f"parquet or JSON-lines files (.parquet, .jsonl) of {HUB}'s fields, each with its "
            "length in its path, as in 4096/test.parquet."
        )
    try:
        table = table_of(files)
    except Exception as error:  # pyarrow raises what its many readers raise
        raise UsageError(
            f"{', '.join(map(str, files))} could not be read ({first_line(error)}): give files "
            f"with rows of {HUB}'s fields; mend them or name another copy by {VARIABLE}."
        ) from error
    if "task" not in table.column_names and not ours:
        raise UsageError(
            f"the rows of {files[0]} do not say which task they are of: add a column `task`, or "
            f"name the task in the path, as in {task}/{files[0].name}."
        )
    return table


@functools.cache  # a group asks for the same split once per task
def _from_hub(name: str, configuration: str | None, split: str) -> Dataset:
    try:
        return datasets.load_dataset(name, configuration, split=split)
    except Exception as error:
        raise UsageError(
            f"the data set {name} could not be loaded from the Hub ({first_line(error)}): connect "
            f"to the Hub, or name a local copy, a parquet or JSON-lines file or a folder of them, "
            f"by the environment variable {VARIABLE} or by --metadata "
            f'\'{{"{METADATA_KEY}": "path"}}\'.'
        ) from error


_SHORT = {f"{length // 1024}k": str(length) for length in LENGTHS}
_LENGTH = re.compile(
    rf"(?<!\d)({'|'.join(map(str, LENGTHS))})(?!\d)|(?<![a-z0-9])({'|'.join(_SHORT)})(?![a-z0-9])"
)
_TASK = re.compile(rf"(?<![a-z0-9])({'|'.join(RULES)})(?![a-z0-9])")


def _files(root: Path, length: int) -> list[Path]:
    """The files at or below `root` that hold rows of this length, in order of their names."""
    if not root.exists():
        raise UsageError(
            f"there is no {root}: name a parquet or JSON-lines file, or a folder of them, by "
            f"{VARIABLE} or the metadata key {METADATA_KEY}."
        )
    found = [
        file
        for file in (sorted(root.rglob("*")) if root.is_dir() else [root])
        if file.suffix in SUFFIXES
        and file.is_file()
        and (file == root or not any(p.startswith(".") for p in _below(file, root).parts))
    ]
    named = {file: _named(_LENGTH, _below(file, root)) or _named(_LENGTH, root) for file in found}
    files = [file for file in found if named[file] == str(length)]
    if files:
        return files
    unnamed = [file for file in found if named[file] is None]
    if unnamed:
        _warn_of_no_length(root, length)
    return unnamed


@functools.cache  # a group asks once per task
def _warn_of_no_length(root: Path, length: int) -> None:
    _log.warning("%s names no length: its rows are taken to be of %d tokens", root, length)


def _below(file: Path, root: Path) -> Path:
    return Path(file.name) if file == root else file.relative_to(root)


def _named(pattern: re.Pattern[str], path: Path) -> str | None:
    """The last match in the path; lengths in full."""
    found = [match.group(match.lastindex or 0) for match in pattern.finditer(path.as_posix())]
    return _SHORT.get(found[-1], found[-1]) if found else None


def _check_columns(columns: Sequence[str]) -> None:
    if any(wanted <= set(columns) for wanted in (_COLUMNS, _WHOLE_PROMPT_COLUMNS)):
        return
    raise UsageError(
        f"the data has the columns {', '.join(sorted(columns))}, but RULER's rows have "
        f"{', '.join(sorted(_COLUMNS))} (or, as whole prompts, "
        f"{' and '.join(sorted(_WHOLE_PROMPT_COLUMNS))}); name another copy by {VARIABLE} or the "
        f"metadata key {METADATA_KEY}."
    )
