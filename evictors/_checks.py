"""Checks of option values that evictors share."""

from __future__ import annotations

import math

from page_bench.inputs.errors import UsageError


def check_option(
    name: str,
    value: float,
    at_least: float = -math.inf,
    above: float = -math.inf,
    at_most: float = math.inf,
) -> None:
    """Raise UsageError unless at_least ≤ value ≤ at_most and value > above.

    Args:
        name: the option, without `evictor.`.
        value: what was given.
        at_least: smallest value.
        above: a bound that is itself too small.
        at_most: largest value.
    """
    if at_least <= value <= at_most and value > above:
        return
    bounds = []
    if above > -math.inf:
        bounds.append(f"above {above:g}")
    if at_least > -math.inf:
        bounds.append(f"at least {at_least:g}")
    if at_most < math.inf:
        bounds.append(f"at most {at_most:g}")
    raise UsageError(
        f"evictor.{name}={value} is not allowed; give a number {' and '.join(bounds)}."
    )
