"""The run store: what is put is found again, whole and unchanged, by every process."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_processes import finish, group, key, start, whole_groups

from page_bench.records.store.key import Key
from page_bench.records.store.store import RunStore


def test_what_is_put_is_found_again_also_by_another(tmp_path: Path) -> None:
    path = tmp_path / "made" / "for it" / "runs #1?.sqlite"
    with RunStore(path) as store:
        assert store.seen(key("seen")) is None
        store.put((key("seen"), {"drop": 0.1}), [(key(arm=1), {"answer_ids": [1]})])
        assert store.seen(key("seen")) == {"drop": 0.1}
    with RunStore(path) as store, RunStore(path, read_only=True) as reader:
        for one in (store, reader):
            assert one.answer(key(arm=1)) == {"answer_ids": [1]}
            assert one.answer(key(arm=2)) is None
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_the_first_record_of_a_key_stays(tmp_path: Path) -> None:
    with RunStore(tmp_path / "s") as store:
        store.put(None, [(key(), {"decode_s": 1.0})])
        store.put(None, [(key(), {"decode_s": 2.0}), (key(arm=1), {"decode_s": 3.0})])
        assert store.answer(key()) == {"decode_s": 1.0}
        assert store.answer(key(arm=1)) == {"decode_s": 3.0}
        assert list(store.rows("SELECT count(*) FROM records")) == [(2,)]


def test_a_group_is_stored_in_whole_or_not_at_all(tmp_path: Path) -> None:
    with RunStore(tmp_path / "s") as store:
        with pytest.raises(TypeError):
            store.put((key("seen"), {"drop": 1}), [(key(), {"ids": object()})])
        assert store.seen(key("seen")) is None
        store.put(*group(1, x=1))
        with suppress(KeyboardInterrupt), store.transaction() as connection:
            connection.execute("DELETE FROM records")
            raise KeyboardInterrupt
    assert whole_groups(tmp_path / "s") == {1}


def bits(number: float) -> bytes:
    return struct.pack("d", number)


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunStore]:
    with RunStore(tmp_path_factory.mktemp("shared") / "s") as store:
        yield store


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
@given(numbers=st.lists(st.floats(allow_nan=False), max_size=5), number=st.integers(0, 2**62))
def test_no_float_is_changed(shared_store: RunStore, numbers: list[float], number: int) -> None:
    name = Key({"record": "seen", "prompt": [bits(n).hex() for n in numbers], "number": number})
    shared_store.put((name, {"numbers": numbers, "n": number}), [])
    found = shared_store.seen(name)
    assert found is not None
    assert [bits(n) for n in found["numbers"]] == [bits(n) for n in numbers]
    assert all(type(n) is float for n in found["numbers"])
    assert found["n"] == number


def test_nan_is_not_null(tmp_path: Path) -> None:
    value = {"nan": math.nan, "null": None, "inf": -math.inf, "text": "naïve \ud800 \x00 \u2028"}
    with RunStore(tmp_path / "s") as store:
        store.put((key("seen"), value), [])
        found = store.seen(key("seen"))
    assert found is not None
    assert math.isnan(found.pop("nan"))
    assert found == {k: v for k, v in value.items() if k != "nan"}


WRITER = """
first = int(os.environ["FIRST"])
with RunStore(path) as store:
    for prompt in range(first, first + 40):
        if store.seen(key("seen", prompt)) is None:
            store.put(*group(prompt))
        assert store.answer(key("answer", prompt, 4))["prompt"] == prompt
"""


def test_processes_share_a_store_from_its_first_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s"
    writers = []
    for first in (0, 0, 20):
        monkeypatch.setenv("FIRST", str(first))
        writers.append(start(WRITER, path))
    for writer in writers:
        finish(writer)
    assert whole_groups(path) == set(range(60))


def test_many_may_set_one_store_up_at_once(tmp_path: Path) -> None:
    def opened(path: Path) -> None:
        together.wait()
        RunStore(path).close()

    together = threading.Barrier(4)
    with ThreadPoolExecutor(4) as threads:
        for number in range(50):
            list(threads.map(opened, [tmp_path / f"s{number}"] * 4))


def test_the_file_is_plain_sqlite_that_others_can_read(tmp_path: Path) -> None:
    with RunStore(tmp_path / "s") as store:
        store.put((key("seen", 3), {"drop": 0.5}), [])
    connection = sqlite3.connect(tmp_path / "s")
    ((kind, value),) = connection.execute("SELECT kind, value FROM records")
    connection.close()
    assert (kind, json.loads(value)) == ("seen", {"drop": 0.5})
    assert os.stat(tmp_path / "s").st_size < 60_000
