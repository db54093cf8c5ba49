"""A sweep's last words: arms side by side, what they lose, counted by hand."""

from __future__ import annotations

from pathlib import Path

from stored_traces import stored

from page_bench.records.trace import Trace
from page_bench.sweep.verdict import ArmRow, _lost, _next, _sentences, table

RIGHT = {"full": "11111110", "plain": "00001110", "gated": "01111110"}
"""Per arm, whether each of eight look-ups is right; the facts are right in every arm."""


def row(name: str) -> ArmRow:
    gate = {"full": "closed", "plain": "open", "gated": "page"}[name]
    traces: list[Trace] = []
    for task, right in (
        ("page_quickstart_look_up", RIGHT[name]),
        ("page_quickstart_fact", "1" * 4),
    ):
        for doc, value in enumerate(right):
            score = float(value)
            kept = 1.0 if gate == "closed" else 0.25
            traces.append(stored(task, doc, gate=gate, kept_kv=kept, correct=score, score=score))
    return ArmRow(f"gate={gate}", Path("runs") / f"gate={gate}-0123", traces)


ROWS = [row(name) for name in RIGHT]


def test_the_table_has_means_n_and_an_interval() -> None:
    lines = [line.split() for line in table(ROWS)]
    assert lines[0] == [
        "arm",
        "fact",
        "(n=4)",
        "look_up",
        "(n=8)",
        "all",
        "[95",
        "%]",
        "kept",
        "KV",
    ]
    # Wilson's interval of 11, 7 and 10 of 12.
    assert lines[1] == ["gate=closed", "1.000", "0.875", "0.917", "[0.646,", "0.985]", "1.000"]
    assert lines[2] == ["gate=open", "1.000", "0.375", "0.583", "[0.320,", "0.807]", "0.250"]
    assert lines[3] == ["gate=page", "1.000", "0.750", "0.833", "[0.552,", "0.953]", "0.250"]


def test_losses_are_inputs_that_the_full_cache_answers() -> None:
    losses = {one.name: _lost(one, ROWS) for one in ROWS[1:]}
    assert _sentences(losses) == [
        "Of what the full cache answers:\n"
        "  gate=open loses 4 of 7 inputs of page_quickstart_look_up\n"
        "  gate=page loses 1 of 7 inputs of page_quickstart_look_up"
    ]
    assert _next(ROWS, losses).splitlines()[-1] == (
        "  page-bench show 'runs/gate=open-0123' --task page_quickstart_look_up --doc 0"
    )


def test_without_a_full_cache_nothing_is_said_to_be_lost() -> None:
    assert _lost(ROWS[1], ROWS[1:]) == {}
    assert _sentences({"gate=open": {}}) == []


def test_a_metric_that_is_no_share_has_no_share_s_interval() -> None:
    traces = [
        stored("t", doc, gate="open", correct=None, score=score)
        for doc, score in enumerate((0.25, 0.5))
    ]
    assert table([ArmRow("a", Path("a"), traces)])[1].split()[:3] == ["a", "0.375", "0.375"]
