"""A sweep's prompts shared out by Ray: one engine per device; the driver alone keeps the store."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import socket
from collections.abc import Iterator
from typing import Any

import torch

from page_bench.config import PageConfig
from page_bench.engine.grid_work import Computed, Work
from page_bench.engine.keys import StoredModel
from page_bench.inputs.errors import UsageError
from page_bench.sweep.model import MODEL_ARGUMENTS, load_model

LOCAL = "local"
"""In place of an address: a cluster of this machine alone."""

_PATIENCE_S = 10
_RESTARTS = 10
"""Of a worker: a prompt that always brings it down must come to an end."""
_AHEAD = 2
"""Prompts that a worker has been given, at most: the one it works on, and the next."""


class Worker:
    """An engine in a process of its own.

    Args:
        arguments: those of `simple_evaluate` that create the model.
        page: an arm; all arms share its prefill.
        threads: of torch on the CPU; Ray itself would leave it one.
        folder: where the sweep was started, for names of files that are relative to it.
    """

    def __init__(
        self, arguments: dict[str, Any], page: PageConfig, threads: int, folder: str
    ) -> None:
        torch.set_num_threads(threads)
        if os.path.isdir(folder):
            os.chdir(folder)
        self._lm = load_model(arguments, dataclasses.replace(page, store=None, trace=None))

    def stored_model(self) -> StoredModel:
        """What tells this model's records from others'."""
        return self._lm.stored_model()

    def compute(self, work: Work, sampling_seed: int) -> Computed:
        """See `Engine.compute`."""
        torch.manual_seed(sampling_seed)
        with self._lm.engine() as engine:
            return engine.compute(work)


class RayWorkers:
    """One worker per GPU of a cluster, or per node where there is none.

    A worker that is lost is started again where the cluster has room for it, and meanwhile the
    others take over what it was given last.

    Args:
        address: of a running cluster, or `local`.
        arguments, page: see `Worker`.

    Raises:
        UsageError: Ray is not installed, or there is no cluster at the address.
    """

    def __init__(self, address: str, arguments: dict[str, Any], page: PageConfig) -> None:
        check_address(address)
        import ray

        self._ray = ray
        self._own = not ray.is_initialized()
        if self._own:
            where = {} if address == LOCAL else {"address": address}
            try:
                ray.init(log_to_driver=False, **where)
            except (OSError, ValueError, RuntimeError) as error:
                raise _unreachable(address, error) from error
        gpus = int(ray.cluster_resources().get("GPU", 0))
        nodes = sum(node["Alive"] for node in ray.nodes())
        needs = {"num_gpus": 1, "num_cpus": 1} if gpus else {"num_cpus": 1}
        actor = ray.remote(Worker).options(
            max_restarts=_RESTARTS,
            max_task_retries=-1,
            scheduling_strategy="SPREAD",
            **needs,
        )
        # Large arguments would be gone when a worker is started again.
        small = {name: arguments[name] for name in MODEL_ARGUMENTS}
        given = small, page, torch.get_num_threads(), os.getcwd()
        self._workers = [actor.remote(*given) for _ in range(gpus or nodes)]

    def __enter__(self) -> RayWorkers:
        return self

    def __exit__(self, *details: object) -> None:
        for worker in self._workers:
            self._ray.kill(worker)
        if self._own:
            self._ray.shutdown()

    def __len__(self) -> int:
        return len(self._workers)

    def stored_model(self) -> StoredModel:
        """That of all workers.

        Raises:
            UsageError: they loaded different models, or on different devices.
        """
        models = self._get([worker.stored_model.remote() for worker in self._workers])
        for other in models[1:]:
            names = [
                field.name
                for field in dataclasses.fields(StoredModel)
                if getattr(other, field.name) != getattr(models[0], field.name)
            ]
            if names:
                raise UsageError(
                    f"Ray's workers differ in {', '.join(names)} of their model; give all nodes "
                    f"the same weights, libraries and kind of device."
                )
        return models[0]

    def __call__(self, work: Iterator[Work]) -> Iterator[tuple[Work, Computed]]:
        """Do work on all workers, in the order in which it is done; see `work.Compute`."""
        seed = torch.initial_seed()
        given: dict[int, Work] = {}
        running: dict[Any, tuple[int, int]] = {}
        numbered = enumerate(work)

        def occupy(worker: int) -> None:
            """Give a worker the next prompt, or one that another has not finished."""
            mine = [number for number, whose in running.values() if whose == worker]
            while len(mine) < _AHEAD:
                fresh = next(numbered, None)
                if fresh is not None:
                    given[fresh[0]] = fresh[1]
                number = fresh[0] if fresh else next((n for n in given if n not in mine), None)
                if number is None or (fresh is None and mine):
                    return
                # What scores an answer stays here: it holds a tokenizer.
                prompt = dataclasses.replace(given[number].prompt, score=None, correct=None)
                asked = dataclasses.replace(given[number], prompt=prompt)
                task = self._workers[worker].compute.remote(asked, seed)
                running[task] = number, worker
                mine.append(number)

        for worker in range(len(self._workers)):
            occupy(worker)
        while given:
            done, _ = self._ray.wait([*running], num_returns=1)
            number, worker = running.pop(done[0])
            if number in given:
                computed = self._get(done[0], given[number])
                yield given.pop(number), computed
            occupy(worker)

    def _get(self, task: Any, work: Work | None = None) -> Any:
        """The result; a mistake of the user's as what it is."""
        try:
            return self._ray.get(task)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, UsageError):
                raise error.cause from error
            raise
        except self._ray.exceptions.RayActorError as error:
            _, found, said = str(error).rpartition(f"{UsageError.__name__}: ")
            if found:
                raise UsageError(said.strip().partition("\n")[0]) from error
            if work is None:
                raise UsageError(f"a Ray worker could not load the model: {error}") from error
            raise UsageError(
                f"a Ray worker died again and again, at last over {work.prompt.task} document "
                f"{work.prompt.doc_id} ({str(error).strip().splitlines()[0]}); see Ray's logs, "
                f"often it is memory."
            ) from error


def check_address(address: str) -> None:
    """Find out whether anybody listens: Ray itself would go on trying for minutes.

    Raises:
        UsageError: nobody does, or Ray is not installed.
    """
    if importlib.util.find_spec("ray") is None:
        raise UsageError("--ray needs Ray; install it: pip install 'page-bench[ray]'.")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=_PATIENCE_S).close()
        except OSError as error:
            raise _unreachable(address, error) from error


def _unreachable(address: str, error: Exception) -> UsageError:
    asks = "; it may ask for a token, which this process must be given too"
    return UsageError(
        f"--ray {address}: no cluster could be reached ({error}"
        f"{asks if 'auth' in str(error).lower() else ''}); start one with `ray start --head`, or "
        f"give --ray local."
    )
