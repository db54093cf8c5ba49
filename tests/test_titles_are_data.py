"""An evictor's title that stands in a table or a trace runs no file, whoever reads it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from stored_traces import stored

from page_bench.commands import report
from page_bench.inputs.errors import UsageError
from page_bench.leaderboard import counterpart, page, reproduce
from page_bench.report import files


@pytest.fixture
def title(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of a class in a file that ends the test as soon as it is run."""
    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text("raise SystemExit('the file was run')\n", encoding="utf-8")
    return "evil.py:X"


@pytest.mark.parametrize("wrapper", ["{}", "adakv({})"])
def test_the_page_and_the_comparison_run_no_file(title: str, wrapper: str) -> None:
    assert page._usual(wrapper.format(title), "head") == {}
    trace = stored(evictor=wrapper.format(title), evictor_args={}, granularity="head")
    assert counterpart._paper_options(trace) is None


def test_a_rows_command_runs_no_file(title: str) -> None:
    words = ["--model_args", f"pretrained=tiny,evictor={title},budget=0.25", "--tasks", "page_vt"]
    found = reproduce.named_arm(shlex.join([*reproduce.PREFIX, *words]))
    assert (found["evictor"], found["budget"]) == (title, 0.25)


@pytest.mark.parametrize("name", ["~nobody-is-called-so/x", "x" * 5000, "a\0b"])
def test_a_report_refuses_names_that_no_file_has(name: str, tmp_path: Path) -> None:
    for words in ([name, "-o", str(tmp_path / "out")], [str(tmp_path), "-o", name]):
        with pytest.raises(UsageError):
            report.run(words)


def test_an_earlier_report_nested_too_deeply_is_none(tmp_path: Path) -> None:
    (tmp_path / files.NUMBERS).write_text("[" * 100_000, encoding="utf-8")
    assert files._earlier(tmp_path) is None
