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
Kinds = tuple[type, ...]

_KINDS = {
    dict: "an object",
    list: "a list",
    str: "a text",
    int: "a whole number",
    float: "a number",
    type(None): "null",
}
_NULL = type(None)
_OBJECT, _TEXT, _COUNT, _NUMBER = (dict,), (str,), (int,), (int, float)
_TEXT_OR_NULL, _COUNT_OR_NULL = (str, _NULL), (int, _NULL)
_TOP: dict[str, Kinds] = {
    **dict.fromkeys(("results", "configs", "group_subtasks", "versions"), _OBJECT),
    **dict.fromkeys(("n-shot", "n-samples"), _OBJECT),
    **dict.fromkeys(("lm_eval_version", "transformers_version"), _TEXT),
    **dict.fromkeys(("git_hash", "system_instruction"), _TEXT_OR_NULL),
    "date": _NUMBER,
}
_CONFIG: dict[str, Kinds] = {
    **dict.fromkeys(("random_seed", "numpy_seed", "torch_seed", "fewshot_seed"), _COUNT_OR_NULL),
    "page": _OBJECT,
    "model_args": (dict, _NULL),
    "limit": (int, float, _NULL),
    "gen_kwargs": (dict, str, _NULL),
}
_PAGE: dict[str, Kinds] = {
    **dict.fromkeys(("model", "evictor", "granularity", "gate", "device"), _TEXT),
    **dict.fromkeys(("tau_variant", "trace_file", "page_bench"), _TEXT_OR_NULL),
    "budget": _NUMBER,
}
_TASK: dict[str, Kinds] = {"metadata": (dict, _NULL), "repeats": _COUNT_OR_NULL}
_FIGURES: dict[str, Kinds] = {"correct,none": (int, float, _NULL)}
"""Of one task. Null stands for what is missing as well."""


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
    # What may be null may be missing.
    results["config"] = {**dict.fromkeys(_CONFIG), **results["config"]}
    return dict(results)


def _wrong(results: Results) -> str | None:
    """The first thing that is not as it should be, as a clause."""
    if nesting(results) > MOST_NESTED:
        return f"it is nested deeper than {MOST_NESTED} levels"
    return (
        _kinds("", results, _TOP)
        or _kinds("config.", results["config"], _CONFIG)
        or _kinds("config.page.", results["config"]["page"], _PAGE)
        or _of_tasks(results)
        or _of_groups(results["group_subtasks"])
        or _date(results["date"])
    )


def _kinds(where: str, held: Mapping[str, Any], wanted: Mapping[str, Kinds]) -> str | None:
    for name, kinds in wanted.items():
        value = held.get(name)
        if type(value) not in kinds:
            told = " or ".join(_KINDS[kind] for kind in kinds)
            return f"{where}{name} is {json.dumps(value):.40}, not {told}"
    return None


def _of_tasks(results: Results) -> str | None:
    configs, counts = results["configs"], results["n-samples"]
    if not configs:
        return "configs names no task"
    names = dict.fromkeys(configs, _OBJECT)
    for part in ("configs", "results", "n-samples"):
        if wrong := _kinds(f"{part}.", results[part], names):
            return wrong
    if wrong := _kinds("n-shot.", results["n-shot"], dict.fromkeys(configs, _COUNT_OR_NULL)):
        return wrong
    for task, config in configs.items():
        wrong = (
            _kinds(f"configs.{task}.", config, _TASK)
            or _kinds(f"results.{task}.", results["results"][task], _FIGURES)
            or _kinds(f"n-samples.{task}.", counts[task], {"effective": _COUNT})
        )
        if wrong:
            return wrong
        if counts[task]["effective"] < 1:
            return f"n-samples.{task}.effective is below 1, so that nothing was asked"
    return None


def _of_groups(groups: Mapping[str, Any]) -> str | None:
    for name, members in groups.items():
        if not isinstance(members, list) or not all(isinstance(one, str) for one in members):
            return f"group_subtasks.{name} is no list of names"
    left = set(groups)
    while ends := {name for name in left if left.isdisjoint(groups[name])}:
        left -= ends
    return f"group_subtasks.{min(left)} holds itself" if left else None


def _date(date: float) -> str | None:
    try:
        datetime.fromtimestamp(date, UTC)
    except (ValueError, OverflowError, OSError):
        return f"date is {date}, which is no time in seconds since 1970"
    return None
