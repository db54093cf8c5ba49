"""Apply each fault to a copy of the project and see whether its tests fail: caught, or missed.

    python tests/mutations/run.py [NAME ...]

A patch begins with the tests that are to catch it. They pass on the unchanged project, as the suite
does, so that any failure counts.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
LIST = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]


def caught(patch: Path) -> bool:
    """Whether one of the tests that a patch names fails once it is applied."""
    first, _, _ = patch.read_text(encoding="utf-8").partition("\n")
    tests = first.removeprefix("Caught by: ").split()
    listed = subprocess.run(LIST, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        for name in filter(None, listed.split("\0")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
        subprocess.run(["git", "apply", "--unsafe-paths", patch], cwd=copy, check=True)
        words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
        # The copy goes before the package that is installed.
        environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
        found = subprocess.run(words, cwd=copy, env=environment, capture_output=True, text=True)
    # A test that fails, not a file that cannot be imported, has caught something.
    failed = re.search(r"^\d+ failed", found.stdout, re.MULTILINE)
    if not (found.returncode == 0 or (found.returncode == 1 and failed)):
        raise SystemExit(f"{patch.name}: the tests did not run\n{found.stdout}{found.stderr}")
    return found.returncode == 1


def main() -> int:
    """Try all faults, or those named; 1 where one was missed."""
    patches = sorted(HERE.glob("*.patch"))
    if names := sys.argv[1:]:
        patches = [patch for patch in patches if patch.stem in names]
    missed = 0
    for patch in patches:
        start = time.perf_counter()
        is_caught = caught(patch)
        missed += not is_caught
        seconds = time.perf_counter() - start
        print(
            f"{'caught' if is_caught else 'MISSED'}  {patch.stem:<40}{seconds:6.0f} s", flush=True
        )
    print(f"{len(patches) - missed} of {len(patches)} faults caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
