"""Build the environments of `matrix.py` and run the fast tests in each: a line per environment.

    python tests/compat/compat.py [--python X.Y] [--lm-eval FOLDER] [--fresh]

What cannot be built is left out, with the reason. Needs nothing but the standard library.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from interpreters import find_interpreter
from matrix import FAST_TESTS, LEFT_OUT, MATRIX, TEST_PACKAGES, Environment

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUILT = ROOT / "build" / "compat"
FREE_BYTES = 12_000_000_000
"""What an environment may need: most builds of torch for Linux come with CUDA's libraries."""
VERSIONS = (
    "from importlib.metadata import version as v; import platform;"
    "print(platform.python_version(), v('torch'), v('transformers'), v('lm_eval'))"
)


class CannotBuild(Exception):
    """Why an environment is left out, in a few words."""


@dataclass(frozen=True)
class Outcome:
    """What the fast tests said in one environment."""

    passed: int
    failed: tuple[str, ...]
    skipped: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.passed} passed, {len(self.failed)} failed, {self.skipped} skipped, "
            f"{self.seconds:.0f} s"
        )


def build(environment: Environment) -> Path:
    """Make or change the environment's folder; its interpreter.

    Raises:
        CannotBuild: an interpreter, a release or room on the disk is missing.
    """
    folder = BUILT / environment.folder
    python = folder / "bin" / "python"
    if not python.exists():
        interpreter = find_interpreter(environment.python)
        if interpreter is None:
            raise CannotBuild(
                f"no interpreter python{environment.python} was found on PATH or in pyenv's folder"
            )
        BUILT.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(BUILT).free < FREE_BYTES:
            raise CannotBuild(f"less than {FREE_BYTES / 1e9:.0f} GB are free in {BUILT}")
        call([interpreter, "-m", "venv", folder])
    install: list[str | Path] = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    # Named together, so that pip finds releases of all the others that fit.
    asked = [*environment.requirements, "-e", str(ROOT), *TEST_PACKAGES]
    call([*install, "--upgrade", *asked])
    if isinstance(environment.lm_eval, Path):
        # Whatever version a checkout says it is.
        call([*install, "--no-deps", "--force-reinstall", environment.lm_eval])
    return python


def call(command: Sequence[str | Path]) -> str:
    """What a command prints.

    Raises:
        CannotBuild: it failed; with the last error that it wrote.
    """
    done = subprocess.run(command, capture_output=True, text=True, cwd=BUILT)
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["no output"]
        errors = [line for line in lines if line.startswith("ERROR:")] or lines
        raise CannotBuild(errors[-1].removeprefix("ERROR: "))
    return done.stdout.strip()


def run_tests(python: Path, log: Path) -> Outcome:
    """Run the fast tests with an environment's interpreter.

    Args:
        python: the interpreter.
        log: where pytest's output goes; its report stands beside it.

    Raises:
        CannotBuild: pytest itself did not run.
    """
    report = log.with_suffix(".xml")
    report.unlink(missing_ok=True)
    words = ["-m", "pytest", "-q", "-rs", "-p", "other_releases", "-p", "no:cacheprovider"]
    words += ["-m", "not real_model", "-k", " and ".join(f"not {name}" for name in LEFT_OUT)]
    words += [f"--junitxml={report}", *(f"tests/{name}" for name in FAST_TESTS)]
    start = time.perf_counter()
    with log.open("w", encoding="utf-8") as output:
        subprocess.run(
            [python, *words], cwd=ROOT, env=variables(os.environ), stdout=output, stderr=output
        )
    if not report.exists():
        raise CannotBuild(f"pytest did not run; see {log}")
    return read_report(report, time.perf_counter() - start)


def variables(given: Mapping[str, str]) -> dict[str, str]:
    """The environment variables of a test run: one thread, no network, this folder's plugin."""
    return {
        **given,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(HERE),
    }


def read_report(report: Path, seconds: float) -> Outcome:
    """Count the cases of a JUnit report; what could not be collected has failed too."""
    passed, skipped, failed = 0, 0, []
    for case in ET.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            failed.append(f"{case.get('classname')}::{case.get('name')}".lstrip(":"))
        elif "skipped" in kinds:
            skipped += 1
        else:
            passed += 1
    return Outcome(passed, tuple(failed), skipped, seconds)


def title(environment: Environment) -> str:
    return (
        f"python {environment.python}, torch {environment.torch}, transformers "
        f"{environment.transformers}, lm-eval {environment.lm_eval}"
    )


def chosen(python: str | None, lm_eval: Path | None) -> list[Environment]:
    """The environments to try; with a checkout of lm-eval, one that has it comes last."""
    environments = [*MATRIX]
    if lm_eval is not None:
        environments.append(replace(MATRIX[2], lm_eval=lm_eval.resolve()))
    return [made for made in environments if python in (None, made.python)]


def main() -> int:
    """Try the environments; 1 where a test failed or nothing could be tried."""
    parser = argparse.ArgumentParser(description="Run the fast tests with other releases.")
    parser.add_argument("--python", metavar="X.Y", help="only environments of this Python")
    parser.add_argument(
        "--lm-eval", type=Path, metavar="FOLDER", help="one more, with this checkout of lm-eval"
    )
    parser.add_argument("--fresh", action="store_true", help="build all folders anew")
    given = parser.parse_args()
    if given.fresh:
        shutil.rmtree(BUILT, ignore_errors=True)
    tried, failures = 0, 0
    for number, environment in enumerate(chosen(given.python, given.lm_eval), start=1):
        try:
            python = build(environment)
            outcome = run_tests(python, BUILT / f"{number}.log")
            found = call([python, "-c", VERSIONS]).split()
        except CannotBuild as reason:
            print(f"{title(environment)}: left out: {reason}", flush=True)
            continue
        names = ("python", "torch", "transformers", "lm-eval")
        versions = ", ".join(
            f"{name} {release}" for name, release in zip(names, found, strict=True)
        )
        print(f"{versions}: {outcome}", *outcome.failed, sep="\n  failed: ", flush=True)
        tried += 1
        failures += len(outcome.failed)
    return 1 if failures or not tried else 0


if __name__ == "__main__":
    sys.exit(main())
