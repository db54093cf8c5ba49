"""Which suite a task belongs to: tasks of one benchmark and prompt length, which one τ serves."""

from __future__ import annotations

import re

_SUITES = re.compile(
    r"(?P<suite>page_ruler_\d+k(?:_(?:mixed4|partition6))?|page_rulergen_\d+k"
    r"|page_longbench_page|page_longbench|page_quickstart)_(?P<task>.+)"
)
_EVEN = "page_longbench"
_EVEN_MARK = "_e"
"""LongBench-E's tasks end in it; they are other documents than LongBench's."""


def is_ours(name: str) -> bool:
    """Whether page-bench ships the task of this name."""
    return _SUITES.fullmatch(name) is not None


def split(name: str) -> tuple[str, str]:
    """Suite and task of lm-eval's name of a task.

    `page_ruler_4k_mixed4_vt` is `vt` of `page_ruler_4k_mixed4`, `page_longbench_qasper_e` is
    `qasper` of `page_longbench_e`. A task of any other benchmark is a suite of its own.
    """
    found = _SUITES.fullmatch(name)
    if found is None:
        return name, name
    suite, task = found["suite"], found["task"]
    if suite == _EVEN and task.endswith(_EVEN_MARK):
        return suite + _EVEN_MARK, task.removesuffix(_EVEN_MARK)
    return suite, task
