"""What is installed, what an interpreter start then imports, and what an uninstall leaves."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PTH = "page_bench_lm_eval.pth"
ASSETS = [f"assets/{name}" for name in ("page.html", "page.css", "dom.js", "charts.js", "table.js")]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
KNOWS_PAGE_HF = (
    "import lm_eval.models; from lm_eval.api.registry import model_registry as models;"
    "import page_bench; print('page_hf' in models, page_bench.__path__[0])"
)
FINDS_FOLDERS = (
    "from page_bench import evictors; from page_bench.harness import hooks;"
    "print(evictors.__file__, hooks.TASKS_FOLDER)"
)


@dataclass(frozen=True)
class Environment:
    """A throwaway virtual environment that sees the packages of the running one, but not us."""

    folder: Path

    @property
    def site(self) -> Path:
        return next(self.folder.glob("lib*/python*/site-packages"))

    def python(self, code: str) -> str:
        # From a folder that is not the checkout, and without a PYTHONPATH that may lead to it.
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return run([str(self.folder / "bin/python"), "-c", code], self.folder, clean).strip()

    def pip(self, *arguments: str) -> None:
        run([*PIP, "--python", str(self.folder / "bin/python"), *arguments], self.folder)

    def files(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*")}

    def modules_at_start(self) -> set[str]:
        return set(self.python("import sys; print(*sys.modules)").split())


def run(command: list[str], folder: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    made = Environment(tmp_path / "env")
    venv.create(made.folder, with_pip=False)
    packages = [path for path in sys.path if Path(path).name == "site-packages"]
    (made.site / "zz_parent.pth").write_text("\n".join(packages))
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run([*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", str(ROOT)], folder)
    (built,) = folder.glob("page_bench-*.whl")
    return built


def sources(folder: str) -> set[str]:
    """Files of a folder of the checkout, as they stand below `page_bench/` in a wheel."""
    found = (path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.is_file())
    return {path.as_posix() for path in found if "__pycache__" not in path.parts}


def test_wheel_holds_every_file_of_the_package_once(wheel: Path) -> None:
    names = Counter(zipfile.ZipFile(wheel).namelist())
    assert max(names.values()) == 1
    in_package = {name.removeprefix("page_bench/") for name in names if "dist-info" not in name}
    package = ROOT / "page_bench"
    found = [path.relative_to(package) for path in package.rglob("*.py")]
    assets = {f"leaderboard/{name}" for name in ("published.csv", "schema.json", *ASSETS)}
    assets |= {"pages/kept.html", "pages/kept.js"}
    # The links to evictors and tasks may or may not be followed.
    code = {path.as_posix() for path in found if path.parts[0] not in ("evictors", "tasks")}
    assert in_package == {PTH} | code | assets | sources("evictors") | sources("tasks")


def test_wheel_install_is_known_to_lm_eval_and_leaves_nothing(
    wheel: Path, environment: Environment
) -> None:
    check_install(environment, [str(wheel)], package=environment.site / "page_bench")
    assert not list(environment.site.glob("*page_bench*"))


def test_editable_install_is_known_to_lm_eval_and_leaves_nothing(environment: Environment) -> None:
    checkout = {path.name for path in ROOT.iterdir()}
    check_install(environment, ["--no-build-isolation", "-e", str(ROOT)], ROOT / "page_bench")
    assert {path.name for path in ROOT.iterdir()} == checkout


def check_install(environment: Environment, what: list[str], package: Path) -> None:
    files, modules = environment.files(), environment.modules_at_start()
    environment.pip("install", "--no-deps", "--no-index", *what)
    assert (environment.folder / "bin/page-bench").exists()
    assert (environment.site / PTH).exists()
    assert environment.python(KNOWS_PAGE_HF) == f"True {package}"
    assert environment.python(FINDS_FOLDERS).split() == [
        str(package / "evictors/__init__.py"),
        str(package / "tasks"),
    ]
    # No torch, numpy, lm_eval or pathlib: every interpreter of the environment pays for these.
    assert environment.modules_at_start() - modules == {
        *("page_bench", "page_bench.harness", "page_bench.harness.plugin"),
    }
    environment.pip("uninstall", "--yes", "page-bench")
    assert environment.files() == files
    assert environment.modules_at_start() == modules
