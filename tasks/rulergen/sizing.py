"""How much text fits."""

from __future__ import annotations

from collections.abc import Callable


def longest(
    measure: Callable[[int], int], low: int, high: int, limit: int
) -> tuple[int, int] | None:
    """The largest number of units whose tokens are within a limit.

    Args:
        measure: units → tokens, never falling. Units have about the same number of tokens each, so
            that a straight line through two measurements tells where to look next; every third
            step halves the interval, in case they have not.
        low: fewest units.
        high: most units.
        limit: in tokens.

    Returns:
        Units and their tokens; None when `low` is over the limit already.
    """
    tokens = measure(low)
    if tokens > limit:
        return None
    fits, over = (low, tokens), high + 1
    over_tokens: int | None = None
    step, tries = 8, 0
    while over - fits[0] > 1:
        tries += 1
        if over_tokens is None and tries == 1:
            guess = fits[0] + step
        elif tries % 3 == 0 and over_tokens is not None:
            guess = (fits[0] + over) // 2
        else:
            at, at_tokens = (over, over_tokens) if over_tokens is not None else (low, tokens)
            slope = (fits[1] - at_tokens) / (fits[0] - at) if fits[0] != at else 1.0
            guess = fits[0] + int((limit - fits[1]) / max(slope, 1e-3))
            if over_tokens is None and guess <= fits[0]:
                guess = fits[0] + 1
        guess = min(max(guess, fits[0] + 1), over - 1)
        measured = measure(guess)
        if measured <= limit:
            fits = guess, measured
        else:
            over, over_tokens = guess, measured
    return fits
