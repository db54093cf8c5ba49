"""What SECURITY.md promises: no code from data, no secret in a file, no name that leads astray."""

from __future__ import annotations

import ast
import dataclasses
import json
from pathlib import Path

import pytest
from finished_runs import answers, write_run
from fuzzing import HOSTILE_NAMES, fuzzed
from hypothesis import given
from hypothesis import strategies as st
from test_fuzz_runs import calibration

import page_bench
from page_bench.commands import regate as regate_command
from page_bench.commands import report as report_command
from page_bench.commands.wandb_import import importer
from page_bench.commands.wandb_import.finished import finished_runs
from page_bench.evictors import is_in_file
from page_bench.gating.calibration import Calibration
from page_bench.harness.lm import PageLM
from page_bench.harness.wandb.run import _name as artifact_name
from page_bench.inputs.errors import UsageError, one_line
from page_bench.pages.figures import Drawn
from page_bench.report import files as report_files
from page_bench.sweep.arms import _name as arm_name
from page_bench.tasks.tokenizer import tokenizer_of

FOLDER = Path(page_bench.__file__).parent

# Nothing runs what a file or an argument holds

_FORBIDDEN = {
    *("eval", "exec", "compile", "__import__", "execfile"),
    *("os.system", "os.popen", "os.startfile", "subprocess.getoutput", "commands.getoutput"),
    *("pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.load", "marshal.loads"),
    *("shelve.open", "dill.load", "dill.loads", "cloudpickle.load", "cloudpickle.loads"),
    *("joblib.load", "pandas.read_pickle", "pd.read_pickle", "runpy.run_path", "runpy.run_module"),
    *("yaml.unsafe_load", "yaml.full_load", "yaml.unsafe_load_all", "yaml.full_load_all"),
    *("torch.hub.load", "tempfile.mktemp"),
}
_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "runpy", "pty"}
_BY_DESIGN = {
    ("harness/plugin.py", "exec_module"): "imports lm-eval's own modules, which are installed",
    ("evictors/_source.py", "exec_module"): "evictor=path/to/file.py:Class runs that file",
}


def offences(source: str, file: str = "x.py") -> list[str]:
    """Calls and imports that run code from data, by name and line."""
    tree = ast.parse(source)
    safe = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any("SafeLoader" in ast.unparse(b) for b in node.bases)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            found += [f"import {n}" for n in names if n.partition(".")[0] in _MODULES]
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        words = {word.arg: ast.unparse(word.value) for word in node.keywords}
        wrong = [
            called in _FORBIDDEN,
            called == "torch.load" and words.get("weights_only") != "True",
            called in ("yaml.load", "yaml.load_all")
            and not {*words.values(), *map(ast.unparse, node.args)}
            & {"yaml.SafeLoader", "yaml.CSafeLoader", *safe},
            called.startswith(("os.exec", "os.spawn")),
            words.get("shell", "False") != "False",
            words.get("allow_pickle", "False") != "False",
            words.get("trust_remote_code", "False") == "True",
            called.endswith(".exec_module") and (file, "exec_module") not in _BY_DESIGN,
        ]
        if any(wrong):
            found.append(f"{file}:{node.lineno} {called}")
    return found


def test_no_code_runs_what_data_holds() -> None:
    files = sorted({path.resolve() for path in FOLDER.rglob("*.py")} | _linked())
    assert len(files) > 200
    found = []
    for path in files:
        name = path.relative_to(FOLDER.parent).as_posix().removeprefix("page_bench/")
        found += offences(path.read_text(encoding="utf-8"), name)
    assert not found


def _linked() -> set[Path]:
    """In a checkout evictors and tasks are links, which `rglob` does not follow."""
    return {
        path.resolve() for part in ("evictors", "tasks") for path in (FOLDER / part).rglob("*.py")
    }


@pytest.mark.parametrize(
    "source",
    [
        "eval(x)",
        "exec(x)",
        "import os; os.system(x)",
        "import pickle",
        "from pickle import loads",
        "subprocess.run(x, shell=True)",
        "torch.load(x)",
        "torch.load(x, weights_only=False)",
        "yaml.load(x, yaml.Loader)",
        "yaml.load(x)",
        "np.load(x, allow_pickle=True)",
        "AutoModel.from_pretrained(x, trust_remote_code=True)",
        "loader.exec_module(m)",
        "os.execvp(x, y)",
    ],
)
def test_the_search_finds(source: str) -> None:
    assert offences(source)


def test_the_search_lets_pass_what_is_safe() -> None:
    source = """
class _Loader(yaml.SafeLoader): pass
yaml.load(x, _Loader)
yaml.safe_load(x)
torch.load(x, weights_only=True)
subprocess.run([x])
"""
    assert offences(source) == []


@pytest.fixture
def with_own_code(tmp_path: Path) -> Path:
    """A model's folder with code of its own, which leaves a mark where it is run."""
    folder = tmp_path / "model"
    folder.mkdir()
    mark = f"open({str(tmp_path / 'ran')!r}, 'w').close()\n"
    (folder / "own.py").write_text(
        mark + "from transformers import LlamaConfig, PreTrainedTokenizerFast\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own'\n"
        "class OwnTokenizer(PreTrainedTokenizerFast):\n    pass\n"
    )
    config = {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig"}}
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = {"auto_map": {"AutoTokenizer": ["own.OwnTokenizer", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return folder


def test_a_models_own_code_runs_only_where_it_is_asked_for(with_own_code: Path) -> None:
    mark = with_own_code.parent / "ran"
    with pytest.raises(UsageError, match="could not be loaded"):
        PageLM(str(with_own_code), device="cpu")
    with pytest.raises(UsageError, match="could not be loaded"):
        tokenizer_of({"pretrained": str(with_own_code)})
    with pytest.raises(UsageError, match="give true or false"):
        tokenizer_of({"pretrained": str(with_own_code), "trust_remote_code": "no"})
    assert not mark.exists()
    # The mark itself works.
    with pytest.raises(UsageError):
        PageLM(str(with_own_code), device="cpu", trust_remote_code=True)
    assert mark.exists()


def test_evictors_of_files_are_told_apart_without_running_them(tmp_path: Path) -> None:
    (tmp_path / "e.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    assert is_in_file(f"{tmp_path}/e.py:Own")
    assert is_in_file(f"adakv({tmp_path}/e.py:Own)")
    assert not is_in_file("adakv(snapkv)")
    assert not (tmp_path / "ran").exists()


# Names

_NAMES = st.sampled_from(HOSTILE_NAMES) | st.text(max_size=300)


@fuzzed(60)
@given(st.lists(_NAMES, min_size=1, max_size=3))
def test_folders_of_arms_stay_where_they_belong(words: list[str]) -> None:
    name = arm_name(words, "0123456789abcdef")
    assert Path(name).name == name
    assert name.isascii()
    assert name.isprintable()
    assert not set(name) & set('/\\:*?"<>|$` ')
    assert not name.startswith((".", "~"))
    assert len(name) < 128


@fuzzed(60)
@given(_NAMES)
def test_artifacts_have_names_that_wandb_takes(which: str) -> None:
    name = artifact_name("calibration", which)
    assert name.startswith("calibration-")
    assert not set(name) - {*"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"}
    assert len(name) <= 128


@fuzzed(60)
@given(_NAMES)
def test_messages_are_one_visible_line(text: str) -> None:
    assert one_line(text).isprintable() or max(one_line(text)) >= "\u00a0"
    assert "\n" not in one_line(text)


def test_an_import_uploads_no_other_file_than_a_calibration(tmp_path: Path) -> None:
    """Results from elsewhere may name any file of whoever imports them."""
    private, pilot = tmp_path / "netrc", tmp_path / "tau.json"
    private.write_text("machine api.wandb.ai password secret\n")
    made: Calibration = calibration()
    made.save(pilot)
    write_run(tmp_path / "run", answers("page"), page={"calibration": str(private)})
    ((run,), _) = finished_runs([str(tmp_path / "run")])
    assert importer._calibration(run.page["calibration"]) is None
    assert importer._calibration(str(pilot)) == str(pilot)
    assert importer._calibration(5) is None
    assert importer._calibration("a\x00b") is None


def test_hostile_names_in_runs_lead_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What others' runs call their models, tasks and evictors names no file of ours."""
    work, out = tmp_path / "work", tmp_path / "work" / "out"
    work.mkdir()
    outside = tmp_path / "outside"
    names = {
        "model": str(outside),
        "evictor": f"{work}/own.py:Own",
        "protocol": "../../outside",
        "answer": "<script>alert(1)</script>",
    }
    (work / "own.py").write_text(f"open({str(outside)!r}, 'w').close()\n")
    for gate in ("open", "closed"):
        traces = [
            dataclasses.replace(trace, task=f"../../outside/{trace.task}")
            for trace in answers(gate, **names)
        ]
        write_run(work / "runs" / gate, traces)
    before = {path for path in tmp_path.rglob("*") if not path.is_relative_to(out)}
    runs = str(work / "runs")
    figure = str(out / "tau.svg")
    out.mkdir()
    draws = ["--draws", "100"]
    regate_command.run([runs, "--sweep", "--gate", "page", "--figure", figure, *draws])
    # Drawing takes seconds, and what is drawn has no names of files.
    monkeypatch.setattr(report_files, "drawn", lambda chart: Drawn(b"png", b"<svg/>"))
    report_command.run([runs, "-o", str(out / "report"), *draws])
    capsys.readouterr()
    assert {path for path in tmp_path.rglob("*") if not path.is_relative_to(out)} == before
    assert not outside.exists()
    page = (out / "report" / "report.html").read_text()
    assert "<script" not in page
    assert {path.parent.name for path in (out / "report").rglob("*")} <= {
        "report",
        "tables",
        "figures",
    }
