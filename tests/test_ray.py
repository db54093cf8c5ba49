"""Prompts shared out by Ray, also when a node is lost."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lm_eval.tasks
import psutil
import pytest
import ray
from ray.cluster_utils import Cluster
from test_sweep import contents, few_tasks, run, sweep_file
from torch.utils import collect_env

from page_bench.config import PageConfig
from page_bench.engine.grid_work import Computed, Work
from page_bench.harness import plugin
from page_bench.inputs.errors import UsageError
from page_bench.sweep.ray_workers import LOCAL, RayWorkers

EVICTOR = """
from dataclasses import dataclass
from typing import ClassVar

from page_bench.evictors.base import Evictor


@dataclass(frozen=True)
class Norms(Evictor):
    name: ClassVar[str] = "norms"
    needs: ClassVar[frozenset] = frozenset({"values"})

    def score(self, layer, n_keep=None):
        return layer.values.float().norm(dim=-1)
"""


@pytest.fixture(autouse=True)
def _few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin.install()
    monkeypatch.setattr(lm_eval.tasks, "TaskManager", few_tasks)
    monkeypatch.setattr(collect_env, "get_pretty_env_info", lambda: "environment")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Two nodes on this machine."""
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    nodes.add_node(num_cpus=2)
    nodes.wait_for_nodes()
    yield nodes
    ray.shutdown()
    nodes.shutdown()


def test_a_lost_node_costs_nothing_but_time(
    cluster: Cluster, tiny_folder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "norms.py").write_text(EVICTOR, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    file = sweep_file(
        tmp_path / "sweep.yaml",
        str(tiny_folder("llama")),
        # Workers look for it where the sweep was started.
        evictor={"values": ["snapkv", "norms.py:Norms"]},
        budget={"value": 0.25},
        gate={"values": ["page", "open"]},
    )
    assert run(file, tmp_path / "alone") == 0
    done = 0
    share_out = RayWorkers.__call__

    def losing(workers: RayWorkers, work: Iterator[Work]) -> Iterator[tuple[Work, Computed]]:
        nonlocal done
        assert len(workers) == 2
        asked = [w.__ray_call__.remote(lambda _: os.getpid()) for w in workers._workers]
        pids = ray.get(asked)
        for one in share_out(workers, work):
            done += 1
            if done == 2:
                (other,) = cluster.worker_nodes
                cluster.remove_node(other, allow_graceful=False)
            if done == 4:
                for pid in filter(psutil.pid_exists, pids):
                    os.kill(pid, signal.SIGKILL)
            yield one

    monkeypatch.setattr(RayWorkers, "__call__", losing)
    assert run(file, tmp_path / "shared", "--ray", cluster.address) == 0
    assert done == 6
    assert contents(tmp_path / "shared") == contents(tmp_path / "alone")


def test_workers_are_given_nothing_large(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    class Actor:
        def options(self, **kwargs: Any) -> Actor:
            return self

        def remote(self, *args: Any) -> None:
            given.extend(args)

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "cluster_resources", dict)
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True}])
    monkeypatch.setattr(ray, "remote", lambda cls: Actor())
    arguments = {"model_args": {"pretrained": "x"}, "batch_size": 1, "max_batch_size": None}
    RayWorkers(LOCAL, {**arguments, "device": "cpu", "task_manager": "x" * 10**7}, PageConfig())
    # Ray keeps larger arguments elsewhere, where they are gone once a worker starts again.
    assert len(pickle.dumps(given)) < 100_000


def test_no_cluster_at_the_address_is_an_error(tiny_folder: Any, tmp_path: Path) -> None:
    file = sweep_file(tmp_path / "sweep.yaml", str(tiny_folder("llama")))
    with pytest.raises(UsageError, match="no cluster could be reached"):
        run(file, tmp_path / "out", "--ray", "127.0.0.1:1")
