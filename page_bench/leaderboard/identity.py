"""The arm that a row is of, what its prompts and answers depend on besides, and its provenance."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from page_bench.config import is_ours
from page_bench.inputs.errors import UsageError
from page_bench.leaderboard.paths import last_part, without_folders, without_path
from page_bench.leaderboard.reproduce import (
    command_of,
    metadata_of,
    model_args,
    told_in_one_turn,
)
from page_bench.leaderboard.row import Row, to_json
from page_bench.leaderboard.run import FinishedRun
from page_bench.records.suites import split
from page_bench.records.trace import Trace

SMALL = 1_000_000_000
"""Parameters below which a model's answers demonstrate and do not count."""
GENERATED = ("page_rulergen_", "page_quickstart")
"""Suites whose prompts are generated, by how they begin."""

_LENGTH = re.compile(r"_(\d+k)(?:_|$)")
_RULES = {
    "zscore": ("theta_z", "pilot_size", "calibration"),
    "quantile": ("open_rate", "pilot_size", "calibration"),
    "midpoint": ("calibration",),
    "number": ("tau",),
}
"""What each rule for τ is given, by the names of the results."""
_NO_ANSWER = (
    *("pretrained", "dtype", "attn_implementation", "parallelize", "device_map", "max_memory"),
    *("trust_remote_code", "low_cpu_mem_usage", "revision", "subfolder", "gguf_file", "peft"),
    *("delta", "token", "use_fast_tokenizer"),
)
"""Model arguments that change no answer, or have columns of their own."""
_NAMING = re.compile(r" (?:revision|subfolder|gguf_file|peft|delta)=")
_OF_TRACE = (
    *("dtype", "attn_implementation", "protocol", "compress", "granularity", "score_norm"),
    *("n_sink", "recent", "window", "top_k", "gate", "tau_variant"),
)
_FULL: Row = {
    "evictor": "none",
    "evictor_args": "{}",
    "granularity": "shared",
    "score_norm": "none",
    "budget": 1.0,
}
"""The full cache is one arm, whatever its run would have evicted with another gate."""


def described(run: FinishedRun, suite: str, traces: Sequence[Trace]) -> dict[str, Any]:
    """All of a suite's row but its figures: identity, who measured, provenance.

    Raises:
        UsageError: its tasks word their prompts in different ways.
    """
    first, results, page = traces[0], run.results, run.page
    protocols = {trace.protocol for trace in traces}
    if len(protocols) > 1:
        told = " and ".join(sorted(map(str, protocols)))
        raise UsageError(f"{run.path}: {suite} mixes the protocols {told}; run them apart.")
    length = _LENGTH.search(suite)
    why = ["generated data"] if suite.startswith(GENERATED) else []
    parameters = results["config"].get("model_num_parameters")
    if isinstance(parameters, int) and 0 < parameters < SMALL:
        why.append(f"model of {parameters / 1e6:.0f} M parameters")
    machine = str(results.get("pretty_env_info") or "")
    return {
        **{name: getattr(first, name) for name in _OF_TRACE},
        "source": "measured",
        "demonstration": bool(why),
        "why": "; ".join(why) or None,
        "model": _model(run),
        "suite": suite,
        "length": length and length[1],
        "chat_template": bool(page.get("chat_template")),
        "evictor": without_path(first.evictor),
        "evictor_args": to_json(without_folders(first.evictor_args)),
        "gate_args": to_json({**without_folders(first.gate_args), **_rule(run, first)}),
        "budget": float(first.budget),
        "data": to_json(_data(run, traces)),
        "page_bench": page.get("page_bench"),
        "lm_eval": results.get("lm_eval_version"),
        "torch": _line(machine, "PyTorch version"),
        "transformers": results.get("transformers_version"),
        # Records of earlier versions know only the folder that the run was started in.
        "commit": page.get("page_bench_commit") or results.get("git_hash"),
        "device": _device(page["device"], machine),
        "date": datetime.fromtimestamp(float(results["date"]), UTC).date().isoformat(),
        "command": command_of(results),
        **(_FULL if first.gate == "closed" else {}),
    }


def _model(run: FinishedRun) -> str:
    """The model's name; a folder goes by its last part, whether model, adapter or file."""
    name = run.traces[0].model
    given = run.results["config"]["model_args"] or {}
    # A longer one may begin with a shorter one.
    for key in sorted(given, key=lambda key: -len(str(given[key]))):
        short = without_folders({key: given[key]})[key]
        if short != given[key]:
            name = name.replace(str(given[key]), str(short))
    # A name is followed by ` revision=…` and the like, see `loading.full_name`.
    alone = _NAMING.split(name)[0]
    return str(without_folders(alone)) + name[len(alone) :]


def _rule(run: FinishedRun, trace: Trace) -> dict[str, Any]:
    """What the rule for τ was given; a calibration file replaces the pilot, whatever its size."""
    names = _RULES.get(trace.tau_variant or "", ())
    values = {name: trace.tau if name == "tau" else run.page.get(name) for name in names}
    given = {name: value for name, value in values.items() if value is not None}
    if "calibration" in given:
        given["calibration"] = last_part(str(given["calibration"]))
        given.pop("pilot_size", None)
    return given


def _data(run: FinishedRun, traces: Sequence[Trace]) -> dict[str, Any]:
    results, config = run.results, run.results["config"]
    tasks = list(dict.fromkeys(trace.task for trace in traces))
    metadata = without_folders(metadata_of(results, tasks))
    metadata.pop("protocol", None)
    others = {
        name: value
        for name, value in model_args(config).items()
        if not is_ours(name) and name not in _NO_ANSWER
    }
    lengths = {split(t.task)[1]: (t.asked or {}).get("max_new_tokens") for t in traces}
    entries: dict[str, Any] = {
        "metadata": metadata,
        "versions": _one_or_all({split(t)[1]: results["versions"].get(t) for t in tasks}),
        "max_new_tokens": _one_or_all(lengths),
        "gen_kwargs": config.get("gen_kwargs"),
        "num_fewshot": _one_or_all({split(t)[1]: results["n-shot"].get(t, 0) for t in tasks}),
        "system_instruction": results.get("system_instruction"),
        "truncation": run.page.get("truncation"),
        "model_args": others,
    }
    known = {name: value for name, value in entries.items() if value}
    if known.get("num_fewshot") and told_in_one_turn(results):
        known["fewshot_as_multiturn"] = False
    return known


def _one_or_all(values: Mapping[str, Any]) -> Any:
    """The value that all tasks share, or the values by task."""
    first = next(iter(values.values()))
    return first if all(value == first for value in values.values()) else values


def _device(device: str, machine: str) -> str:
    kind = device.partition(":")[0]
    name = re.search(r"GPU \d+: (.+)", machine) if kind == "cuda" else None
    label = _line(machine, "Model name") if kind == "cpu" else (name and name[1].strip())
    return f"{kind} ({label})" if label else kind


def _line(machine: str, name: str) -> str | None:
    found = re.search(rf"^{re.escape(name)}:\s*(.+?)\s*$", machine, re.MULTILINE)
    return found and found[1]
