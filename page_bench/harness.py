"""What page-bench adds to lm-eval's own modules: its model, its tasks and its defaults.

`plugin` calls one of the five public functions for each module of lm-eval that has been imported.
Each may be called again on the same module, and steps aside where lm-eval does its work itself.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from pathlib import Path
from types import ModuleType
from typing import Any

from page_bench.errors import UsageError

MODEL = "page_hf"
MODEL_TARGET = "page_bench.lm:PageLM"
DEFAULT_TASKS = ("page_quickstart",)
TASKS_FOLDER = Path(__file__).parent / "tasks"

_REFUSED_CACHES = {
    "use_cache": "--use_cache",
    "cache_requests": "--cache_requests",
    "rewrite_requests_cache": "--cache_requests",
}
_CONSTRUCTOR_FLAGS = ("batch_size", "max_batch_size", "device")

_log = logging.getLogger(__name__)


def register_model(module: ModuleType) -> None:
    """Make `page_hf` known. Takes `lm_eval.models`."""
    from lm_eval.api import registry

    if hasattr(registry, "load_plugins"):  # then lm-eval reads our entry point itself
        return
    if MODEL not in registry.model_registry:
        registry.model_registry.register(MODEL, target=MODEL_TARGET)


def add_tasks(module: ModuleType) -> None:
    """Index our tasks after lm-eval's own and before the user's, which win.

    Takes `lm_eval.tasks.manager`.
    """
    default_root = Path(str(module.__file__)).parent

    def around(build: Callable[..., Any]) -> Callable[..., Any]:
        def with_our_tasks(paths: Iterable[Path], *args: object, **kwargs: object) -> Any:
            roots = list(paths)
            # No place for ours without the defaults.
            if default_root in roots:
                # lm-eval may have found them by itself, in a checkout behind the symlink.
                found = TASKS_FOLDER.resolve()
                roots = [root for root in roots if Path(root).resolve() != found]
                roots.insert(roots.index(default_root) + 1, TASKS_FOLDER)
            return build(roots, *args, **kwargs)

        return with_our_tasks

    _wrap(module.TaskIndex, "build", around, static=True)


def complete_evaluations(module: ModuleType) -> None:
    """Fill in what a call of `simple_evaluate` with `page_hf` leaves out.

    Takes `lm_eval.evaluator`. The command line goes through the same function.
    """

    def around(simple_evaluate: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(simple_evaluate)

        def with_defaults(*args: object, **kwargs: object) -> Any:
            call = signature.bind(*args, **kwargs)
            model = call.arguments.get("model")
            if model == MODEL:
                call.arguments.update(complete_call(call.arguments))
            elif isinstance(model, str):
                _locate_default_model(call.arguments)
                pretrained = _as_dict(call.arguments.get("model_args")).get("pretrained")
                _size_tasks(call.arguments, pretrained)
            else:
                if _is_page_lm(model):
                    _refuse_caches(call.arguments)
                tokenizer = getattr(model, "tokenizer", None)
                _size_tasks(call.arguments, getattr(tokenizer, "name_or_path", None))
            return simple_evaluate(*call.args, **call.kwargs)

        return with_defaults

    _wrap(module, "simple_evaluate", around)


def end_cleanly(module: ModuleType) -> None:
    """Print a `UsageError` without a traceback, and our log records as lm-eval's.

    Takes `lm_eval._cli.harness`.
    """

    def around(execute: Callable[..., Any]) -> Callable[..., Any]:
        def with_clear_errors(*args: object, **kwargs: object) -> Any:
            _share_log()
            try:
                return execute(*args, **kwargs)
            except UsageError as error:
                print(f"page-bench: {error}", file=sys.stderr)
                sys.exit(1)
            except ValueError as error:
                if not str(error).startswith("Tasks not found"):
                    raise
                print(f"{error}; `lm_eval ls tasks` names all there are.", file=sys.stderr)
                sys.exit(1)

        return with_clear_errors

    _wrap(module.HarnessCLI, "execute", around)


def watch_wandb(module: ModuleType) -> None:
    """Show what goes wrong with W&B. Takes `lm_eval.loggers`."""
    from page_bench.tracking.logger import watched

    module.WandbLogger = watched(module.WandbLogger)  # type: ignore[attr-defined]


def complete_call(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a `simple_evaluate` call with `page_hf`, defaults filled in.

    Args:
        given: name → value; neither it nor the objects in it are changed.

    Returns:
        A copy in which the tasks, `pretrained`, the folder of the trace and the numbers of chosen
        documents are set.

    Raises:
        UsageError: for lm-eval's caches, and for model args that lm-eval passes by itself.
    """
    from page_bench import config

    arguments = dict(given)
    _refuse_caches(arguments)
    model_args = _as_dict(arguments.get("model_args"))
    _refuse_doubled(model_args, arguments)
    config.refuse_secrets(model_args)  # before lm-eval logs them
    if "doc_ids" in model_args:
        raise UsageError("doc_ids is set by page-bench itself; use --samples.")
    if not arguments.get("tasks"):
        arguments["tasks"] = list(DEFAULT_TASKS)
        _log.warning(
            "No tasks given: running %s; choose others with --tasks.", ", ".join(DEFAULT_TASKS)
        )
    if model_args.get("pretrained") is None:
        from page_bench.default_model import default_pretrained

        model_args["pretrained"] = default_pretrained()
        _log.warning(
            "No model given: running %s; choose another with pretrained=NAME in --model_args.",
            model_args["pretrained"],
        )
    if arguments.get("task_manager") is not None:
        arguments["task_manager"] = _with_pretrained(
            arguments["task_manager"], model_args["pretrained"]
        )
    output_path = getattr(arguments.get("evaluation_tracker"), "output_path", None)
    if output_path and "trace" not in model_args:
        model_args["trace"] = samples_folder(output_path, model_args)
    if arguments.get("samples"):
        # lm-eval takes chosen documents in the data set's order but names them in the order given,
        # and numbers them anew for the model.
        chosen = _chosen(arguments["samples"])
        arguments["samples"] = model_args["doc_ids"] = chosen
    arguments["model_args"] = model_args
    return arguments


def samples_folder(output_path: str | Path, model_args: Mapping[str, Any]) -> str:
    """The folder where lm-eval will write the samples of a run with these model args."""
    from lm_eval.loggers.evaluation_tracker import GeneralConfigTracker

    path = Path(output_path)
    if path.suffix == ".json":
        return str(path.parent)
    tracker = GeneralConfigTracker()
    tracker.log_experiment_args(
        model_source=MODEL,
        model_args=dict(model_args),
        system_instruction=None,
        chat_template=None,
        fewshot_as_multiturn=False,
    )
    return str(path / str(tracker.model_name_sanitized))


def _locate_default_model(arguments: dict[str, Any]) -> None:
    """Let lm-eval's own models run our default model by its name, for a baseline."""
    from page_bench.default_model import LOCAL_NAME, resolve

    if LOCAL_NAME in str(arguments.get("model_args") or ""):
        model_args = _as_dict(arguments["model_args"])
        if model_args.get("pretrained") == LOCAL_NAME:
            arguments["model_args"] = {**model_args, "pretrained": resolve(LOCAL_NAME)}


def _refuse_caches(arguments: Mapping[str, Any]) -> None:
    for name, flag in _REFUSED_CACHES.items():
        if arguments.get(name):
            raise UsageError(
                f"{flag} cannot be used with {MODEL}: lm-eval's cache keys ignore the model's "
                "arguments, so one evictor would be answered from another's run; leave it out."
            )


def _refuse_doubled(model_args: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    for name in _CONSTRUCTOR_FLAGS:
        if name in model_args and arguments.get(name) is not None:
            raise UsageError(
                f"{name}={model_args[name]} stands in the model args, but lm-eval passes {name} "
                f"by itself (here {arguments[name]}); use --{name} {model_args[name]} instead."
            )


def _chosen(samples: Any) -> dict[str, list[int]]:
    """The documents of each task, as lm-eval takes them: in order, each once."""
    if not isinstance(samples, Mapping):
        raise UsageError(f"--samples {samples!r:.60} is no object of tasks with document numbers.")
    for task, ids in samples.items():
        if not isinstance(ids, list | tuple) or not all(type(n) is int and n >= 0 for n in ids):
            raise UsageError(
                f"--samples has {ids!r:.60} for {task}; give a list of whole numbers from 0 on."
            )
    return {task: sorted(set(ids)) for task, ids in samples.items()}


def _as_dict(model_args: str | Mapping[str, Any] | None) -> dict[str, Any]:
    if isinstance(model_args, str):
        from lm_eval.utils import simple_parse_args_string

        names = [part.partition("=")[0].strip() for part in model_args.split(",") if part]
        if twice := [name for name in names if names.count(name) > 1]:
            raise UsageError(f"the model args name {twice[0]} twice; name it once.")
        return dict(simple_parse_args_string(model_args))
    return dict(model_args or {})


def _size_tasks(arguments: dict[str, Any], name: object) -> None:
    """Name the tokenizer to tasks that lm-eval does not tell which model they are for."""
    if not isinstance(name, str) or not name:
        return
    if arguments.get("task_manager") is not None:
        arguments["task_manager"] = _with_pretrained(arguments["task_manager"], name)
    elif not isinstance(arguments.get("model"), str):
        arguments["metadata"] = {"tokenizer": name, **(arguments.get("metadata") or {})}


def _with_pretrained(task_manager: Any, pretrained: str) -> Any:
    """The task manager, or a copy of it, whose tasks know the model that they are sized for."""
    metadata = task_manager.metadata or {}
    if metadata.get("pretrained") is not None or metadata.get("tokenizer") is not None:
        return task_manager
    from page_bench.default_model import resolve

    manager = copy(task_manager)
    # lm-eval's own generated tasks load the tokenizer by name, which the default model's is not.
    manager.metadata = {"tokenizer": resolve(pretrained), **metadata, "pretrained": pretrained}
    # Tasks get their metadata from the factory.
    manager._factory = type(task_manager._factory)(meta=manager.metadata)
    return manager


def _is_page_lm(model: object) -> bool:
    module_name, _, class_name = MODEL_TARGET.partition(":")
    module = sys.modules.get(module_name)  # never imported here: without it there is no PageLM
    return module is not None and isinstance(model, getattr(module, class_name))


def _share_log() -> None:
    ours, theirs = logging.getLogger("page_bench"), logging.getLogger("lm_eval")
    if theirs.handlers and not ours.handlers:
        for handler in theirs.handlers:
            ours.addHandler(handler)
        ours.setLevel(theirs.level)
        ours.propagate = theirs.propagate


def _wrap(
    owner: Any,
    name: str,
    around: Callable[[Callable[..., Any]], Callable[..., Any]],
    static: bool = False,
) -> None:
    """Replace `owner.name` by `around(owner.name)`, once."""
    original = getattr(owner, name)
    if hasattr(original, "_wrapped_by_page_bench"):
        return
    wrapper = functools.wraps(original)(around(original))
    wrapper._wrapped_by_page_bench = True  # type: ignore[attr-defined]
    setattr(owner, name, staticmethod(wrapper) if static else wrapper)
