"""The code behind an evictor, as it was when it was imported."""

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
from types import CodeType

from page_bench.evictors.base import Evictor, Wrapper
from page_bench.inputs.errors import UsageError

_OWN = "page_bench"
_KNOWN_BY_VERSION = {_OWN, "torch", "transformers", "lm_eval", "peft", "bitsandbytes"}
_INSTALLED = {"site-packages", "dist-packages"}
_REVISION_1 = {
    "AdaKV": "3cacd9fb2085477dddecb8c5d64caecb55bc8228f9ed88757a882121de72f2f1",
    "CapKV": "200e91d07804e5820dbf0541971f34e5b436a8448438fbbc0bd0ded2a6970ea2",
    "Compactor": "ceb3121bdb8a9f6c355aa63bbfd4dbc75e0ee30632f6427efee069a08c14f17c",
    "CriticalKV": "e1a1d67013d4350ee8a24a106c65e7845fb523a214f8cf961549e3706566f45a",
    "DBTrimKV": "410922d28f61e12d1acf0ae56fcf8b996df1132023a14b1f9c483c191202b740",
    "DynamicKV": "750fbdeecc46a57821229fad31b7e61b7ed98beb9a0e5b953f1de77777471ef9",
    "ExpectedAttention": "97be327c8af456f444f48bacfb0c7d2bf95e7ad8f25c380e5bc0e17f54371897",
    "H2O": "5bbd5f3a432a397a6c495a56077e7557d9cefb223477a154afe1f145d0a59ddf",
    "KeyDiff": "e43487cbdb1ff6321a61e1ecfc075d6d6dbbdf0c66b8eea45c79624723e5ad5d",
    "Knorm": "9c9f897ebc2a77943c5a34ff200d079f9ea30f33e321fbc7812b804b71b0427d",
    "LagKV": "59db5fa69be910991c43a6f6c7ff78008ad8509d3559b740091285eeefee286d",
    "Leverage": "16753c4c16bf480d1892622a9dcb20f2648e8f85a9114630b381e8de9104eb5b",
    "ManifoldKV": "ff346ec487d0cf0aeb5a59c8b8ab8b471ed09e36cddbd5d9581194c39d35d58b",
    "NoEviction": "c75554669be0795f95e32481c4f61649e8c2e070fabd87850073212a7fa1fdad",
    "PyramidKV": "dce56091e3a85fd8aa6be63f268e814c1f9f0ad25f936028704a515bb69524ea",
    "Random": "7da91d500fcf85c18f31a7a65480f6c821ab2958d01761bdf286f0543e00d64e",
    "SnapKV": "d78adf5420d74ec3be802d45591709fa6438bbedb9fd052a7eef1793f8d9d8d8",
    "StreamingLLM": "31c7669cc5ea85172f304df059aeec39ea3bafd0b1437414df2ce9d0dcf3a081",
    "TOVA": "6424c84536d65872aeb5e57b0392acf7f5f4f1345a1b27b4abf4a6b7b9fa9bfd",
    "TrimKV": "ee11a86a3298b936d43f363a1d26ce6113c049e6c3e406b0c38062ed115b1320",
}
"""Checksums of our own evictors at revision 1, under which earlier stores hold their answers."""


class SourceLoader(SourceFileLoader):
    """Runs a file as it is, never bytecode of an earlier state, and keeps what it ran."""

    source: bytes = b""

    def get_code(self, fullname: str) -> CodeType:
        self.source = self.get_data(self.path)
        code: CodeType = self.source_to_code(self.source, self.path)
        return code


# Once per class, when first asked for: what is edited later is not what runs.
@cache
def source_checksum(cls: type[Evictor]) -> str | None:
    """SHA-256 of the modules that hold an evictor's classes, and of the helpers they import.

    Page-bench's own evictors count by name and `revision`, whatever their text. Of an installed
    package, all modules count. Helpers are the modules that `import` statements name, at any
    depth, outside Python and site-packages; of a package, all its modules. A module imported by a
    computed name is not seen. None where some source code cannot be read.
    """
    known: dict[str, int | str] = {}
    others: dict[str, bytes] = {}
    try:
        for base in cls.__mro__:
            if not issubclass(base, Evictor) or base in (Evictor, Wrapper):
                continue
            module = sys.modules[base.__module__]
            top = module.__name__.partition(".")[0]
            if top == _OWN:
                known[base.__name__] = base.revision
                continue
            loader = module.__loader__
            others[f"class {base.__name__}"] = (
                loader.source
                if isinstance(loader, SourceLoader)
                else inspect.getsource(module).encode("utf-8", "surrogateescape")
            )
            if hasattr(sys.modules.get(top), "__path__"):
                others |= _read(_files(top))
        others |= _helpers(others.values())
    except (OSError, TypeError):
        return None
    if not others and set(known.values()) == {1}:
        return _REVISION_1.get(cls.__name__) or _digest(known)
    known |= {name: hashlib.sha256(content).hexdigest() for name, content in others.items()}
    return _digest(known)


def _digest(known: dict[str, int | str]) -> str:
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def _helpers(sources: Iterable[bytes]) -> dict[str, bytes]:
    """The modules that sources import from outside Python and installed packages, by name."""
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
    """Top-level names of the modules and packages that a source imports."""
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
    """What a file calls by a name; the file is run once in a process."""
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
