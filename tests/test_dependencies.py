"""Packages that are declared, imported, and installed by a plain `pip install page-bench`."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FOLDERS = ("page_bench", "evictors", "tasks")
UNSEEN = {
    "accelerate": "transformers, for device_map and parallelize",
    "gguf": "transformers, for the default model's file",
    "safetensors": "transformers, for the default model's copy",
}
"""Declared, but imported by another package on our behalf."""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def named(requirements: list[str]) -> set[str]:
    return {normal(Requirement(one).name) for one in requirements}


def imported() -> dict[str, set[str]]:
    """Names of modules that are none of ours or Python's, with the files that import them."""
    found: dict[str, set[str]] = {}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    names = [node.module]
                for name in names:
                    top = name.partition(".")[0]
                    if top != "page_bench" and top not in sys.stdlib_module_names:
                        found.setdefault(top, set()).add(path.relative_to(ROOT).as_posix())
    return found


def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    core = named(PROJECT["dependencies"])
    known = packages_distributions()
    used: set[str] = set()
    for module, files in imported().items():
        offered = {normal(name) for name in known.get(module, ())}
        if module == "ray":  # an extra; the module that imports it says so
            assert files == {"page_bench/sweep/ray_workers.py"}
            continue
        assert offered & core, f"{module}, which {sorted(files)} import, is not declared"
        used |= offered & core
    assert core - used == set(UNSEEN)


def test_a_plain_install_brings_nothing_under_the_gpl() -> None:
    waiting, seen = [(one, "") for one in PROJECT["dependencies"]], set()
    while waiting:
        text, extra = waiting.pop()
        need = Requirement(text)
        if need.marker is not None and not need.marker.evaluate({"extra": extra}):
            continue
        for chosen in need.extras or {""}:
            if (normal(need.name), chosen) not in seen:
                seen.add((normal(need.name), chosen))
                waiting += [(one, chosen) for one in distribution(need.name).requires or ()]
    names = {name for name, _ in seen}
    assert {"torch", "lm-eval", "jieba", "rouge", "wonderwords"} <= names
    for name in names:
        metadata = distribution(name).metadata
        fields = ("License-Expression", "License", "Classifier")
        values = [value for field in fields for value in metadata.get_all(field) or ()]
        # The field License may hold a whole licence, which names others.
        licences = [value.partition("\n")[0] for value in values if "Topic ::" not in value]
        # The lesser licence lets others use a library.
        told = [one for one in licences if re.search(r"(?<!L)GPL", one) and "Lesser" not in one]
        assert not told, f"{name}: {told}"


def test_constraints_name_every_declared_package() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {normal(line.partition("==")[0]) for line in lines if "==" in line}
    optional = PROJECT["optional-dependencies"]
    asked = [*PROJECT["dependencies"], *(one for extra in optional.values() for one in extra)]
    assert named(asked) - {"page-bench"} <= pinned
