"""The results JSON of one run of page_hf, as lm-eval writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from page_bench.harness.hooks import MODEL_TARGET
from page_bench.harness.own_runs import MODEL
from page_bench.inputs import json_text
from page_bench.inputs.errors import UsageError
from page_bench.leaderboard.row import MOST_NESTED, nesting

Results = Mapping[str, Any]

_NULL = type(None)
_KINDS = {dict: "an object", str: "a text", int: "a whole number", float: "a number", _NULL: "null"}
_TEXT_OR_NULL, _COUNT_OR_NULL = (str, _NULL), (int, _NULL)
_CONFIG: dict[str, Any] = {
    **dict.fromkeys(("random_seed", "numpy_seed", "torch_seed", "fewshot_seed"), _COUNT_OR_NULL),
    "page": {
        **dict.fromkeys(("model", "evictor", "granularity", "gate", "device"), (str,)),
        **dict.fromkeys(("tau_variant", "trace_file", "page_bench"), _TEXT_OR_NULL),
        "budget": (int, float),
    },
    "model_args": (dict, _NULL),
    "limit": (int, float, _NULL),
    "gen_kwargs": (dict, str, _NULL),
}
_SHAPE: dict[str, Any] = {
    **dict.fromkeys(("results", "configs", "group_subtasks", "versions"), (dict,)),
    **dict.fromkeys(("n-shot", "n-samples"), (dict,)),
    **dict.fromkeys(("lm_eval_version", "transformers_version"), (str,)),
    **dict.fromkeys(("git_hash", "system_instruction"), _TEXT_OR_NULL),
    "date": (int, float),
    "config": _CONFIG,
}
_OF_TASK: dict[str, Any] = {
    "n-shot": _COUNT_OR_NULL,
    "configs": {"metadata": (dict, _NULL), "repeats": _COUNT_OR_NULL},
    "results": {"correct,none": (int, float, _NULL)},
    "n-samples": {"effective": (int,)},
}
"""Of each task. Null allows that the entry is missing as well."""

_CLASS = MODEL_TARGET.rpartition(":")[2]
"""What lm-eval calls a model that was given as an object."""


class OtherModelError(UsageError):
    """The results are of a model that is not page_hf, or that no command can name."""


def read_results(path: Path) -> Results:
    """What a results JSON holds; all that a leaderboard reads of it is of the right kind.

    Raises:
        OtherModelError: it is of another model.
        UsageError: it cannot be read, or is not as lm-eval writes it.
    """
    try:
        results = json_text.parse(path.read_bytes(), nan=True)
        model, page = results["config"]["model"], results["config"].get("page")
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror or error}).") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} is no whole results file of lm-eval ({error}); run again, or leave it out."
        ) from error
    if isinstance(page, dict) and (page.get("objects") or model == _CLASS):
        raise OtherModelError(
            f"{path} is of a model that was given as an object, which no command can name (run it "
            f"as --model {MODEL} with names to add it); leave it out."
        )
    if page is None or model != MODEL:
        raise OtherModelError(
            f"{path} is of --model {model}, whose cache nothing is known of; leave it out."
        )
    wrong = _wrong(results)
    if wrong is not None:
        raise UsageError(
            f"{path} is not as lm-eval writes it: {wrong}; run again, or leave it out."
        )
    results["config"] = {**dict.fromkeys(_CONFIG), **results["config"]}
    return dict(results)


def _wrong(results: Results) -> str | None:
    """The first thing that is not as it should be, as a clause."""
    if nesting(results) > MOST_NESTED:
        return f"it is nested deeper than {MOST_NESTED} levels"
    if wrong := _misshapen("", results, _SHAPE):
        return wrong
    if not results["configs"]:
        return "configs names no task"
    by_task = {part: dict.fromkeys(results["configs"], own) for part, own in _OF_TASK.items()}
    if wrong := _misshapen("", results, by_task):
        return wrong
    for task, counts in results["n-samples"].items():
        if task in results["configs"] and counts["effective"] < 1:
            return f"n-samples.{task}.effective is below 1, so that nothing was asked"
    for name, members in results["group_subtasks"].items():
        if not isinstance(members, list) or not all(isinstance(one, str) for one in members):
            return f"group_subtasks.{name} is no list of names"
    try:
        datetime.fromtimestamp(results["date"], UTC)
    except (ValueError, OverflowError, OSError):
        return f"date is {results['date']}, which is no time in seconds since 1970"
    return None


def _misshapen(where: str, held: Mapping[str, Any], shape: Mapping[str, Any]) -> str | None:
    """The first entry that is not of its kinds, or as its own shape says."""
    for name, wanted in shape.items():
        value, inner = held.get(name), isinstance(wanted, dict)
        kinds = (dict,) if inner else wanted
        if type(value) not in kinds:
            told = " or ".join(_KINDS[kind] for kind in kinds)
            return f"{where}{name} is {json.dumps(value):.40}, not {told}"
        if inner and (wrong := _misshapen(f"{where}{name}.", held[name], wanted)):
            return wrong
    return None
