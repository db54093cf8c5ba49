"""The arms of a sweep: each one `lm_eval run`, and which of them share a prefill."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import io
import json
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from page_bench.config import PageConfig, is_ours
from page_bench.harness.own_runs import MODEL
from page_bench.inputs.errors import UsageError
from page_bench.inputs.user_path import user_path
from page_bench.sweep.file import SweepFile

_OF_THE_ARM = (
    *("evictor", "granularity", "score_norm", "budget", "n_sink", "recent"),
    *("gate", "tau", "theta_z", "open_rate", "pilot_size", "calibration", "calibration_mismatch"),
)
"""Model arguments that leave the prefill as it is, besides `evictor.…` and `gate.…`."""

_NOT_THE_ARM = (
    *("config", "output_path", "verbosity", "show_config", "write_out"),
    *("wandb_args", "wandb_config_args", "trackio_args", "hf_hub_log_args"),
)
"""Fields of lm-eval's configuration that do not change what is computed."""

_TRACKERS = ("wandb_args", "wandb_config_args", "trackio_args")
_NAME_LENGTH = 100


@dataclass(frozen=True)
class Arm:
    """One run of lm-eval.

    Attributes:
        name: of its folder: the parameters that vary in the sweep, and the head of the digest.
        digest: SHA-256 of all that determines the run's results, in hex.
        parameters: what the sweep set.
        config: lm-eval's configuration, with the arm's own output folder.
        page: what the model arguments say to page-bench.
    """

    name: str
    digest: str
    parameters: Mapping[str, Any]
    config: Any
    page: PageConfig

    @property
    def folder(self) -> Path:
        """The arm's output folder."""
        return Path(self.config.output_path)

    @property
    def prefill(self) -> str:
        """Equal for arms whose prompts are prefilled once."""
        shared = _determining(self.config)
        for name in ("model_args", "metadata"):
            shared[name] = {k: v for k, v in shared[name].items() if not is_of_the_arm(k)}
        return _digest(shared)


def is_of_the_arm(name: str) -> bool:
    """Whether a model argument may differ among arms that share a prefill."""
    return name in _OF_THE_ARM or name.startswith(("evictor.", "gate."))


def arms_of(
    sweep: SweepFile,
    output_path: str | Path | None,
    count: int | None = None,
    seed: int = 0,
    limit: float | None = None,
) -> list[Arm]:
    """The arms of a sweep; equal ones are one.

    Args:
        sweep: the file.
        output_path: folder for the arms' folders; None takes it from the command.
        count, seed: see `SweepFile.draws`.
        limit: replaces `--limit` of the command.

    Raises:
        UsageError: words that lm_eval does not understand, another model than page_hf, an argument
            that page_hf refuses, or no output folder.
    """
    varying = [parameter.name for parameter in sweep.parameters if parameter.varies]
    arms: dict[str, Arm] = {}
    for drawn in sweep.draws(count, seed):
        try:
            config = _configuration(sweep.lm_eval_words(drawn), output_path, limit)
            page = _page_config(config)
        except UsageError as error:
            raise UsageError(_for_arm(sweep.path, drawn, varying, error)) from error
        if config.output_path is None:
            raise UsageError(
                f"{sweep.path}: the command has no --output_path; give one to page-bench sweep."
            )
        digest = _digest(_determining(config))
        name = _name([f"{name}={drawn[name]}" for name in varying] or [sweep.path.stem], digest)
        config.output_path = str(user_path(config.output_path, "--output_path") / name)
        arms.setdefault(digest, Arm(name, digest, drawn, config, page))
    return list(arms.values())


def groups_of(arms: Sequence[Arm]) -> list[list[Arm]]:
    """The arms by shared prefill, in the order in which their first arms come."""
    groups: dict[str, list[Arm]] = {}
    for arm in arms:
        groups.setdefault(arm.prefill, []).append(arm)
    return list(groups.values())


def eviction_of(page: PageConfig) -> str | None:
    """Equal for arms whose evictor does the same where their gates open; None if none ever does."""
    if page.gate == "closed":
        return None
    evictor = page.make_evictor()
    names = ("granularity", "score_norm", "budget", "n_sink", "n_recent")
    options = [evictor.title, dataclasses.asdict(evictor)]
    return _digest([*options, *(getattr(page, name) for name in names)])


def trackers_of(arms: Sequence[Arm]) -> list[str]:
    """The flags for experiment trackers that the arms' commands hold."""
    return [f"--{name}" for name in _TRACKERS if any(getattr(a.config, name) for a in arms)]


def _configuration(
    words: Sequence[str], output_path: str | Path | None, limit: float | None
) -> Any:
    """lm-eval's own reading of the words behind `lm_eval run`."""
    from lm_eval._cli.harness import HarnessCLI
    from lm_eval.config.evaluate_config import EvaluatorConfig

    told = io.StringIO()
    try:
        # argparse tells of a mistake on stderr, and a --config file is printed in full.
        with contextlib.redirect_stderr(told), contextlib.redirect_stdout(told), _quiet("lm_eval"):
            arguments: argparse.Namespace = HarnessCLI()._parser.parse_args(["run", *words])
            if output_path is not None:
                arguments.output_path = str(output_path)
            if limit is not None:
                arguments.limit = limit
            config = EvaluatorConfig.from_cli(arguments)
    except SystemExit as error:
        reason = told.getvalue().strip().rpartition("error: ")[2]
        raise UsageError(f"lm_eval does not understand the command: {reason}.") from error
    except Exception as error:  # lm-eval raises what Python's parsers do
        said = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"lm_eval refuses the command: {said}") from error
    if config.model != MODEL:
        raise UsageError(
            f"the command runs --model {config.model}, but a sweep answers all arms by one "
            f"{MODEL}; write --model {MODEL}, or run lm_eval itself."
        )
    if config.limit is not None and not 0 < config.limit < math.inf:
        raise UsageError(
            f"--limit {config.limit:g} names no number of prompts; give a whole number from 1 on, "
            f"or a share of each task's prompts below 1."
        )
    return config


def _page_config(config: Any) -> PageConfig:
    return PageConfig.from_arguments({k: v for k, v in config.model_args.items() if is_ours(k)})


@contextlib.contextmanager
def _quiet(name: str) -> Iterator[None]:
    """No messages below an error from one package's log: the same would come for every arm."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _determining(config: Any) -> dict[str, Any]:
    return {k: v for k, v in dataclasses.asdict(config).items() if k not in _NOT_THE_ARM}


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _name(words: Sequence[str], digest: str) -> str:
    """A folder's name, the same on every system and unlike any other arm's."""
    plain = re.sub(r"[^A-Za-z0-9._=,+-]+", "_", ",".join(words))
    return f"{plain[:_NAME_LENGTH].strip('._')}-{digest[:8]}"


def _for_arm(
    path: Path, drawn: Mapping[str, Any], varying: Sequence[str], error: UsageError
) -> str:
    which = ", ".join(f"{name}={drawn[name]}" for name in varying)
    prefix = f"{path}: "
    text = str(error).removeprefix(prefix)
    return f"{path}{f' ({which})' if which else ''}: {text}"
