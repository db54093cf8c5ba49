"""The sweep runner: one prefill per prompt for all arms, then every arm as `lm_eval run` has it."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import lm_eval
import lm_eval.api.task
import lm_eval.evaluator
from lm_eval.api.instance import Instance
from tqdm import tqdm

from page_bench.config import PageConfig, is_ours
from page_bench.harness import plugin
from page_bench.harness.lm_eval_speedups import once_for_all_runs
from page_bench.harness.own_runs import MODEL
from page_bench.inputs.errors import UsageError
from page_bench.sweep.arms import Arm, groups_of
from page_bench.sweep.basis import basis_of
from page_bench.sweep.checks import check_decisions, check_files
from page_bench.sweep.model import load_model
from page_bench.sweep.output import is_finished, outdated, unfinished, write_results
from page_bench.sweep.prompts import PromptFile, PromptHashes
from page_bench.sweep.ray_workers import RayWorkers, check_address
from page_bench.sweep.spent import Spent
from page_bench.sweep.tasks import SharedTasks

Say = Callable[[str], object]

STORE = "store.sqlite"
_REQUEST_TYPES = ("generate_until", "loglikelihood")


def run_sweep(
    arms: Sequence[Arm],
    store: Path | None,
    task_manager: Any = None,
    say: Say = lambda text: None,
    ray: str | None = None,
) -> Spent:
    """Run all arms that are not finished.

    Args:
        arms: the arms; those that share a prefill are answered from one model.
        store: run store for arms whose model arguments name none; None means `store.sqlite` beside
            the folder of the first arm, for all of them.
        task_manager: see `SharedTasks`.
        say: told what is done and what is reused.
        ray: see `RayWorkers`; None answers all prompts in this process.

    Raises:
        UsageError: an arm that cannot be run, or files that cannot be written.
    """
    plugin.install()
    if ray is not None:
        check_address(ray)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError(
            "page-bench sweep answers all arms in one process; start it without accelerate or "
            "torchrun, or run the arms by lm_eval, which shares out the prompts of one arm."
        )
    spent = Spent()
    left = [arm for arm in arms if not is_finished(arm)]
    changed = [names for names in map(outdated, left) if names]
    if changed:
        what = ", ".join(sorted({name for names in changed for name in names}))
        say(f"{len(changed)} finished arms are run anew, for they were run with another {what}")
    if len(left) < len(arms):
        say(f"{len(arms) - len(left)} of {len(arms)} arms are finished; {len(left)} are left")
    if not left:
        return spent
    check_files(left)
    if store is None:
        # One for all, or files that share their prefills would each compute them.
        store = arms[0].folder.parent / STORE
        if len(_parents(arms)) > 1:
            say(f"one run store for all files: {store}")
    groups = groups_of(left)
    for number, group in enumerate(groups, start=1):
        say(f"{len(group)} arms share their prefills (group {number} of {len(groups)})")
        done = [arm for arm in arms if arm not in left and arm.prefill == group[0].prefill]
        _run_group(group, done, arms[0].folder.parent, store, task_manager, spent, say, ray)
    return spent


def _run_group(
    group: Sequence[Arm],
    done: Sequence[Arm],
    folder: Path,
    store: Path,
    task_manager: Any,
    spent: Spent,
    say: Say,
    ray: str | None,
) -> None:
    with spent.on("tasks"):
        bases = [basis_of(arm) for arm in group]
        settle = functools.partial(_settle, folder, group[0], bases[0], say)
        tasks = SharedTasks(group[0], task_manager, settle)
        pages = [_page(tasks.arguments(group[0]), store)]
        with _repeating(group[0], set()):
            pages += [_page(tasks.arguments(arm), store) for arm in group[1:]]
    with spent.on("model"):
        lm = load_model(tasks.arguments(group[0]), pages[0])
    with spent.on("prompts"):
        requests = _requests(lm, tasks.arguments(group[0]), tasks.request_types(group[0]))
        hashes = PromptHashes(requests, pages[0].doc_ids)
        hashes.check_finished(done)
    with spent.on("prompts"):
        # Before the first of them is answered, the model must know all arms as fit for it.
        own = [lm.with_page(page) for page in pages]
        chat = bool(tasks.arguments(group[0])["apply_chat_template"])
        check_decisions(group, pages, lm, requests, chat)
    configs = [each.page for each in own]
    start = time.perf_counter()
    if ray is None:
        filled = lm.fill(requests, configs)
    else:
        with spent.on("model"):
            sharing = RayWorkers(ray, tasks.arguments(group[0]), pages[0])
        with sharing as workers:
            say(f"Ray: {len(workers)} workers")
            with spent.on("model"):
                lm.take_for_stored(workers.stored_model())
            start = time.perf_counter()
            filled = lm.fill(requests, configs, compute=workers)
    spent.fill(filled, time.perf_counter() - start)
    said: set[str] = set()
    with spent.on("scoring and writing"), once_for_all_runs():
        for arm, page, basis in zip(
            tqdm(group, desc="arms", unit="arm", disable=None), pages, bases, strict=True
        ):
            with unfinished(arm) as wanted:
                if wanted:
                    _run_arm(arm, basis, lm.with_page(page), tasks, hashes, said)
                    spent.arms += 1
    say(f"{len(group)} arms written to {', '.join(map(str, _parents(group)))}")


def _parents(arms: Sequence[Arm]) -> list[Path]:
    """The folders that hold the arms' folders."""
    return list(dict.fromkeys(arm.folder.parent for arm in arms))


def _settle(
    folder: Path,
    arm: Arm,
    basis: Mapping[str, str],
    say: Say,
    task: Any,
    requests: Sequence[Instance],
) -> None:
    """Give a task's requests the texts that they had when the sweep began, and say so."""
    file = PromptFile.of(folder, arm, basis, task)
    changed = file.settle(requests)
    if changed is not None:
        say(
            f"{changed} would be worded otherwise now, as where a chat template prints the time; "
            f"its task keeps the prompts with which the sweep began ({file.path})"
        )


def _run_arm(
    arm: Arm,
    basis: dict[str, str],
    lm: Any,
    tasks: SharedTasks,
    hashes: PromptHashes,
    said: set[str],
) -> None:
    """Evaluate one arm, its answers looked up in the store, and write what `lm_eval run` would."""

    def checked(answer: Callable[..., Any], requests: list[Instance]) -> Any:
        hashes.check(arm, requests)
        return answer(requests, disable_tqdm=True)

    with _repeating(arm, said):
        arguments = tasks.arguments(arm)
        for request_type in _REQUEST_TYPES:
            answer = getattr(lm, request_type)
            setattr(lm, request_type, functools.partial(checked, answer))
        results = lm_eval.simple_evaluate(**arguments | {"model": lm})
    if results is None:  # not the process that writes
        return
    tracker = arguments["evaluation_tracker"]
    # lm-eval was given an object, and here is where it would have written its name.
    results["config"]["model"] = MODEL
    tracker.general_config_tracker.model_source = MODEL
    write_results(arm, basis, tracker, results)


def _page(arguments: dict[str, Any], store: Path) -> PageConfig:
    """An arm's configuration, with a store."""
    ours = {k: v for k, v in arguments["model_args"].items() if is_ours(k)}
    page = PageConfig.from_arguments(ours)
    if page.store is None:
        page = dataclasses.replace(page, store=str(store))
    return page


class _Collected(Exception):
    """Carries requests out of lm-eval."""

    def __init__(self, requests: list[Instance]) -> None:
        super().__init__()
        self.requests = requests


def _requests(lm: Any, arguments: dict[str, Any], types: Collection[str]) -> list[Instance]:
    """The requests that lm-eval makes of the tasks, as it would hand them to the model."""
    collected: list[Instance] = []
    left = set(types)

    def collect(request_type: str, requests: list[Instance]) -> list[Any]:
        collected.extend(requests)
        left.discard(request_type)
        if not left:
            raise _Collected(collected)
        return [None] * len(requests)

    own = lm.with_page(lm.page)
    for request_type in _REQUEST_TYPES:
        setattr(own, request_type, functools.partial(collect, request_type))
    try:
        lm_eval.simple_evaluate(**arguments | {"model": own, "evaluation_tracker": None})
    except _Collected as collected:
        lm.take_rendering(own.chat)
        return collected.requests
    raise UsageError(f"{', '.join(map(str, arguments['tasks']))} ask nothing; name other tasks.")


@contextmanager
def _repeating(arm: Arm, said: set[str]) -> Iterator[None]:
    """Leave out of the log what every arm says, and name the arm that says something new.

    Args:
        arm: the arm.
        said: warnings that an arm has given before; new ones are added.
    """

    def is_news(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        about_all = record.levelno < logging.WARNING or record.name == "page_bench.harness.hooks"
        if about_all or text in said:
            return False
        said.add(text)
        record.msg, record.args = f"{arm.name}: {text}", None
        return True

    with ExitStack() as stack:
        for name in ("page_bench.harness.lm", "page_bench.harness.hooks"):
            logger = logging.getLogger(name)
            logger.addFilter(is_news)
            stack.callback(logger.removeFilter, is_news)
        theirs = logging.getLogger("lm_eval")
        stack.callback(theirs.setLevel, theirs.level)
        theirs.setLevel(logging.ERROR)
        yield
