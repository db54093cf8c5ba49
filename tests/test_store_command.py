"""`page-bench store`: what it says is true, and it changes nothing it was not told to."""

from __future__ import annotations

import json
import math
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from store_examples import ARM, MODEL, answer, prompt, seen

from page_bench.commands import cli
from page_bench.engine.keys import answer_key, seen_key
from page_bench.records.store import key
from page_bench.records.store.store import RunStore

HALF = replace(ARM, budget=0.5)
HEADS = replace(ARM, evictor="adakv(snapkv)", granularity="head", score_norm="sum")
OTHER = replace(MODEL, name="other", weights="fedcba" + "0" * 58, dtype="bfloat16")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: object) -> tuple[int, str, str]:
        status = cli.main(["store", *map(str, words)])
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return call


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two prompts of one model under three arms and the full cache; one prompt of another."""
    file = tmp_path / "runs.sqlite"
    with RunStore(file) as store:
        for number in range(2):
            store.put(seen(number), [answer(number, arm) for arm in (None, ARM, HALF, HEADS)])
        store.put(seen(0, OTHER), [answer(0, ARM, OTHER)])
    return file


def digests(path: Path) -> set[str]:
    with RunStore(path, read_only=True) as store:
        return {row[0] for row in store.rows("SELECT digest FROM records")}


def test_ls_counts_models_tasks_and_arms(run: Run, path: Path) -> None:
    status, out, err = run("ls", path, "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    models = {model["names"][0]: model for model in found["models"]}
    assert {n: (m["prompts"], m["seen"], m["answers"]) for n, m in models.items()} == {
        "tiny": (2, 2, 8),
        "other": (1, 1, 1),
    }
    assert models["other"]["dtype"] == "bfloat16"
    assert all(model["current"] for model in found["models"])
    arms = [(a["evictor"], a["budget"], a["granularity"], a["answers"]) for a in found["arms"]]
    assert arms == [
        ("full", None, None, 2),
        ("adakv(snapkv)", 0.25, "head", 2),
        ("snapkv", 0.25, "shared", 3),
        ("snapkv", 0.5, "shared", 2),
    ]
    assert found["tasks"] == {"page_vt": 2}
    assert found["file_bytes"] == path.stat().st_size
    assert set(found["bytes"]) == {"seen", "answer"}


def test_ls_prints_the_same_for_people(run: Run, path: Path) -> None:
    status, out, _ = run("ls", path)
    assert status == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "2 prompts, 2 prefills, 8 answers" in lines
    assert "page_vt 2" in lines
    assert "full 2" in lines
    assert any(line.startswith("snapkv, shared 0.25 4 32 32 3 ") for line in lines)
    assert any(line.startswith("adakv(snapkv), head, sum 0.25 4 32 32 2 ") for line in lines)
    assert max(len(line) for line in out.splitlines() if "options" not in line) < 250


def test_ls_tells_arms_of_other_windows_and_protected_positions_apart(run: Run, path: Path) -> None:
    changes: tuple[dict[str, Any], ...]
    changes = ({}, {"n_sink": 8}, {"recent": 16}, {"window": 16, "recent": 32})
    with RunStore(path) as store:
        store.put(None, [answer(0, replace(ARM, **change)) for change in changes])
    lines = [" ".join(line.split()) for line in run("ls", path)[1].splitlines()]
    shown = [line.split()[2:7] for line in lines if line.startswith("snapkv, shared 0.25")]
    assert shown == [
        ["0.25", "4", "16", "32", "1"],
        ["0.25", "4", "32", "16", "1"],
        ["0.25", "4", "32", "32", "3"],
        ["0.25", "8", "32", "32", "1"],
    ]
    arms = json.loads(run("ls", path, "--json")[1])["arms"]
    found = [(a["n_sink"], a["recent"], a["window"]) for a in arms if a["evictor"] == "full"]
    assert found == [(None, None, None)]
    assert (8, 32, 32) in [(a["n_sink"], a["recent"], a["window"]) for a in arms]


def test_ls_shows_one_model_under_its_two_names(run: Run, path: Path) -> None:
    with RunStore(path) as store:
        store.put(None, [answer(5, model=replace(MODEL, name="/models/tiny"))])
    (line,) = (line for line in run("ls", path)[1].splitlines() if "tiny" in line)
    assert line == "/models/tiny = tiny"


def test_ls_of_an_empty_store(run: Run, tmp_path: Path) -> None:
    RunStore(tmp_path / "s").close()
    assert run("ls", tmp_path / "s") == (0, run("ls", tmp_path / "s")[1], "")
    assert "no records" in run("ls", tmp_path / "s")[1]


def test_verify_passes_what_is_sound(run: Run, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("verify", path) == (0, f"{path}: 12 records, all as they were written\n", "")
    monkeypatch.setattr(
        "page_bench.records.store.contents.NUMERICS_VERSION", key.NUMERICS_VERSION + 1
    )
    status, out, _ = run("verify", path)
    assert status == 0
    assert "12 of them are of other numerics" in out


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("UPDATE records SET value = '{}' WHERE id = 1", "its value is not what was written"),
        ("UPDATE records SET value = '{' WHERE id = 1", "its value is not JSON"),
        ("UPDATE records SET about = '[]' WHERE id = 1", "its description is no object"),
        ("UPDATE records SET kind = 'x' WHERE id = 1", "its kind x does not exist"),
        (f"UPDATE records SET digest = '{'0' * 64}' WHERE id = 1", "not the one it was stored"),
        ("DELETE FROM record_parts WHERE record = 1 AND part = 1", "not the one it was stored"),
        ("UPDATE parts SET json = '0' WHERE name = 'numerics'", "part numerics"),
    ],
)
def test_verify_names_what_is_damaged(run: Run, path: Path, change: str, fault: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(change)
    connection.commit()
    connection.close()
    status, out, err = run("verify", path)
    assert status == 1
    assert fault in out
    assert "damaged" in err


def test_export_gives_strict_json_lines(run: Run, path: Path) -> None:
    values = {"nan": math.nan, "inf": math.inf, "none": None, "third": 1 / 3}
    with RunStore(path) as store:
        store.put((seen_key(MODEL, prompt(7), ARM), values), [])
    status, out, err = run("export", path)
    assert (status, err) == (0, "")

    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is not JSON")

    lines = [json.loads(line, parse_constant=refuse) for line in out.splitlines()]
    assert {line["digest"] for line in lines} == digests(path)
    assert lines[-1]["value"] == {"nan": None, "inf": None, "none": None, "third": 1 / 3}
    plain = next(line for line in lines if line["digest"] == answer(1, HALF)[0].digest)
    assert plain["value"] == answer(1, HALF)[1]
    assert plain["key"]["eviction"]["budget"] == 0.5
    assert plain["about"] == {"model": "tiny", "task": "page_vt", "doc_id": 1}


def test_merge_adds_what_is_missing_and_nothing_twice(run: Run, path: Path, tmp_path: Path) -> None:
    target = tmp_path / "all.sqlite"
    with RunStore(target) as store:
        # The same answer, measured again.
        store.put(None, [answer(0, ARM, seconds=99), answer(9)])
    status, out, _ = run("merge", target, path)
    assert status == 0
    assert "11 records added, 1 were there already, 0 in conflict, 0 damaged" in out
    assert digests(target) == digests(path) | {answer(9)[0].digest}
    with RunStore(target) as store:
        kept = store.answer(answer(0, ARM)[0])
        assert kept is not None
        assert kept["decode_s"] == 99
    assert run("verify", target)[0] == 0
    assert "0 records added, 12 were there already" in run("merge", target, path)[1]
    fresh = tmp_path / "fresh.sqlite"
    assert run("merge", fresh, path, target)[0] == 0
    assert digests(fresh) == digests(target)


def test_merge_keeps_its_own_where_stores_disagree_and_says_so(
    run: Run, path: Path, tmp_path: Path
) -> None:
    name, value = answer(0, ARM)
    other = {**value, "answer_ids": [77], "decode_rows": 8, "decode_s": 3.0}
    with RunStore(tmp_path / "other") as store:
        store.put(None, [(name, other), answer(8)])
    status, out, _ = run("merge", path, tmp_path / "other")
    assert status == 1
    assert "1 records added, 0 were there already, 1 in conflict" in out
    assert (
        f"kept as it was: answer {name.digest[:12]} (model tiny, task page_vt, document 0) "
        f"differs in answer_ids\n" in out
    )
    with RunStore(path) as store:
        assert store.answer(name) == value


def test_merge_leaves_damaged_records_out(run: Run, path: Path, tmp_path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("UPDATE records SET value = '{\"drop\": 9}' WHERE id = 1")
    connection.commit()
    connection.close()
    status, out, _ = run("merge", tmp_path / "mended", path)
    assert status == 1
    assert "11 records added, 0 were there already, 0 in conflict, 1 damaged" in out
    assert "left out: seen" in out
    assert run("verify", tmp_path / "mended")[0] == 0


@pytest.mark.parametrize("value", ["{", '{"answer_ids": [77]}'])
def test_merge_into_a_damaged_store_names_its_damaged_records(
    run: Run, path: Path, tmp_path: Path, value: str
) -> None:
    digest = answer(0, ARM)[0].digest
    with RunStore(tmp_path / "sound") as store:
        store.put(None, [answer(0, ARM), answer(8)])
    connection = sqlite3.connect(path)
    connection.execute("UPDATE records SET value = ? WHERE digest = ?", (value, digest))
    connection.commit()
    connection.close()
    status, out, err = run("merge", path, tmp_path / "sound")
    assert (status, err) == (1, "")
    assert "1 records added, 0 were there already, 1 in conflict, 0 damaged" in out
    assert f"kept as it was: answer {digest[:12]} is damaged here" in out
    # What it advises.
    run("merge", tmp_path / "new", path, tmp_path / "sound")
    assert run("verify", tmp_path / "new")[0] == 0
    assert digests(tmp_path / "new") == digests(path)


def test_merge_refuses_what_is_no_other_store(run: Run, path: Path, tmp_path: Path) -> None:
    assert "cannot be merged with itself" in run("merge", path, path)[2]
    status, _, err = run("merge", tmp_path / "new", tmp_path / "missing")
    assert status == 1
    assert "there is no run store" in err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("options", "prefills", "answers"),
    [
        (["--model", "other"], 1, 1),
        (["--model", "fedcba"], 1, 1),
        (["--model", "fed"], 0, 0),
        (["--evictor", "snapkv"], 0, 5),
        (["--evictor", "snapkv", "--model", "tiny"], 0, 4),
        (["--evictor", "full"], 0, 2),
        (["--budget", "0.5"], 0, 2),
        (["--granularity", "head"], 0, 2),
        (["--numerics", str(key.NUMERICS_VERSION)], 3, 9),
        (["--numerics", "old"], 0, 0),
    ],
)
def test_prune_removes_what_fits_and_only_when_told(
    run: Run, path: Path, options: list[str], prefills: int, answers: int
) -> None:
    before, content = digests(path), path.read_bytes()
    words = f"{prefills} prefills and {answers} answers"
    assert run("prune", path, *options) == (
        0,
        f"{words} would be removed; add --yes to remove them\n",
        "",
    )
    assert path.read_bytes() == content
    assert run("prune", path, *options, "--yes") == (0, f"{words} removed\n", "")
    after = digests(path)
    assert after < before or not prefills + answers
    assert len(after) == 12 - prefills - answers
    assert run("verify", path)[0] == 0


def test_prune_removes_the_right_records_and_gives_room_back(run: Run, path: Path) -> None:
    with RunStore(path) as store:
        filler = {"text": "x" * 300_000}
        store.put(None, [(answer_key(MODEL, prompt(50), HALF), filler)])
    large = path.stat().st_size
    run("prune", path, "--budget", "0.5", "--yes")
    assert path.stat().st_size < large - 250_000
    with RunStore(path) as store:
        assert store.answer(answer(0, HALF)[0]) is None
        assert store.answer(answer(0, ARM)[0]) == answer(0, ARM)[1]
        (count,) = store.rows("SELECT count(*) FROM parts WHERE json LIKE '%\"budget\":0.5%'")
        assert count == (0,)


def test_prune_finds_records_of_old_numerics(
    run: Run, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("page_bench.engine.keys.NUMERICS_VERSION", key.NUMERICS_VERSION - 1)
    with RunStore(path) as store:
        store.put(seen(3), [answer(3)])
    status, out, _ = run("prune", path, "--numerics", "old", "--yes")
    assert (status, out) == (0, "1 prefills and 1 answers removed\n")
    assert len(digests(path)) == 12


def test_prune_wants_to_be_told_what(run: Run, path: Path) -> None:
    assert "give --model" in run("prune", path, "--yes")[2]
    assert "give a whole number, or old" in run("prune", path, "--numerics", "new")[2]
    assert len(digests(path)) == 12


@pytest.mark.parametrize("action", ["ls", "verify", "export", "prune"])
def test_a_mistyped_path_is_an_error_and_makes_no_file(
    run: Run, tmp_path: Path, action: str
) -> None:
    options = ["--model", "x"] if action == "prune" else []
    status, out, err = run(action, tmp_path / "rnus.sqlite", *options)
    assert (status, out) == (1, "")
    assert "there is no run store" in err
    assert list(tmp_path.iterdir()) == []


def test_looking_at_a_store_loads_no_model_library(path: Path) -> None:
    script = (
        "import sys; from page_bench.commands import cli; "
        f"cli.main(['store', 'ls', {str(path)!r}]); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "False"
