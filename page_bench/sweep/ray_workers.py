"""A sweep's prompts shared out by Ray: one engine per device; the driver alone keeps the store."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Iterator
from typing import Any

import torch

from page_bench.config import PageConfig
from page_bench.errors import UsageError
from page_bench.store.keys import StoredModel
from page_bench.sweep.model import load_model
from page_bench.work import Computed, Work

LOCAL = "local"
"""In place of an address: a cluster of this machine alone."""

_PATIENCE_S = 10
_AHEAD = 2
"""Prompts that a worker has been given, at most: the one it works on, and the next."""


class Worker:
    """An engine in a process of its own.

    Args:
        arguments: those of `simple_evaluate` that create the model.
        page: an arm; all arms share its prefill.
        threads: of torch on the CPU; Ray itself would leave it one.
    """

    def __init__(self, arguments: dict[str, Any], page: PageConfig, threads: int) -> None:
        torch.set_num_threads(threads)
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
        try:
            import ray
        except ImportError as error:
            raise UsageError(
                "--ray needs Ray; install it: pip install 'page-bench[ray]'."
            ) from error
        self._ray = ray
        self._own = not ray.is_initialized()
        if self._own:
            where = {} if address == LOCAL else {"address": address}
            try:
                _knock(address)
                ray.init(log_to_driver=False, **where)
            except (OSError, ValueError, RuntimeError) as error:
                raise UsageError(
                    f"--ray {address}: no cluster could be reached ({error}); start one with "
                    f"`ray start --head`, or give --ray local."
                ) from error
        gpus = int(ray.cluster_resources().get("GPU", 0))
        nodes = sum(node["Alive"] for node in ray.nodes())
        needs = {"num_gpus": 1, "num_cpus": 1} if gpus else {"num_cpus": 1}
        actor = ray.remote(Worker).options(
            max_restarts=-1, max_task_retries=-1, scheduling_strategy="SPREAD", **needs
        )
        threads = torch.get_num_threads()
        self._workers = [actor.remote(arguments, page, threads) for _ in range(gpus or nodes)]

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
                asked = dataclasses.replace(
                    given[number], prompt=dataclasses.replace(given[number].prompt, score=None)
                )
                task = self._workers[worker].compute.remote(asked, seed)
                running[task] = number, worker
                mine.append(number)

        for worker in range(len(self._workers)):
            occupy(worker)
        while given:
            done, _ = self._ray.wait([*running], num_returns=1)
            number, worker = running.pop(done[0])
            computed = self._get(done[0])
            if number in given:
                yield given.pop(number), computed
            occupy(worker)

    def _get(self, task: Any) -> Any:
        """The result; a mistake of the user's as what it is."""
        try:
            return self._ray.get(task)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, UsageError):
                raise error.cause from error
            raise
        except self._ray.exceptions.RayActorError as error:
            raise UsageError(f"a Ray worker could not load the model: {error}") from error


def _knock(address: str) -> None:
    """Raise OSError where nobody listens: Ray itself would go on trying for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=_PATIENCE_S).close()
