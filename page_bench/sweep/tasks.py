"""lm-eval's tasks, loaded once for all arms that ask the same prompts."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from typing import Any

import numpy as np
import torch
from lm_eval.api.instance import Instance
from lm_eval.evaluator_utils import get_sample_size
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

from page_bench.harness.hooks import complete_call
from page_bench.inputs.errors import UsageError
from page_bench.sweep.arms import Arm, is_of_the_arm

_REQUEST_TYPES = {
    "generate_until": "generate_until",
    "loglikelihood": "loglikelihood",
    "multiple_choice": "loglikelihood",
}
"""What a task asks for, by its output type."""


class SharedTasks:
    """The tasks of arms that share their prompts.

    lm-eval tells every task the model arguments of its run, and writes them into the results; a
    task keeps its documents and requests, and is told anew what concerns each arm.

    Args:
        arm: any of the arms.
        task_manager: knows the tasks; None lets lm-eval index all it has.
        settle: told each task with its requests, once these are made; may give them other texts.

    Raises:
        UsageError: a task that does not exist.
    """

    def __init__(
        self,
        arm: Arm,
        task_manager: Any = None,
        settle: Callable[[Any, Sequence[Instance]], object] = lambda task, requests: None,
    ) -> None:
        config = arm.config
        if task_manager is None:
            try:
                task_manager = config.process_tasks(config.metadata)
            except ValueError as error:
                raise UsageError(f"{error}; `lm_eval ls tasks` names all there are.") from error
        self._manager = task_manager
        self._names = config.tasks
        self._settle = settle
        self._loaded: dict[str, Any] | None = None
        self._requests: dict[str, list[Instance]] = {}
        self._random_states: dict[str | None, tuple[Any, ...]] = {}

    def arguments(self, arm: Arm) -> dict[str, Any]:
        """The arguments of `simple_evaluate` for one arm, as `lm_eval run` passes them."""
        config = arm.config
        manager = copy(self._manager)
        manager.metadata = config.metadata
        manager._factory = type(manager._factory)(meta=config.metadata)
        seeds = config.seed or (None,) * 4
        completed = complete_call(
            {
                "model": config.model,
                "model_args": config.model_args,
                "tasks": self._names,
                "num_fewshot": config.num_fewshot,
                "batch_size": config.batch_size,
                "max_batch_size": config.max_batch_size,
                "device": config.device,
                "use_cache": config.use_cache,
                "cache_requests": config.cache_requests.get("cache_requests", False),
                "rewrite_requests_cache": config.cache_requests.get(
                    "rewrite_requests_cache", False
                ),
                "delete_requests_cache": config.cache_requests.get("delete_requests_cache", False),
                "limit": config.limit,
                "samples": config.samples,
                "check_integrity": config.check_integrity,
                "write_out": config.write_out,
                "log_samples": config.log_samples,
                "evaluation_tracker": tracker_of(arm),
                "system_instruction": config.system_instruction,
                "apply_chat_template": config.apply_chat_template,
                "fewshot_as_multiturn": config.fewshot_as_multiturn,
                "gen_kwargs": config.gen_kwargs,
                "task_manager": manager,
                "verbosity": config.verbosity,
                "predict_only": config.predict_only,
                "random_seed": seeds[0],
                "numpy_random_seed": seeds[1],
                "torch_random_seed": seeds[2],
                "fewshot_random_seed": seeds[3],
                "confirm_run_unsafe_code": config.confirm_run_unsafe_code,
                "metadata": config.metadata,
            }
        )
        # It may be a copy by now, which knows the model's name.
        manager = completed["task_manager"]
        manager.load = lambda specs: self._load(manager, specs)
        return completed

    def request_types(self, arm: Arm) -> set[str]:
        """The types of request that the tasks make of a model; loads the tasks."""
        arguments = self.arguments(arm)
        tasks = arguments["task_manager"].load(arguments["tasks"])["tasks"].values()
        return {_REQUEST_TYPES.get(task.OUTPUT_TYPE, task.OUTPUT_TYPE) for task in tasks}

    def prompt_count(self, arm: Arm) -> int:
        """How many prompts an arm asks, repeats included; loads the tasks.

        A multiple-choice document counts once, also where its choices have contexts of their own.

        Raises:
            UsageError: a task that asks for rolling likelihoods.
        """
        arguments = self.arguments(arm)
        total = 0
        for name, task in arguments["task_manager"].load(arguments["tasks"])["tasks"].items():
            if task.OUTPUT_TYPE not in _REQUEST_TYPES:
                raise UsageError(
                    f"page_hf gives no rolling likelihoods; leave out {name} ({task.OUTPUT_TYPE})."
                )
            there = len(task.eval_docs)
            asked = get_sample_size(task, arguments["limit"])
            if arguments["samples"] is not None and name in arguments["samples"]:
                asked = len(arguments["samples"][name])
            total += (there if asked is None else min(asked, there)) * task.config.repeats
        return total

    def _load(self, manager: Any, specs: Any) -> dict[str, Any]:
        """The tasks under an arm's own metadata; takes the place of `TaskManager.load`."""
        if self._loaded is None:
            self._loaded = TaskManager.load(manager, specs)
            self._random_states[None] = _random_states()
        else:
            _restore(self._random_states[None])
        tasks = {
            name: _told(task, manager.metadata) for name, task in self._loaded["tasks"].items()
        }
        for name, task in tasks.items():
            self._share_requests(name, task)
        return {**self._loaded, "tasks": tasks}

    def _share_requests(self, name: str, task: Any) -> None:
        """Let an arm's own task take copies of the first arm's requests, if they are there."""
        build = task.build_all_requests

        def build_or_copy(**arguments: Any) -> None:
            if name in self._requests:
                _restore(self._random_states[name])
            else:
                build(**arguments)
                self._random_states[name] = _random_states()
                self._settle(task, task.instances)
                self._requests[name] = task.instances
            # lm-eval puts each arm's answers into its requests.
            task._instances = deepcopy(self._requests[name])

        task.build_all_requests = build_or_copy


def tracker_of(arm: Arm) -> EvaluationTracker:
    """What writes the arm's results, as `lm_eval run` makes it.

    Raises:
        UsageError: results are to be pushed to the hub, and it knows no place for them.
    """
    arguments = {**arm.config.hf_hub_log_args, "output_path": arm.config.output_path}
    token = os.environ.get("HF_TOKEN")
    if token:
        arguments["token"] = token
    try:
        return EvaluationTracker(**arguments)
    except (OSError, TypeError, ValueError) as error:
        raise UsageError(
            f"--hf_hub_log_args: {' '.join(str(error).split()).rstrip('.')}; mend or leave out the "
            f"flag."
        ) from error


def _random_states() -> tuple[Any, ...]:
    """What is drawn next must not depend on whether an arm finds its tasks and prompts made."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _restore(states: tuple[Any, ...]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def _told(task: Any, metadata: Mapping[str, Any]) -> Any:
    """A task with the same documents, and the metadata of one arm."""
    own = copy(task)
    own._config = copy(task._config)
    shared = {k: v for k, v in (task._config.metadata or {}).items() if not is_of_the_arm(k)}
    own._config.metadata = shared | {k: v for k, v in metadata.items() if is_of_the_arm(k)}
    return own
