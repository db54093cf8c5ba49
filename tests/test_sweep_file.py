"""W&B sweep files: grids, draws, macros, and the words that lm-eval is to run."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

from page_bench.inputs.errors import UsageError
from page_bench.sweep.arms import arms_of, groups_of
from page_bench.sweep.file import SweepFile, read_sweep
from page_bench.sweep.parameters import parse_parameter

SWEEPS = Path(__file__).resolve().parent.parent / "sweeps"
COMMAND = ["${env}", "lm_eval", "run", "--model", "page_hf", "--tasks", "page_quickstart"]
ARGUMENTS = ["--model_args", "${args_no_hyphens}"]


def written(folder: Path, **content: Any) -> SweepFile:
    """A sweep file with these keys, read."""
    path = folder / "sweep.yaml"
    content = {"method": "grid", "command": [*COMMAND, *ARGUMENTS], **content}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return read_sweep(path)


def drawn(spec: dict[str, Any], n: int = 4000) -> list[Any]:
    rng = random.Random(1)
    parameter = parse_parameter("x", spec)
    return [parameter.draw(rng) for _ in range(n)]


def test_a_grid_is_every_combination_in_the_order_of_the_names(tmp_path: Path) -> None:
    sweep = written(
        tmp_path,
        parameters={
            "gate": {"values": ["page", "open"]},
            "evictor": {"value": "snapkv"},
            "window": {"min": 8, "max": 9},
            "budget": {"distribution": "q_uniform", "min": 0.25, "max": 0.75, "q": 0.25},
        },
    )
    rows = [tuple(row.values()) for row in sweep.draws(None, 0)]
    assert list(sweep.draws(None, 0)[0]) == ["budget", "evictor", "gate", "window"]
    # As with W&B, the upper end of q_uniform is left out, that of int_uniform is not.
    assert rows == [
        (b, "snapkv", g, w) for b in (0.25, 0.5) for g in ("page", "open") for w in (8, 9)
    ]
    assert sweep.draws(3, 0) == sweep.draws(None, 0)[:3]


def test_random_arms_repeat_with_their_seed(tmp_path: Path) -> None:
    parameters = {"budget": {"min": 0.1, "max": 0.9}, "gate": {"values": ["page", "open"]}}
    sweep = written(tmp_path, method="random", parameters=parameters)
    first = sweep.draws(20, 7)
    assert first == sweep.draws(20, 7) != sweep.draws(20, 8)
    assert len({row["budget"] for row in first}) == 20
    with pytest.raises(UsageError, match="--count"):
        sweep.draws(None, 7)
    capped = written(tmp_path, method="random", parameters=parameters, run_cap=3)
    assert len(capped.draws(None, 0)) == len(capped.draws(9, 0)) == 3


def test_draws_follow_their_distributions() -> None:
    assert drawn({"value": "x"}, 3) == ["x"] * 3
    odds = Counter(drawn({"values": ["a", "b"], "probabilities": [0.9, 0.1]}))
    assert 3500 < odds["a"] < 3700
    assert set(drawn({"min": 2, "max": 4})) == {2, 3, 4}
    log_uniform = sorted(drawn({"distribution": "log_uniform_values", "min": 1, "max": 10000}))
    assert 80 < log_uniform[2000] < 125
    assert 1 <= log_uniform[0] < log_uniform[-1] <= 10000
    exponents = drawn({"distribution": "log_uniform", "min": -1, "max": 1})
    assert math.exp(-1) <= min(exponents) < 0.4 < 2.6 < max(exponents) <= math.e
    inverse = drawn({"distribution": "inv_log_uniform", "min": 1, "max": 2})
    assert math.exp(-2) <= min(inverse) < max(inverse) <= math.exp(-1)
    normal = sorted(drawn({"distribution": "normal", "mu": 5, "sigma": 2}))
    assert normal[2000] == pytest.approx(5, abs=0.15)
    assert normal[int(4000 * 0.8413)] == pytest.approx(7, abs=0.2)
    assert sorted(drawn({"distribution": "log_normal"}))[2000] == pytest.approx(1, abs=0.1)
    beta = drawn({"distribution": "beta", "a": 2, "b": 6})
    assert sum(beta) / 4000 == pytest.approx(0.25, abs=0.01)
    assert set(drawn({"distribution": "q_uniform", "min": 0, "max": 1, "q": 0.5})) == {0, 0.5, 1}
    steps = drawn({"distribution": "q_normal", "sigma": 20, "q": 10})
    assert all(isinstance(step, int) and step % 10 == 0 for step in steps)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (0.5, "value: 0.5"),
        ({"vlaues": [1]}, "did you mean values"),
        ({"distribution": "unifrom", "min": 0, "max": 1}, "did you mean uniform"),
        ({"value": 1, "values": [1]}, "does not take values"),
        ({"min": 1}, "lacks max"),
        ({}, "lacks value"),
        ({"values": []}, "give a list"),
        ({"values": [1, 2], "probabilities": [0.5, 0.4]}, "of sum 1"),
        ({"min": 2.0, "max": 1.0}, "is not below max"),
        ({"distribution": "log_uniform_values", "min": 0, "max": 1}, "min .* above 0"),
        ({"distribution": "q_log_uniform_values", "min": 1, "max": 2, "q": 0}, "q .* above 0"),
        ({"distribution": "int_uniform", "min": 0.5, "max": 2}, "whole numbers"),
        ({"distribution": "normal", "sigma": -1}, "below 0"),
        ({"parameters": {"a": {"value": 1}}}, "flat"),
    ],
)
def test_a_parameter_that_cannot_be_is_refused(spec: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_parameter("x", spec)


def test_a_continuous_parameter_has_no_grid(tmp_path: Path) -> None:
    sweep = written(tmp_path, parameters={"budget": {"min": 0.1, "max": 0.9}})
    with pytest.raises(UsageError, match="method: random"):
        sweep.draws(None, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "bayes"}, "needs W&B's server"),
        ({"method": "gird"}, "did you mean grid"),
        ({"early_terminate": {"type": "hyperband"}}, "needs W&B's server"),
        ({"paramters": {}}, "did you mean parameters"),
        ({"parameters": {}}, "no parameters"),
        ({"parameters": {"a b": {"value": 1}}}, "not a parameter's name"),
        ({"run_cap": 0}, "leaves no arm"),
        ({"run_cap": "many"}, "whole number"),
        ({"command": []}, "list of its words"),
        ({"command": ["lm_eval", {"a": 1}]}, "no word"),
    ],
)
def test_a_file_that_cannot_be_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        written(tmp_path, **{"parameters": {"budget": {"value": 0.5}}, **change})


@pytest.mark.parametrize("text", [None, "- a\n- b\n", "a: [b", "\x00"])
def test_a_file_that_is_no_sweep_is_refused(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=r"sweep\.yaml"):
        read_sweep(path)


def by_wandb(sweep: SweepFile, row: dict[str, Any]) -> list[str]:
    """The command of an arm from W&B's own code, put together as its agent does."""
    macros: dict[str, Any] = create_sweep_command_args(
        {"args": {name: {"value": value} for name, value in row.items()}}
    )
    macros |= {"env": ["/usr/bin/env"], "interpreter": ["python"], "program": [sweep.program]}
    words: list[str] = []
    for word in create_sweep_command(list(sweep.command)):
        words += macros[word[2:-1]] if word.startswith("${") else [word]
    return words


@pytest.mark.parametrize(
    ("start", "macro"),
    [
        (["${env}", "lm_eval", "run"], "args_no_hyphens"),
        (["${env}", "${interpreter}", "-m", "lm_eval", "run"], "args_no_hyphens"),
        (["${program}"], "args"),
        (["${interpreter}", "${program}", "run"], "args_no_equals"),
        (["lm-eval", "run", "--tasks", "${envvar:SOME_TASK}"], "args_no_boolean_flags"),
        (["${env}", "lm_eval", "run", "--model_args"], "args_json"),
    ],
)
def test_macros_are_filled_in_as_wandb_does(
    start: list[str], macro: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_TASK", "page_quickstart")
    sweep = written(
        tmp_path,
        program="bin/lm_eval",
        command=[*start, f"${{{macro}}}"],
        parameters={
            "evictor.base.kernel": {"value": 5},
            "evictor": {"value": "adakv(snapkv)"},
            "fill": {"values": [True, False]},
            "budget": {"values": [0.5, None]},
        },
    )
    rows = sweep.draws(None, 0)
    assert len(rows) == 4
    for row in rows:
        words = sweep.lm_eval_words(row)
        command = by_wandb(sweep, row)
        assert words == command[len(command) - len(words) :]
        lead = command[: len(command) - len(words)]
        assert {"run", "lm_eval", "lm-eval", "bin/lm_eval"} & {*lead[-1:]}


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["lm_eval", "run", "${arg_no_hyphens}"], "did you mean args_no_hyphens"),
        (["${program}", "run"], "add program: lm_eval"),
        (["lm_eval", "${envvar:NOT_SET_ANYWHERE}"], "not set"),
        (["accelerate", "launch", "-m", "lm_eval"], "page-bench understands only"),
        (["python", "train.py"], "page-bench understands only"),
    ],
)
def test_a_command_that_cannot_be_run_is_refused(
    command: list[str], message: str, tmp_path: Path
) -> None:
    sweep = written(tmp_path, command=command, parameters={"budget": {"value": 0.5}})
    with pytest.raises(UsageError, match=message):
        sweep.lm_eval_words({"budget": 0.5})


def test_words_are_read_by_lm_eval(tmp_path: Path) -> None:
    sweep = written(
        tmp_path,
        command=[
            *("page-bench", "run", "--tasks", "page_quickstart", "--limit", 3, "--log_samples"),
            *("--output_path", "elsewhere", "--apply_chat_template", "--seed", 7),
            *("--metadata", '{"essays": "synthetic"}', *ARGUMENTS),
        ],
        parameters={
            "evictor": {"values": ["adakv(snapkv)", "snapkv"]},
            "granularity": {"value": "head"},
            "tau": {"value": "zscore"},
            "revision": {"value": None},
        },
    )
    arms = arms_of(sweep, tmp_path / "out")
    for arm in arms:
        config = arm.config
        assert (config.model, config.tasks, config.limit) == ("page_hf", ["page_quickstart"], 3)
        assert config.seed == [7] * 4
        assert config.metadata["essays"] == "synthetic"
        assert config.apply_chat_template is config.log_samples is True
        assert arm.folder.parent == tmp_path / "out"
        assert config.model_args["revision"] is None
    assert [arm.page.evictor for arm in arms] == ["adakv(snapkv)", "snapkv"]
    (only,) = arms_of(sweep, None, count=1, limit=5)
    assert (only.config.limit, only.folder.parent) == (5, Path("elsewhere"))


def test_mistakes_in_the_words_name_file_and_arm(tmp_path: Path) -> None:
    def arms(tail: list[str], **parameters: Any) -> None:
        parameters = {"budget": {"values": [0.5, 0.25]}, **parameters}
        command = [*COMMAND, *tail, *ARGUMENTS]
        arms_of(written(tmp_path, command=command, parameters=parameters), tmp_path)

    with pytest.raises(UsageError, match=r"sweep\.yaml.*budget=0\.5.*unrecognized.*--limt"):
        arms(["--limt", "3"])
    with pytest.raises(UsageError, match=r"--samples is not None"):
        arms(["--samples", '{"page_quickstart": [0]}', "--limit", "2"])
    for limit in ("0", "-1", "nan", "inf"):
        with pytest.raises(UsageError, match=r"budget=0\.5.*--limit .* whole number from 1 on"):
            arms([f"--limit={limit}"])
    with pytest.raises(UsageError, match=r"--limit 0 "):
        arms_of(written(tmp_path, parameters={"budget": {"value": 0.5}}), tmp_path, limit=0.0)
    with pytest.raises(UsageError, match=r"did you mean snapkv"):
        arms([], evictor={"value": "snapvk"})
    with pytest.raises(UsageError, match="--model hf"):
        arms(["--model", "hf"])
    with pytest.raises(UsageError, match="no --output_path"):
        arms_of(written(tmp_path, parameters={"budget": {"value": 0.5}}), None)


def test_arms_that_share_a_prefill_are_grouped(tmp_path: Path) -> None:
    sweep = written(
        tmp_path,
        parameters={
            "window": {"values": [16, 32]},
            "gate": {"values": ["page", "open"]},
            "tau": {"value": 0.1},
            "evictor": {"values": ["snapkv", "knorm"]},
            "granularity": {"values": ["shared", "head"]},
        },
    )
    groups = groups_of(arms_of(sweep, tmp_path))
    assert [len(group) for group in groups] == [8, 8]
    assert [{arm.page.window for arm in group} for group in groups] == [{16}, {32}]


def test_equal_arms_are_one_and_every_folder_is_its_own(tmp_path: Path) -> None:
    sweep = written(
        tmp_path,
        parameters={
            "budget": {"values": [0.5, 0.50, 0.25]},
            "evictor": {"values": ["adakv(snapkv)", "adakv(knorm)"]},
            "granularity": {"value": "head"},
        },
    )
    arms = arms_of(sweep, tmp_path)
    assert len(arms) == len({arm.folder for arm in arms}) == len({arm.digest for arm in arms}) == 4
    assert all(re.fullmatch(r"[A-Za-z0-9._=,-]+", arm.name) for arm in arms)
    # A trial on a few prompts is another arm, which leaves the whole one to be run.
    limited = arms_of(sweep, tmp_path, limit=2)
    assert not {arm.name for arm in limited} & {arm.name for arm in arms}


@pytest.mark.parametrize("path", sorted(SWEEPS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_file_of_the_repository_gives_the_arms_it_names(path: Path, tmp_path: Path) -> None:
    sweep = read_sweep(path)
    arms = arms_of(sweep, tmp_path)
    grid = math.prod(len(parameter.grid()) for parameter in sweep.parameters)
    assert len(arms) == grid
    assert len(groups_of(arms)) == 1
    for arm in arms:
        for name, value in arm.parameters.items():
            assert arm.config.model_args[name] == value
        assert arm.config.log_samples
        assert arm.config.wandb_args == {"project": "page-bench"}
    # What W&B's agent would run is what lm-eval's parser was given.
    row = sweep.draws(1, 0)[0]
    command = by_wandb(sweep, row)
    assert command[:3] == ["/usr/bin/env", "lm_eval", "run"]
    assert command[3:] == sweep.lm_eval_words(row)
