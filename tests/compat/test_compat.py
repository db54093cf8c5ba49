"""The script behind `make compat`, and that pyproject's ranges are those of its matrix."""

from __future__ import annotations

import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import compat
import pytest
from interpreters import find_interpreter
from matrix import FAST_TESTS, LATEST, MATRIX, Environment
from packaging.requirements import Requirement
from packaging.version import Version

PROJECT = tomllib.loads((compat.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REPORT = """<testsuites><testsuite>
<testcase classname="tests.test_a" name="test_one"/>
<testcase classname="tests.test_a" name="test_two"><failure message="no"/></testcase>
<testcase classname="tests.test_a" name="test_three"><skipped message="none here"/></testcase>
<testcase classname="" name="tests.test_b"><error message="collection failure"/></testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize("package", ["torch", "transformers", "lm-eval"])
def test_a_range_begins_with_the_oldest_release_that_is_tried(package: str) -> None:
    requirements = [Requirement(text) for text in PROJECT["dependencies"]]
    (lower,) = (
        clause.version
        for requirement in requirements
        if requirement.name == package
        for clause in requirement.specifier
        if clause.operator == ">="
    )
    tried = {str(getattr(made, package.replace("-", "_"))) for made in MATRIX}
    assert Version(lower) == min(Version(release) for release in tried - {LATEST})
    assert LATEST in tried


def test_classifiers_name_the_pythons_that_are_tried() -> None:
    prefix = "Programming Language :: Python :: 3."
    named = {text for text in PROJECT["classifiers"] if text.startswith(prefix)}
    pythons = {made.python for made in MATRIX}
    assert named == {prefix.removesuffix("3.") + python for python in pythons}
    oldest = min(pythons, key=Version)
    assert PROJECT["requires-python"] == f">={oldest}"


def test_every_test_file_is_there() -> None:
    assert [name for name in FAST_TESTS if not (compat.ROOT / "tests" / name).is_file()] == []


def test_requirements_pin_what_is_not_the_latest() -> None:
    made = Environment("3.12", "2.6.0", LATEST, Path("/checkout"))
    assert made.requirements == ["torch==2.6.0", "transformers", "lm-eval"]
    assert made.folder == "python3.12-torch2.6.0"


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_an_interpreter_that_does_not_start_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shims, root = tmp_path / "shims", tmp_path / "root"
    monkeypatch.setenv("PATH", str(shims))
    assert find_interpreter("3.99") is None
    program(shims / "python3.99", "exit 127")
    assert find_interpreter("3.99") is None
    program(shims / "pyenv", f"echo {root}")
    works = program(root / "versions" / "3.99.1" / "bin" / "python3.99", "exit 0")
    assert find_interpreter("3.99") == works


def test_a_report_is_counted_and_what_failed_is_named(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT, encoding="utf-8")
    outcome = compat.read_report(tmp_path / "report.xml", 61.4)
    assert str(outcome) == "1 passed, 2 failed, 1 skipped, 61 s"
    assert outcome.failed == ("tests.test_a::test_two", "tests.test_b")


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(compat, "BUILT", tmp_path / "built")
    return tmp_path / "built"


def test_what_cannot_be_built_is_left_out_with_the_reason(
    empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = replace(MATRIX[0], python="3.99")
    monkeypatch.setattr(compat, "MATRIX", (missing,))
    monkeypatch.setattr(sys, "argv", ["compat.py"])
    assert compat.main() == 1  # nothing was tried
    assert capsys.readouterr().out == (
        "python 3.99, torch 2.13.0, transformers 5.4.0, lm-eval 0.4.13: left out: "
        "no interpreter python3.99 was found on PATH or in pyenv's folder\n"
    )


def test_a_command_that_fails_gives_its_last_error(empty: Path) -> None:
    empty.mkdir()
    code = "import sys; sys.exit('ERROR: none for torch\\nERROR: no such release\\nnotice')"
    with pytest.raises(compat.CannotBuild, match=r"^no such release$"):
        compat.call([sys.executable, "-c", code])


def test_a_failed_test_fails_the_command_and_is_named(
    empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = compat.Outcome(3, ("tests.test_a::test_two",), 1, 9.0)
    empty.mkdir()
    monkeypatch.setattr(compat, "build", lambda environment: Path(sys.executable))
    monkeypatch.setattr(compat, "MATRIX", MATRIX[:1])
    monkeypatch.setattr(sys, "argv", ["compat.py"])
    for outcome, status in ((failed, 1), (replace(failed, failed=()), 0)):
        monkeypatch.setattr(compat, "run_tests", lambda python, log, told=outcome: told)
        assert compat.main() == status
    first, named, last = capsys.readouterr().out.splitlines()
    assert first.endswith("lm-eval 0.4.13: 3 passed, 1 failed, 1 skipped, 9 s")
    assert named == "  failed: tests.test_a::test_two"
    assert last.endswith("lm-eval 0.4.13: 3 passed, 0 failed, 1 skipped, 9 s")
