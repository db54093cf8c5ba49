"""Damaged leaderboards: each kind of damage has its own sentence with file, line and column."""

from __future__ import annotations

import csv
import io
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from finished_runs import write_run, write_trio
from stored_traces import stored

from page_bench.analysis.estimates import LEAST
from page_bench.analysis.partition import CAPACITY, DILUTION, UNDECIDED
from page_bench.commands import leaderboard
from page_bench.config import COMPRESSIONS, SCORE_NORMS
from page_bench.evictors.base import GRANULARITIES
from page_bench.inputs.errors import UsageError
from page_bench.leaderboard.add import rows_of
from page_bench.leaderboard.check import examined, read_board
from page_bench.leaderboard.columns import COLUMNS, IDENTITY, SCHEMA_TEXT, TASK_COLUMNS, Column
from page_bench.leaderboard.file import Board, write_board
from page_bench.leaderboard.row import digest as digest_of
from page_bench.leaderboard.row import row_id as id_of
from page_bench.leaderboard.row import to_value
from page_bench.leaderboard.run import read_finished

ROWS, TASKS = "leaderboard.csv", "tasks.csv"
Table = list[dict[str, str]]
CLOSED, OPEN, GATED = 0, 1, 2
"""Rows in the file's order: the full cache goes by the evictor `none`."""


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Board:
    made = rows_of(read_finished([write_trio(tmp_path_factory.mktemp("runs"))])[0])
    return Board().with_rows(made.rows, made.tasks)


@pytest.fixture
def file(board: Board, tmp_path: Path) -> Path:
    write_board(tmp_path / ROWS, board)
    return tmp_path / ROWS


def read(path: Path) -> Table:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def write(path: Path, table: Table) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, table[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    path.write_bytes(text.getvalue().encode("utf-8"))


def sealed(row: dict[str, str], columns: Sequence[Column] = COLUMNS) -> None:
    """Fill in the seal again, as whoever forges a row would; and leave it where that fails."""
    try:
        values = {c.name: to_value(c, row[c.name]) for c in columns}
    except ValueError:
        return
    row["digest"] = digest_of(values, columns)


def renamed(file: Path, number: int) -> None:
    """Give a row with another identity its id, in both tables."""
    table, tasks = read(file), read(file.parent / TASKS)
    old = table[number]["row"]
    values = {c.name: to_value(c, table[number][c.name]) for c in COLUMNS}
    table[number]["row"] = id_of(values)
    for task in tasks:
        if task["row"] == old:
            task["row"] = table[number]["row"]
            sealed(task, TASK_COLUMNS)
    sealed(table[number])
    write(file, table)
    write(file.parent / TASKS, tasks)


def change(number: int, **fields: str) -> Callable[[Path], None]:
    """Change fields of a row and seal it again."""

    def damage(file: Path) -> None:
        table = read(file)
        table[number] |= fields
        sealed(table[number])
        write(file, table)
        if fields.keys() & {c.name for c in IDENTITY}:
            try:
                renamed(file, number)
            except ValueError:
                return

    return damage


def change_task(number: int, **fields: str) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        path = file.parent / TASKS
        table = read(path)
        table[number] |= fields
        sealed(table[number], TASK_COLUMNS)
        write(path, table)

    return damage


def task_unsealed(file: Path) -> None:
    path = file.parent / TASKS
    table = read(path)
    table[1]["drop"] = "0.5"
    write(path, table)


def text_of(name: str, edit: Callable[[str], str]) -> Callable[[Path], None]:
    """Change the text of one of the files."""

    def damage(file: Path) -> None:
        path = file.parent / name
        path.write_bytes(edit(path.read_bytes().decode("utf-8")).encode("utf-8"))

    return damage


def command_with(old: str, new: str) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        table = read(file)
        assert old in table[GATED]["command"]
        table[GATED]["command"] = table[GATED]["command"].replace(old, new)
        sealed(table[GATED])
        write(file, table)

    return damage


def unsealed(file: Path) -> None:
    table = read(file)
    table[GATED]["device"] = "cuda (NVIDIA H200)"
    write(file, table)


def forged_id(file: Path) -> None:
    table = read(file)
    table[GATED]["dtype"] = "bfloat16"
    sealed(table[GATED])
    write(file, table)


def swapped(file: Path) -> None:
    table = read(file)
    write(file, [table[1], table[0], table[2]])


def doubled(file: Path) -> None:
    table = read(file)
    write(file, [*table, table[-1]])


def without_tasks(file: Path) -> None:
    path = file.parent / TASKS
    write(path, read(path)[:4])


def task_twice(file: Path) -> None:
    path = file.parent / TASKS
    table = read(path)
    write(path, [table[0], table[0], *table[1:]])


def tasks_swapped(file: Path) -> None:
    path = file.parent / TASKS
    table = read(path)
    write(path, [table[1], table[0], *table[2:]])


def not_text(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\xff\n")


def without_first_column(text: str) -> str:
    lines = list(csv.reader(io.StringIO(text)))
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(line[1:] for line in lines)
    return out.getvalue()


@dataclass(frozen=True)
class Damage:
    """What is done to the files, and what must be found.

    Attributes:
        do: the damage.
        file: that is named.
        line: that is named; None for none.
        column: that is named; empty for none.
        words: of the sentence.
    """

    do: Callable[[Path], None]
    file: str
    line: int | None
    column: str
    words: str


def row(do: Callable[[Path], None], column: str, words: str, line: int = GATED + 2) -> Damage:
    return Damage(do, ROWS, line, column, words)


DAMAGES = {
    # Files that are no such table.
    "not UTF-8": Damage(not_text, ROWS, None, "", "is not UTF-8"),
    "carriage return": Damage(
        text_of(ROWS, lambda text: text.replace("\n", "\r", 1)), ROWS, None, "", "carriage return"
    ),
    "cut off": Damage(text_of(ROWS, lambda text: text[:-9]), ROWS, None, "", "it was cut off"),
    "unknown column": Damage(
        text_of(ROWS, lambda text: text.replace("harm_low", "pain_low", 1)),
        *(ROWS, None, "", "unknown column 'pain_low'"),
    ),
    "missing column": Damage(
        text_of(ROWS, without_first_column), ROWS, None, "", "lacks the column row"
    ),
    "columns in another order": Damage(
        text_of(ROWS, lambda text: text.replace("model,dtype", "dtype,model", 1)),
        *(ROWS, None, "", "the column dtype in the wrong place"),
    ),
    "a field too many": Damage(
        text_of(ROWS, lambda text: text[:-1] + ",more\n"), ROWS, None, "", "fields, not"
    ),
    "unclosed quote": Damage(
        text_of(ROWS, lambda text: text + '"open\n'), ROWS, None, "", "is no CSV"
    ),
    "no tasks": Damage(
        lambda file: (file.parent / TASKS).unlink(), TASKS, None, "", "cannot be read"
    ),
    "another schema": Damage(
        text_of("schema.json", lambda text: text.replace("Answers.", "Inputs.")),
        *("schema.json", None, "", "is not the schema of this page-bench"),
    ),
    "no schema": Damage(
        lambda file: (file.parent / "schema.json").unlink(),
        *("schema.json", None, "", "cannot be read"),
    ),
    # Fields.
    "no number": row(change(GATED, score="high"), "score", "'high', not a number"),
    "NaN": row(change(GATED, auc_drop="nan"), "auc_drop", "not finite"),
    "no whole number": row(change(GATED, n="8.5"), "n", "not a whole number"),
    "too many places": row(
        change(GATED, score="0.75000001"), "score", "not written as the file writes it, 0.75"
    ),
    "share above 1": row(change(GATED, kept_kv="1.2"), "kept_kv", "outside [0, 1]"),
    "no inputs": row(change(GATED, n="0"), "n", "outside [1, ∞]"),
    "no truth value": row(change(GATED, chat_template="yes"), "chat_template", "neither true"),
    "no choice": row(change(GATED, compress="question"), "compress", "none of prompt, context"),
    "no JSON": row(change(GATED, evictor_args="{variant}"), "evictor_args", "not JSON"),
    "no JSON object": row(change(GATED, data="[1]"), "data", "not a JSON object"),
    "JSON beyond reading": row(
        change(GATED, data='{"a": ' + "[" * 60 + "]" * 60 + "}"), "data", "nested deeper than 50"
    ),
    "JSON that ends the reading": row(
        change(GATED, gate_args='{"a":' + "[" * 40_000),
        "gate_args",
        "not JSON (it is nested too deeply)",
    ),
    "number that JSON has not": row(
        change(GATED, gate_args='{"tau": NaN}'), "gate_args", "NaN is not JSON"
    ),
    "beyond counting": row(change(GATED, n="1" + "0" * 400), "n", "too large for a number"),
    "JSON in another order": row(
        change(GATED, data='{"b": 1, "a": 2}'), "data", "with sorted keys"
    ),
    "no day": row(change(GATED, date="2026-02-30"), "date", "no day, YYYY-MM-DD"),
    "names unsorted": row(
        change(GATED, tasks="vt niah_multikey_3"), "tasks", "no list of distinct names"
    ),
    "incomplete": row(change(GATED, n_tasks=""), "n_tasks", "is empty, which a complete"),
    "formula": row(change(GATED, device="=HYPERLINK(1)"), "device", "takes for a formula"),
    "formula by @": row(change(GATED, commit="@SUM(1)"), "commit", "begins with '@'"),
    "markup": row(change(GATED, model="<script>alert(1)</script>"), "model", "which holds markup"),
    "control character": row(
        change(GATED, device="cpu\u202egpu"), "device", "RIGHT-TO-LEFT OVERRIDE"
    ),
    "space at an end": row(change(GATED, torch="2.13.0 "), "torch", "with a space at an end"),
    # Within a row.
    "edited by hand": row(unsealed, "digest", "belong to the other columns: the line was edited"),
    "id of another row": row(forged_id, "row", "but the identity columns make"),
    "value outside its interval": row(
        change(GATED, open_low="0.7"), "open", "outside its own interval"
    ),
    "interval without width": row(
        change(GATED, delta_low="0.25", delta_high="0.25"), "delta", "without width"
    ),
    "half an interval": row(change(GATED, harm_high=""), "harm", "without the others"),
    "count of tasks": row(change(GATED, n_tasks="3"), "n_tasks", "but tasks names 2"),
    "compression": row(change(GATED, compression="2.0"), "compression", "but 1 / kept_kv is 1.6"),
    "bytes": row(change(GATED, kv_bytes="5000.0"), "kv_bytes", "more than the full cache's"),
    "no share of n": row(change(GATED, correct="0.7"), "correct", "no share of 8 answers"),
    "harm of wrong answers": row(
        change(GATED, harm="0.875", harm_high="0.9"), "harm", "that the full cache has right"
    ),
    "rho of right answers": row(change(GATED, rho="0.375"), "rho", "that the full cache has wrong"),
    "harm that is missing": row(
        change(OPEN, harm="0.125", harm_low="0.1"),
        *("harm", "so that answers are missing", OPEN + 2),
    ),
    "no such gate": row(change(GATED, gate="pages"), "gate", "which does not exist"),
    "no such rule": row(change(GATED, tau_variant="guess"), "tau_variant", "no rule for τ"),
    "rule without τ": row(change(GATED, tau=""), "tau", "is empty, but tau_variant is not"),
    "no such evictor": row(change(GATED, evictor="snapkw"), "evictor", "no evictor snapkw"),
    "title of no evictor": row(change(GATED, evictor="adakv(snapkv"), "evictor", "parentheses"),
    "full cache that evicts": row(
        change(CLOSED, budget="0.5"), "gate", "the full cache, but", CLOSED + 2
    ),
    "closed gate that opens": row(
        change(CLOSED, open="0.5", open_high="0.6"), "open", "never opens", CLOSED + 2
    ),
    "budget of nothing": row(change(GATED, budget="0.0"), "budget", "nothing can be kept"),
    "demonstration without reason": row(
        change(GATED, demonstration="true"), "why", "gives no reason"
    ),
    "day to come": row(change(GATED, date="2999-01-01"), "date", "and today"),
    # The command.
    "no command": row(change(GATED, command="rm -rf results"), "command", "no command of the form"),
    "open quote in the command": row(
        change(GATED, command="lm_eval run 'x"), "command", "no shell command"
    ),
    "command without tasks": row(
        command_with("--tasks", "--task"), "command", "without readable --model_args and --tasks"
    ),
    "command of another evictor": row(
        command_with("evictor=snapkv", "evictor=h2o"), "command", "it runs evictor=h2o"
    ),
    "command of another gate": row(
        command_with("gate=page", "gate=open"), "command", "it runs gate=open"
    ),
    "command of no budget": row(
        command_with("budget=0.25", "budget={1}"), "command", "budget={1} is no share above 0."
    ),
    "command nested beyond reading": row(
        command_with("pretrained=tiny,", "pretrained=" + "-" * 90_000 + "1,"),
        *("command", "without readable --model_args and --tasks ("),
    ),
    "command of another budget": row(
        command_with("budget=0.25", "budget=0.5"), "command", "it runs budget=0.5"
    ),
    "command of another model": row(
        command_with("pretrained=tiny", "pretrained=huge"), "command", "it runs pretrained=huge"
    ),
    "command of other tasks": row(
        command_with("ruler_4k", "ruler_8k"), "command", "it runs no task of page_ruler_4k"
    ),
    "command that is refused": row(
        command_with("gate=page", "gate=pages"), "command", "a command that page_hf refuses"
    ),
    # Between rows.
    "row twice": row(doubled, "row", "again; remove one of the two", 5),
    "order": row(swapped, "", "rows are sorted by their identity columns", 3),
    "delta": row(
        change(GATED, delta="0.125", delta_low="0.1", delta_high="0.2"),
        *("delta", "but correct here minus that of its plain eviction, line 3, is 0.25"),
    ),
    "delta of plain eviction": row(
        change(OPEN, delta="0.0", delta_low="-0.1", delta_high="0.1"),
        *("delta", "has no plain eviction beside it", OPEN + 2),
    ),
    "full cache": row(
        change(GATED, full_correct="0.625"), "full_correct", "the full cache, line 2, has 0.75"
    ),
    # Between rows and tasks.
    "task edited by hand": Damage(task_unsealed, TASKS, 3, "digest", "line was edited by hand"),
    "published in the table": row(
        change(GATED, source="published"), "source", "holds measured rows alone"
    ),
    "tasks of no row": Damage(
        change_task(0, row="0123456789ab"), TASKS, 2, "row", "of no row of the leaderboard"
    ),
    "row without tasks": row(without_tasks, "row", "its classes are hidden"),
    "task twice": Damage(task_twice, TASKS, 3, "task", "of one row a second time"),
    "tasks in another order": Damage(
        tasks_swapped, TASKS, 3, "", "tasks are sorted by row and name"
    ),
    "other tasks": row(change_task(0, task="aaa"), "tasks", "but tasks.csv has aaa vt", CLOSED + 2),
    "n of tasks": row(change_task(0, n="8"), "n", "have 12 together", CLOSED + 2),
    "mean of tasks": row(change_task(0, correct="0.5"), "correct", "make 0.625", CLOSED + 2),
    "class": Damage(
        change_task(2, **{"class": "robust"}), TASKS, 4, "class", "none of dilution-prone"
    ),
    "hidden harm": Damage(
        change_task(2, harm="", harm_low="", harm_high=""), TASKS, 4, "harm", "but the row has it"
    ),
}


def test_an_undamaged_leaderboard_has_nothing_wrong(file: Path, board: Board) -> None:
    assert examined(file) == (board, [])
    assert [row["gate"] for row in board.rows] == ["closed", "open", "page"]


@pytest.mark.parametrize("seed", range(6))
def test_rounded_figures_of_whatever_runs_agree_with_each_other(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    verdicts = {
        kind: {(task, i): draw.random() < 0.6 for task in ("vt", "fwe", "cwe") for i in range(7)}
        for kind in (True, False)
    }
    for gate in ("closed", "open", "random"):
        traces = []
        for task, doc_id in verdicts[True]:
            opened = gate == "open" or (gate == "random" and draw.random() < 0.5)
            traces.append(
                stored(
                    f"page_ruler_4k_{task}",
                    doc_id,
                    gate=gate,
                    gate_open=opened,
                    drop=draw.random(),
                    correct=float(verdicts[opened][task, doc_id]),
                    kept_kv=draw.uniform(0.1, 0.2) if opened else 1.0,
                )
            )
        write_run(tmp_path / "runs" / gate, traces)
    made = rows_of(read_finished([tmp_path / "runs"])[0])
    write_board(tmp_path / ROWS, Board().with_rows(made.rows, made.tasks))
    assert [str(one) for one in examined(tmp_path / ROWS)[1]] == []


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_is_found_where_it_is(file: Path, damage: Damage) -> None:
    damage.do(file)
    found = [str(one) for one in examined(file)[1]]
    path = file.parent / damage.file
    line = f"{path}" if damage.line is None else f"{path} line {damage.line}"
    place = line + (f", {damage.column}" if damage.column else "")
    assert any(one.startswith(place) and damage.words in one for one in found), found
    assert all(one.endswith(".") and not one.endswith("..") for one in found), found
    with pytest.raises(UsageError):
        read_board(file)


def test_no_two_kinds_of_damage_have_the_same_sentence() -> None:
    words = [damage.words for damage in DAMAGES.values() if damage.words != "cannot be read"]
    assert len(set(words)) == len(words)
    assert len(words) > 20


def test_check_prints_all_that_it_finds(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(GATED, n_tasks="3", compression="2.0")(file)
    assert leaderboard.run(["check", "--file", str(file)]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[0] for line in shown] == [
        f"{file} line 4, n_tasks",
        f"{file} line 4, compression",
    ]
    with pytest.raises(
        UsageError, match=r"n_tasks: .*\(1 more; see page-bench leaderboard check\)"
    ):
        read_board(file)


def test_evictors_of_others_are_known_by_their_file(file: Path) -> None:
    change(GATED, evictor="adakv(norms.py:Norms)", granularity="head")(file)
    command_with(
        "evictor=snapkv,granularity=shared", "evictor=adakv(norms.py:Norms),granularity=head"
    )(file)
    table = read(file)
    write(file, sorted(table, key=lambda row: ("closed", "page", "open").index(row["gate"])))
    found = [str(one) for one in examined(file)[1]]
    assert not [one for one in found if ", evictor" in one or ", command" in one], found


def test_the_schema_describes_every_column_in_the_words_of_the_code() -> None:
    declared = json.loads(SCHEMA_TEXT)["$defs"]
    for name, columns in (("row", COLUMNS), ("task", TASK_COLUMNS)):
        described = declared[name]["properties"]
        assert list(described) == declared[name]["required"] == [c.name for c in columns]
        assert all(entry["description"].endswith(".") for entry in described.values())
        assert all(entry["x-source"] for entry in described.values())
        for entry in described.values():
            assert "bootstrap" not in entry["description"] or f"than {LEAST} " in str(entry)
    choices = {c.name: c.choices for c in (*COLUMNS, *TASK_COLUMNS) if c.choices}
    assert choices == {
        "source": ("measured", "published"),
        "compress": tuple(COMPRESSIONS),
        "granularity": tuple(GRANULARITIES),
        "score_norm": tuple(SCORE_NORMS),
        "class": (DILUTION, CAPACITY, UNDECIDED),
    }
    bounds = {c.name: (c.least, c.most) for c in (*COLUMNS, *TASK_COLUMNS)}
    assert bounds["delta"] == (-1, 1)
    assert bounds["harm_low"] == bounds["budget"] == (0, 1)
    assert bounds["window"] == (1, math.inf)


def test_the_shipped_schema_is_that_of_the_package() -> None:
    shipped = Path(__file__).parent.parent / "leaderboard" / "schema.json"
    assert shipped.read_text(encoding="utf-8") == SCHEMA_TEXT


def test_rows_fit_the_schema_and_damaged_ones_do_not(board: Board) -> None:
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA_TEXT))
    validator.check_schema(json.loads(SCHEMA_TEXT))
    content: dict[str, Any] = {
        "rows": [dict(row) for row in board.rows],
        "tasks": [dict(task) for task in board.tasks],
    }
    validator.validate(content)
    for changed in ({"kept_kv": 1.5}, {"n": 0}, {"source": "guessed"}, {"more": 1}, {"gate": None}):
        damaged = {**content, "rows": [{**content["rows"][0], **changed}]}
        assert not validator.is_valid(damaged), changed
