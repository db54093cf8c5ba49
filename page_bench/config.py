"""The model arguments of `page_hf`, checked in one place before anything is loaded."""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from page_bench.errors import UsageError
from page_bench.evictors import make_evictor
from page_bench.evictors.base import GRANULARITIES, Evictor, Granularity

GATES = ("page", "open", "closed")
TAU_VARIANTS = ("zscore", "fixed")
FIXED_TAU = 0.07
"""The paper's threshold for `tau=fixed`, chosen on the Qwen2.5 and Mistral families."""
TRUNCATIONS = ("left", "middle")
COMPRESSIONS = ("prompt", "context")
SCORE_NORMS = ("none", "sum", "zscore", "rank")

_OPTION_PREFIX = "evictor."


@dataclass(frozen=True)
class PageConfig:
    """What a run does, defaults included.

    Attributes:
        evictor: title of the evictor, such as `snapkv` or `adakv(snapkv)`.
        evictor_args: its options, as given.
        granularity: one keep set for all layers and heads (`shared`, the paper's), one per
            `layer`, or one per layer and KV `head`.
        score_norm: what makes heads and layers comparable before their scores are averaged or
            compete: `none`, `sum` (a row sums to 1), `zscore` or `rank`.
        budget: b in (0, 1], the fraction of prompt positions kept per layer and KV head.
        gate: `page` evicts iff D ≥ τ, `open` always (plain eviction), `closed` never.
        tau: threshold on D, or how to find it: `zscore` (μ + θ_z·σ over a pilot), `fixed` (0.07).
        theta_z: θ_z of the z-score rule.
        pilot_size: prompts of this run that the z-score rule measures, at most.
        n_sink: first positions that are always kept.
        window: observation window w, the last query rows whose attention is read.
        recent: last positions that are always kept; None means the window.
        top_k: size of the key sets that D compares.
        compress: what is observed and evicted: the whole `prompt`, or its `context` alone, so that
            the question is read afterwards through the compressed cache.
        truncation: what to do with prompts that are too long; None means an error.
        trace: folder for the trace; None means none is written.
        doc_ids: per task the documents that `--samples` chose, which lm-eval numbers anew; set by
            page-bench itself.
    """

    evictor: str = "snapkv"
    evictor_args: Mapping[str, object] = field(default_factory=dict)
    granularity: Granularity = "shared"
    score_norm: str = "none"
    budget: float = 0.125
    gate: str = "page"
    tau: float | str = "zscore"
    theta_z: float = -0.69
    pilot_size: int = 100
    n_sink: int = 4
    window: int = 32
    recent: int | None = None
    top_k: int = 32
    compress: str = "prompt"
    truncation: str | None = None
    trace: str | None = None
    doc_ids: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_choice("granularity", self.granularity, GRANULARITIES)
        _check_choice("score_norm", self.score_norm, SCORE_NORMS)
        self.make_evictor()
        _check_choice("gate", self.gate, GATES)
        _check_number("budget", self.budget, above=0, at_most=1)
        if isinstance(self.tau, int | float) and not isinstance(self.tau, bool):
            _check_number("tau", self.tau)
        else:
            _check_choice("tau", self.tau, TAU_VARIANTS, or_else="a number")
        _check_number("theta_z", self.theta_z)
        check_integer("pilot_size", self.pilot_size, at_least=2)
        check_integer("n_sink", self.n_sink, at_least=0)
        check_integer("window", self.window, at_least=1)
        if self.recent is not None:
            # The last prompt token is fed again after eviction, so its position always stays.
            check_integer("recent", self.recent, at_least=1)
        check_integer("top_k", self.top_k, at_least=1)
        _check_choice("compress", self.compress, COMPRESSIONS)
        if self.truncation is not None:
            _check_choice("truncation", self.truncation, TRUNCATIONS)
        if self.trace is not None and not (isinstance(self.trace, str) and self.trace):
            raise UsageError(f"trace={self.trace!r} is not a folder name; give a path.")
        if not isinstance(self.doc_ids, Mapping):
            raise UsageError("doc_ids is set by page-bench itself; use --samples.")

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> PageConfig:
        """A configuration from model arguments as lm-eval parsed them; all must be ours.

        Numbers may come as int, float or NumPy scalar, and `false` or `none` stands for a default
        of None. lm-eval's parsers turn `none` into None in some places.
        """
        values: dict[str, Any] = {}
        options: dict[str, object] = {}
        for name, given in arguments.items():
            value = given.item() if hasattr(given, "item") else given
            if isinstance(value, os.PathLike):
                value = os.fspath(value)
            if name in ("evictor", "score_norm") and value is None:
                value = "none"
            if name.startswith(_OPTION_PREFIX):
                options[name.removeprefix(_OPTION_PREFIX)] = value
            elif name in _OPTIONAL and (value is False or value is None or value == "none"):
                values[name] = None
            elif isinstance(value, float) and value.is_integer() and name in _INTEGERS:
                values[name] = int(value)
            else:
                values[name] = value
        return cls(**values, evictor_args=options)

    @property
    def n_recent(self) -> int:
        """Last positions that are always kept."""
        return self.window if self.recent is None else self.recent

    @property
    def fixed_tau(self) -> float | None:
        """τ where it is known before the run, else None."""
        if isinstance(self.tau, str):
            return FIXED_TAU if self.tau == "fixed" else None
        return float(self.tau)

    @property
    def tau_variant(self) -> str:
        """How τ was found: `zscore`, `fixed` or `number`."""
        return self.tau if isinstance(self.tau, str) else "number"

    @property
    def needs_pilot(self) -> bool:
        """Whether τ must be measured on prompts of the run."""
        return self.gate == "page" and self.fixed_tau is None

    def make_evictor(self) -> Evictor:
        """The evictor with its options."""
        return make_evictor(self.evictor, self.evictor_args, self.granularity)


_OPTIONAL = ("truncation", "trace", "recent")
_INTEGERS = ("pilot_size", "n_sink", "window", "recent", "top_k")
_NAMES = tuple(
    f.name for f in dataclasses.fields(PageConfig) if f.name not in ("evictor_args", "doc_ids")
)


def is_ours(name: str) -> bool:
    """Whether a model argument belongs to page-bench and not to lm-eval's `hf` model."""
    return name in (*_NAMES, "doc_ids") or name.startswith(_OPTION_PREFIX)


def unknown_argument(name: str, known: Iterable[str]) -> UsageError:
    """The error for a model argument that nobody takes, with the nearest valid names."""
    names = [*_NAMES, *known]
    close = difflib.get_close_matches(name, names, n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"ours are {', '.join(_NAMES)}."
    return UsageError(
        f"{name} is not an argument of page_hf, of lm-eval's hf model or of the model's "
        f"configuration; {hint}"
    )


def _check_choice(
    name: str, value: object, choices: tuple[str, ...], or_else: str | None = None
) -> None:
    if value in choices:
        return
    close = difflib.get_close_matches(str(value).lower(), choices, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    allowed = ", ".join(choices) + (f" or {or_else}" if or_else else "")
    raise UsageError(f"{name}={value} does not exist{hint}; allowed are {allowed}.")


def _check_number(
    name: str, value: object, above: float = -math.inf, at_most: float = math.inf
) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not above < value <= at_most:  # type: ignore[arg-type,operator]
        bounds = "a finite number" if above == -math.inf else f"a number in ({above}, {at_most}]"
        raise UsageError(f"{name}={value} is not allowed; give {bounds}.")


def check_integer(name: str, value: object, at_least: int) -> None:
    """Raise UsageError unless the value of an argument is a whole number from `at_least` on."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise UsageError(
            f"{name}={value!r} is not allowed; give a whole number from {at_least} on."
        )
