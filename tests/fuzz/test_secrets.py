"""No secret stands in what is written or said."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import wandb
import wandb_runs
import yaml
from lm_eval.models.huggingface import HFLM

from page_bench.commands import sweep as sweep_command
from page_bench.commands.wandb_import import command as import_command
from page_bench.harness.hooks import TASKS_FOLDER
from page_bench.harness.lm import PageLM
from page_bench.inputs.errors import UsageError
from page_bench.sweep.file import read_sweep
from page_bench.sweep.runner import STORE

QUICKSTART, TASK = TASKS_FOLDER / "page_quickstart", "page_quickstart_needle_word"

WANDB_KEY = "5ec2e7a0" * 5
HUB_TOKEN = "hf_" + "5ecre7" * 6
NETRC_KEY = "0e72c000" * 5


@pytest.fixture
def tracked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for all that a run writes, with secrets where users have theirs."""
    own = tmp_path / "home"
    own.mkdir()
    (own / "netrc").write_text(f"machine api.wandb.ai\n  login user\n  password {NETRC_KEY}\n")
    monkeypatch.setenv("NETRC", str(own / "netrc"))
    monkeypatch.setenv("WANDB_API_KEY", WANDB_KEY)
    monkeypatch.setenv("HF_TOKEN", HUB_TOKEN)
    written = tmp_path / "written"
    written.mkdir()
    wandb_runs.environment(monkeypatch, written)
    yield written
    wandb.teardown()


def test_no_secret_is_written_by_a_run_a_sweep_or_an_import(
    tracked: Path,
    tiny_folder: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    model, few = tiny_folder("llama"), ["--tasks", TASK, "--limit", "1"]
    args = {"pretrained": model, "store": tracked / "store.sqlite", **wandb_runs.ARM}
    wandb_runs.lm_eval_run(monkeypatch, QUICKSTART, tracked / "run", {**args, "tau": 0.07}, *few)
    sweep = tracked / "sweep.yaml"
    command = [
        *("lm_eval", "run", "--model", "page_hf", *few),
        *("--log_samples", "--device", "cpu", "--model_args", f"pretrained={model}"),
        *("dtype=float32", "window=8", "gate=open", "${args_no_hyphens}"),
    ]
    sweep.write_text(
        yaml.safe_dump(
            {"method": "grid", "command": command, "parameters": {"budget": {"value": 0.25}}}
        )
    )
    assert sweep_command.run([str(sweep), "--output_path", str(tracked / "sweep")]) == 0
    assert import_command.run([str(tracked / "sweep"), "--project", "test"]) == 0
    wandb_runs.fresh()  # what W&B still holds is written by now
    out, err = capfd.readouterr()
    said = (out + err + caplog.text).encode()
    files = [path for path in tracked.rglob("*") if path.is_file()]
    kinds = {path.suffix for path in files}
    assert (tracked / "sweep" / STORE).is_file()
    assert {".json", ".jsonl", ".sqlite", ".wandb", ".log"} <= kinds
    for secret in (WANDB_KEY, HUB_TOKEN, NETRC_KEY):
        assert secret.encode() not in said
        assert not [path for path in files if secret.encode() in path.read_bytes()]


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "HF_TOKEN", "MY_PASSWORD"])
def test_a_sweep_puts_no_secret_into_its_command(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, HUB_TOKEN)
    file = tmp_path / "sweep.yaml"
    words = ["lm_eval", "run", "--model_args", f"token=${{envvar:{name}}}"]
    file.write_text(
        yaml.safe_dump({"method": "grid", "command": words, "parameters": {"x": {"value": 1}}})
    )
    with pytest.raises(UsageError, match=f"reads {name}, which would stand in the results") as told:
        read_sweep(file).lm_eval_words({})
    assert HUB_TOKEN not in str(told.value)


@pytest.mark.parametrize("name", ["token", "use_auth_token"])
def test_a_token_is_no_model_argument(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HFLM, "__init__", lambda *args, **kwargs: pytest.fail("was loaded"))
    with pytest.raises(UsageError, match="would stand in the results") as told:
        PageLM("x", device="cpu", **{name: HUB_TOKEN})
    assert HUB_TOKEN not in str(told.value)
