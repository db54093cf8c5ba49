"""Whether the model answers at all with its full cache, so that a broken prompt shows first."""

from __future__ import annotations

from dataclasses import replace

from page_bench.analysis.intervals import share
from page_bench.commands.doctor.subject import Subject
from page_bench.commands.doctor.verdict import Verdict
from page_bench.harness import plugin
from page_bench.harness.hooks import TASKS_FOLDER

TASKS = ("niah_single_1", "niah_multikey_2")
"""Of RULER's retrieval tasks, those that need nothing but the tokenizer."""
LENGTHS = (1, 2, 4, 8)
_HINT = "try --apply_chat_template, another length, more --samples, or a model that does it"
GOOD = 0.8


def capacity(subject: Subject, samples: int, length: int) -> Verdict:
    """Full-cache accuracy on generated RULER.

    Args:
        subject: the model.
        samples: prompts of each task.
        length: in thousands of tokens, one of `LENGTHS`.
    """
    room = length * 1024 + 256
    if subject.lm.max_length < room:
        return Verdict("skip", f"{length}k prompts need {room} positions")
    plugin.install()
    import lm_eval
    from lm_eval.tasks import TaskManager

    names = [f"page_rulergen_{length}k_{task}" for task in TASKS]
    metadata = {"tokenizer": subject.lm.tokenizer, "pretrained": subject.lm.model_name}
    manager = TaskManager(include_path=str(TASKS_FOLDER), include_defaults=False, metadata=metadata)
    results = lm_eval.simple_evaluate(
        model=subject.lm.with_page(replace(subject.page, gate="closed")),
        tasks=names,
        task_manager=manager,
        limit=samples,
        apply_chat_template=subject.chat,
        log_samples=True,
        bootstrap_iters=0,
        confirm_run_unsafe_code=False,
    )
    assert results is not None
    right = [float(row["correct"]) for name in names for row in results["samples"][name]]
    found = share(int(sum(right)), len(right))
    answers = {str(row["resps"][0][0]) for name in names for row in results["samples"][name]}
    figures: dict[str, float | int | str | None] = {
        "correct": found.value,
        "low": found.low,
        "high": found.high,
        "n": found.n,
        "distinct_answers": len(answers),
    }
    said = f"full cache right on {found} of generated {' and '.join(TASKS)}, n = {found.n}"
    if found.value == 0:
        return Verdict("fail", f"{said}; {_HINT}", figures)
    if found.value < GOOD:
        return Verdict(
            "warn", f"{said}: eviction cannot harm what is wrong anyhow; {_HINT}", figures
        )
    return Verdict("pass", said, figures)
