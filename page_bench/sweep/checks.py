"""What can be known of all arms of a sweep before the first prompt is run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from lm_eval.api.instance import Instance

from page_bench.config import PageConfig
from page_bench.engine import decision
from page_bench.harness.lm import PageLM
from page_bench.inputs.errors import UsageError
from page_bench.sweep.arms import Arm
from page_bench.sweep.tasks import tracker_of

_DECISIVE = (
    *("gate", "gate_args", "tau", "theta_z", "open_rate"),
    *("pilot_size", "calibration", "calibration_mismatch"),
)
"""Fields of an arm that its decision goes by; those of one group share the others."""


def check_files(arms: Sequence[Arm]) -> None:
    """Refuse arms whose calibration cannot be read, or whose results can be pushed nowhere.

    Raises:
        UsageError: names the arm.
    """
    for arm in arms:
        with _naming(arm):
            if arm.page.calibration is not None:
                decision.from_calibration(arm.page)
            tracker_of(arm)


def check_decisions(
    arms: Sequence[Arm],
    pages: Sequence[PageConfig],
    lm: PageLM,
    requests: Sequence[Instance],
    chat: bool,
) -> None:
    """Refuse arms whose pilot or calibration is none for the prompts that they are asked.

    Args:
        arms: they share their prompts.
        pages: configuration of each.
        lm: their model.
        requests: those of one arm.
        chat: whether a chat template was applied.

    Raises:
        UsageError: names the arm.
    """
    reading = [(arm, page) for arm, page in zip(arms, pages, strict=True) if page.reads_pilot]
    differing = {
        repr([getattr(page, name) for name in _DECISIVE]): (arm, page)
        for arm, page in reversed(reading)
    }
    if not differing:
        return
    by_type: dict[str, list[Instance]] = {}
    for request in requests:
        by_type.setdefault(request.request_type, []).append(request)
    for request_type, asked in by_type.items():
        # As when an arm is run, each type of request has a pilot of its own.
        prompts = lm.contexts(asked)[0] if request_type == "loglikelihood" else lm.prompts(asked)
        for arm, page in reversed(differing.values()):
            with _naming(arm):
                decision.check_arm(page, lm.model_facts(), prompts, chat)


@contextmanager
def _naming(arm: Arm) -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{arm.name}: {error}") from error
