"""The literal command that reproduces a run, from its results, and which arm a command names."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from page_bench.config import PageConfig, is_ours
from page_bench.errors import UsageError
from page_bench.harness import MODEL

PREFIX = ("lm_eval", "run", "--model", MODEL)
_OF_THE_MACHINE = (
    *("trace", "store", "doc_ids"),
    *("batch_size", "max_batch_size", "device", "cache_dir", "offload_folder"),
)
"""Model arguments that change no answer and belong to where a run took place."""
_TASKS_OWN = ("version", "config_source", "description", "doc_ids", "trace")
_NAMED = ("pretrained", "evictor", "granularity", "budget", "gate")
"""What a command always says, even where the run left it to a default."""
_OURS = "page_"
"""How our groups of tasks begin."""
_SEEDS = {"random_seed": 0, "numpy_seed": 1234, "torch_seed": 1234, "fewshot_seed": 1234}
_LOCAL = ("/", "~", "./", "../", ".\\", "..\\")


def without_folders(value: Any) -> Any:
    """A value in which local paths are cut to the names that they end in."""
    if isinstance(value, Mapping):
        return {key: without_folders(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(item) for item in value]
    if not isinstance(value, str) or not is_local(value):
        return value
    return value.replace("\\", "/").rstrip("/").rpartition("/")[2]


def is_local(text: str) -> bool:
    """Whether a text is a path of a machine, rather than a name on the Hub."""
    drive = len(text) > 2 and text[0].isalpha() and text[1] == ":" and text[2] in "\\/"
    return drive or text.startswith(_LOCAL)


def without_path(title: str) -> str:
    """An evictor's title in which a class in a file goes by the file's name alone."""
    inner, _, rest = title.partition("(")
    if rest and rest.endswith(")") and ".py:" not in inner:
        return f"{inner}({without_path(rest[:-1])})"
    return title.rpartition("/")[2] if ".py:" in title and "(" not in title else title


def command_of(results: Mapping[str, Any]) -> str:
    """The command, for a shell, that gives the numbers of a results JSON again.

    Output paths, trace, store and device are left out; other local paths are cut to the name that
    they end in, for whoever runs the command to complete.

    Args:
        results: as lm-eval wrote it for page_hf.
    """
    config = results["config"]
    words = [*PREFIX, "--model_args", _key_values(model_args(config))]
    words += ["--tasks", ",".join(_asked_tasks(results))]
    samples = (config["model_args"] or {}).get("doc_ids")
    if samples:
        words += ["--samples", json.dumps(samples)]
    elif config.get("limit") is not None:
        words += ["--limit", f"{config['limit']:g}"]
    metadata = without_folders(metadata_of(results))
    if metadata:
        words += ["--metadata", json.dumps(metadata, sort_keys=True)]
    if config.get("gen_kwargs"):
        generation = config["gen_kwargs"]
        text = generation if isinstance(generation, str) else json.dumps(generation, sort_keys=True)
        words += ["--gen_kwargs", text]
    shots = {n for task, n in results["n-shot"].items() if task in results["configs"]}
    if len(shots) == 1 and shots != {0}:
        words += ["--num_fewshot", str(shots.pop())]
    if results.get("system_instruction"):
        words += ["--system_instruction", results["system_instruction"]]
    seeds = {name: config.get(name, default) for name, default in _SEEDS.items()}
    if seeds != _SEEDS:
        words += ["--seed", ",".join(str(seed) for seed in seeds.values())]
    if config["page"].get("chat_template"):
        words.append("--apply_chat_template")
    return shlex.join(words)


def model_args(config: Mapping[str, Any]) -> dict[str, Any]:
    """The model arguments of a run that change its answers, those of `_NAMED` filled in."""
    page = config["page"]
    given = {k: v for k, v in (config["model_args"] or {}).items() if k not in _OF_THE_MACHINE}
    told = {"pretrained": page["model"], **{name: page[name] for name in _NAMED[1:]}}
    if page.get("tau_variant") not in (None, "number"):
        told["tau"] = page["tau_variant"]
    args = without_folders({**told, **given})
    args["evictor"] = without_path(str(args["evictor"]))
    if isinstance(args.get("calibration"), str):
        args["calibration"] = args["calibration"].rpartition("/")[2]
    first = [*_NAMED, "tau"]
    return {name: args[name] for name in [*first, *sorted(args.keys() - {*first})] if name in args}


def metadata_of(results: Mapping[str, Any], tasks: Iterable[str] | None = None) -> dict[str, Any]:
    """What the tasks were made with: the entries that all of them have, of the same value.

    What `--metadata` gives stands in every task; an entry of some alone is these tasks' own.

    Args:
        results: as lm-eval wrote it.
        tasks: which; None for all.
    """
    config = results["config"]
    names = list(results["configs"]) if tasks is None else list(tasks)
    entries = [results["configs"][name].get("metadata") or {} for name in names]
    passed_on = {*_TASKS_OWN, *(config["model_args"] or {}), "pretrained"}
    shared = {
        name: value
        for name, value in (entries[0] if entries else {}).items()
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
    covered = {task for name in top for task in _members(name, groups)}
    return [*top, *(task for task in results["configs"] if task not in covered)]


def _members(name: str, groups: Mapping[str, Sequence[str]]) -> Iterable[str]:
    if name not in groups:
        return [name]
    return [task for member in groups[name] for task in _members(member, groups)]


def _key_values(args: Mapping[str, Any]) -> str:
    """`NAME=VALUE,…` where lm-eval reads that back as it was, else JSON."""
    from lm_eval._cli.utils import key_val_to_dict

    text = ",".join(f"{name}={value}" for name, value in args.items())
    try:
        read = None if "{" in text else key_val_to_dict(text)
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
        raise ValueError(f"no command of the form `{shlex.join(PREFIX)} …`")
    flags = dict(zip(words[len(PREFIX) :: 2], words[len(PREFIX) + 1 :: 2], strict=False))
    try:
        text = flags["--model_args"]
        args = json.loads(text) if text.startswith("{") else key_val_to_dict(text)
        tasks = flags["--tasks"].split(",")
    except (KeyError, ValueError) as error:
        raise ValueError(f"a command without readable --model_args and --tasks ({error})") from None
    try:
        page = PageConfig.from_arguments(
            {k: v for k, v in args.items() if is_ours(k) and not k.startswith("evictor")}
        )
    except UsageError as error:
        raise ValueError(f"a command that page_hf refuses: {error}") from None
    return {
        **{name: getattr(page, name) for name in ("granularity", "budget", "gate", "score_norm")},
        **{name: args.get(name) for name in ("pretrained", "evictor")},
        "tasks": tasks,
    }
