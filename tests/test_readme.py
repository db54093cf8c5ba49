"""What the README shows is true: its evictor runs, its defaults are the defaults."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import random_prompt, tiny_model

from page_bench import evictors
from page_bench.config import PageConfig
from page_bench.inputs.errors import UsageError
from page_bench.model import attention
from page_bench.model.keep_plan import KeepPlan, positions_to_keep
from page_bench.model.prefill import prefill

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def add_evictor_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts the README's evictor among the others, as a module of the given name."""

    def add(module: str) -> Path:
        blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
        (code,) = (block for block in blocks if "class " in block)
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
    arms = (ROOT / "docs" / "arms.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.+?) \| (.+?) \|", arms, re.MULTILINE)
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


def test_the_readme_can_be_read_in_one_sitting() -> None:
    assert len(README.splitlines()) <= 180


@pytest.mark.real_model
@pytest.mark.usefixtures("default_model_folder")
def test_the_notebook_runs_and_shows_what_broke() -> None:
    text = (ROOT / "docs" / "notebooks" / "one_prompt.ipynb").read_text(encoding="utf-8")
    cells = ["".join(c["source"]) for c in json.loads(text)["cells"] if c["cell_type"] == "code"]
    known: dict[str, Any] = {}
    for code in cells[:-1]:
        exec(code, known)
    full, plain, *_ = known["arms"]
    assert "2108308" in full.text
    assert "2108308" not in plain.text
    assert full.kept.all()
    assert known["gated"].text == full.text
    assert len(known["digits"]) == 7
    assert not plain.kept[..., known["digits"]].any()
    page = eval(cells[-1], known)._repr_html_()
    assert "&lt;canvas" in page


@pytest.mark.real_model
@pytest.mark.usefixtures("default_model_folder")
def test_the_prompt_shown_is_answered_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (code,) = (block for block in blocks if "load()" in block)
    monkeypatch.chdir(tmp_path)
    known: dict[str, Any] = {}
    exec(code, known)
    assert "2108308" in known["model"].answer(known["prompt"], gate="closed").text
    assert (tmp_path / "answer.html").stat().st_size > 10_000
    assert len(known["arms"]) == 8
    assert known["answer"].kept.shape == (30, 3, len(known["answer"].tokens))
    assert known["signals"]["drop"] == known["answer"].drop
