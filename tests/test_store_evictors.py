"""What of an evictor is part of a run store's key: its code, its helpers, and files it reads."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from retention_checkpoint import random_gates, write_checkpoint
from store_examples import ARM, MODEL, differs, prompt

from page_bench.config import PageConfig
from page_bench.engine.keys import answer_key

EVICTOR = """
from dataclasses import dataclass
from typing import ClassVar, Literal
from page_bench.evictors.base import Evictor
{imports}

@dataclass(frozen=True)
class Mine(Evictor):
    name: ClassVar[str] = "mine"
    table: str = ""
    variant: Literal["old", "new"] = "old"

    def score(self, layer, n_keep=None):
        return {score}
"""


def write_evictor(path: Path, score: str, imports: str = "") -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(EVICTOR.format(score=score, imports=imports))
    return f"{path}:Mine"


def test_an_evictor_in_a_file_is_its_code(tmp_path: Path) -> None:
    one = write_evictor(tmp_path / "a" / "mine.py", "layer.keys.norm(dim=-1)")
    same = write_evictor(tmp_path / "b" / "mine.py", "layer.keys.norm(dim=-1)")
    other = write_evictor(tmp_path / "c" / "mine.py", "-layer.keys.norm(dim=-1)")
    keys = [answer_key(MODEL, prompt(), replace(ARM, evictor=title)) for title in (one, same)]
    assert keys[0] == keys[1]
    assert differs(answer_key(MODEL, prompt(), replace(ARM, evictor=other)), keys[0])


def test_code_that_is_edited_while_it_runs_is_not_taken_for_what_runs(tmp_path: Path) -> None:
    arm = replace(ARM, evictor=write_evictor(tmp_path / "mine.py", "layer.keys.norm(dim=-1)"))
    before = answer_key(MODEL, prompt(), arm)
    write_evictor(tmp_path / "mine.py", "-layer.keys.norm(dim=-1)")
    assert answer_key(MODEL, prompt(), arm) == before


def test_code_that_is_edited_before_the_first_key_is_not_taken_for_what_runs(
    tmp_path: Path,
) -> None:
    one = write_evictor(tmp_path / "a" / "mine.py", "layer.keys.norm(dim=-1)")
    same = write_evictor(tmp_path / "b" / "mine.py", "layer.keys.norm(dim=-1)")
    arm = replace(ARM, evictor=one)  # imports it
    write_evictor(tmp_path / "a" / "mine.py", "-layer.keys.norm(dim=-1)")
    assert answer_key(MODEL, prompt(), arm) == answer_key(
        MODEL, prompt(), replace(arm, evictor=same)
    )


@pytest.fixture
def _own_modules() -> Iterator[None]:
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("their_"):
            del sys.modules[name]


@pytest.mark.usefixtures("_own_modules")
def test_an_installed_evictor_is_all_modules_of_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = []
    for folder, factor in (("a", 1), ("b", 1), ("c", 2)):
        package = tmp_path / folder / "their_evictors"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "helper.py").write_text(f"FACTOR = {factor}\n")
        write_evictor(package / "mine.py", "FACTOR * layer", "from .helper import FACTOR")
        with monkeypatch.context() as patch:
            patch.syspath_prepend(tmp_path / folder)
            for name in ("their_evictors", "their_evictors.helper", "their_evictors.mine"):
                sys.modules.pop(name, None)
            cls = importlib.import_module("their_evictors.mine").Mine
            patch.setattr(PageConfig, "make_evictor", lambda _, cls=cls: cls())
            keys.append(answer_key(MODEL, prompt(), ARM))
    assert keys[0] == keys[1]
    assert differs(keys[2], keys[0])


@pytest.mark.usefixtures("_own_modules")
@pytest.mark.parametrize(
    ("imports", "score"),
    [
        ("from their_helper import FACTOR", "FACTOR * layer.keys.norm(dim=-1)"),
        ("import their_package.inner", "their_package.inner.FACTOR * layer.keys.norm(dim=-1)"),
        ("", "__import__ and score_late(layer)\n\ndef score_late(layer):\n    import their_helper"),
    ],
)
def test_helpers_that_a_file_imports_are_code_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, imports: str, score: str
) -> None:
    keys = []
    for folder, factor in (("a", 1), ("b", 1), ("c", 2)):
        package = tmp_path / folder / "their_package"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "inner.py").write_text("from their_helper import FACTOR\n")
        (tmp_path / folder / "their_helper.py").write_text("from their_table import FACTOR\n")
        (tmp_path / folder / "their_table.py").write_text(f"import torch\nFACTOR = {factor}\n")
        title = write_evictor(tmp_path / folder / "mine.py", score, imports)
        for name in [name for name in sys.modules if name.startswith("their_")]:
            del sys.modules[name]
        with monkeypatch.context() as patch:
            patch.syspath_prepend(tmp_path / folder)
            arm = replace(ARM, evictor=title)  # imports it
        (tmp_path / folder / "their_table.py").write_text("FACTOR = 3\n")
        keys.append(answer_key(MODEL, prompt(), arm))
    assert keys[0] == keys[1]
    assert differs(keys[2], keys[0])


def test_a_folder_that_an_option_names_is_its_content(tmp_path: Path) -> None:
    title = write_evictor(tmp_path / "mine.py", "layer.keys.norm(dim=-1)")
    folder, linked = tmp_path / "tables", tmp_path / "linked"
    (folder / "deep").mkdir(parents=True)
    linked.mkdir()
    (folder / "link").symlink_to(linked)
    (folder / "deep" / "loop").symlink_to(folder)
    arm = replace(ARM, evictor=title, evictor_args={"table": str(folder)})
    keys = [answer_key(MODEL, prompt(), arm).digest]
    for file in (folder / "deep" / "one.json", linked / "two.json"):
        for text in ("[1]", "[2, 3]"):
            file.write_text(text)
            keys.append(answer_key(MODEL, prompt(), arm).digest)
    (folder / "deep" / "one.json").rename(folder / "one.json")
    keys.append(answer_key(MODEL, prompt(), arm).digest)
    assert len({*keys}) == len(keys) == 6
    assert answer_key(MODEL, prompt(), arm).digest == keys[-1]


@pytest.mark.parametrize("text", ["x" * 5000, "~nobody-at-all/x", "a\0b", "[1, 2]"])
def test_a_text_that_is_no_path_is_itself_alone(tmp_path: Path, text: str) -> None:
    title = write_evictor(tmp_path / "mine.py", "layer.keys.norm(dim=-1)")
    arm = replace(ARM, evictor=title, evictor_args={"table": text})
    assert answer_key(MODEL, prompt(), arm).parts["eviction"]["code"][0]["files"] == {}


def test_a_word_to_choose_is_no_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm = replace(ARM, evictor=write_evictor(tmp_path / "mine.py", "layer.keys.norm(dim=-1)"))
    before = answer_key(MODEL, prompt(), arm)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old").mkdir()
    assert answer_key(MODEL, prompt(), arm) == before


def test_a_file_that_an_option_names_is_its_content(tmp_path: Path) -> None:
    title = write_evictor(tmp_path / "mine.py", "layer.keys.norm(dim=-1)")
    table = tmp_path / "table.json"
    arm = replace(ARM, evictor=title, evictor_args={"table": str(table)})
    table.write_text("[1]")
    before = answer_key(MODEL, prompt(), arm)
    table.write_text("[2, 3]")
    assert differs(answer_key(MODEL, prompt(), arm), before)


def test_gates_trained_anew_under_the_same_name_are_others(tmp_path: Path) -> None:
    arm = replace(ARM, evictor="trimkv", evictor_args={"checkpoint": str(tmp_path)})
    keys = []
    for seed in (0, 1, 0):
        write_checkpoint(tmp_path, random_gates("rg", 2, 16, 2, seed=seed))
        keys.append(answer_key(MODEL, prompt(), arm).digest)
    assert keys[0] == keys[2] != keys[1]
