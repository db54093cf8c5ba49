"""Which rows are ranked together, in which order, and how the ranked table is printed."""

from __future__ import annotations

import csv
import io
import itertools
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from finished_runs import answers, write_run, write_trio

from page_bench.commands import leaderboard
from page_bench.inputs.errors import UsageError
from page_bench.leaderboard.add import rows_of
from page_bench.leaderboard.check import examined
from page_bench.leaderboard.columns import COLUMNS, SCHEMA_TEXT
from page_bench.leaderboard.file import Board
from page_bench.leaderboard.ranking import EDGES, GROUPED_BY, groups
from page_bench.leaderboard.row import Row
from page_bench.leaderboard.run import read_finished

_NAMES = (f"{i:012x}" for i in itertools.count())


def row(correct: float, kept: float = 0.25, half: float = 0.05, **values: Any) -> Row:
    """A row with an interval of correct of twice `half`."""
    made: dict[str, Any] = {column.name: None for column in COLUMNS}
    made |= {"row": next(_NAMES), "source": "measured", "model": "m", "suite": "s", "n": 100}
    made |= {"tasks": "vt", "gate": "open", "evictor": "snapkv", "kept_kv": kept}
    made |= {"correct": correct, "correct_low": correct - half, "correct_high": correct + half}
    return {**made, **values}


def shown(rows: list[Row]) -> list[list[tuple[str, float]]]:
    """Per bin of the only group, rank and correct of its rows."""
    (group,) = groups(rows)
    return [
        [(place.shown, float(place.row["correct"] or 0)) for place in own.places]
        for own in group.bins
    ]


def test_a_rank_counts_the_rows_that_are_surely_better() -> None:
    rows = [row(0.5), row(0.9), row(0.54), row(0.62), row(0.85)]
    # 0.5 and 0.54 overlap, 0.54 and 0.62 as well, 0.5 and 0.62 do not.
    assert shown(rows) == [[("1=", 0.9), ("1=", 0.85), ("3=", 0.62), ("3=", 0.54), ("4", 0.5)]]


def test_rows_are_compared_at_the_cache_that_they_kept_not_at_their_budget() -> None:
    rows = [
        row(0.9, 0.42, budget=0.125, gate="page"),
        row(0.5, 0.125, budget=0.125),
        row(0.7, 0.38, budget=0.375),
    ]
    assert shown(rows) == [[("1", 0.5)], [("1", 0.9), ("2", 0.7)]]
    (group,) = groups(rows)
    assert [own.label for own in group.bins] == ["0.09375–0.1875", "0.3125–0.4375"]


@pytest.mark.parametrize(("kept", "low"), [(0.0938, EDGES[0]), (EDGES[1], EDGES[1]), (1.0, 0.9375)])
def test_a_bin_begins_at_its_lower_bound(kept: float, low: float) -> None:
    (group,) = groups([row(0.5, kept)])
    assert [own.low for own in group.bins] == [low]
    assert group.bins[0].low <= kept <= group.bins[0].high


@pytest.mark.parametrize("name", GROUPED_BY)
def test_rows_that_differ_in_what_they_measured_are_never_ranked_together(name: str) -> None:
    other: Any = {"n": 200, "chat_template": True}.get(name, "other")
    rows = [row(0.9), row(0.1, **{name: other})]
    ranks = [place.shown for g in groups(rows) for own in g.bins for place in own.places]
    assert ranks == ["1", "1"]
    assert len(groups(rows)) == 2


def test_what_tells_methods_apart_does_not_tell_groups_apart() -> None:
    names = {
        "evictor",
        "evictor_args",
        "granularity",
        "score_norm",
        "gate",
        "tau_variant",
        "budget",
    }
    assert not names & {*GROUPED_BY}
    assert {c.name for c in COLUMNS if c.part == "identity"} - names - {*GROUPED_BY} == {
        *("n_sink", "recent", "window", "top_k", "gate_args")
    }


def test_less_harm_goes_first_among_equals_and_unknown_harm_last() -> None:
    rows = [row(0.5, harm=None), row(0.5, harm=0.3), row(0.5, harm=0.1)]
    (group,) = groups(rows)
    assert [place.row["harm"] for place in group.bins[0].places] == [0.1, 0.3, None]
    assert {place.shown for place in group.bins[0].places} == {"1="}


@pytest.mark.parametrize("gate", ["oracle", "task_oracle", "static"])
def test_gates_that_read_labels_are_shown_without_a_rank(gate: str) -> None:
    assert shown([row(0.6), row(0.99, gate=gate)]) == [[("1", 0.6), ("–", 0.99)]]


def test_the_order_does_not_depend_on_that_of_the_rows() -> None:
    rows = [row(c, k) for c in (0.2, 0.5, 0.5) for k in (0.2, 0.25, 0.9)]
    assert groups(rows) == groups(rows[::-1])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Three arms of one suite, the plain one under another protocol as well."""
    path = tmp_path / "leaderboard.csv"
    write_trio(tmp_path / "runs")
    write_run(tmp_path / "runs" / "other", answers("open", protocol="ruler"))
    assert leaderboard.run(["add", str(tmp_path / "runs"), "--file", str(path)]) == 0
    assert examined(path)[1] == []
    return path


def export(file: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert leaderboard.run(["export", "--file", str(file), *words]) == 0
    return capsys.readouterr().out


def test_csv_has_every_column_and_the_rank(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = list(csv.DictReader(io.StringIO(export(file, capsys, "--format", "csv"))))
    assert list(table[0]) == ["group", "kept_kv_bin", "rank", *(c.name for c in COLUMNS)]
    found = [(one["group"], one["kept_kv_bin"], one["rank"], one["gate"]) for one in table]
    assert found == [
        ("1", "0.1875–0.3125", "1", "open"),
        ("1", "0.5625–0.6875", "1", "page"),
        ("1", "0.9375–1", "1", "closed"),
        ("2", "0.1875–0.3125", "1", "open"),
    ]
    assert [one["protocol"] for one in table] == ["page"] * 3 + ["ruler"]


def test_json_holds_rows_and_tasks_as_the_schema_says(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = json.loads(export(file, capsys, "--format", "json"))
    jsonschema.Draft202012Validator(json.loads(SCHEMA_TEXT)).validate(made)
    assert [len(made[name]) for name in ("groups", "ranking", "rows", "tasks")] == [2, 4, 4, 8]
    assert [one["row"] for one in made["ranking"]] == [one["row"] for one in made["rows"]]
    assert made["ranking"][1] == {
        "row": made["rows"][1]["row"],
        "group": 1,
        "kept_kv_bin": [0.5625, 0.6875],
        "rank": 1,
        "tied": False,
    }


def test_markdown_shows_intervals_harm_and_the_task_that_the_mean_hides(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = export(file, capsys, "--group", "protocol=page")
    lines = [line for line in text.splitlines() if line.startswith("| 1")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [cell[3] for cell in cells] == ["open", "page number, τ = 0.07", "closed"]
    plain = cells[0]
    assert plain[6].startswith("0.500 [")
    assert plain[7].startswith("0.375 [")
    assert plain[10] == "niah_multikey_3: harm 0.500"
    assert plain[11] == "8"
    assert "protocol ruler" not in text


def test_names_do_not_break_the_markdown(tmp_path: Path) -> None:
    from page_bench.leaderboard.export import exported

    write_run(tmp_path / "runs", answers("open", model="a|b*c"))
    made = rows_of(read_finished([tmp_path / "runs"])[0])
    text = exported(Board().with_rows(made.rows, made.tasks), "markdown")
    assert r"## a\|b\*c (float32, sdpa)" in text


def test_groups_are_chosen_by_pattern(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--format", "csv", "--group", "suite=page_ruler*", "--group", "protocol=r*")
    assert len(export(file, capsys, *words).splitlines()) == 2
    with pytest.raises(UsageError, match="no row fits --group protocol=none"):
        export(file, capsys, "--group", "protocol=none")
    with pytest.raises(UsageError, match="evictor=h2o is not COLUMN=PATTERN with a column of"):
        export(file, capsys, "--group", "evictor=h2o")


def test_rows_of_other_inputs_are_never_ranked_together() -> None:
    same, other = row(0.5, inputs="a" * 12), row(0.9, inputs="b" * 12, evictor="h2o")
    found = groups([same, other, row(0.7, inputs="a" * 12, evictor="h2o")])
    assert [[place.row["correct"] for place in group.bins[0].places] for group in found] == [
        [0.7, 0.5],
        [0.9],
    ]
