"""The literal command that reproduces a run, from its results, and the arm that a command names."""

from __future__ import annotations

import json
import shlex
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from page_bench.config import PageConfig, is_ours
from page_bench.harness.own_runs import MODEL
from page_bench.inputs import json_text
from page_bench.inputs.errors import UsageError
from page_bench.leaderboard.paths import is_local, last_part, without_folders, without_path
from page_bench.records.suites import split as suite_of

PREFIX = ("lm_eval", "run", "--model", MODEL)
_OF_THE_MACHINE = (
    *("trace", "store", "doc_ids"),
    *("batch_size", "max_batch_size", "device", "cache_dir", "offload_folder"),
    *("token", "use_auth_token"),
)
"""Model arguments that change no answer and belong to where a run took place, or are secret."""
_TASKS_OWN = ("version", "config_source", "description", "doc_ids", "trace")
_NAMED = ("pretrained", "evictor", "granularity", "budget", "gate")
"""What a command always says, even where the run left it to a default."""
_OURS = "page_"
"""How our groups of tasks begin."""
_NO_EXAMPLES = "page_longbench_"
"""How our tasks begin whose number of examples is 0 whatever `--num_fewshot` says."""
_SEEDS = {"random_seed": 0, "numpy_seed": 1234, "torch_seed": 1234, "fewshot_seed": 1234}
_ESCAPES = {"\n": r"\n", "\t": r"\t", "\r": r"\r", "\\": r"\\", "'": r"\u0027"}


def command_of(results: Mapping[str, Any]) -> str:
    """The command, for a shell, that gives the numbers of a results JSON again.

    Output paths, trace, store and device are left out. Other local paths are cut to the name that
    they end in; the reader completes them.
    """
    config = results["config"]
    words = [*PREFIX, "--model_args", _key_values(model_args(config))]
    words += ["--tasks", ",".join(_asked_tasks(results))]
    samples, limit = (config["model_args"] or {}).get("doc_ids"), config.get("limit")
    if samples:
        words += ["--samples", json.dumps(samples)]
    elif limit is not None:
        # A number of documents or, below 1, their share.
        whole = float(limit).is_integer()
        words += ["--limit", str(int(limit)) if whole else repr(float(limit))]
    metadata = without_folders(metadata_of(results))
    if metadata:
        words += ["--metadata", json.dumps(metadata, sort_keys=True)]
    generation = config.get("gen_kwargs")
    if generation:
        text = generation if isinstance(generation, str) else json.dumps(generation, sort_keys=True)
        words += ["--gen_kwargs", text]
    shots = _shots(results)
    if shots is not None:
        words += ["--num_fewshot", str(shots)]
    if results.get("system_instruction"):
        words += ["--system_instruction", results["system_instruction"]]
    seeds = {name: config.get(name, default) for name, default in _SEEDS.items()}
    if seeds != _SEEDS:
        words += ["--seed", ",".join(str(seed) for seed in seeds.values())]
    if told_in_one_turn(results):
        words += ["--fewshot_as_multiturn", "false"]
    if config["page"].get("chat_template"):
        words.append("--apply_chat_template")
    return " ".join(map(_quoted, words))


def is_control(character: str) -> bool:
    """Whether a character is not printed, such as a line feed or a change of direction."""
    return unicodedata.category(character).startswith("C")


def _quoted(word: str) -> str:
    """A word for a shell, without control characters.

    A word that holds one becomes `$'…'`, which bash, zsh and ksh read. Its quotes are escaped by
    number, so that `shlex` finds its end as well.
    """
    if not any(map(is_control, word)):
        return shlex.quote(word)
    escaped = (_ESCAPES.get(c, f"\\U{ord(c):08x}" if is_control(c) else c) for c in word)
    return f"$'{''.join(escaped)}'"


def told_in_one_turn(results: Mapping[str, Any]) -> bool:
    """Whether a chat template was applied to examples as one message, against lm-eval's default."""
    templated = results["config"]["page"].get("chat_template")
    return bool(templated) and results.get("fewshot_as_multiturn") is False


def _shots(results: Mapping[str, Any]) -> int | None:
    """What `--num_fewshot` must say; None where only the tasks' own numbers can be meant."""
    tasks = [task for task in results["configs"] if not task.startswith(_NO_EXAMPLES)]
    shots = {results["n-shot"].get(task, 0) for task in tasks}
    # Ours show no examples by themselves; another task's own number may be above 0.
    if len(shots) != 1 or (shots == {0} and all(suite_of(task)[0] != task for task in tasks)):
        return None
    number: int = shots.pop()
    return number


def model_args(config: Mapping[str, Any]) -> dict[str, Any]:
    """The model arguments of a run that change its answers, those of `_NAMED` filled in."""
    page = config["page"]
    given = {k: v for k, v in (config["model_args"] or {}).items() if k not in _OF_THE_MACHINE}
    told = {"pretrained": page["model"], **{name: page[name] for name in _NAMED[1:]}}
    if page.get("tau_variant") not in (None, "number"):
        told["tau"] = page["tau_variant"]
    whole = {**told, **given}
    args = without_folders(whole)
    args["evictor"] = without_path(str(whole["evictor"]))
    if whole.get("calibration") is not None:
        args["calibration"] = last_part(str(whole["calibration"]))
    first = [*_NAMED, "tau"]
    return {name: args[name] for name in [*first, *sorted(args.keys() - {*first})] if name in args}


def metadata_of(results: Mapping[str, Any], tasks: Iterable[str] | None = None) -> dict[str, Any]:
    """What these tasks, or all, were made with: entries that all have, of the same value.

    What `--metadata` gives is in every task; an entry of some alone is these tasks' own.
    """
    config = results["config"]
    names = list(results["configs"]) if tasks is None else list(tasks)
    entries = [results["configs"][name].get("metadata") or {} for name in names]
    passed_on = {*_TASKS_OWN, *(config["model_args"] or {}), "pretrained"}
    shared = {
        name: value
        for name, value in entries[0].items()
        if name not in passed_on
        and all(name in other and other[name] == value for other in entries)
    }
    tokenizer = shared.get("tokenizer")
    if tokenizer == config["page"]["model"] or is_local(str(tokenizer)):
        del shared["tokenizer"]
    return shared


def _asked_tasks(results: Mapping[str, Any]) -> list[str]:
    """Our groups, the outermost only, and the tasks beside them; others' groups may change."""
    groups: Mapping[str, Sequence[str]] = {
        name: members
        for name, members in results["group_subtasks"].items()
        if members and name.startswith(_OURS)
    }
    inner = {name for members in groups.values() for name in members}
    top = [name for name in groups if name not in inner]
    covered, left = set(top), list(top)
    while left:
        members = {*groups.get(left.pop(), ())} - covered
        covered |= members
        left += members
    return [*top, *(task for task in results["configs"] if task not in covered)]


def _key_values(args: Mapping[str, Any]) -> str:
    """`NAME=VALUE,…` where lm-eval reads that back as it was, else JSON."""
    from lm_eval._cli.utils import key_val_to_dict

    text = ",".join(f"{name}={value}" for name, value in args.items())
    try:
        read = None if "{" in text or any(map(is_control, text)) else key_val_to_dict(text)
    except ValueError:
        read = None
    same = read == args and [*map(type, (read or {}).values())] == [*map(type, args.values())]
    return text if same else json.dumps(args)


def named_arm(command: str) -> dict[str, Any]:
    """What a command of `command_of` says of model and arm, page-bench's defaults filled in.

    Returns:
        Model arguments of page_hf and `pretrained`; `tasks`, a list.

    Raises:
        ValueError: it is no such command; the message is a phrase after `is`.
    """
    from lm_eval._cli.utils import key_val_to_dict

    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"no shell command ({error})") from None
    if tuple(words[: len(PREFIX)]) != PREFIX:
        raise ValueError(f"no command of the form `{' '.join(PREFIX)} …`")
    flags = dict(zip(words[len(PREFIX) :: 2], words[len(PREFIX) + 1 :: 2], strict=False))
    try:
        text = flags["--model_args"]
        args = json_text.parse(text, nan=True) if text.startswith("{") else key_val_to_dict(text)
        tasks = flags["--tasks"].split(",")
    except (KeyError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"a command without readable --model_args and --tasks ({error})") from None
    ours = {k: v for k, v in args.items() if is_ours(k) and not k.startswith("evictor")}
    budget = ours.pop("budget", PageConfig.budget)
    try:
        page = _page(json.dumps(ours, sort_keys=True, default=repr))
        if type(budget) not in (int, float) or not 0 < budget <= 1:
            raise UsageError(f"budget={budget} is no share above 0.")
    except UsageError as error:
        told = str(error).removesuffix(".")
        raise ValueError(f"a command that page_hf refuses: {told}") from None
    return {
        **{name: getattr(page, name) for name in ("granularity", "gate", "score_norm")},
        **{name: args.get(name) for name in ("pretrained", "evictor")},
        "budget": budget,
        "tasks": tasks,
    }


@cache
def _page(arguments: str) -> PageConfig:
    """What arguments in JSON mean; to find out takes a while, and rows differ in few of them."""
    return PageConfig.from_arguments(json.loads(arguments))
