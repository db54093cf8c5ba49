"""What the README shows is true: its evictor runs, its defaults are the defaults."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_models import random_prompt, tiny_model

from page_bench import evictors
from page_bench.config import PageConfig
from page_bench.inputs.errors import UsageError
from page_bench.model import attention
from page_bench.model.keep_plan import KeepPlan, positions_to_keep
from page_bench.model.prefill import prefill

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def add_evictor_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts the README's evictor among the others, as a module of the given name."""

    def add(module: str) -> Path:
        (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
        (tmp_path / f"{module}.py").write_text(code)
        monkeypatch.setattr(evictors, "__path__", [*evictors.__path__, str(tmp_path)])
        return tmp_path / f"{module}.py"

    return add


@pytest.mark.parametrize("as_file", [True, False])
def test_the_evictor_shown_is_one_file_that_runs(
    as_file: bool, add_evictor_shown: Callable[[str], Path]
) -> None:
    path = add_evictor_shown("value_norm")
    title = f"{path}:ValueNorm" if as_file else "value_norm"
    config = PageConfig.from_arguments({"evictor": title, "evictor.power": 2, "window": 8})
    model = tiny_model("llama")
    with attention.observing(model):
        filled = prefill(model, random_prompt(200), window=8, room=1)
    keep = positions_to_keep(config.make_evictor(), filled, config)
    norms = torch.stack([layer.values[0].norm(dim=-1).square() for layer in filled.cache.layers])
    middle = norms.mean((0, 1))[4:192].sort(descending=True).indices[: 25 - 12] + 4
    assert isinstance(keep, KeepPlan)
    kept = keep.members[0, 0].nonzero().squeeze(-1).tolist()
    assert kept == [*range(4), *sorted(middle.tolist()), *range(192, 200)]


def test_the_defaults_shown_are_the_defaults() -> None:
    rows = re.findall(r"^\| (`.+?) \| (.+?) \|", README, re.MULTILINE)
    shown = {}
    for names, values in rows:
        for name, value in zip(re.findall(r"`(\w+)`", names), values.split(", "), strict=False):
            shown[name] = value.strip("`").replace("−", "-")
    config = PageConfig()
    for name in ("evictor", "budget", "gate", "tau", "theta_z", "pilot_size", "n_sink"):
        assert shown[name] == str(getattr(config, name)), name
    for name in ("window", "top_k"):
        assert shown[name] == str(getattr(config, name)), name
    assert all(name in README for name in evictors.evictor_names())


def test_an_evictor_must_be_called_like_its_module(
    add_evictor_shown: Callable[[str], Path],
) -> None:
    add_evictor_shown("value_size")
    with pytest.raises(UsageError, match=r"= 'value_size'"):
        PageConfig.from_arguments({"evictor": "value_size"})
