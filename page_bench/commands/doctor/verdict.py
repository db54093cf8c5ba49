"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Status = Literal["pass", "warn", "fail", "skip"]


@dataclass(frozen=True)
class Verdict:
    """The outcome of one check.

    Attributes:
        status: `warn` where numbers stand but say less than they seem to, `skip` where the check
            does not apply to this model.
        said: one sentence with the figures.
        figures: the same figures by name; lengths in tokens, sizes in bytes.
    """

    status: Status
    said: str
    figures: dict[str, float | int | str | None] = field(default_factory=dict)
