"""`page-bench evictors`: complete, and true of the classes it describes."""

from __future__ import annotations

import dataclasses
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from page_bench.commands import cli
from page_bench.commands.evictors import describe
from page_bench.evictors import make_evictor, own_names
from page_bench.evictors.base import GRANULARITIES, Evictor, Wrapper
from page_bench.inputs.errors import UsageError

FOLDER = Path(__file__).parent.parent / "evictors"
NAMES = sorted(
    file.stem for file in FOLDER.glob("[!_]*.py") if file.stem not in ("base", "__init__")
)


def class_of(name: str) -> Any:
    module = importlib.import_module(f"page_bench.evictors.{name}")
    classes = [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, Evictor)]
    (found,) = (c for c in classes if c.__module__ == module.__name__)
    return found


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["evictors", *words]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return shown.out


def test_every_file_of_the_folder_is_listed_with_its_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert own_names() == NAMES
    lines = listed(capsys).splitlines()
    for name in NAMES:
        cls = class_of(name)
        title = f"{name}(OTHER)" if issubclass(cls, Wrapper) else name
        summary = cls.__doc__.splitlines()[0]
        (line,) = (line for line in lines if line.split()[:1] == [title])
        assert line == f"{title:<22}{summary}"


@pytest.mark.parametrize("name", NAMES)
def test_each_line_is_one_sentence_that_fits(name: str) -> None:
    summary = describe(name).summary
    assert summary.startswith("Keeps ")
    assert summary.endswith(".")
    assert len(summary) <= 100


def test_json_says_the_same_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    described = {one["name"]: one for one in json.loads(listed(capsys, "--json"))}
    assert list(described) == NAMES
    for name, one in described.items():
        cls = class_of(name)
        assert one["wrapper"] == issubclass(cls, Wrapper)
        assert set(one["needs"]) == cls.needs
        assert tuple(one["needs_in_words"]) == cls.needs_in_words
        assert tuple(one["granularities"]) == cls.granularities
        assert bool(one["refusal"]) == (cls.granularities != GRANULARITIES)
        defaults = {f.name: f.default for f in dataclasses.fields(cls) if f.name != "base"}
        assert {o["name"]: o["default"] for o in one["options"]} == defaults


@pytest.mark.parametrize("name", NAMES)
def test_defaults_of_each_variant_are_those_that_apply(name: str) -> None:
    cls = class_of(name)
    base = {"base": class_of("snapkv")()} if issubclass(cls, Wrapper) else {}
    for option in describe(name).options:
        assert set(option.by_variant) <= set(cls.variant_defaults)
        for variant, value in option.by_variant.items():
            applied = cls(**base, variant=variant).resolved("head")
            assert getattr(applied, option.name) == value


def test_types_are_written_as_a_person_writes_them(capsys: pytest.CaptureFixture[str]) -> None:
    types = {option.name: option.type for option in describe("snapkv").options}
    assert types["variant"] == "paper | published"
    assert types["kernel_size"] == "int"
    shown = listed(capsys)
    assert not any(word in shown for word in ("Optional", "Union", "Literal", "None"))


def test_options_stand_as_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    shown = listed(capsys, "snapkv", "streamingllm", "trimkv")
    words = [" ".join(line.split()) for line in shown.splitlines()]
    assert "kernel_size: int = 1 in paper, 5 in published" in words
    assert "options fill: bool = true" in words
    assert 'options checkpoint: str = ""' in words
    assert "needs hidden states" in words
    assert "granularity shared, layer, head" in words
    assert "h2o" not in shown


def test_a_wrapper_is_marked_and_needs_what_the_other_needs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = listed(capsys, "criticalkv")
    assert shown.startswith("criticalkv(OTHER) ")
    assert "output projection, values, what OTHER needs" in shown


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("tova", "needs last query"),
        ("compactor", "needs keys, keys before rotation, values, queries of all positions"),
        ("manifoldkv", "needs keys, keys before rotation with rope=pre"),
        ("snapkv", "= paper with granularity=shared, else published"),
        ("dynamickv", "variant: paper | published = published"),
        ("expected_attention", "use_vnorm: bool = true, false inside criticalkv"),
        ("lagkv", "note keeps what streamingllm does up to n_sink + lag + remainder positions"),
    ],
)
def test_what_depends_on_options_is_said_in_words(
    name: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = " ".join(listed(capsys, name).split())
    assert line in words


def test_a_title_lists_each_evictor_with_its_options_as_they_are_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = listed(capsys, "criticalkv(adakv(snapkv))")
    for option in ("first_stage: float", "base.floor_alpha: float", "base.base.kernel_size: int"):
        assert f" {option} " in shown
    assert "evictor.variant says nothing about an evictor inside" in shown


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("adakv()", "names nothing in its parentheses; name what adakv wraps, as in adakv(snapkv)"),
        ("adakv(snapkv", "has parentheses that do not match"),
        ("adakv(snapkv))", "has parentheses that do not match"),
        ("adakv(snapkv)(h2o)", "has parentheses that do not match"),
        ("snapkv(h2o)", "snapkv wraps no other evictor; leave (h2o) out"),
        ("adakv(snapkw)", "did you mean snapkv?"),
    ],
)
def test_a_title_that_is_none_is_refused(
    title: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["evictors", title]) == 1
    said = capsys.readouterr().err
    assert words in said
    assert len(said.splitlines()) == 1
    with pytest.raises(UsageError) as raised:
        make_evictor(title, {}, "head")
    assert words in str(raised.value)


def test_what_cannot_be_used_is_named_and_the_rest_is_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["evictors", "snapkv", "snapkvv", "h2o"]) == 1
    shown = capsys.readouterr()
    assert "snapkv " in shown.out
    assert "\nh2o " in shown.out
    assert shown.err.startswith("page-bench: evictor=snapkvv does not exist (did you mean snapkv?)")
    assert len(shown.err.splitlines()) == 1


def test_a_class_without_docstring_has_no_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\n"
        "from typing import ClassVar\n"
        "from page_bench.evictors.base import Evictor\n"
        "@dataclass(frozen=True)\n"
        "class Mine(Evictor):\n"
        "    name: ClassVar[str] = 'mine'\n"
        "    def score(self, layer, n_keep=None):\n"
        "        return layer.keys[..., 0].float()\n"
    )
    described = describe(f"{file}:Mine")
    assert (described.name, described.summary) == ("mine", "")


def test_the_command_line_itself_stays_light() -> None:
    code = "import sys, page_bench.commands.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
