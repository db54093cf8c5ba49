"""The sweep runner: one prefill per prompt for all arms, then every arm as `lm_eval run` has it."""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lm_eval
import lm_eval.api.task
import lm_eval.evaluator
from lm_eval.api.instance import Instance
from tqdm import tqdm

from page_bench import plugin
from page_bench.config import PageConfig, is_ours
from page_bench.engine import Filled
from page_bench.errors import UsageError
from page_bench.harness import MODEL
from page_bench.lm import PageLM
from page_bench.lm_eval_cost import once_for_all_runs
from page_bench.sweep.arms import Arm, eviction_of, groups_of
from page_bench.sweep.output import is_finished, unfinished, write_results
from page_bench.sweep.tasks import SharedTasks

Say = Callable[[str], object]


@dataclass(frozen=True)
class GroupPlan:
    """What a group of arms that share their prefills takes, if nothing of it is stored.

    Attributes:
        arms: how many arms.
        finished: how many of them have their files already; the rest counts only what is left.
        prompts: prompts of one arm, each prefilled once.
        evictions: different evictions; each is decoded once per prompt, or less often where two
            keep the same entries.
        full: whether the full cache is decoded, too.
        gated: arms whose gate chooses, prompt by prompt, between the two.
    """

    arms: int
    finished: int
    prompts: int
    evictions: int
    full: bool
    gated: int

    @property
    def decodes(self) -> int:
        """Answers to decode, at most."""
        return self.prompts * (self.evictions + self.full)

    @property
    def look_ups(self) -> int:
        """Answers of gated arms, which cost nothing more."""
        return self.prompts * self.gated


@dataclass
class Spent:
    """Where the time of a sweep went.

    Attributes:
        arms: arms that were run.
        prompts: prompts whose answers were asked for, over all groups.
        stored: those of which everything stood in the store.
        prefill_tokens, new_tokens: tokens read and answered by the model.
        seconds: by activity.
    """

    arms: int = 0
    prompts: int = 0
    stored: int = 0
    prefill_tokens: int = 0
    new_tokens: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def on(self, activity: str) -> Iterator[None]:
        """Count the seconds of a block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            passed = time.perf_counter() - start
            self.seconds[activity] = self.seconds.get(activity, 0.0) + passed

    def fill(self, filled: Filled, passed: float) -> None:
        """Count the seconds in which a group's answers were computed."""
        self.stored += filled.stored
        self.prefill_tokens += filled.prefill_tokens
        self.new_tokens += filled.new_tokens
        rest = passed - sum(filled.seconds.values())
        for activity, seconds in {**filled.seconds, "store": rest}.items():
            self.seconds[activity] = self.seconds.get(activity, 0.0) + seconds

    def __str__(self) -> str:
        total = sum(self.seconds.values())
        lines = [
            f"{self.arms} arms in {total:.1f} s; {self.stored} of {self.prompts} prompts came from "
            f"the store",
            f"prefill {self._rate(self.prefill_tokens, 'prefill')}, decode "
            f"{self._rate(self.new_tokens, 'decode')}",
        ]
        lines += [
            f"  {activity:<24}{seconds:10.1f} s {seconds / total:6.1%}"
            for activity, seconds in self.seconds.items()
        ]
        return "\n".join(lines)

    def _rate(self, tokens: int, activity: str) -> str:
        seconds = self.seconds.get(activity, 0.0)
        return f"{tokens} tokens" + (f", {tokens / seconds:.0f} per s" if seconds else "")


def plan_sweep(arms: Sequence[Arm], task_manager: Any = None) -> list[GroupPlan]:
    """What a sweep takes, group by group; loads tasks, and no weights.

    Args:
        arms: all arms.
        task_manager: see `SharedTasks`.

    Raises:
        UsageError: a task that does not exist or does not generate.
    """
    plugin.install()
    plans = []
    for group in groups_of(arms):
        left = [arm for arm in group if not is_finished(arm)]
        pages = [arm.page for arm in left]
        plans.append(
            GroupPlan(
                arms=len(group),
                finished=len(group) - len(left),
                prompts=SharedTasks(left[0], task_manager).prompt_count(left[0]) if left else 0,
                evictions=len({eviction_of(page) for page in pages} - {None}),
                full=any(page.gate != "open" for page in pages),
                gated=sum(page.gate not in ("open", "closed") for page in pages),
            )
        )
    return plans


def run_sweep(
    arms: Sequence[Arm], store: Path | None, task_manager: Any = None, say: Say = lambda text: None
) -> Spent:
    """Run all arms that are not finished.

    Args:
        arms: the arms; those that share a prefill are answered from one model.
        store: run store for arms whose model arguments name none; None means a file of its own
            beside each arm's folder.
        task_manager: see `SharedTasks`.
        say: told what is done and what is reused.

    Raises:
        UsageError: an arm that cannot be run, or files that cannot be written.
    """
    plugin.install()
    spent = Spent()
    left = [arm for arm in arms if not is_finished(arm)]
    if len(left) < len(arms):
        say(f"{len(arms) - len(left)} of {len(arms)} arms are finished; {len(left)} are left")
    groups = groups_of(left)
    for number, group in enumerate(groups, start=1):
        say(f"{len(group)} arms share their prefills (group {number} of {len(groups)})")
        _run_group(group, store, task_manager, spent, say)
    return spent


def _run_group(
    group: Sequence[Arm], store: Path | None, task_manager: Any, spent: Spent, say: Say
) -> None:
    with spent.on("tasks"):
        tasks = SharedTasks(group[0], task_manager)
        pages = [_page(tasks.arguments(group[0]), group[0], store)]
        with _repeating(group[0], set()):
            pages += [_page(tasks.arguments(arm), arm, store) for arm in group[1:]]
    with spent.on("model"):
        lm = _load(tasks.arguments(group[0]), pages[0])
    with spent.on("prompts"):
        requests = _requests(lm, tasks.arguments(group[0]))
    with spent.on("prompts"):
        # Before the first of them is answered, the model must know all arms as fit for it.
        own = [lm.with_page(page) for page in pages]
    start = time.perf_counter()
    filled = lm.fill(requests, [each.page for each in own])
    spent.fill(filled, time.perf_counter() - start)
    spent.prompts += len(requests)
    said: set[str] = set()
    with spent.on("scoring and writing"), once_for_all_runs():
        for arm, page in zip(
            tqdm(group, desc="arms", unit="arm", disable=None), pages, strict=True
        ):
            with unfinished(arm) as wanted:
                if wanted:
                    _run_arm(arm, lm.with_page(page), tasks, said)
                    spent.arms += 1
    say(f"{len(group)} arms written to {group[0].folder.parent}")


def _run_arm(arm: Arm, lm: Any, tasks: SharedTasks, said: set[str]) -> None:
    """Evaluate one arm, its answers looked up in the store, and write what `lm_eval run` would."""
    with _repeating(arm, said):
        arguments = tasks.arguments(arm)
        lm.generate_until = functools.partial(lm.generate_until, disable_tqdm=True)
        results = lm_eval.simple_evaluate(**arguments | {"model": lm})
    if results is None:  # not the process that writes
        return
    tracker = arguments["evaluation_tracker"]
    # lm-eval was given an object, and here is where it would have written its name.
    results["config"]["model"] = MODEL
    tracker.general_config_tracker.model_source = MODEL
    write_results(arm, tracker, results)


def _load(arguments: dict[str, Any], page: PageConfig) -> Any:
    """The model as lm-eval creates it, without an arm's own trace."""
    model_args = {k: v for k, v in arguments["model_args"].items() if k != "trace"}
    return PageLM.create_from_arg_obj(
        {**model_args, "store": page.store},
        {name: arguments[name] for name in ("batch_size", "max_batch_size", "device")},
    )


def _page(arguments: dict[str, Any], arm: Arm, store: Path | None) -> PageConfig:
    """An arm's configuration, with a store."""
    ours = {k: v for k, v in arguments["model_args"].items() if is_ours(k)}
    page = PageConfig.from_arguments(ours)
    if page.store is None:
        page = dataclasses.replace(page, store=str(store or arm.folder.parent / "store.sqlite"))
    return page


class _Collected(Exception):
    """Carries requests out of lm-eval."""

    def __init__(self, requests: list[Instance]) -> None:
        super().__init__()
        self.requests = requests


def _requests(lm: Any, arguments: dict[str, Any]) -> list[Instance]:
    """The requests that lm-eval makes of the tasks, as it would hand them to the model."""

    def collect(requests: list[Instance]) -> None:
        raise _Collected(requests)

    lm = lm.with_page(lm.page)
    lm.generate_until = collect
    try:
        lm_eval.simple_evaluate(**arguments | {"model": lm, "evaluation_tracker": None})
    except _Collected as collected:
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
        about_all = record.levelno < logging.WARNING or record.name == "page_bench.harness"
        if about_all or text in said:
            return False
        said.add(text)
        record.msg, record.args = f"{arm.name}: {text}", None
        return True

    with ExitStack() as stack:
        for name in ("page_bench.lm", "page_bench.harness"):
            logger = logging.getLogger(name)
            logger.addFilter(is_news)
            stack.callback(logger.removeFilter, is_news)
        theirs = logging.getLogger("lm_eval")
        stack.callback(theirs.setLevel, theirs.level)
        theirs.setLevel(logging.ERROR)
        yield
