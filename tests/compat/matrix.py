"""Which releases are tried together, and where pyproject's ranges and classifiers come from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LATEST = "latest"


@dataclass(frozen=True)
class Environment:
    """One environment to try.

    Attributes:
        python: `X.Y`.
        torch: a release, or `latest`: the newest that pip finds.
        transformers: likewise.
        lm_eval: likewise, or the folder of a checkout of lm-eval.
    """

    python: str
    torch: str
    transformers: str
    lm_eval: str | Path

    @property
    def folder(self) -> str:
        """Environments of one Python and one torch share a folder; pip swaps the rest."""
        return f"python{self.python}-torch{self.torch}"

    @property
    def requirements(self) -> list[str]:
        """What to ask pip for, before page-bench's own requirements."""
        lm_eval = LATEST if isinstance(self.lm_eval, Path) else self.lm_eval
        releases = {"torch": self.torch, "transformers": self.transformers, "lm-eval": lm_eval}
        return [
            name if release == LATEST else f"{name}=={release}"
            for name, release in releases.items()
        ]


MATRIX = (
    Environment("3.11", "2.13.0", "5.4.0", "0.4.13"),
    Environment("3.11", "2.13.0", "5.14.1", "0.4.13"),
    Environment("3.11", "2.13.0", LATEST, LATEST),
    Environment("3.12", "2.6.0", "5.4.0", "0.4.13"),
    Environment("3.12", "2.6.0", LATEST, LATEST),
    Environment("3.13", LATEST, LATEST, LATEST),
)
"""The oldest and the newest of everything, and the oldest of one with the newest of the others."""

TEST_PACKAGES = ("hatchling", "hypothesis", "jsonschema", "lm-eval[longbench]", "pytest")

FAST_TESTS = (
    "compat/older_types.py",
    "compat/plain_command.py",
    "test_batching.py",
    "test_capture.py",
    "test_config.py",
    "test_continuations.py",
    "test_engine.py",
    "test_evaluate.py",
    "test_granularity.py",
    "test_harness.py",
    "test_layers.py",
    "test_lm.py",
    "test_plugin.py",
    "test_prefill.py",
    "test_prompt_pass.py",
    "test_protocols.py",
    "test_quickstart.py",
    "test_scorers.py",
    "test_sliding_windows.py",
    "test_support.py",
    "test_tracking.py",
)
"""Files in `tests` that touch Python, torch, transformers, lm-eval or W&B."""

LEFT_OUT = (
    "4096",
    "test_gated_answers_are_the_plain_or_the_full_ones_of_the_same_tasks",
    "(test_a_closed_gate_scores_like_hf_on_every_kind_of_task and chat)",
    "test_prompts_are_sized_to_the_model_that_is_given",
    "test_samples_depend_on_nothing_but_task_and_index",
    "(gemma4_text and (test_eviction or test_a_full_cache))",
    "(test_a_gated_answer and not (snapkv or h2o or dynamickv))",
    "(test_arms_together and 180)",
)
"""Parts of those files that take longest and ask nothing else of the libraries."""
