"""One reader for all text files of users: byte order marks, line ends, other encodings."""

from __future__ import annotations

import ast
import codecs
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import released_logs
import test_ruler
from finished_runs import write_trio
from retention_checkpoint import random_gates, write_checkpoint
from stored_traces import stored
from test_rulergen_samples import write_hotpotqa, write_squad

from page_bench.analysis.paper_logs.lines import read_log
from page_bench.commands.wandb_import.finished import finished_runs
from page_bench.evictors._retention_checkpoint import load_gates
from page_bench.gating.calibration import Calibration, ModelFacts, PilotInput, load
from page_bench.gating.fingerprint import Fingerprint
from page_bench.inputs import text_file
from page_bench.inputs.errors import UsageError
from page_bench.leaderboard.check import read_board
from page_bench.leaderboard.results import read_results
from page_bench.records.finished_runs import read_traces
from page_bench.sweep.file import read_sweep
from page_bench.tasks import ruler
from page_bench.tasks.longbench_rows import rows_of
from page_bench.tasks.rulergen import essays, questions

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        (codecs.BOM_UTF8, ""),
        (codecs.BOM_UTF8 + b"one", "one"),
        (codecs.BOM_UTF8 * 2 + b"one", "\ufeffone"),  # only one is a mark
        ("é\u2028\U0001f600".encode(), "é\u2028\U0001f600"),
        (b"one\r\ntwo\r\n", "one\ntwo\n"),
        (b"one\rtwo\n", "one\rtwo\n"),
    ],
)
def test_what_is_read(data: bytes, text: str) -> None:
    assert text_file.text_of(data) == text


@pytest.mark.parametrize(
    ("data", "line", "what"),
    [
        ("one\ntwo".encode("utf-16"), 1, "is UTF-16"),
        (codecs.BOM_UTF16_BE + "one\ntwo".encode("utf-16-be"), 1, "is UTF-16"),
        ("one".encode("utf-32"), 1, "is UTF-32"),
        ("one\ntwo".encode("utf-16-le"), 1, "holds a NUL, as UTF-16 does"),
        ("one\ntwo".encode("utf-16-be"), 1, "holds a NUL, as UTF-16 does"),
        ("one\ntwö\n".encode("latin-1"), 2, "holds the byte 0xf6, which is not UTF-8"),
        (codecs.BOM_UTF8 + b"one\r\ntwo\r\n\xff", 3, "holds the byte 0xff"),
        (b"\xed\xa0\x80", 1, "holds the byte 0xed"),  # half of a surrogate pair
        (b"one\n\ntwo\0", 3, "holds a NUL"),
    ],
)
def test_what_is_refused_by_its_line(data: bytes, line: int, what: str) -> None:
    with pytest.raises(text_file.NotText, match=f"^line {line} {what}") as caught:
        text_file.text_of(data)
    assert caught.value.line == line


@dataclass(frozen=True)
class Reader:
    """A file of a user, and what reads it.

    Attributes:
        file: that is changed.
        read: gives what the file says, or raises `UsageError`.
    """

    file: Path
    read: Callable[[], object]


def _calibration(folder: Path) -> Reader:
    made = Calibration(
        model=ModelFacts("tiny", Fingerprint("c" * 64, "f" * 64), "float32", "sdpa"),
        settings={"top_k": 32},
        protocols=("ruler",),
        tasks=("vt",),
        pilot=None,
        pilot_kind="held-out",
        test_limit=100,
        seed=1234,
        inputs=(PilotInput("vt", 0, 900, "ab" * 32, {"drop": 0.1}),),
        page_bench="last",
    )
    made.save(folder / "tau.json")
    return Reader(folder / "tau.json", lambda: load(folder / "tau.json"))


def _sweep(folder: Path) -> Reader:
    file = Path(shutil.copy(ROOT / "sweeps" / "tau.yaml", folder / "sweep.yaml"))
    return Reader(file, lambda: read_sweep(file))


def _squad(folder: Path) -> Reader:
    file = write_squad(folder / "squad.json", articles=2)
    return Reader(file, lambda: questions.load.__wrapped__("squad", str(file)))


def _hotpotqa(folder: Path) -> Reader:
    file = write_hotpotqa(folder / "hotpot.json", rows=2)
    return Reader(file, lambda: questions.load.__wrapped__("hotpotqa", str(file)))


def _essays(folder: Path) -> Reader:
    file = folder / "essays.txt"
    file.write_text("One fine day.\nAnother day.\n")
    return Reader(file, lambda: essays.load.__wrapped__(str(file)))


def _ruler(folder: Path) -> Reader:
    file = test_ruler.write(folder / "4096.jsonl", test_ruler.split(4096))
    return Reader(file, lambda: [*ruler.fixed(4096, "vt", ruler_data=str(file))["test"]])


def _longbench(folder: Path) -> Reader:
    file = folder / "qasper.jsonl"
    row = {"context": "a text", "input": "why?", "answers": ["so"]}
    file.write_text(f"{json.dumps(row)}\n" * 3)
    return Reader(file, lambda: [*rows_of("qasper", {"longbench_data": str(folder)})])


def _leaderboard(name: str) -> Callable[[Path], Reader]:
    def made(folder: Path) -> Reader:
        for file in ("leaderboard.csv", "tasks.csv", "schema.json"):
            shutil.copy(ROOT / "leaderboard" / file, folder)
        return Reader(folder / name, lambda: read_board(folder / "leaderboard.csv"))

    return made


def _trace(folder: Path) -> Reader:
    file = folder / "trace_1.jsonl"
    file.write_text("".join(stored(doc_id=i).to_json() + "\n" for i in range(3)))
    return Reader(file, lambda: read_traces(file))


def _results(folder: Path) -> Reader:
    file = next(write_trio(folder).rglob("results_*.json"))
    return Reader(file, lambda: read_results(file))


def _import(folder: Path) -> Reader:
    file = next(write_trio(folder).rglob("results_*.json"))
    return Reader(file, lambda: [run.results for run in finished_runs([str(file)])[0]])


def _samples(folder: Path) -> Reader:
    results = write_trio(folder) / "open" / "results_2026-11-29T10-00-00.000001.json"
    row = {"arguments": {}, "resps": [["x"]], "filtered_resps": ["x"], "target": "x"}
    for task in json.loads(results.read_text())["configs"]:
        file = results.parent / f"samples_{task}_2026-11-29T10-00-00.000001.jsonl"
        file.write_text(f"{json.dumps(row)}\n" * 3)
    ((run,), _) = finished_runs([str(results)])
    return Reader(file, lambda: run.read().samples)


def _authors_log(folder: Path) -> Reader:
    file = folder / "gated.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in released_logs.gated_rows()))

    def read() -> object:
        log = read_log(file)
        if log.unreadable or not log.rows:
            raise UsageError(f"{file} line {(log.unreadable or [1])[0]}: {log.why}")
        return log.rows

    return Reader(file, read)


def _retention(folder: Path) -> Reader:
    write_checkpoint(folder, random_gates("rg", 2, 16, 2, inner=4))
    return Reader(folder / "config.json", lambda: len(load_gates(str(folder)).gates))


READERS: dict[str, Callable[[Path], Reader]] = {
    "calibration": _calibration,
    "sweep": _sweep,
    "squad": _squad,
    "hotpotqa": _hotpotqa,
    "essays": _essays,
    "ruler": _ruler,
    "longbench": _longbench,
    "leaderboard": _leaderboard("leaderboard.csv"),
    "tasks of the leaderboard": _leaderboard("tasks.csv"),
    "schema of the leaderboard": _leaderboard("schema.json"),
    "trace": _trace,
    "results": _results,
    "results for W&B": _import,
    "samples": _samples,
    "the authors' log": _authors_log,
    "configuration of retention gates": _retention,
}
reader = pytest.mark.parametrize("made", READERS.values(), ids=READERS)


@reader
def test_a_byte_order_mark_and_crlf_change_nothing(
    made: Callable[[Path], Reader], tmp_path: Path
) -> None:
    place = made(tmp_path)
    data, plain = place.file.read_bytes(), place.read()
    assert data.isascii() or b"\r" not in data
    for changed in (
        codecs.BOM_UTF8 + data,
        data.replace(b"\n", b"\r\n"),
        codecs.BOM_UTF8 + data.replace(b"\n", b"\r\n"),
    ):
        place.file.write_bytes(changed)
        assert place.read() == plain


@reader
def test_other_encodings_are_refused_by_file(
    made: Callable[[Path], Reader], tmp_path: Path
) -> None:
    place = made(tmp_path)
    text = place.file.read_text(encoding="utf-8")
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        place.file.write_bytes(text.encode(encoding))
        with pytest.raises(UsageError) as caught:
            place.read()
        assert place.file.name in str(caught.value)
        known = ("UTF-16", "line 1: no line of JSON", "is left out: it is no whole results file")
        assert any(words in str(caught.value) for words in known)


@reader
def test_a_byte_that_is_not_utf_8_is_named_with_its_line(
    made: Callable[[Path], Reader], tmp_path: Path
) -> None:
    place = made(tmp_path)
    lines = place.file.read_bytes().splitlines(keepends=True)
    # In a word of the last line that has one.
    number, at = next(
        (n, i)
        for n in reversed(range(len(lines)))
        for i in range(len(lines[n]))
        if lines[n][i : i + 1].isalpha()
    )
    lines[number] = lines[number][:at] + b"\xff" + lines[number][at + 1 :]
    place.file.write_bytes(codecs.BOM_UTF8 + b"".join(lines))
    with pytest.raises(UsageError) as caught:
        place.read()
    said = str(caught.value)
    assert place.file.name in said
    assert f"line {number + 1}" in said or "is left out: it is no whole results file" in said


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_folder_with_brackets_gives_its_own_rows(suffix: str, tmp_path: Path) -> None:
    """As a pattern `run[1]` would be `run1`, which is there, too."""
    for name, length in (("run1", 8192), ("run[1]", 4096), ("a::b", 4096), ("w*?", 4096)):
        rows = [test_ruler.row("vt", 0, length)]
        file = test_ruler.write(tmp_path / name / f"4096.{suffix}", rows)
        (doc,) = ruler.fixed(4096, "vt", ruler_data=str(file.parent))["test"]
        assert doc["context"] == f"vt of {length}, row 0.\n"
        row = {"context": name, "input": "why?", "answers": ["so"]}
        test_ruler.write(tmp_path / name / f"qasper.{suffix}", [row])
        (found,) = rows_of("qasper", {"longbench_data": str(tmp_path / name)})
        assert found["context"] == name


def test_a_folder_of_essays_that_would_be_a_pattern_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run[1]").mkdir()
    with pytest.raises(UsageError, match="takes for a pattern of others; rename it"):
        essays.load(str(tmp_path / "run[1]"))


def test_dates_in_rows_stay_texts(tmp_path: Path) -> None:
    """The JSON reader of `datasets` made them points in time."""
    row = {**test_ruler.row("vt", 0, 4096), "answer": ["2023-01-01"], "made": "2023-01-01"}
    file = test_ruler.write(tmp_path / "4096.jsonl", [row])
    (doc,) = ruler.fixed(4096, "vt", ruler_data=str(file))["test"]
    assert (doc["answers"], doc["made"]) == (["2023-01-01"], "2023-01-01")


def test_a_changed_copy_is_read_anew(tmp_path: Path) -> None:
    for words in ("one", "other"):
        row = {**test_ruler.row("vt", 0, 4096), "context": words}
        file = test_ruler.write(tmp_path / "4096.jsonl", [row])
        assert ruler.fixed(4096, "vt", ruler_data=str(file))["test"][0]["context"] == words


OWN_FILES = {
    "page_bench/model/provenance.py",  # /proc
    "page_bench/commands/latency/peak_memory.py",  # /proc
    "page_bench/leaderboard/page.py",  # the package's assets
    "page_bench/pages/kept_page.py",  # likewise
    "tasks/longbench_prompts.py",  # lm-eval's tasks
    "tasks/rulergen/templates.py",  # lm-eval's tasks
    "page_bench/sweep/output.py",  # what lm-eval has just written
    "page_bench/sweep/prompts.py",  # its own files
    "page_bench/inputs/text_file.py",
}
"""Modules that read texts which no user has written."""


def test_no_other_module_reads_texts_by_itself() -> None:
    found = set()
    for folder in ("page_bench", "evictors", "tasks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                # A path in `data_files` is a pattern.
                assert not isinstance(node, ast.keyword) or node.arg != "data_files", name
                if isinstance(node, ast.Call) and _reads_text(node):
                    found.add(name)
    assert found == OWN_FILES


def _reads_text(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute | ast.Name):
        return False
    name = call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id
    words = {a.value for a in call.args if isinstance(a, ast.Constant)}
    if name != "open":
        return name == "read_text" or (name == "decode" and "utf-8" in words)
    # `Path.open()`, or `open(file)` without a mode that is binary or writes.
    is_method = isinstance(call.func, ast.Attribute)
    is_of_os = is_method and ast.unparse(call.func).startswith("os.")
    return (is_method or bool(call.args)) and not is_of_os and not words & {"rb", "w", "wb"}
