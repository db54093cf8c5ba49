"""Which gate a report decides by, and by what it judges the answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from page_bench.analysis.regate import Tau
from page_bench.gating.gate import Gate
from page_bench.gating.signal_gates import Page
from page_bench.inputs.errors import UsageError
from page_bench.inputs.user_path import is_there


@dataclass(frozen=True)
class Choice:
    """What the user asked for.

    Attributes:
        gate: the gate; None for the gates that the runs hold, else `page`.
        tau: how τ is found; None for z-score in the run, or for 0.07 in the authors' logs.
        metric: one of `outcomes.METRICS`; None for `correct`, or for what the authors' logs hold.
        least_inputs: a task of the authors' logs with fewer makes its file a stub.
    """

    gate: Gate | None = None
    tau: Tau | None = None
    metric: str | None = None
    least_inputs: int = 20

    @property
    def is_given(self) -> bool:
        """Whether gates are decided anew whatever the runs hold."""
        return self.gate is not None or self.tau is not None

    @property
    def used_gate(self) -> Gate:
        """The gate to decide by anew."""
        return Page() if self.gate is None else self.gate


@dataclass(frozen=True)
class Place:
    """A file or folder with what the user says of it.

    Attributes:
        path: as given.
        seed: of replicates; None where not said.
        names: `model`, `context`, `evictor` of the authors' logs in it, as far as said.
    """

    path: str
    seed: int | None = None
    names: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, word: str) -> Place:
        """From `PATH` or `NAME=VALUE,…:PATH`.

        Raises:
            UsageError: a name that is none, or a seed that is no whole number.
        """
        before, colon, path = word.partition(":")
        if not colon or "=" not in before or "/" in before or is_there(word):
            return cls(word)
        names = dict(part.partition("=")[::2] for part in before.split(","))
        seed = names.pop("seed", None)
        unknown = sorted(names.keys() - {"model", "context", "evictor"})
        if unknown or (seed is not None and not seed.isdecimal()):
            wrong = f"seed={seed}" if not unknown else unknown[0]
            raise UsageError(
                f"{word}: {wrong} is not allowed before the path; give seed=NUMBER, and for the "
                f"authors' logs model=, context= and evictor=."
            )
        return cls(path, None if seed is None else int(seed), names)
