"""A store written by an earlier page-bench: its records are found while the numerics are the same.

`earlier_store.sqlite` was written before evictors had a number of their own, with their source
code as part of the key. It holds one prefill and an answer of every evictor.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from store_examples import ARM, MODEL, prompt, seen

from page_bench.config import PageConfig
from page_bench.engine.keys import answer_key
from page_bench.evictors import evictor_class, own_names
from page_bench.evictors._source import source_checksum
from page_bench.evictors.base import Evictor, Wrapper
from page_bench.records.store.store import RunStore

WITH_FILES = ("dbtrimkv", "trimkv")
"""Their keys hold the weights of a checkpoint."""


def arms() -> Iterator[PageConfig]:
    for name in own_names():
        if name in WITH_FILES:
            continue
        title = f"{name}(snapkv)" if issubclass(evictor_class(name), Wrapper) else name
        kinds = evictor_class(name).granularities
        granularity = "shared" if "shared" in kinds else kinds[-1]
        yield replace(ARM, evictor=title, granularity=granularity)


def test_every_record_of_an_earlier_store_is_found(tmp_path: Path) -> None:
    path = shutil.copy(Path(__file__).with_name("earlier_store.sqlite"), tmp_path / "s.sqlite")
    with RunStore(path) as store:
        assert store.seen(seen()[0]) == seen()[1]
        found = [store.answer(answer_key(MODEL, prompt(), arm)) for arm in arms()]
        assert found == [{"answer_ids": [n]} for n in range(18)]
        store.put(None, [(answer_key(MODEL, prompt(1), ARM), {"answer_ids": [7]})])
        assert list(store.rows("SELECT count(*) FROM records")) == [(20,)]


@pytest.mark.parametrize("name", own_names())
def test_an_own_evictor_is_its_revision_whatever_its_text(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cls = evictor_class(name)
    now = source_checksum.__wrapped__(cls)
    module = sys.modules[cls.__module__]
    monkeypatch.setattr(module, "__file__", "elsewhere.py")
    monkeypatch.setattr(module, "__loader__", None)
    assert source_checksum.__wrapped__(cls) == now
    monkeypatch.setattr(cls, "revision", cls.revision + 1)
    assert source_checksum.__wrapped__(cls) != now


def test_no_two_own_evictors_have_one_key() -> None:
    sums = {source_checksum(evictor_class(name)) for name in own_names()}
    assert len(sums) == len(own_names())
    assert None not in sums


def test_a_subclass_from_elsewhere_is_its_text_and_the_revision_of_what_it_extends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    snapkv = evictor_class("snapkv")

    @dataclass(frozen=True)
    class Mine(snapkv):  # type: ignore[misc, valid-type]
        pass

    assert issubclass(Mine, Evictor)
    now = source_checksum.__wrapped__(Mine)
    assert now != source_checksum(snapkv)
    monkeypatch.setattr(snapkv, "revision", 2)
    assert source_checksum.__wrapped__(Mine) != now
