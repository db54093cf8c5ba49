"""What is computed in fp64 is so on the CPU where the device has none, and comes out the same."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import pytest
import torch
from device_without_fp64 import DEVICE, OnDevice, WithoutFp64, moved
from test_engine import observed
from tiny_models import random_prompt
from torch import Tensor

from page_bench.commands.doctor.references import mean_entropy
from page_bench.config import PageConfig
from page_bench.evictors._retention import log_retention
from page_bench.evictors.base import Granularity, precision
from page_bench.evictors.base.budget import share_out
from page_bench.gating.signals import DropOptions, agreements
from page_bench.model import capture
from page_bench.model import prefill as prefill_module
from page_bench.model.keep_plan import KeepPlan, positions_to_keep
from page_bench.model.prefill import prefill
from page_bench.model.scoring import LayerScores, Scorer, score_layer

ARMS: list[tuple[str, Granularity, dict[str, Any]]] = [
    ("leverage", "head", {}),
    ("compactor", "head", {}),
    ("capkv", "head", {"variant": "published"}),
    ("capkv", "shared", {"variant": "paper"}),
    ("expected_attention", "shared", {}),
    ("criticalkv(snapkv)", "head", {}),
    ("adakv(snapkv)", "head", {"allocation": "adakv"}),
    ("adakv(snapkv)", "head", {"variant": "paper"}),
    ("dynamickv", "head", {"variant": "paper"}),
    ("dynamickv", "layer", {"variant": "published"}),
    ("pyramidkv", "layer", {}),
    ("h2o", "head", {}),
    ("keydiff", "head", {}),
    ("lagkv", "head", {"lag": 16}),
    ("manifoldkv", "head", {}),
]


@pytest.fixture(autouse=True)
def _no_fp64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_WITHOUT_FP64", (DEVICE.type,))
    # It knows no type of device by this name.
    monkeypatch.setattr(torch, "autocast", lambda *args, **kwargs: contextlib.nullcontext())


def numbers(value: Any) -> Any:
    """Tensors of a value on the CPU."""
    return value.numbers if isinstance(value, OnDevice) else value


def test_the_device_has_no_fp64() -> None:
    values = torch.rand(3)
    with WithoutFp64():
        there = moved(values)
        assert there.device == (there + 1).device == torch.zeros(2, device=DEVICE).device == DEVICE
        for attempt in (there.double, lambda: torch.zeros(2, dtype=torch.float64, device=DEVICE)):
            with pytest.raises(TypeError, match=r"no torch\.float64"):
                attempt()
        with pytest.raises(RuntimeError, match="two devices"):
            there + values
        assert torch.equal(precision.double(there), values.double())


@pytest.mark.parametrize(("title", "granularity", "options"), ARMS)
def test_an_evictor_scores_and_allocates_as_on_a_cpu(
    title: str,
    granularity: Granularity,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[Any, ...]] = []
    rotations: list[tuple[Any, ...]] = []
    rotation = capture._future_rotation

    def scored(*arguments: Any) -> LayerScores:
        seen.append((arguments, score_layer(*arguments)))
        return seen[-1][1]

    def rotated(module: Any, call: Any, *vectors: Tensor) -> Tensor:
        tables = {"position_embeddings": call["position_embeddings"]}
        rotations.append((module, tables, vectors, rotation(module, call, *vectors)))
        return rotations[-1][3]

    monkeypatch.setattr(prefill_module, "score_layer", scored)
    monkeypatch.setattr(capture, "_future_rotation", rotated)
    config = PageConfig(
        evictor=title, evictor_args=options, granularity=granularity, window=16, budget=0.4
    )
    evictor, ids = config.make_evictor(), random_prompt(150)
    filled = prefill(
        observed("llama"), ids, window=16, room=1, scorers=[Scorer(evictor, 60)], prompt_seed=7
    )
    expected = positions_to_keep(evictor, filled, config)
    assert isinstance(expected, KeepPlan)
    assert len(seen) == 4
    with torch.inference_mode(), WithoutFp64():
        for module, tables, vectors, right in rotations:
            again = rotation(module, moved(tables), *moved(vectors))
            assert isinstance(again, OnDevice)
            torch.testing.assert_close(numbers(again), right)
        scores = []
        for (_, view, n_keep), right in seen:
            scores.append(score_layer(evictor, moved(view), n_keep))
            assert isinstance(scores[-1].score, OnDevice)
            torch.testing.assert_close(numbers(scores[-1].score), right.score)
        there = dataclasses.replace(filled, scores={Scorer(evictor, 60).key: scores})
        keep = positions_to_keep(evictor, there, config)
        assert isinstance(keep, KeepPlan)
        assert torch.equal(numbers(keep.members), expected.members)
    if title in ("expected_attention", "capkv"):
        assert len(rotations) == 4


def test_other_sums_in_fp64_too() -> None:
    generator = torch.Generator().manual_seed(0)
    attention = torch.rand(6, 4, 80, generator=generator)
    weights = torch.rand(5, generator=generator)
    for options in (DropOptions(top_k=8), DropOptions(top_k=8, head_pairs=0.5)):
        expected = agreements(attention, options)
        with WithoutFp64():
            assert torch.equal(agreements(moved(attention), options), expected)
    counts = share_out(weights, 100, 3, 60)
    retention = log_retention(-weights, 8)
    entropy = mean_entropy(attention[0])
    with WithoutFp64():
        assert torch.equal(share_out(moved(weights), 100, 3, 60), counts)
        assert torch.equal(numbers(log_retention(moved(-weights), 8)), retention)
        assert mean_entropy(moved(attention[0])) == entropy
