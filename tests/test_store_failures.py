"""The run store: whole records only, whatever happens to the process, the disk or the file."""

from __future__ import annotations

import random
import shutil
import signal
import sqlite3
import tempfile
import time
from pathlib import Path

import pytest
from store_processes import ARMS, finish, group, key, start, whole_groups

from page_bench.inputs.errors import UsageError
from page_bench.records.store.file import SCHEMA_VERSION
from page_bench.records.store.store import RunStore
from page_bench.records.store.upkeep import faults

COUNTING = """
with RunStore(path) as store:
    for prompt in range(10_000):
        store.put(*group(prompt, size=2000))
        print(prompt, flush=True)
"""


def test_a_kill_at_any_moment_leaves_whole_groups(tmp_path: Path) -> None:
    delays = random.Random(0)
    for round_number in range(8):
        path = tmp_path / str(round_number)
        writer = start(COUNTING, path)
        assert writer.stdout is not None
        reported = [writer.stdout.readline()]
        time.sleep(delays.uniform(0, 0.1))
        writer.kill()
        reported += writer.stdout.readlines()
        assert writer.wait() == -signal.SIGKILL
        # What was reported is there; of what was not, one more at most.
        assert len(whole_groups(path)) in (len(reported), len(reported) + 1)


IN_COMMIT = """
with RunStore(path) as store:
    store.put(*group(0))
    connection = store._connection
    # Changed pages go to the log long before the commit.
    connection.execute("PRAGMA cache_size = 1")
    def die(statement):
        if statement == "COMMIT":
            os.kill(os.getpid(), signal.SIGKILL)
    connection.set_trace_callback(die)
    store.put(*group(1, size=50_000))
"""


def test_a_kill_inside_a_commit_loses_that_commit_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    writer = start(IN_COMMIT, path)
    writer.communicate()
    assert writer.returncode == -signal.SIGKILL
    log = path.with_name("s-wal")
    assert log.stat().st_size > 1_000_000, "nothing of the transaction had been written"
    assert whole_groups(path) == {0}
    with RunStore(path) as store:
        store.put(*group(1, x=1))
    assert whole_groups(path) == {0, 1}


def test_a_log_that_breaks_off_anywhere_leaves_whole_groups(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with RunStore(path) as store:
        for prompt in range(6):
            store.put(*group(prompt, text="x" * 3000))
        log = path.with_name("s-wal").read_bytes()
        main = path.read_bytes()
    sizes = set()
    for length in range(0, len(log) + 1, len(log) // 40):
        copy = tmp_path / f"copy{length}"
        copy.write_bytes(main)
        copy.with_name(copy.name + "-wal").write_bytes(log[:length])
        found = whole_groups(copy)
        assert found == set(range(len(found)))
        sizes.add(len(found))
    assert sizes >= {0, 3, 5}


FILLING = """
limit = 400_000
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    with RunStore(path) as store:
        for prompt in range(10_000):
            store.put(*group(prompt, size=500))
            print(prompt)
except UsageError as error:
    print(error)
"""


def test_a_full_disk_is_an_error_that_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s"
    *done, sentence = finish(start(FILLING, path)).splitlines()
    assert len(done) > 5
    assert str(path) in sentence
    assert "disk is full" in sentence
    assert "make room" in sentence
    assert whole_groups(path) == set(range(len(done)))
    with RunStore(path) as store:
        store.put(*group(len(done), x=1))
    assert whole_groups(path) == set(range(len(done) + 1))


def test_sqlite_s_own_word_for_a_full_disk_is_understood(tmp_path: Path) -> None:
    with RunStore(tmp_path / "s") as store:
        store.put(*group(0, x=1))
        (pages,) = next(iter(store.rows("PRAGMA page_count")))
        list(store.rows(f"PRAGMA max_page_count = {pages}"))
        with pytest.raises(UsageError, match="disk is full"):
            store.put(*group(1, text="x" * 100_000))
        assert store.seen(key("seen", 0)) == {"x": 1}
    assert whole_groups(tmp_path / "s") == {0}


def test_a_lock_that_is_not_released_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with RunStore(path, patience_s=0.2) as store:
        store.put(*group(0, x=1))
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UsageError, match=f"store={path} has been locked.* 0.2 s"):
            store.put(*group(1, x=1))
        with pytest.raises(UsageError, match="locked by another process"):
            RunStore(path, patience_s=0.2)
        # Reading needs no lock.
        assert store.seen(key("seen", 0)) == {"x": 1}
        with RunStore(path, read_only=True) as reader:
            assert reader.seen(key("seen", 0)) == {"x": 1}
        other.execute("ROLLBACK")
        other.close()
        store.put(*group(1, x=1))
    assert whole_groups(path) == {0, 1}


HOLDING = """
holder = sqlite3.connect(path, isolation_level=None)
holder.execute("BEGIN IMMEDIATE")
print("held", flush=True)
time.sleep(1)
holder.execute("COMMIT")
"""


def test_a_short_lock_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with RunStore(path) as store:
        holder = start(HOLDING, path)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        store.put(*group(0, x=1))
        finish(holder)
    assert whole_groups(path) == {0}


def test_a_store_that_was_never_set_up_is_taken_for_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    half = sqlite3.connect(tmp_path / "half")
    half.execute("PRAGMA journal_mode = WAL")
    half.close()
    for name in ("empty", "half"):
        with pytest.raises(UsageError, match="holds nothing yet"):
            RunStore(tmp_path / name, read_only=True)
        with RunStore(tmp_path / name) as store:
            store.put(*group(0, x=1))
        assert whole_groups(tmp_path / name) == {0}


def test_other_files_are_refused_and_left_as_they_are(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("These are no records. " * 100)
    theirs = tmp_path / "theirs.db"
    connection = sqlite3.connect(theirs)
    connection.execute("CREATE TABLE thing (x)")
    connection.close()
    for path, reason in ((text, "is not a run store"), (theirs, "of another program")):
        before = path.read_bytes()
        for read_only in (False, True):
            with pytest.raises(UsageError, match=reason) as caught:
                RunStore(path, read_only=read_only)
            assert str(path) in str(caught.value)
        assert path.read_bytes() == before
    with pytest.raises(UsageError, match="is a folder"):
        RunStore(tmp_path)
    with pytest.raises(UsageError, match="there is no run store"):
        RunStore(tmp_path / "missing", read_only=True)
    assert not (tmp_path / "missing").exists()
    with pytest.raises(UsageError, match=r"cannot be written \(.*irectory"):
        RunStore(text / "below" / "s")


@pytest.mark.parametrize(("step", "age"), [(1, "a later"), (-1, "an earlier")])
def test_a_store_of_another_format_is_refused(tmp_path: Path, step: int, age: str) -> None:
    path = tmp_path / "s"
    RunStore(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + step}")
    connection.close()
    for read_only in (False, True):
        with pytest.raises(UsageError, match=f"written by {age} page-bench"):
            RunStore(path, read_only=read_only)


def filled(path: Path) -> bytes:
    with RunStore(path) as store:
        for prompt in range(30):
            store.put(*group(prompt, text="x" * 500))
    return path.read_bytes()


def read_all(path: Path) -> None:
    with RunStore(path) as store:
        for prompt in range(30):
            names = [key("seen", prompt), *(key("answer", prompt, arm) for arm in range(ARMS))]
            for found in map(store.answer, names):
                assert found in (None, {"text": "x" * 500}), "a wrong value was served"


def outcome(path: Path) -> str:
    """What reading a whole store, then checking it, ends in."""
    try:
        read_all(path)
        with RunStore(path) as store:
            return f"fault: {next(faults(store))}"
    except UsageError as error:
        return str(error)


def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "s"
    content = filled(path)
    ends = []
    for place in range(0, len(content) - 4096, 4096):
        path.write_bytes(content[:place] + b"\xa5" * 4096 + content[place + 4096 :])
        ends.append(outcome(path))
    refused = [end for end in ends if not end.startswith("fault")]
    assert all(str(path) in end for end in refused)
    assert len(refused) > len(ends) / 2
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(UsageError, match=f"{path} is damaged"):
        read_all(path)


def test_a_value_that_was_changed_is_not_served(tmp_path: Path) -> None:
    path = tmp_path / "s"
    content = filled(path)
    # What rots inside a value leaves the file's structure intact.
    place = content.rindex(b"x" * 400)
    path.write_bytes(content[:place] + b"y" + content[place + 1 :])
    with RunStore(path) as store:
        (fault,) = faults(store)
    assert "its value is not what was written" in fault
    with pytest.raises(UsageError, match=r"is damaged.*store verify"):
        read_all(path)


def test_a_key_s_part_that_was_changed_is_found(tmp_path: Path) -> None:
    path = tmp_path / "s"
    filled(path)
    with RunStore(path) as store:
        with store.transaction() as connection:
            connection.execute("UPDATE parts SET json = '77' WHERE name = 'prompt' AND json = '7'")
        found = list(faults(store))
    assert any("part prompt" in fault for fault in found)
    assert sum("not the one it was stored under" in fault for fault in found) == ARMS + 1


READ_ONLY_FOLDER = """
if os.geteuid() == 0:
    os.setuid(65534)  # root may write anywhere
for read_only, name in ((False, "s"), (False, "new"), (False, "below/new"), (True, "s")):
    try:
        with RunStore(os.path.join(path, name), read_only=read_only) as store:
            print(store.seen(key("seen", 0)))
    except UsageError as error:
        print(error)
"""


def test_a_folder_where_nothing_can_be_written() -> None:
    # Not below pytest's own folder, which is for the user alone.
    folder = Path(tempfile.mkdtemp())
    try:
        with RunStore(folder / "s") as store:
            store.put(*group(0, x=1))
        (folder / "s").chmod(0o444)
        folder.chmod(0o555)
        old, new, below, read = finish(start(READ_ONLY_FOLDER, folder)).splitlines()
        for name, sentence in (("s", old), ("new", new), ("below/new", below)):
            assert f"store={folder / name} cannot be written" in sentence
            assert "writable" in sentence
        assert read == "{'x': 1}"
        assert [file.name for file in folder.iterdir()] == ["s"]
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_a_mistake_of_ours_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "s")
    store.close()
    with pytest.raises(sqlite3.ProgrammingError):
        store.seen(key("seen"))
