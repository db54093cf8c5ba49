"""W&B sweep files: from the YAML to the words of one `lm_eval run` per arm."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import yaml

from page_bench.inputs import text_file
from page_bench.inputs.errors import UsageError
from page_bench.inputs.options import nearest
from page_bench.inputs.user_path import user_path
from page_bench.sweep.parameters import MOST, Parameter, parse_parameter, short

METHODS = ("grid", "random")
_MOST_VALUES = 1_000_000
_READ = ("method", "parameters", "command", "program", "run_cap")
_TOLD = ("name", "description", "project", "entity", "metric")
"""Keys that say something to W&B and nothing to a sweep without its server."""
_SERVER = ("early_terminate", "scheduler", "job", "image_uri", "launch")
_DEFAULT_COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")
_SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
"""How environment variables end whose values must not be written down."""
_ENVIRONMENT = re.compile(r"\$\{envvar:([A-Z0-9_]*)\}")
_UNDERSTOOD = (
    "lm_eval run …, python -m lm_eval run … or page-bench run …, with /usr/bin/env before it or not"
)


@dataclass(frozen=True)
class SweepFile:
    """A sweep as its file describes it.

    Attributes:
        path: the file.
        method: `grid` or `random`.
        parameters: sorted by name, the order in which W&B's own grid takes them.
        command: the words of the command, macros included.
        program: what `${program}` stands for; None where the file names none.
        run_cap: how many arms there may be, at most; None for any number.
    """

    path: Path
    method: str
    parameters: tuple[Parameter, ...]
    command: tuple[str, ...]
    program: str | None
    run_cap: int | None

    def draws(self, count: int | None, seed: int) -> list[dict[str, Any]]:
        """The parameters of each arm.

        Args:
            count: a grid's first arms, or how many random ones; None for all of a grid, and for
                `run_cap` random ones.
            seed: of a random sweep.

        Raises:
            UsageError: a random sweep without a count, or a parameter that has no grid.
        """
        limits = [limit for limit in (count, self.run_cap) if limit is not None]
        names = [parameter.name for parameter in self.parameters]
        if self.method == "grid":
            grids = [parameter.grid() for parameter in self.parameters]
            limits.append(math.prod(map(len, grids)))
            rows = itertools.islice(itertools.product(*grids), self._checked(min(limits)))
            return [dict(zip(names, row, strict=True)) for row in rows]
        if not limits:
            raise UsageError(
                f"{self.path} draws its arms at random; say how many with --count, or with run_cap "
                f"in the file."
            )
        rng = random.Random(seed)
        return [
            {parameter.name: parameter.draw(rng) for parameter in self.parameters}
            for _ in range(self._checked(min(limits)))
        ]

    def _checked(self, arms: int) -> int:
        if arms > MOST:
            raise UsageError(
                f"{self.path} has more than {MOST:,} arms; list fewer values, or take the first "
                f"ones by --count."
            )
        return arms

    def lm_eval_words(self, drawn: Mapping[str, Any]) -> list[str]:
        """What follows `lm_eval run` in the command of one arm.

        Raises:
            UsageError: a macro that does not exist here, or a command that runs something else.
        """
        return _after_lm_eval(self._expanded(drawn), self.path)

    def _expanded(self, drawn: Mapping[str, Any]) -> list[str]:
        """The command of one arm, its macros filled in as W&B's agent does."""
        macros = {
            "env": ["/usr/bin/env"],
            "interpreter": ["python"],
            "program": [] if self.program is None else [self.program],
            "args": [f"--{name}={value}" for name, value in drawn.items()],
            "args_no_hyphens": [f"{name}={value}" for name, value in drawn.items()],
            "args_no_equals": [
                word for name, value in drawn.items() for word in (f"--{name}", str(value))
            ],
            "args_no_boolean_flags": [
                f"--{name}" if value is True else f"--{name}={value}"
                for name, value in drawn.items()
                if value is not False
            ],
            "args_json": [json.dumps(dict(drawn))],
        }
        words: list[str] = []
        for chunk in self.command:
            word = _ENVIRONMENT.sub(self._variable, chunk)
            if not (word.startswith("${") and word.endswith("}")):
                words.append(word)
                continue
            name = word[2:-1]
            if name not in macros:
                raise UsageError(
                    f"{self.path}: {word} in the command is not a macro that page-bench fills in"
                    f"{nearest(name, macros)}; there are {', '.join(macros)} and envvar:NAME."
                )
            if name == "program" and self.program is None:
                raise UsageError(
                    f"{self.path}: the command has ${{program}}; add program: lm_eval."
                )
            words += macros[name]
        return words

    def _variable(self, found: re.Match[str]) -> str:
        if found[1].endswith(_SECRETS):
            raise UsageError(
                f"{self.path}: the command reads {found[1]}, which would stand in the results, as "
                f"every argument does; leave it out, programs read such variables by themselves."
            )
        value = os.environ.get(found[1])
        if value is None:
            raise UsageError(
                f"{self.path}: the command reads the environment variable {found[1]}, which is not "
                f"set; set it."
            )
        return value


def read_sweep(path: str | Path) -> SweepFile:
    """Read a W&B sweep file.

    Raises:
        UsageError: it is no readable YAML, has keys that W&B's files have not, or asks for what
            only W&B's server can do.
    """
    path = user_path(path, "the sweep file")
    try:
        content = yaml.safe_load(text_file.read(path))
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}); name a sweep file.") from error
    except text_file.NotText as error:
        raise UsageError(f"{path} {error}; save it as UTF-8.") from error
    # PyYAML raises what Python's own types do: for dates, numbers, names that are no keys.
    except Exception as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"{path} is not YAML: {said.rstrip('.')}.") from error
    _check_size(path, content)
    if not isinstance(content, dict):
        raise UsageError(f"{path} is not a sweep: it needs the keys method, parameters, command.")
    _check_keys(path, content)
    method = content.get("method")
    if method == "bayes":
        raise UsageError(
            f"{path}: method: bayes needs W&B's server, which chooses each arm after the last; use "
            f"grid or random, or run it with `wandb sweep` and `wandb agent`."
        )
    if method not in METHODS:
        raise UsageError(
            f"{path}: method: {method} does not exist{nearest(str(method), METHODS)}; there are "
            f"{' and '.join(METHODS)}."
        )
    parameters = content.get("parameters")
    if not isinstance(parameters, dict) or not parameters:
        raise UsageError(f"{path} has no parameters; name at least one, with value or values.")
    program = content.get("program")
    run_cap = content.get("run_cap")
    if run_cap is not None and (isinstance(run_cap, bool) or not isinstance(run_cap, int)):
        raise UsageError(f"{path}: run_cap: {run_cap} is not a whole number; give one.")
    if run_cap is not None and run_cap < 1:
        raise UsageError(f"{path}: run_cap: {run_cap} leaves no arm; give a number from 1 on.")
    try:
        parsed = [parse_parameter(name, given) for name, given in parameters.items()]
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    return SweepFile(
        path=path,
        method=method,
        parameters=tuple(sorted(parsed, key=lambda parameter: parameter.name)),
        command=_command(path, content.get("command", _DEFAULT_COMMAND)),
        program=None if program is None else str(program),
        run_cap=run_cap,
    )


def _check_size(path: Path, content: object) -> None:
    """Raise for a small file that stands for an endless one: its aliases repeat parts of it."""
    waiting, seen = [content], 0
    while waiting:
        one = waiting.pop()
        seen += 1
        if seen > _MOST_VALUES:
            raise UsageError(
                f"{path} holds more than {_MOST_VALUES:,} values, those that aliases repeat "
                f"included; write a smaller one."
            )
        if isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list | tuple | set):
            waiting += one


def _check_keys(path: Path, content: Mapping[object, Any]) -> None:
    for key in content:
        if key in _SERVER:
            raise UsageError(f"{path}: {key} needs W&B's server; leave it out to run locally.")
        if key not in (*_READ, *_TOLD):
            raise UsageError(
                f"{path}: {key} is not a key of a sweep{nearest(str(key), (*_READ, *_TOLD))}; "
                f"there are {', '.join((*_READ, *_TOLD))}."
            )


def _command(path: Path, given: object) -> tuple[str, ...]:
    if isinstance(given, str):
        given = given.split()
    if not isinstance(given, list) or not given:
        raise UsageError(f"{path}: command is {short(given)}; give the list of its words.")
    if any(isinstance(word, dict | list) or word is None for word in given):
        raise UsageError(
            f"{path}: the command holds what is no word; quote what has a colon or braces."
        )
    return tuple(str(word) for word in given)


def _after_lm_eval(words: Sequence[str], path: Path) -> list[str]:
    """The words behind `lm_eval run`, whatever starts it."""
    rest = list(words)
    if rest and PurePath(rest[0]).name == "env":
        rest = rest[1:]
    if rest and re.fullmatch(r"python[\d.]*", PurePath(rest[0]).name):
        rest = rest[1:]
        if rest[:1] == ["-m"]:
            rest = rest[1:]
    program = PurePath(rest[0]).name if rest else ""
    if program in ("lm_eval", "lm-eval"):
        return rest[2:] if rest[1:2] == ["run"] else rest[1:]
    if program == "page-bench" and rest[1:2] == ["run"]:
        named = any(w.split("=")[0] in ("--model", "-M", "--config", "-C") for w in rest)
        return [*([] if named else ["--model", "page_hf"]), *rest[2:]]
    raise UsageError(
        f"{path}: the command runs {' '.join(words[:3])!r} …, but page-bench understands only "
        f"{_UNDERSTOOD}; accelerate, torchrun and the like stand before page-bench itself."
    )
