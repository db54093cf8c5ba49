"""The model arguments of `page_hf`, checked in one place before anything is loaded."""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from page_bench.evictors import make_evictor
from page_bench.evictors.base import GRANULARITIES, Evictor, Granularity
from page_bench.evictors.base.budget import is_too_short, keep_count
from page_bench.gating.gate import Gate
from page_bench.gating.gates import make_gate
from page_bench.gating.profile import DropOptions
from page_bench.gating.rules import OPEN_RATE, THETA_Z, known_threshold
from page_bench.gating.signal_gates import Page, Static
from page_bench.gating.signals import SIGNALS
from page_bench.inputs.errors import UsageError
from page_bench.inputs.json_text import LARGEST
from page_bench.inputs.user_path import user_path

TAU_VARIANTS = ("zscore", "fixed", "midpoint", "quantile")
SIGNAL_LEVELS = ("gate", "all", "pairs")
MISMATCHES = ("error", "warn")
TRUNCATIONS = ("left", "middle")
COMPRESSIONS = ("prompt", "context")
TOO_SHORT = "prompt too short"
"""Why nothing is evicted of a prompt that the smallest cache holds whole."""
SCORE_NORMS = ("none", "sum", "zscore", "rank")

_EVICTOR_PREFIX = "evictor."
_GATE_PREFIX = "gate."


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
        gate: name of the gate: `page` evicts iff D ≥ τ, `open` always (plain eviction), `closed`
            never; `gates.GATES` has all.
        gate_args: its options, as given.
        tau: threshold, or how to find it: `zscore` (μ + θ_z·σ over a pilot), `fixed` (0.07),
            `quantile` (a share of the pilot opens), `midpoint` (between two task means).
        theta_z: θ_z of the z-score rule.
        open_rate: share that `quantile` opens.
        pilot_size: prompts of this run that a pilot measures, at most.
        calibration: file that holds a pilot; None means that prompts of this run are the pilot.
        calibration_mismatch: what to do where the file belongs to another model, dtype, attention
            implementation or length: `error` or `warn`.
        signals: what is recorded of the prefill: D and what the `gate` reads, `all` signals, or
            the agreement of all `pairs` of heads as well.
        n_sink: first positions that are always kept.
        window: observation window w, the last query rows whose attention is read.
        recent: last positions that are always kept; None means the window. 0 is for evictors that
            always keep the last position themselves.
        top_k: size of the key sets that D compares.
        compress: what is observed and evicted: the whole `prompt`, or its `context` alone, so that
            the question is read afterwards through the compressed cache.
        truncation: what to do with prompts that are too long; None means an error.
        trace: folder for the trace; None means none is written.
        store: file that keeps what was computed, and from which it is taken where it stands
            there; None means none.
        doc_ids: per task the documents that `--samples` chose, which lm-eval numbers anew; set by
            page-bench itself.
    """

    evictor: str = "snapkv"
    evictor_args: Mapping[str, object] = field(default_factory=dict)
    granularity: Granularity = "shared"
    score_norm: str = "none"
    budget: float = 0.125
    gate: str = "page"
    gate_args: Mapping[str, object] = field(default_factory=dict)
    tau: float | str = "zscore"
    theta_z: float = THETA_Z
    open_rate: float = OPEN_RATE
    pilot_size: int = 100
    calibration: str | None = None
    calibration_mismatch: str = "error"
    signals: str = "gate"
    n_sink: int = 4
    window: int = 32
    recent: int | None = None
    top_k: int = 32
    compress: str = "prompt"
    truncation: str | None = None
    trace: str | None = None
    store: str | None = None
    doc_ids: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_choice("granularity", self.granularity, GRANULARITIES)
        _check_choice("score_norm", self.score_norm, SCORE_NORMS)
        self.make_evictor()
        gate = self.make_gate()
        _check_number("budget", self.budget, above=0, at_most=1)
        if isinstance(self.tau, int | float) and not isinstance(self.tau, bool):
            _check_number("tau", self.tau)
        else:
            _check_choice("tau", self.tau, TAU_VARIANTS, or_else="a number")
        _check_number("theta_z", self.theta_z)
        _check_number("open_rate", self.open_rate, at_least=0, at_most=1)
        _check_choice("signals", self.signals, SIGNAL_LEVELS)
        _check_choice("calibration_mismatch", self.calibration_mismatch, MISMATCHES)
        if gate.side is not None:
            if self.tau in ("zscore", "quantile", "midpoint"):
                if self.tau == "midpoint" and self.calibration is None:
                    raise UsageError(
                        "tau=midpoint needs inputs of two tasks: measure them with `page-bench "
                        "calibrate` and give calibration=FILE, or use tau=zscore."
                    )
            else:
                known_threshold(self.tau, str(gate.signal), gate.side)
        if self.calibration is not None and (gate.side is None or not self.reads_pilot):
            raise UsageError(
                f"calibration={self.calibration} has no use with gate={self.gate},tau={self.tau}, "
                f"which reads no pilot; leave it out."
            )
        check_integer("pilot_size", self.pilot_size, at_least=2)
        check_integer("n_sink", self.n_sink, at_least=0)
        check_integer("window", self.window, at_least=1)
        if self.recent is not None:
            check_integer("recent", self.recent, at_least=0)
        # The last prompt token is fed again after eviction, so its position always stays.
        if self.recent == 0 and self.make_evictor().always_keeps(self.window)[1] == 0:
            raise UsageError(
                f"recent=0 lets evictor={self.evictor} drop the last position, but the last prompt "
                f"token is read again; give recent=1, or an evictor that always keeps the last "
                f"positions, such as streamingllm, or snapkv with evictor.variant=published."
            )
        check_integer("top_k", self.top_k, at_least=1)
        _check_choice("compress", self.compress, COMPRESSIONS)
        if self.truncation is not None:
            _check_choice("truncation", self.truncation, TRUNCATIONS)
        for name, kind in (("trace", "folder"), ("store", "file"), ("calibration", "file")):
            path = getattr(self, name)
            if path is not None and not (isinstance(path, str) and path):
                raise UsageError(f"{name}={path!r} is not the name of a {kind}; give a path.")
            if path is not None:
                user_path(path, name)
        if not isinstance(self.doc_ids, Mapping):
            raise UsageError("doc_ids is set by page-bench itself; use --samples.")

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> PageConfig:
        """A configuration from model arguments as lm-eval parsed them; all must be ours.

        Numbers may come as int, float or NumPy scalar, and `false` or `none` stands for a default
        of None. lm-eval's parsers turn `none` into None in some places.

        Raises:
            UsageError: a value, or a combination of them, that is not allowed.
        """
        values: dict[str, Any] = {}
        options: dict[str, object] = {}
        gate_options: dict[str, object] = {}
        for name, given in arguments.items():
            value = given.item() if getattr(given, "ndim", None) == 0 else given
            if isinstance(value, int) and abs(value) > LARGEST:
                raise UsageError(
                    f"{name} is a whole number of more than 18 digits; give a smaller one."
                )
            if isinstance(value, os.PathLike):
                value = os.fspath(value)
            if name in ("evictor", "score_norm") and value is None:
                value = "none"
            if not is_ours(name):
                raise unknown_argument(name, ())
            if name.startswith(_EVICTOR_PREFIX):
                options[name.removeprefix(_EVICTOR_PREFIX)] = value
            elif name.startswith(_GATE_PREFIX):
                gate_options[name.removeprefix(_GATE_PREFIX)] = value
            elif name in _OPTIONAL and (value is False or value is None or value == "none"):
                values[name] = None
            elif isinstance(value, float) and value.is_integer() and name in _INTEGERS:
                values[name] = int(value)
            else:
                values[name] = value
        return cls(**values, evictor_args=options, gate_args=gate_options)

    @property
    def n_recent(self) -> int:
        """Last positions that are always kept."""
        return self.window if self.recent is None else self.recent

    @property
    def reads_pilot(self) -> bool:
        """Whether the decision rests on a pilot: for τ, or for the means of tasks."""
        gate = self.make_gate()
        by_rule = self.tau in ("zscore", "quantile", "midpoint")
        return gate.side is not None and (by_rule or isinstance(gate, Static))

    @property
    def needs_pilot(self) -> bool:
        """Whether prompts of the run are the pilot."""
        return self.reads_pilot and self.calibration is None

    @property
    def signal_names(self) -> tuple[str, ...]:
        """Signals that are recorded, D first."""
        if self.signals != "gate":
            return SIGNALS
        read = self.make_gate().signal
        return ("drop",) if read in (None, "drop") else ("drop", str(read))

    def __getstate__(self) -> dict[str, Any]:
        # Evictors of a file are of a class that other processes cannot import.
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    @property
    def drop_options(self) -> DropOptions:
        """How D is taken."""
        gate = self.make_gate()
        if isinstance(gate, Page):
            return gate.drop_options(self.top_k)
        return DropOptions(self.top_k)

    def make_gate(self) -> Gate:
        """The gate with its options."""
        return self._gate

    @cached_property
    def _gate(self) -> Gate:
        return make_gate(self.gate, self.gate_args)

    def make_evictor(self) -> Evictor:
        """The evictor with its options."""
        return self._evictor

    # Looking an evictor up reads the entry points of all installed packages.
    @cached_property
    def _evictor(self) -> Evictor:
        return make_evictor(self.evictor, self.evictor_args, self.granularity)


def budget_for(config: PageConfig, length: int) -> int | str:
    """Positions to keep per layer and KV head; or, where nothing is to be evicted, the reason."""
    forced = forced_count(config, length)
    if forced == length or is_too_short(length, config.n_sink, config.n_recent):
        return TOO_SHORT
    n_keep = forced or keep_count(config.budget, length, config.n_sink, config.n_recent)
    return "budget keeps all" if n_keep == length else n_keep


def forced_count(config: PageConfig, length: int) -> int | None:
    """Positions that the evictor always keeps, if the budget allows fewer of a prompt this long.

    Args:
        config: evictor, budget and protected positions.
        length: T, tokens that are compressed.

    Returns:
        At most T, protected positions included; None where the budget has room for them.
    """
    least = config.make_evictor().least_kept(config.window, config.n_sink, config.n_recent)
    allowed = keep_count(config.budget, length, config.n_sink, config.n_recent)
    return min(least, length) if least > allowed and allowed < length else None


_OPTIONAL = ("truncation", "trace", "recent", "store", "calibration")
_INTEGERS = ("pilot_size", "n_sink", "window", "recent", "top_k")
_SECRETS = ("token", "use_auth_token")
_NAMES = tuple(
    f.name
    for f in dataclasses.fields(PageConfig)
    if f.name not in ("evictor_args", "gate_args", "doc_ids")
)


def is_ours(name: str) -> bool:
    """Whether a model argument belongs to page-bench and not to lm-eval's `hf` model."""
    if not isinstance(name, str):  # of a YAML file
        raise UsageError(f"the model argument {name!r} is no name; write it as a text.")
    return name in (*_NAMES, "doc_ids") or name.startswith((_EVICTOR_PREFIX, _GATE_PREFIX))


def refuse_secrets(arguments: Mapping[str, Any]) -> None:
    """Raise UsageError for a token among model arguments, which logs and results would hold."""
    for name in _SECRETS:
        if isinstance(arguments.get(name), str):
            raise UsageError(
                f"{name} would stand in the results, as every model argument does; leave it out, "
                f"and set the environment variable HF_TOKEN or use `hf auth login`."
            )


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
    if isinstance(value, str) and value in choices:
        return
    close = difflib.get_close_matches(str(value).lower(), choices, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    allowed = ", ".join(choices) + (f" or {or_else}" if or_else else "")
    raise UsageError(f"{name}={value} does not exist{hint}; allowed are {allowed}.")


def _check_number(
    name: str,
    value: object,
    above: float = -math.inf,
    at_least: float = -math.inf,
    at_most: float = math.inf,
) -> None:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if math.isfinite(number) and number > above and at_least <= number <= at_most:
        return
    bounds = "a finite number"
    if above > -math.inf or at_least > -math.inf:
        left = f"({above}" if above > -math.inf else f"[{at_least}"
        bounds = f"a number in {left}, {at_most}]"
    raise UsageError(f"{name}={value} is not allowed; give {bounds}.")


def check_integer(name: str, value: object, at_least: int) -> None:
    """Raise UsageError unless the value of an argument is a whole number from `at_least` on."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise UsageError(
            f"{name}={value!r} is not allowed; give a whole number from {at_least} on."
        )
