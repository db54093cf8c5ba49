"""RULER's words, read from the installed lm-eval.

They stand in the source files of its ruler tasks, which are parsed and not imported: importing
them needs packages of their own and, for some, the network.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from page_bench.inputs.errors import UsageError


@dataclass(frozen=True)
class Templates:
    """Format strings, with the fields that lm-eval gives them.

    Attributes:
        niah: {type_needle_v}, {context}, {query}.
        needle: {type_needle_v}, {key}, {value}.
        line: the noise that single needles hide in; no fields.
        niah_prefix: answer prefix for one value: {type_needle_v}, {query}.
        niah_prefix_plural: answer prefix for several values, as above.
        vt: {context}, {query}.
        vt_prefix: {num_v}, {query}.
        vt_line: the noise of vt, ending in a newline; no fields.
        cwe, fwe: {context}.
        qa: {context}, {query}.
        document: {i}, {document}.
        cwe_prefix, fwe_prefix, qa_prefix: no fields.
    """

    niah: str
    needle: str
    line: str
    niah_prefix: str
    niah_prefix_plural: str
    vt: str
    vt_prefix: str
    vt_line: str
    cwe: str
    cwe_prefix: str
    fwe: str
    fwe_prefix: str
    qa: str
    qa_prefix: str
    document: str

    @property
    def digest(self) -> str:
        """Changes with any of the words."""
        return hashlib.sha256("\0".join(astuple(self)).encode()).hexdigest()[:16]


def fill(template: str, context: str, **fields: object) -> tuple[str, str]:
    """Format a template and cut it where the question begins.

    Returns:
        Everything up to the end of the context and the newlines after it; the question.
    """
    head, tail = template.split("{context}")
    question = tail.lstrip("\n")
    newlines = tail[: len(tail) - len(question)]
    return head.format(**fields) + context + newlines, question.format(**fields)


@lru_cache(maxsize=1)
def load() -> Templates:
    """Read all templates.

    Raises:
        UsageError: lm-eval is installed in a version that keeps them elsewhere.
    """
    try:
        return _read(_folder())
    except (OSError, LookupError, ValueError, SyntaxError, TypeError) as error:
        raise UsageError(
            f"RULER's templates were not found in lm-eval {version('lm_eval')} ({error}): "
            "install the version that page-bench is tested with, `pip install lm-eval==0.4.13`."
        ) from error


def _folder() -> Path:
    spec = find_spec("lm_eval")
    for place in (spec and spec.submodule_search_locations) or ():
        return Path(place) / "tasks" / "ruler"
    raise LookupError("lm_eval is not installed")


def _read(folder: Path) -> Templates:
    def tree(name: str) -> ast.Module:
        return ast.parse((folder / name).read_text(encoding="utf-8"))

    prepare, niah, vt = tree("prepare_niah.py"), tree("niah_utils.py"), tree("vt_utils.py")
    qa = tree("qa_utils.py")
    one, several = _niah_prefixes(prepare)
    chains = _config(vt)["variable_tracking"]
    cwe, fwe = _config(tree("cwe_utils.py")), _config(tree("fwe_utils.py"))
    return Templates(
        niah=_text(niah, "TEMPLATE"),
        needle=_text(prepare, "NEEDLE"),
        line=_text(_function(prepare, "get_haystack"), "haystack"),
        niah_prefix=one,
        niah_prefix_plural=several,
        vt=chains["template"],
        vt_prefix=chains["answer_prefix"].strip(),
        vt_line=_text(vt, "noise"),
        cwe=cwe["template"],
        cwe_prefix=cwe["answer_prefix"].strip(),
        fwe=fwe["template"],
        fwe_prefix=fwe["answer_prefix"].strip(),
        qa=_config(qa)["template"],
        qa_prefix=_config(qa)["answer_prefix"].strip(),
        document=_text(qa, "DOCUMENT_PROMPT"),
    )


def _assigned(tree: ast.AST, name: str) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == name for target in node.targets
        ):
            yield node.value


def _text(tree: ast.AST, name: str) -> str:
    for value in _assigned(tree, name):
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return value.value
    raise LookupError(f"no text is assigned to {name}")


def _config(tree: ast.AST) -> dict[str, Any]:
    for value in _assigned(tree, "CONFIG"):
        return dict(ast.literal_eval(value))
    raise LookupError("no CONFIG")


def _function(tree: ast.AST, name: str) -> ast.AST:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    raise LookupError(f"no function {name}")


def _niah_prefixes(tree: ast.AST) -> tuple[str, str]:
    """The two f-strings of the conditional under the key "gen_prefix", as format strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if (
                    isinstance(key, ast.Constant)
                    and key.value == "gen_prefix"
                    and isinstance(value, ast.IfExp)
                ):
                    return _format_string(value.body), _format_string(value.orelse)
    raise LookupError("no gen_prefix")


def _format_string(value: ast.expr) -> str:
    parts = []
    for part in value.values if isinstance(value, ast.JoinedStr) else [value]:
        if isinstance(part, ast.FormattedValue):
            name = next(n.id for n in ast.walk(part.value) if isinstance(n, ast.Name))
            parts.append(f"{{{name}}}")
        else:
            parts.append(str(ast.literal_eval(part)))
    return "".join(parts)
