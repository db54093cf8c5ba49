"""What tells the arms of a report apart, in few words."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import Any

from page_bench.records.finished_runs import Arm

_OF_MODEL = ("dtype", "attn_implementation", "protocol", "chat_template")
"""Attributes of `Arm` that stand with the model's name where they differ; the rest with the
evictor's."""


class ArmNames:
    """Names of some arms: with the model what it was run with, with the evictor the rest.

    Args:
        arms: all of the report.
    """

    def __init__(self, arms: Iterable[Arm]) -> None:
        self._arms = {dataclasses.replace(arm, budget=0) for arm in arms}

    def model(self, arm: Arm) -> str:
        """The model, with what else it was run with where that differs."""
        others = [other for other in self._arms if other.model == arm.model]
        return self._named(arm, others, arm.model, _OF_MODEL)

    def evictor(self, arm: Arm) -> str:
        """The evictor, with its options and others of the arm where these differ."""
        same = [a for a in self._arms if (a.model, a.evictor) == (arm.model, arm.evictor)]
        rest = {f.name for f in dataclasses.fields(arm)} - {"model", "evictor", "evictor_args"}
        own: dict[str, Any] = json.loads(arm.evictor_args)
        options = [json.loads(other.evictor_args) for other in same]
        differing = [
            f"{name}={own.get(name)}"
            for name in sorted({key for option in options for key in option})
            if any(option.get(name) != own.get(name) for option in options)
        ]
        names = sorted(rest - {*_OF_MODEL, "budget"})
        return " ".join([self._named(arm, same, arm.evictor, names), *differing])

    @staticmethod
    def _named(arm: Arm, others: Sequence[Arm], name: str, fields: Iterable[str]) -> str:
        differing = (
            f"{field}={getattr(arm, field)}"
            for field in fields
            if any(getattr(other, field) != getattr(arm, field) for other in others)
        )
        return " ".join([name, *differing])
