"""What a grid lacks of a prompt, what came of it, and what all of them took."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from page_bench.config import PageConfig
from page_bench.engine.prefilled_prompt import ArmAnswer
from page_bench.engine.prompt import Prompt
from page_bench.records.trace import Seen


@dataclass
class Filled:
    """What filling a store took.

    Attributes:
        stored: prompts of which everything stood there.
        prefilled: prompts that were run through the model.
        prefill_tokens: their tokens.
        new_tokens: tokens of the answers, those of equal keep sets counted once.
        seconds: by activity.
    """

    stored: int = 0
    prefilled: int = 0
    prefill_tokens: int = 0
    new_tokens: int = 0
    seconds: dict[str, float] = field(
        default_factory=lambda: {"prefill": 0.0, "signals": 0.0, "evict": 0.0, "decode": 0.0}
    )

    @property
    def rates(self) -> dict[str, float]:
        """Tokens per second of prefill and decode, as far as there was any."""
        tokens = {"prefill": self.prefill_tokens, "decode": self.new_tokens}
        return {k: n / self.seconds[k] for k, n in tokens.items() if self.seconds[k] > 0}

    def add(self, computed: Computed) -> None:
        """Count one prompt."""
        self.prefilled += 1
        self.prefill_tokens += computed.prefill_tokens
        self.new_tokens += computed.new_tokens
        for activity, seconds in computed.seconds.items():
            self.seconds[activity] += seconds


@dataclass(frozen=True)
class Work:
    """What a grid lacks of one prompt.

    Attributes:
        prompt: the sample.
        signals: arms whose signals are asked for.
        evictions: arms whose answers are asked for; None stands for the full cache.
    """

    prompt: Prompt
    signals: Sequence[PageConfig]
    evictions: Sequence[PageConfig | None]


@dataclass(frozen=True)
class Computed:
    """What came of it, from one prefill.

    Attributes:
        seen: per arm of `Work.signals`.
        answers: per arm of `Work.evictions`.
        prefill_tokens, new_tokens: tokens read and answered.
        seconds: by activity, as in `Filled`.
    """

    seen: list[Seen]
    answers: list[ArmAnswer]
    prefill_tokens: int
    new_tokens: int
    seconds: dict[str, float]


Compute = Callable[[Iterator[Work]], Iterator[tuple[Work, Computed]]]
"""Does work, in any order; takes no more of it than can be done soon."""
