"""What page-bench adds to lm-eval's own modules: its model, its tasks and its defaults.

`plugin` calls the public functions for the modules of lm-eval that have been imported.
Each may be called again on the same module, and steps aside where lm-eval does its work itself.
Where the model is not `page_hf` and no task is ours, lm-eval's functions get what they were given.
"""

from __future__ import annotations

import fnmatch
import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from copy import copy
from pathlib import Path
from types import ModuleType
from typing import Any

from page_bench.harness import own_runs
from page_bench.harness.own_runs import MODEL, TASK_PREFIX
from page_bench.inputs.errors import UsageError
from page_bench.model import given_object
from page_bench.tasks.tokenizer import sized_for

MODEL_TARGET = "page_bench.harness.lm:PageLM"
DEFAULT_TASKS = ("page_quickstart",)
TASKS_FOLDER = Path(__file__).parents[1] / "tasks"

_REFUSED_CACHES = {
    "use_cache": "--use_cache",
    "cache_requests": "--cache_requests",
    "rewrite_requests_cache": "--cache_requests",
}
_CONSTRUCTOR_FLAGS = ("batch_size", "max_batch_size", "device")
_OF_THE_TOKENIZER = ("tokenizer", "revision", "subfolder", "gguf_file", "trust_remote_code")
"""Model arguments that decide, besides `pretrained`, what the tasks' tokenizer is."""

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

    def matching(match_tasks: Callable[..., Any]) -> Callable[..., Any]:
        def without_unasked(manager: Any, task_list: list[str]) -> Any:
            found = match_tasks(manager, task_list)
            asked = [pattern for pattern in task_list if pattern.startswith(TASK_PREFIX)]
            return [
                name
                for name in found
                if not _is_our_task(manager, name)
                or any(fnmatch.fnmatchcase(name, pattern) for pattern in asked)
            ]

        return without_unasked

    _wrap(module.TaskIndex, "build", around, static=True)
    # `*_qasper` and the like go on meaning lm-eval's own tasks.
    _wrap(module.TaskManager, "match_tasks", matching)


def complete_evaluations(module: ModuleType) -> None:
    """Fill in what a call of `simple_evaluate` with `page_hf` leaves out.

    Takes `lm_eval.evaluator`. The command line goes through the same function.
    """

    def around(simple_evaluate: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(simple_evaluate)

        def with_defaults(*args: object, **kwargs: object) -> Any:
            call = signature.bind(*args, **kwargs)
            given = call.arguments
            model = given.get("model")
            with ExitStack() as stack:
                if model == MODEL:
                    _say_once.cache_clear()
                    given.update(complete_call(given))
                    stack.enter_context(own_runs.git_asked_quietly(module))
                elif _is_page_lm(model):
                    _refuse_caches(given)
                    stack.enter_context(own_runs.git_asked_quietly(module))
                elif isinstance(model, str):
                    _locate_default_model(given)
                stack.enter_context(sized_for(functools.partial(_model_of, given)))
                results = simple_evaluate(*call.args, **call.kwargs)
            if model == MODEL or _is_page_lm(model):
                from page_bench.harness.written_samples import make_writable

                make_writable(results)
            return results

        return with_defaults

    _wrap(module, "simple_evaluate", around)


def score_traces(module: ModuleType) -> None:
    """Give the traces of `page_hf` lm-eval's scores of their samples. Takes `lm_eval.evaluator`."""

    def around(evaluate: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(evaluate)

        def with_scores(*args: object, **kwargs: object) -> Any:
            call = signature.bind(*args, **kwargs).arguments
            if not _is_page_lm(call["lm"]):
                return evaluate(*args, **kwargs)
            from page_bench.harness.sample_scores import scored

            with scored(call["task_dict"]):
                return evaluate(*args, **kwargs)

        return with_scores

    _wrap(module, "evaluate", around)


def end_cleanly(module: ModuleType) -> None:
    """Print a `UsageError` without a traceback, and our log records as lm-eval's.

    In a run of ours, what goes wrong with W&B is shown as well. Takes `lm_eval._cli.harness`.
    """

    def around(execute: Callable[..., Any]) -> Callable[..., Any]:
        def with_clear_errors(cli: Any, args: Any) -> Any:
            _share_log()
            try:
                if not own_runs.is_ours(args):
                    return execute(cli, args)
                with own_runs.wandb_watched():
                    return execute(cli, args)
            except UsageError as error:
                print(f"page-bench: {error}", file=sys.stderr)
                sys.exit(1)
            except ValueError as error:
                if not (str(error).startswith("Tasks not found") and own_runs.is_ours(args)):
                    raise
                print(f"{error}; `lm_eval ls tasks` names all there are.", file=sys.stderr)
                sys.exit(1)

        return with_clear_errors

    _wrap(module.HarnessCLI, "execute", around)


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
    model_args = given_object.named(_as_dict(arguments.get("model_args")))
    _refuse_doubled(model_args, arguments)
    config.refuse_secrets(model_args)  # before lm-eval logs them
    if "doc_ids" in model_args:
        raise UsageError("doc_ids is set by page-bench itself; use --samples.")
    if not arguments.get("tasks"):
        arguments["tasks"] = list(DEFAULT_TASKS)
        names = ", ".join(DEFAULT_TASKS)
        _say_once(f"No tasks given: running {names}; choose others with --tasks.")
    if model_args.get("pretrained") is None:
        from page_bench.model.default_model import default_pretrained

        model_args["pretrained"] = default_pretrained()
        _say_once(
            f"No model given: running {model_args['pretrained']}; choose another with "
            f"pretrained=NAME in --model_args."
        )
    if arguments.get("task_manager") is not None:
        arguments["task_manager"] = _with_pretrained(arguments["task_manager"], model_args)
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
    from page_bench.model.default_model import LOCAL_NAME, resolve

    given = arguments.get("model_args")
    if isinstance(given, str) and LOCAL_NAME in given:
        given = _as_dict(given)
    if isinstance(given, Mapping) and _is_text(given.get("pretrained"), LOCAL_NAME):
        arguments["model_args"] = {**given, "pretrained": resolve(LOCAL_NAME)}


def _is_text(given: object, text: str) -> bool:
    return isinstance(given, str) and given == text


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


def _model_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What a call says of its model's tokenizer, for tasks whose metadata does not."""
    model = arguments.get("model")
    if isinstance(model, str):
        return _as_dict(arguments.get("model_args"))
    tokenizer = getattr(model, "tokenizer", None)
    # Models behind a server may have one of another kind.
    named = tokenizer if callable(tokenizer) else getattr(tokenizer, "name_or_path", None)
    return {} if named is None else {"tokenizer": named}


def _with_pretrained(task_manager: Any, model_args: Mapping[str, Any]) -> Any:
    """The task manager, or a copy of it, whose tasks know the model that they are sized for."""
    metadata = task_manager.metadata or {}
    if metadata.get("pretrained") is not None or metadata.get("tokenizer") is not None:
        return task_manager
    from page_bench.model.default_model import resolve

    pretrained = model_args["pretrained"]
    known = {name: model_args[name] for name in _OF_THE_TOKENIZER if model_args.get(name)}
    manager = copy(task_manager)
    # lm-eval's own generated tasks load the tokenizer by name, which the default model's is not.
    by_name = type(pretrained) is str
    named = {"tokenizer": resolve(pretrained)} if by_name else {}
    manager.metadata = {**named, **known, **metadata, "pretrained": pretrained}
    # Tasks get their metadata from the factory.
    manager._factory = type(task_manager._factory)(meta=manager.metadata)
    return manager


def _is_our_task(manager: Any, name: str) -> bool:
    place = getattr(manager.task_index.get(name), "yaml_path", None)
    return place is not None and Path(place).is_relative_to(TASKS_FOLDER)


@functools.cache
def _say_once(text: str) -> None:
    """Warn of something, once in a run: a sweep completes the same call for each of its arms."""
    _log.warning(text)


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
