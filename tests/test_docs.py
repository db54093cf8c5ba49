"""What the documentation says is there: links, tests, commands, options; its examples run."""

from __future__ import annotations

import argparse
import importlib
import json
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from doc_pages import DOCS, PAGES, ROOT, blocks, commands, headings, links, spans
from finished_runs import answers, write_run
from lm_eval._cli.harness import HarnessCLI
from lm_eval.utils import simple_parse_args_string
from test_third_party import LENGTH, N_KEEP, kept, refused

from page_bench.commands import cli
from page_bench.config import PageConfig, is_ours
from page_bench.evictors import evictor_class, option_types, own_names
from page_bench.gating.gate import Facts
from page_bench.gating.gates import GATES, make_gate
from page_bench.gating.rules import known_threshold
from page_bench.harness.loading import HF_ARGUMENTS
from page_bench.harness.own_runs import MODEL
from page_bench.inputs import options
from page_bench.inputs.errors import UsageError
from page_bench.tasks import metadata

TASKS = {path.stem for path in (ROOT / "tasks").rglob("*.yaml")}
PLACEHOLDER = re.compile(r"[A-Z][A-Z_]*|b|path/to/.*|heavy_values")
"""Values that stand for others, and the name of an evictor that a page adds."""

_ARGUMENTS = re.compile(r"[\w.]+=[^,\s=…]+(?:,[\w.]+=[^,\s=…]+)*")
_FILE = re.compile(r"(page_bench|evictors|tests|sweeps|docs|leaderboard)/[\w./-]+\w")

every_page = pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix()
)

Parse = Callable[[list[str]], argparse.Namespace]


def script(name: str) -> Any:
    """A script of the documentation, as a module."""
    if str(DOCS) not in sys.path:
        sys.path.insert(0, str(DOCS))
    return importlib.import_module(name)


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch) -> Parse:
    """Parses the words of a command as the command itself would; ValueError if it cannot."""
    parsers: dict[str, argparse.ArgumentParser] = {}
    lm_eval = HarnessCLI()._parser

    def fail(parser: argparse.ArgumentParser, message: str) -> NoReturn:
        raise ValueError(message)

    def parsed(words: list[str]) -> argparse.Namespace:
        program, *rest = words
        if program == "page-bench" and rest[0] != "run":
            if rest[0] not in cli.COMMANDS:
                raise ValueError(f"{rest[0]} is no command")
            if rest[0] not in parsers:
                parsers[rest[0]] = script("command_lines").parser_of(rest[0])
            return parsers[rest[0]].parse_args(rest[1:])
        if program == "page-bench":
            rest = ["run", "--model", MODEL, *rest[1:]]
        return lm_eval.parse_args(rest if rest[0] in ("run", "ls", "validate") else ["run", *rest])

    monkeypatch.setattr(argparse.ArgumentParser, "error", fail)
    return parsed


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder to be in, with the files that the pages' commands name."""
    for page, number, name in (
        ("add-an-evictor", 0, "heavy_values"),
        ("add-a-gate", 0, "my_rule"),
        ("add-a-gate", 1, "my_gate"),
    ):
        code = blocks(DOCS / "how-to" / f"{page}.md", "python")[number]
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check_command(args: argparse.Namespace) -> None:
    """Raise for model arguments, tasks and sweep files that do not exist, placeholders aside."""
    given = getattr(args, "model_args", None) or {}
    given = simple_parse_args_string(given) if isinstance(given, str) else given
    if getattr(args, "model", None) != "hf":
        ours = {k: v for k, v in given.items() if is_ours(k)}
        PageConfig.from_arguments(ours)
        unknown = given.keys() - ours.keys() - {*HF_ARGUMENTS}
        if unknown:
            raise ValueError(f"{unknown} are no arguments of lm-eval's hf model")
    tasks = getattr(args, "tasks", None) or []
    words = [tasks] if isinstance(tasks, str) else tasks
    unknown = {name for word in words for name in word.split(",")} - TASKS
    if unknown:
        raise ValueError(f"{unknown} are no tasks")
    for file in getattr(args, "files", []):
        if not ("$" in file or PLACEHOLDER.fullmatch(file) or (ROOT / file).is_file()):
            raise ValueError(f"there is no {file}")


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in links(page):
        place, _, heading = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        if not target.exists() or (heading and heading not in headings(target)):
            broken.append(link)
    assert not broken


def test_every_page_stands_in_the_index() -> None:
    listed = links(DOCS / "README.md")
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    assert {*pages} - {*listed} == {"README.md"}
    assert "docs/README.md" in links(ROOT / "README.md")


@every_page
def test_named_tests_and_files_are_there(page: Path) -> None:
    missing = []
    for span in spans(page):
        named = re.fullmatch(r"(\w+)::(\w+)", span)
        if named and named[1] != "file":
            file = ROOT / "tests" / f"test_{named[1]}.py"
            code = file.read_text(encoding="utf-8") if file.is_file() else ""
            missing += [] if f"def test_{named[2]}(" in code else [span]
        elif _FILE.fullmatch(span) and not (ROOT / span).exists():
            missing.append(span)
    assert not missing


@every_page
@pytest.mark.usefixtures("examples")
def test_commands_can_be_typed(page: Path, parse: Parse) -> None:
    wrong = []
    for words, whole in commands(page):
        try:
            check_command(parse(words))
        except (ValueError, UsageError) as error:
            if whole or not str(error).startswith("the following arguments are required"):
                wrong.append(f"{' '.join(words)}: {error}")
    assert not wrong


@pytest.mark.parametrize(
    "line",
    [
        "page-bench sweeep x.yaml",
        "page-bench sweep sweeps/headline.yaml --plann",
        "page-bench sweep no_such.yaml",
        "lm_eval --model page_hf --model_args evictor=snapkvv --tasks page_quickstart",
        "lm_eval --model page_hf --model_args budgett=0.5 --tasks page_quickstart",
        "lm_eval --model page_hf --tasks page_quickstar",
        "lm_eval --model page_hf --taskss page_quickstart",
    ],
)
def test_what_cannot_be_typed_is_found(line: str, parse: Parse) -> None:
    with pytest.raises((ValueError, UsageError)):
        check_command(parse(shlex.split(line)))


@every_page
def test_model_arguments_and_metadata_exist(page: Path) -> None:
    known = {f"evictor.{o}" for name in own_names() for o in option_types(evictor_class(name))}
    known |= {f"gate.{o}" for cls in GATES.values() for o in options.option_types(cls)}
    known |= {"evictor.NAME", "evictor.OPTION", "evictor.FIELD", "gate.NAME", "gate.OPTION"}
    wrong = []
    for span in spans(page):
        if span.startswith("--metadata '"):
            unknown = json.loads(shlex.split(span)[1]).keys() - {*metadata.NAMES}
            wrong += [f"{span}: {unknown}"] if unknown else []
        if not _ARGUMENTS.fullmatch(span):
            continue
        given = {k: v for k, v in simple_parse_args_string(span).items() if is_ours(k)}
        if all(name.startswith(("evictor.", "gate.")) for name in given):
            # Whose options they are the text around them says.
            wrong += [span] if {n.replace(".base", "") for n in given} - known else []
            continue
        try:
            real = {k: v for k, v in given.items() if not PLACEHOLDER.fullmatch(str(v))}
            PageConfig.from_arguments(real)
        except UsageError as error:
            wrong.append(f"{span}: {error}")
    assert not wrong


def test_the_reference_is_what_the_code_says() -> None:
    assert script("make_reference").outdated() == [], "run docs/make_reference.py"


def test_the_reference_leaves_no_meaning_out() -> None:
    empty = [
        line
        for page in (DOCS / "reference").glob("*.md")
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith("| `") and line.endswith("|   |")
    ]
    # The one argument that no help text explains.
    assert [line for line in empty if "--calibration_mismatch" not in line] == []


@pytest.mark.usefixtures("examples")
def test_the_evictor_shown_is_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    title = "heavy_values.py:HeavyValues"
    assert kept(title, power=0) == kept("h2o", variant="paper", normalise_by_age=True)
    assert kept(title) != kept(title, power=0)
    counts = [len(positions) for positions in kept(title, "layer", slope=0.4)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > N_KEEP > counts[-1]
    assert sum(counts) == N_KEEP * len(counts) < LENGTH * len(counts)
    assert "give a number in [0, 1)" in refused(title, slope=1)
    with pytest.raises(UsageError, match="give granularity=layer or head"):
        kept(title, slope=0.4)
    assert sum(map(len, kept(f"adakv({title})", "head"))) == 8 * N_KEEP
    assert cli.main(["evictors", title]) == 0
    assert "heavy_values          Keeps positions of much attention" in capsys.readouterr().out


def test_the_entry_point_shown_names_the_evictor_shown() -> None:
    page = DOCS / "how-to" / "add-an-evictor.md"
    (shown,) = blocks(page, "toml")
    points = tomllib.loads(shown)["project"]["entry-points"]["page_bench.evictors"]
    ((name, target),) = points.items()
    assert f'name: ClassVar[str] = "{name}"' in blocks(page, "python")[0]
    assert f"class {target.partition(':')[2]}(Evictor)" in blocks(page, "python")[0]


def test_the_rule_shown_decides_on_finished_runs(
    examples: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    vt = {"agreement": [0.6, 0.5, 0.4]}
    for gate in ("open", "closed"):
        opens = answers(gate, **vt)[:4]
        stays = answers(gate, agreement=[0.6, 0.5, 0.55])[4:]
        write_run(examples / gate, [*opens, *stays])
    monkeypatch.setattr(sys, "argv", ["my_rule.py", str(examples)])
    runpy.run_path("my_rule.py")
    # Open on vt alone: 3 of its 4 plain answers are right, and 3 of 4 full ones of the other task.
    shown = capsys.readouterr().out
    assert "snapkv budget=0.25 n=8\n  correct 0.750 [" in shown
    assert "open    0.500 [" in shown
    assert "kept-KV 0.625" in shown


@pytest.mark.usefixtures("examples")
def test_the_gate_shown_is_a_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = runpy.run_path("my_gate.py")["DropAndShare"]
    monkeypatch.setitem(GATES, shown.name, shown)
    gate = make_gate("drop_and_share", {"least_drop": 0.1})
    threshold = known_threshold(0.3, "max_share")

    def opens(drop: float, max_share: float) -> bool:
        signals = {"drop": drop, "max_share": max_share}
        return gate.opens(Facts("vt", 0, 0, signals, threshold))

    assert [opens(0.2, 0.4), opens(0.2, 0.2), opens(0.0, 0.4)] == [True, False, False]
    assert PageConfig(gate="drop_and_share", tau=0.3).signal_names == ("drop", "max_share")


def test_a_gate_cannot_come_from_a_file() -> None:
    with pytest.raises(UsageError, match=r"gate=my_gate\.py:Mine does not exist"):
        make_gate("my_gate.py:Mine")
