"""The import hook, mostly in an interpreter of its own."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

from page_bench.harness import plugin


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


INSTALL = "import page_bench.harness.plugin as plugin; plugin.install()"
# Where page-bench is installed, the interpreter starts with the finder in place.
WITHOUT_FINDER = (
    "import sys; sys.meta_path[:] = "
    "[f for f in sys.meta_path if type(f).__name__ != '_PostImportFinder']"
)
IMPORT = "import lm_eval.models; from lm_eval.api.registry import model_registry as r"
KNOWN = "print('page_hf' in r)"


def test_model_is_known_when_installed_before_lm_eval_is_imported() -> None:
    assert python("\n".join([WITHOUT_FINDER, INSTALL, IMPORT, KNOWN])) == "True"


def test_model_is_known_when_lm_eval_was_imported_before() -> None:
    printed = python("\n".join([WITHOUT_FINDER, IMPORT, KNOWN, INSTALL, KNOWN]))
    assert printed.split() == ["False", "True"]


def test_installing_twice_adds_one_finder_and_modules_keep_their_loader() -> None:
    printed = python(
        f"import sys; {INSTALL}; plugin.install(); import lm_eval.models as m, inspect\n"
        "print(sum(type(f) is plugin._PostImportFinder for f in sys.meta_path))\n"
        "print(type(m.__loader__).__name__, type(m.__spec__.loader).__name__)\n"
        "print('MODEL_MAPPING' in inspect.getsource(m))"
    )
    assert printed.split("\n") == ["1", "SourceFileLoader SourceFileLoader", "True"]


def test_installing_imports_nothing_else() -> None:
    printed = python(
        "import sys; before = {m for m in sys.modules if m.partition('.')[0] != 'page_bench'}\n"
        f"{INSTALL}\nprint(sorted(set(sys.modules) - before))"
    )
    assert printed == "['page_bench', 'page_bench.harness', 'page_bench.harness.plugin']"


def test_a_release_that_does_not_fit_warns_and_goes_on() -> None:
    with pytest.warns(RuntimeWarning, match=r"lm_eval\.evaluator"):
        plugin._attach(ModuleType("lm_eval.evaluator"))
