"""Writes docs/reference/ from docstrings, dataclasses and the parsers of the command line.

python docs/make_reference.py           # write what has changed
python docs/make_reference.py --check   # write nothing; status 1 if something has changed
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from command_lines import LM_EVAL, described, parser_of
from docstrings import attributes_of, code, docstring_of, joined, module_text, table

from page_bench import config as arguments
from page_bench.commands import evictors
from page_bench.commands.cli import COMMANDS
from page_bench.config import PageConfig
from page_bench.evictors import evictor_class, own_names
from page_bench.evictors.base import GRANULARITIES
from page_bench.gating import rules, signals
from page_bench.gating.gate import Gate
from page_bench.gating.gates import GATES
from page_bench.gating.profile import DropOptions
from page_bench.gating.signal_gates import SIDES, Page
from page_bench.gating.threshold import zscore_threshold
from page_bench.inputs import options
from page_bench.leaderboard.columns import COLUMNS, TASK_COLUMNS, Column
from page_bench.model import attention
from page_bench.records.trace import SCHEMA_VERSION, Trace

FOLDER = Path(__file__).parent / "reference"

_CHOICES: dict[str, tuple[str, ...]] = {
    "granularity": GRANULARITIES,
    "score_norm": arguments.SCORE_NORMS,
    "gate": tuple(GATES),
    "tau": ("a number", *arguments.TAU_VARIANTS),
    "calibration_mismatch": arguments.MISMATCHES,
    "signals": arguments.SIGNAL_LEVELS,
    "compress": arguments.COMPRESSIONS,
    "truncation": arguments.TRUNCATIONS,
}
_RULES: dict[str, Callable[..., object]] = {
    "number": rules.known_threshold,
    "fixed": rules.known_threshold,
    "zscore": zscore_threshold,
    "midpoint": rules.midpoint_threshold,
    "quantile": rules.quantile_threshold,
}


def pages() -> dict[str, str]:
    """The files of the reference, by name."""
    made = {
        "evictors.md": _evictors(),
        "gates.md": _gates(),
        "model-arguments.md": _model_arguments(),
        "trace.md": _trace(),
        "leaderboard.md": _leaderboard(),
        "command-line.md": _command_line(),
    }
    note = "Made from the code by `docs/make_reference.py`; edits here are lost."
    return {
        name: "\n\n".join([parts[0], note, *filter(None, parts[1:])]) + "\n"
        for name, parts in made.items()
    }


def outdated() -> list[str]:
    """Names of the files that are not what the code says, and of those that it knows nothing of."""
    made = pages()
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*")}
    return sorted(name for name in made.keys() | there if made.get(name) != there.get(name))


def _evictors() -> list[str]:
    found = [
        "# Evictors",
        "`evictor=NAME`, a wrapper as `'evictor=NAME(OTHER)'`. Options are `evictor.OPTION=VALUE`, "
        "those of a wrapped evictor `evictor.base.OPTION=VALUE`. `page-bench evictors` prints the "
        "same list, with the evictors of installed packages. How scores become a keep set is in "
        "[concepts](../concepts.md), how the forms differ in [differences](../differences.md).",
    ]
    for name in own_names():
        cls, about = evictor_class(name), evictors.describe(name)
        facts = [f"Reads: {evictors._needs(about)}."]
        refusal = f"; else: {about.refusal.rstrip('.')}" if about.refusal else ""
        facts.append(f"Granularity: {', '.join(about.granularities)}{refusal}.")
        facts += [f"Note: {about.note}."] if about.note else []
        meanings = attributes_of(cls)
        rows = [
            (code(one.name), one.type, evictors._default(one), meanings[one.name])
            for one in about.options
        ]
        found += [
            f"## {name}{'(OTHER)' if about.wrapper else ''}",
            module_text(cls),
            docstring_of(cls).text,
            "\n".join(f"- {fact}" for fact in facts),
            table(("option", "type", "default", "meaning"), rows) if rows else "No options.",
        ]
    return found


def _gates() -> list[str]:
    rows = []
    for name, cls in GATES.items():
        gate = cls()
        reads = code(gate.signal) if gate.signal else ""
        rows.append((code(name), reads, gate.side or "", cls.labels, docstring_of(cls).summary))
    found = [
        "# Gates, signals and rules for τ",
        "`gate=NAME`, options as `gate.OPTION=VALUE`. A gate with a signal opens on its side of τ, "
        "τ included. What is not a number opens no gate.",
        "## Gates",
        table(("gate", "signal", "opens", "labels that it reads", "what it does"), rows),
    ]
    found += [part for name, cls in GATES.items() for part in _gate_options(name, cls)]
    found += ["## Signals", docstring_of(signals).text]
    found += [part for name in signals.SIGNALS for part in _signal(name)]
    found += [
        "## Rules for τ",
        "`tau=RULE`, or a number. What each must know, and how it is taken:",
    ]
    for rule, of in _RULES.items():
        about = docstring_of(of)
        found += [f"### {rule}", f"Labels: {rules.LABEL_NEEDS[rule]}.", about.text]
    found.append(
        f"`fixed` is {rules.FIXED_TAU:g}. Without other arguments `zscore` takes θ_z = "
        f"{rules.THETA_Z:g} and `quantile` an open rate of {rules.OPEN_RATE:g}; `midpoint` lies "
        f"between `{rules.CAPACITY_BOUND}` and `{rules.DILUTION_PRONE}`. Intervals of τ hold "
        f"{rules.CONFIDENCE:.0%} of {rules.BOOTSTRAP_DRAWS:,} bootstrap draws."
    )
    return found


def _gate_options(name: str, cls: type[Gate]) -> list[str]:
    types, meanings = options.option_types(cls), attributes_of(cls)
    if cls is Page:  # which takes D as these say
        meanings |= attributes_of(DropOptions)
    rows = [
        (
            code(f"gate.{one.name}"),
            evictors._type(types[one.name]),
            evictors._written(one.default),
            meanings[one.name],
        )
        for one in dataclasses.fields(cls)
    ]
    # Every gate that compares a signal has this one.
    if not rows or [one.name for one in dataclasses.fields(cls)] == ["open_when"]:
        return []
    return [f"### Options of {name}", table(("option", "type", "default", "meaning"), rows)]


def _signal(name: str) -> list[str]:
    about = docstring_of(signals.drop_of if name == "drop" else getattr(signals, name))
    facts = [f"`gate={'page' if name == 'drop' else name}` opens {SIDES[name]} τ."]
    facts += ["Reads the entropy of attention rows."] if name in signals.NEEDS_ENTROPY else []
    facts += ["Reads the keys."] if name in signals.NEEDS_KEYS else []
    returns = joined(about.sections.get("Returns", ""))
    return [f"### {name}", about.text, returns, " ".join(facts)]


def _model_arguments() -> list[str]:
    meanings = docstring_of(PageConfig).entries("Attributes")
    rows = []
    for one in dataclasses.fields(PageConfig):
        if one.name == "doc_ids":  # set by page-bench itself
            continue
        name = one.name.replace("_args", ".OPTION")
        default = "" if one.default is dataclasses.MISSING else evictors._written(one.default)
        allowed = ", ".join(_CHOICES.get(one.name, ())) or str(one.type).replace(" | None", "")
        if name != one.name:
            allowed = (
                "see [evictors](evictors.md)" if "evictor" in name else "see [gates](gates.md)"
            )
        rows.append((code(name), code(default), allowed, meanings[one.name]))
    implementations = ", ".join(map(code, attention.IMPLEMENTATIONS))
    return [
        "# Model arguments of page_hf",
        "`--model_args NAME=VALUE,…` of `lm_eval --model page_hf`, or `model_args` of "
        "`lm_eval.simple_evaluate`. All are checked before a weight is loaded.",
        table(("argument", "default", "allowed", "meaning"), rows),
        "## Those of lm-eval's hf model",
        "Every argument of lm-eval's `hf` model may stand beside them and means what it means "
        "there (`pretrained`, `dtype`, `parallelize`, `peft`, `gguf_file`, `max_length`, …), and "
        "so may attributes of the model's configuration. `pretrained` left out takes the default "
        f"model. `attn_implementation` is one of {implementations}. `tp_plan` and "
        "`backend=seq2seq` are refused, an unknown name is refused with the nearest valid ones.",
    ]


def _trace() -> list[str]:
    meanings = attributes_of(Trace)
    rows = [
        (code(one.name), str(one.type).replace(" | None", ", or null"), meanings[one.name])
        for one in dataclasses.fields(Trace)
    ]
    return [
        "# Fields of the trace",
        f"One JSON object per sample and line of `trace_*.jsonl`, schema version {SCHEMA_VERSION}. "
        "What is not a number is null, and so is what is None below.",
        docstring_of(Trace).summary,
        table(("field", "type", "meaning"), rows),
    ]


def _leaderboard() -> list[str]:
    return [
        "# Columns of the leaderboard",
        "An empty field is not known. `leaderboard/schema.json` says the same as JSON Schema.",
        "## leaderboard.csv",
        _columns(COLUMNS),
        "## tasks.csv",
        _columns(TASK_COLUMNS),
    ]


def _columns(columns: Sequence[Column]) -> str:
    rows = []
    for column in columns:
        ends = [column.least, column.most]
        bounds = ""
        if any(map(math.isfinite, ends)):
            bounds = "{} … {}".format(*(f"{end:g}" if math.isfinite(end) else "" for end in ends))
        allowed = ", ".join(column.choices) or bounds
        always = "always" if column.always else ""
        unit = column.unit or ""
        rows.append((code(column.name), column.kind, unit, allowed, always, column.meaning))
    return table(("column", "kind", "unit", "allowed", "given", "meaning"), rows)


def _command_line() -> list[str]:
    rows = [(code(name), command.summary) for name, command in COMMANDS.items()]
    found = ["# Command line", table(("command", "what it does"), rows)]
    for name in COMMANDS:
        if name == LM_EVAL:
            found += [
                f"## page-bench {name}",
                docstring_of(importlib.import_module(COMMANDS[name].module)).text,
                "Its arguments are those of `lm_eval run`, which `lm_eval run --help` lists; the "
                "model is `page_hf` unless another is named.",
            ]
        else:
            found += described(parser_of(name), 2)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Write the reference, or check it; returns the exit status."""
    parser = argparse.ArgumentParser(description="Write docs/reference/ from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing, name what has changed")
    args = parser.parse_args(argv)
    changed = outdated()
    made = {} if args.check or not changed else pages()
    for name in changed:
        if args.check:
            print(f"docs/reference/{name} is not what the code says; run docs/make_reference.py")
        elif name in made:
            FOLDER.mkdir(exist_ok=True)
            (FOLDER / name).write_text(made[name], encoding="utf-8")
        else:
            (FOLDER / name).unlink()
    return int(args.check and bool(changed))


if __name__ == "__main__":
    sys.exit(main())
