"""RULER's words, read from the installed lm-eval.

They are in the source files of its ruler tasks, which are parsed and not imported: importing them
needs packages of their own and, for some, the network.
"""

from __future__ import annotations

import ast
import hashlib
from contextlib import suppress
from dataclasses import astuple, dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import lm_eval

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
    """Format a template and cut it: up to the newlines after the context; the question."""
    head, tail = template.split("{context}")
    question = tail.lstrip("\n")
    newlines = tail[: len(tail) - len(question)]
    return head.format(**fields) + context + newlines, question.format(**fields)


@lru_cache(maxsize=1)
def load() -> Templates:
    """Read all templates; UsageError: the installed lm-eval keeps them elsewhere."""
    try:
        return _read(_folder())
    except (OSError, LookupError, StopIteration, ValueError, SyntaxError, TypeError) as error:
        raise UsageError(
            f"RULER's templates were not found in lm-eval {version('lm_eval')} ({error}): "
            "install the version that page-bench is tested with, `pip install lm-eval==0.4.13`."
        ) from error


def _folder() -> Path:
    return Path(lm_eval.__file__).parent / "tasks" / "ruler"


def _read(folder: Path) -> Templates:
    def tree(name: str) -> ast.Module:
        return ast.parse((folder / name).read_text(encoding="utf-8"))

    prepare, niah, vt = tree("prepare_niah.py"), tree("niah_utils.py"), tree("vt_utils.py")
    haystack = next(n for n in ast.walk(prepare) if getattr(n, "name", "") == "get_haystack")
    one, several = _niah_prefixes(prepare)
    qa, chains = tree("qa_utils.py"), _assigned(vt, "CONFIG", dict)["variable_tracking"]
    cwe = _assigned(tree("cwe_utils.py"), "CONFIG", dict)
    fwe = _assigned(tree("fwe_utils.py"), "CONFIG", dict)
    documents = _assigned(qa, "CONFIG", dict)
    return Templates(
        niah=_assigned(niah, "TEMPLATE", str),
        needle=_assigned(prepare, "NEEDLE", str),
        line=_assigned(haystack, "haystack", str),
        niah_prefix=one,
        niah_prefix_plural=several,
        vt=chains["template"],
        vt_prefix=chains["answer_prefix"].strip(),
        vt_line=_assigned(vt, "noise", str),
        cwe=cwe["template"],
        cwe_prefix=cwe["answer_prefix"].strip(),
        fwe=fwe["template"],
        fwe_prefix=fwe["answer_prefix"].strip(),
        qa=documents["template"],
        qa_prefix=documents["answer_prefix"].strip(),
        document=_assigned(qa, "DOCUMENT_PROMPT", str),
    )


_Literal = TypeVar("_Literal", str, dict[str, Any])


def _assigned(tree: ast.AST, name: str, kind: type[_Literal]) -> _Literal:
    """The first literal of a kind that is assigned to a name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and name in [getattr(t, "id", "") for t in node.targets]:
            with suppress(ValueError, TypeError):
                value = ast.literal_eval(node.value)
                if isinstance(value, kind):
                    return value
    raise LookupError(f"no {kind.__name__} is assigned to {name}")


def _niah_prefixes(tree: ast.AST) -> tuple[str, str]:
    """The two f-strings of the conditional under the key "gen_prefix", as format strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                named = isinstance(key, ast.Constant) and key.value == "gen_prefix"
                if named and isinstance(value, ast.IfExp):
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
