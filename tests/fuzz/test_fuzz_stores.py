"""Run stores with every kind of damage: one clear sentence, and nothing lost."""

from __future__ import annotations

import contextlib
import sqlite3
from functools import partial
from pathlib import Path

import pytest
import store_examples
from fuzzing import damaged_bytes, fresh, fuzzed, outcome, quiet
from hypothesis import given
from hypothesis import strategies as st

from page_bench.commands import store as store_command
from page_bench.records.store.store import RunStore


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


# Stores


@pytest.fixture(scope="module")
def store(place: Path) -> bytes:
    path = place / "whole.sqlite"
    with RunStore(path) as made:
        for number in range(12):
            made.put(store_examples.seen(number), [store_examples.answer(number)])
        made.put(None, [store_examples.answer(0, arm=None)])
    return path.read_bytes()


def use_store(folder: Path) -> None:
    """A store through every command, then through a run that reads and writes."""
    path = folder / "runs.sqlite"
    before = path.read_bytes()
    for words in (["ls"], ["ls", "--json"], ["verify"], ["export"], ["prune", "--budget", "0.25"]):
        quiet(partial(store_command.run, [words[0], str(path), *words[1:]]))
        assert path.read_bytes() == before, f"{words} wrote"
    quiet(lambda: store_command.run(["merge", str(folder / "new.sqlite"), str(path)]))
    assert path.read_bytes() == before, "merge wrote to its source"
    if (folder / "new.sqlite").exists():
        # What was merged is sound.
        assert quiet(partial(store_command.run, ["verify", str(folder / "new.sqlite")])) == 0

    def run() -> None:
        with RunStore(path, patience_s=0.1) as opened:
            for number in range(3):
                key, value = store_examples.answer(number)
                found = opened.answer(key)
                assert found in (None, value)
                opened.put(store_examples.seen(40 + number), [])

    outcome(run)
    quiet(lambda: store_command.run(["prune", str(path), "--evictor", "snapkv", "--yes"]))


@fuzzed(20)
@given(data=st.data())
def test_bytes_of_stores(place: Path, store: bytes, data: st.DataObject) -> None:
    with fresh(place) as folder:
        (folder / "runs.sqlite").write_bytes(data.draw(damaged_bytes(store)))
        use_store(folder)


_COLUMNS = {
    "records": ["digest", "kind", "value", "value_sha256", "about", "page_bench", "created", "id"],
    "parts": ["name", "digest", "json", "id"],
    "record_parts": ["record", "part"],
}
_CELLS = st.one_of(
    st.none(),
    st.integers(-5, 40),
    st.floats(),
    st.binary(max_size=5),
    st.sampled_from(["", "{", "[]", "{}", '{"a": NaN}', "null", "[" * 20_000, "é\x00", "answer"]),
)


@fuzzed(20)
@given(data=st.data())
def test_rows_of_stores(place: Path, store: bytes, data: st.DataObject) -> None:
    with fresh(place) as folder:
        (folder / "runs.sqlite").write_bytes(store)
        connection = sqlite3.connect(folder / "runs.sqlite")
        for _ in range(data.draw(st.integers(1, 3))):
            table = data.draw(st.sampled_from(sorted(_COLUMNS)))
            column = data.draw(st.sampled_from(_COLUMNS[table]))
            row = data.draw(st.integers(0, 10))
            words = f"UPDATE {table} SET {column} = ? WHERE {_COLUMNS[table][-1]} = ?"
            if data.draw(st.booleans()):
                words = f"DELETE FROM {table} WHERE ? IS NOT NULL AND {_COLUMNS[table][-1]} = ?"
            with contextlib.suppress(sqlite3.Error, OverflowError):
                connection.execute(words, (data.draw(_CELLS), row))
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        use_store(folder)
