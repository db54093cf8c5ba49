"""Groups of records, processes that write them to a run store, and what must hold afterwards."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from page_bench.records.store.key import Key
from page_bench.records.store.store import RunStore
from page_bench.records.store.upkeep import faults

ARMS = 5

PRELUDE = f"""
import os, resource, signal, sqlite3, sys, time
from page_bench.inputs.errors import UsageError
from page_bench.records.store.key import Key
from page_bench.records.store.store import RunStore

path = sys.argv[1]

def key(kind, prompt, arm=None):
    return Key({{"record": kind, "prompt": prompt, "eviction": arm}})

def group(prompt, size=20):
    value = {{"ids": list(range(size)), "by": os.getpid(), "prompt": prompt}}
    return (key("seen", prompt), value), [(key("answer", prompt, a), value) for a in range({ARMS})]
"""


def key(kind: str = "answer", prompt: int = 0, arm: int | None = None) -> Key:
    return Key({"record": kind, "prompt": prompt, "eviction": arm})


def group(prompt: int, **value: Any) -> tuple[tuple[Key, Any], list[tuple[Key, Any]]]:
    """All records of a prompt, as one transaction writes them."""
    answers = [(key("answer", prompt, arm), value) for arm in range(ARMS)]
    return (key("seen", prompt), value), answers


def start(script: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(script), str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


def whole_groups(path: Path) -> set[int]:
    """Prompts in a store that is sound; each with all its records, or none of them."""
    with RunStore(path) as store:
        assert list(faults(store)) == []
        rows = list(
            store.rows(
                "SELECT p.json, count(*), count(DISTINCT r.digest), count(DISTINCT r.value)"
                " FROM records r JOIN record_parts l ON l.record = r.id"
                " JOIN parts p ON p.id = l.part WHERE p.name = 'prompt' GROUP BY p.id"
            )
        )
        for _, count, distinct, values in rows:
            assert count == distinct == ARMS + 1
            assert values == 1, "a group holds values of two processes"
        return {int(row[0]) for row in rows}
