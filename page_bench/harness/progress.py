"""The bar over prompts, and what it says of the work so far."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from tqdm import tqdm

from page_bench.engine.engine import Outcome
from page_bench.engine.grid_work import Filled


class PromptBar:
    """One bar over prompts with the time left, on stderr.

    Args:
        total: prompts.
        doing: what is done with them.
        hidden: whether to show nothing.
    """

    def __init__(self, total: int, doing: str, hidden: bool) -> None:
        self._bar: Any = tqdm(total=total, desc=doing, unit="prompt", disable=hidden)
        self._answered = self._opened = self._evicted = 0
        self._kept = 0.0

    def __enter__(self) -> PromptBar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.close()

    def answered(self, outcome: Outcome) -> None:
        """A prompt of one arm is done."""
        self._answered += 1
        self._opened += outcome.gate_open
        self._evicted += outcome.answer.kept_all_because is None
        self._kept += outcome.answer.kept_kv
        # A gate may open for a prompt that is too short to lose anything.
        evicted = f", {self._evicted} evicted" if self._evicted < self._opened else ""
        self._done(
            f"{self._opened} of {self._answered} open{evicted}, "
            f"kept_kv {self._kept / self._answered:.3f}"
        )

    def filled(self, filled: Filled) -> None:
        """A prompt of a grid is done, for all its arms.

        Args:
            filled: what all prompts so far took.
        """
        rates = (f"{name} {rate:.0f} tokens/s" for name, rate in filled.rates.items())
        stored = [f"{filled.stored} stored"] if filled.stored else []
        self._done(", ".join([*stored, *rates]))

    def _done(self, said: str) -> None:
        self._bar.set_postfix_str(said, refresh=False)
        self._bar.update(1)
