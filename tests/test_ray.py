"""Prompts shared out by Ray, also when a node is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lm_eval.tasks
import pytest
import ray
from ray.cluster_utils import Cluster
from test_sweep import contents, few_tasks, run, sweep_file
from torch.utils import collect_env

from page_bench import plugin
from page_bench.errors import UsageError
from page_bench.sweep.ray_workers import RayWorkers
from page_bench.work import Computed, Work


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
    file = sweep_file(tmp_path / "sweep.yaml", str(tiny_folder("llama")))
    assert run(file, tmp_path / "alone") == 0
    done = 0
    share_out = RayWorkers.__call__

    def losing(workers: RayWorkers, work: Iterator[Work]) -> Iterator[tuple[Work, Computed]]:
        nonlocal done
        assert len(workers) == 2
        for one in share_out(workers, work):
            done += 1
            if done == 2:
                (other,) = cluster.worker_nodes
                cluster.remove_node(other, allow_graceful=False)
            yield one

    monkeypatch.setattr(RayWorkers, "__call__", losing)
    assert run(file, tmp_path / "shared", "--ray", cluster.address) == 0
    assert done == 6
    assert contents(tmp_path / "shared") == contents(tmp_path / "alone")


def test_no_cluster_at_the_address_is_an_error(tiny_folder: Any, tmp_path: Path) -> None:
    file = sweep_file(tmp_path / "sweep.yaml", str(tiny_folder("llama")))
    with pytest.raises(UsageError, match="no cluster could be reached"):
        run(file, tmp_path / "out", "--ray", "127.0.0.1:1")
