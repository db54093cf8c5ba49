"""The command `page-bench`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from page_bench.commands import cli
from page_bench.inputs.errors import UsageError


def test_command_shows_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in cli.COMMANDS)
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("page-bench ")


def test_unknown_command_names_those_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["walk"])
    assert ended.value.code == 2
    assert "run" in capsys.readouterr().err


def test_command_reports_usage_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(argv: list[str]) -> int:
        raise UsageError(f"bad {argv}.")

    module = ModuleType("failing_command")
    vars(module)["run"] = fail
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(cli.COMMANDS, "fail", cli.Command("", module.__name__))
    assert cli.main(["fail", "--x"]) == 1
    assert capsys.readouterr().err == "page-bench: bad ['--x'].\n"


def test_run_without_tasks_reaches_the_model_and_ends_cleanly(tmp_path: Path) -> None:
    start = "import sys; from page_bench.commands.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", start, "run", "-a", "evictor=snapkvv"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert "page_quickstart" in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("page-bench: evictor=snapkvv")
    assert "Traceback" not in done.stderr
