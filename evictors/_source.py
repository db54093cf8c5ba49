"""The code behind an evictor, as it stood when it was imported."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from page_bench.errors import UsageError
from page_bench.evictors.base import Evictor, Wrapper

_OWN = "page_bench"
_KNOWN_BY_VERSION = {_OWN, "torch", "transformers", "lm_eval", "peft", "bitsandbytes"}
_INSTALLED = {"site-packages", "dist-packages"}


class SourceLoader(SourceFileLoader):
    """Runs a file as it stands, never bytecode of an earlier state, and keeps what it ran."""

    source: bytes = b""

    def get_code(self, fullname: str) -> CodeType:
        """The file, compiled."""
        self.source = self.get_data(self.path)
        code: CodeType = self.source_to_code(self.source, self.path)
        return code


# Once per class, when it is first asked for, so that what is edited later is not taken for what
# runs.
@cache
def source_checksum(cls: type[Evictor]) -> str | None:
    """SHA-256 of the modules that an evictor's classes stand in, and of the helpers they import.

    Of page-bench's own evictors these modules alone: what they share with others changes with
    `store.key.NUMERICS_VERSION`. Of an installed package, all its modules. Helpers are the modules
    that `import` statements name, at any depth, and that belong neither to Python nor to a
    site-packages; of a package, all its modules. A module imported by a computed name is not seen.

    Returns:
        None where some source code cannot be read.
    """
    known: dict[str, str] = {}
    others: dict[str, bytes] = {}
    try:
        for base in cls.__mro__:
            if not issubclass(base, Evictor) or base in (Evictor, Wrapper):
                continue
            module = sys.modules[base.__module__]
            top = module.__name__.partition(".")[0]
            if top == _OWN:
                known[base.__name__] = inspect.getsource(module)
                continue
            others[f"class {base.__name__}"] = _source(module)
            if hasattr(sys.modules.get(top), "__path__"):
                others |= _read(_files(top))
        others |= _helpers(others.values())
    except (OSError, TypeError):
        return None
    known |= {name: hashlib.sha256(content).hexdigest() for name, content in others.items()}
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def _source(module: ModuleType) -> bytes:
    loader = module.__loader__
    if isinstance(loader, SourceLoader):
        return loader.source
    return inspect.getsource(module).encode("utf-8", "surrogateescape")


def _helpers(sources: Iterable[bytes]) -> dict[str, bytes]:
    """What source codes import from outside Python and installed packages, by name."""
    found: dict[str, bytes] = {}
    waiting, seen = list(sources), set(sys.stdlib_module_names) | _KNOWN_BY_VERSION
    while waiting:
        for top in _imported(waiting.pop()) - seen:
            seen.add(top)
            files = _files(top)
            if any(_INSTALLED & {*path.parts} for path in files.values()):
                continue
            contents = _read(files)
            found |= contents
            waiting += contents.values()
    return found


def _imported(source: bytes) -> set[str]:
    """Names of the modules and packages, without what is in these, that a source code imports."""
    names: set[str] = set()
    # A package may hold files that are no code, templates for instance, or compiled ones.
    with suppress(SyntaxError, ValueError):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    return names


def _files(top: str) -> dict[str, Path]:
    """The files of a module or of all of a package, by a name that holds on any machine."""
    module = sys.modules.get(top)
    spec = getattr(module, "__spec__", None)
    if module is None:
        with suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(top)
    if spec is None:
        return {}
    if spec.submodule_search_locations is None:
        return {top: Path(spec.origin)} if spec.origin and spec.has_location else {}
    return {
        f"{top}/{path.relative_to(folder).as_posix()}": path
        for folder in spec.submodule_search_locations
        for path in sorted(Path(folder).rglob("*.py"))
    }


def _read(files: dict[str, Path]) -> dict[str, bytes]:
    return {name: path.read_bytes() for name, path in files.items()}


def class_in_file(path: Path, name: str) -> object:
    """What a file calls by a name; the file is run once in a process.

    Raises:
        UsageError: there is no such file or name, or the file cannot be run.
    """
    if not path.is_file():
        raise UsageError(f"evictor={path}:{name}: there is no file {path}; give its path.")
    # Dataclasses look their module up by name while they are made.
    known_as = f"page_bench_evictor_file:{path.resolve()}"
    module = sys.modules.get(known_as)
    if module is None:
        loader = SourceLoader(known_as, str(path))
        spec = importlib.util.spec_from_loader(known_as, loader)
        assert spec is not None
        module = sys.modules[known_as] = importlib.util.module_from_spec(spec)
        try:
            loader.exec_module(module)
        except Exception as error:
            del sys.modules[known_as]
            raise UsageError(f"evictor={path}:{name} could not be imported: {error}") from error
    if not hasattr(module, name):
        raise UsageError(f"evictor={path}:{name}: {path} has no class {name}.")
    return getattr(module, name)
