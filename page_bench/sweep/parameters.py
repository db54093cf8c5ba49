"""The parameters of a W&B sweep: what values a grid takes, and how a random sweep draws them."""

from __future__ import annotations

import math
import random
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from page_bench.inputs.errors import UsageError
from page_bench.inputs.json_text import LARGEST
from page_bench.inputs.options import nearest

MOST = 100_000
"""Values of a parameter on a grid, and arms of a sweep, at most."""

_BOUNDS = ("min", "max")
_DISTRIBUTIONS: dict[str, tuple[tuple[str, ...], dict[str, float]]] = {
    "constant": (("value",), {}),
    "categorical": (("values",), {}),
    "categorical_w_probabilities": (("values", "probabilities"), {}),
    "int_uniform": (_BOUNDS, {}),
    "uniform": (_BOUNDS, {}),
    "q_uniform": (_BOUNDS, {"q": 1}),
    "log_uniform": (_BOUNDS, {}),
    "log_uniform_values": (_BOUNDS, {}),
    "q_log_uniform": (_BOUNDS, {"q": 1}),
    "q_log_uniform_values": (_BOUNDS, {"q": 1}),
    "inv_log_uniform": (_BOUNDS, {}),
    "inv_log_uniform_values": (_BOUNDS, {}),
    "normal": ((), {"mu": 0, "sigma": 1}),
    "q_normal": ((), {"mu": 0, "sigma": 1, "q": 1}),
    "log_normal": ((), {"mu": 0, "sigma": 1}),
    "q_log_normal": ((), {"mu": 0, "sigma": 1, "q": 1}),
    "beta": ((), {"a": 1, "b": 1}),
    "q_beta": ((), {"a": 1, "b": 1, "q": 1}),
}
"""W&B's distributions: the keys that each needs, and those that it may have with their defaults."""

_AS_GIVEN = ("constant", "categorical", "categorical_w_probabilities")
_KEYS = tuple(
    dict.fromkeys(
        key for needed, optional in _DISTRIBUTIONS.values() for key in (*needed, *optional)
    )
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Parameter:
    """One parameter of a sweep.

    Attributes:
        name: as in the file.
        distribution: W&B's name for how its values lie.
        options: the keys that this distribution takes, defaults included.
    """

    name: str
    distribution: str
    options: Mapping[str, Any]

    @property
    def varies(self) -> bool:
        """Whether arms can differ in it."""
        return self.distribution != "constant" and len(self.options.get("values", "..")) > 1

    def grid(self) -> list[Any]:
        """All values, in order, where a grid can take them.

        As with W&B, the values of `q_uniform` are min, min + q, …, below max.

        Raises:
            UsageError: for a continuous distribution, or one with probabilities.
        """
        low, high = self.options.get("min"), self.options.get("max")
        match self.distribution:
            case "constant":
                return [self.options["value"]]
            case "categorical":
                return list(self.options["values"])
            case "int_uniform":
                self._check_count(high - low + 1)  # type: ignore[operator]
                return list(range(low, high + 1))  # type: ignore[arg-type,operator]
            case "q_uniform":
                q = self.options["q"]
                self._check_count((high - low) / q)  # type: ignore[operator]
                return [low + i * q for i in range(math.ceil((high - low) / q))]  # type: ignore[operator]
        raise UsageError(
            f"the parameter {self.name} ({self.distribution}) has no grid of values; list them in "
            f"values, or use method: random."
        )

    def _check_count(self, count: float) -> None:
        if count > MOST:
            raise UsageError(
                f"the parameter {self.name} has more than {MOST:,} values; list fewer in values."
            )

    def draw(self, rng: random.Random) -> Any:
        """A value from its distribution; with `q`, the nearest multiple of it.

        Raises:
            UsageError: it is too large, or too small, for a number.
        """
        try:
            value = _DRAWS[self.distribution.removeprefix("q_")](self.options, rng)
            if "q" in self.options:
                q = self.options["q"]
                rounded = round(value / q) * q
                value = int(rounded) if isinstance(q, int) else float(rounded)
            if self.distribution not in _AS_GIVEN and not _is_number(value):
                raise OverflowError
        except (OverflowError, ValueError, ZeroDivisionError) as error:
            raise UsageError(
                f"the parameter {self.name} ({self.distribution}) draws numbers that are out of "
                f"range; narrow its bounds."
            ) from error
        return value


def parse_parameter(name: object, given: object) -> Parameter:
    """A parameter as the file gives it; without `distribution`, as W&B infers it from the keys.

    Raises:
        UsageError: it is nested, or lacks, doubles or misspells a key, or a value does not fit.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"{short(name)} is not a parameter's name: write letters, digits, _ . and -, a letter "
            f"first."
        )
    if not isinstance(given, Mapping):
        raise UsageError(
            f"the parameter {name} is {short(given)}; write value: {short(given)}, or values: with "
            f"a list."
        )
    if "parameters" in given:
        raise UsageError(
            f"the parameter {name} is nested, which lm_eval's arguments cannot be; write flat "
            f"names such as {name}.NAME."
        )
    for key in given:
        if key not in (*_KEYS, "distribution"):
            raise UsageError(
                f"{key} of the parameter {name} does not exist{nearest(str(key), _KEYS)}; there "
                f"are distribution, {', '.join(_KEYS)}."
            )
    distribution = given.get("distribution", _inferred(given))
    if not isinstance(distribution, str) or distribution not in _DISTRIBUTIONS:
        raise UsageError(
            f"distribution: {distribution} of the parameter {name} does not exist"
            f"{nearest(str(distribution), _DISTRIBUTIONS)}; there are {', '.join(_DISTRIBUTIONS)}."
        )
    needed, optional = _DISTRIBUTIONS[distribution]
    options = {key: value for key, value in given.items() if key != "distribution"}
    missing = [key for key in needed if key not in options]
    surplus = [key for key in options if key not in (*needed, *optional)]
    if missing or surplus:
        what = f"lacks {missing[0]}" if missing else f"does not take {surplus[0]}"
        raise UsageError(
            f"the parameter {name} ({distribution}) {what}; it takes "
            f"{', '.join((*needed, *optional))}."
        )
    options = {**optional, **options}
    _check(name, distribution, options)
    return Parameter(name, distribution, options)


def _inferred(given: Mapping[str, Any]) -> str:
    if "value" in given:
        return "constant"
    if "values" in given:
        return "categorical_w_probabilities" if "probabilities" in given else "categorical"
    if all(_is_integer(given.get(key)) for key in _BOUNDS):
        return "int_uniform"
    return "uniform" if any(key in given for key in _BOUNDS) else "constant"


def _check(name: str, distribution: str, options: Mapping[str, Any]) -> None:
    """Raise for values that do not fit their keys."""
    for key, value in options.items():
        if key in ("values", "probabilities"):
            if not isinstance(value, list) or not value:
                raise UsageError(f"{key} of the parameter {name} is {short(value)}; give a list.")
        elif key != "value" and not _is_number(value):
            raise UsageError(f"{key} of the parameter {name} is {short(value)}; give a number.")
    if distribution == "int_uniform" and not all(_is_integer(options[key]) for key in _BOUNDS):
        raise UsageError(f"min and max of the parameter {name} must be whole numbers.")
    if "min" in options and options["min"] >= options["max"]:
        raise UsageError(
            f"min={options['min']} of the parameter {name} is not below max={options['max']}."
        )
    for key in ("q", "a", "b", *(("min",) if distribution.endswith("_values") else ())):
        if options.get(key, 1) <= 0:
            raise UsageError(f"{key} of the parameter {name} must be above 0.")
    if options.get("sigma", 0) < 0:
        raise UsageError(f"sigma of the parameter {name} must not be below 0.")
    if "probabilities" in options:
        _check_probabilities(name, options["values"], options["probabilities"])


def _check_probabilities(name: str, values: Sequence[Any], given: Sequence[Any]) -> None:
    fits = len(given) == len(values) and all(_is_number(p) and p >= 0 for p in given)
    if not fits or not math.isclose(sum(given), 1, abs_tol=1e-6):
        raise UsageError(
            f"probabilities of the parameter {name} must be one number per value, of sum 1."
        )


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= LARGEST if isinstance(value, int) else math.isfinite(value)


def short(value: object) -> str:
    """A value as a file holds it; of a large one, a part: aliases may make it endless."""
    return reprlib.repr(value)


def _uniform(o: Mapping[str, Any], rng: random.Random) -> float:
    return rng.uniform(o["min"], o["max"])


def _log_values(o: Mapping[str, Any], rng: random.Random) -> float:
    return math.exp(rng.uniform(math.log(o["min"]), math.log(o["max"])))


def _normal(o: Mapping[str, Any], rng: random.Random) -> float:
    return rng.gauss(o["mu"], o["sigma"])


_DRAWS: dict[str, Callable[[Mapping[str, Any], random.Random], Any]] = {
    "constant": lambda o, rng: o["value"],
    "categorical": lambda o, rng: rng.choice(o["values"]),
    "categorical_w_probabilities": lambda o, rng: rng.choices(o["values"], o["probabilities"])[0],
    "int_uniform": lambda o, rng: rng.randint(o["min"], o["max"]),
    "uniform": _uniform,
    # Bounds of these are exponents of e; those of `…_values` are bounds of the value itself.
    "log_uniform": lambda o, rng: math.exp(_uniform(o, rng)),
    "log_uniform_values": _log_values,
    # The reciprocal is log-uniform: a value is exp(−u), as W&B's server draws it.
    "inv_log_uniform": lambda o, rng: math.exp(-_uniform(o, rng)),
    "inv_log_uniform_values": _log_values,
    "normal": _normal,
    "log_normal": lambda o, rng: math.exp(_normal(o, rng)),
    "beta": lambda o, rng: rng.betavariate(o["a"], o["b"]),
}
