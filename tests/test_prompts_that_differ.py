"""One document with another prompt in one of the runs: every command names it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from finished_runs import SUITE, answers, write_run
from stored_traces import records, stored

from page_bench.analysis.gate_choice import Choice
from page_bench.analysis.pairs import pair_runs
from page_bench.commands import compare, leaderboard, regate
from page_bench.inputs.errors import UsageError
from page_bench.records.trace import Trace
from page_bench.report.sources import read

OTHER = "f" * 64
DOCUMENT = f"{SUITE}_vt document 2"
COMMANDS: dict[str, Callable[[Path], int]] = {
    # What the command prints of its sources; drawing its figures takes seconds.
    "report": lambda runs: print(*read([str(runs)], Choice()).notes, sep="\n") or 0,
    "compare": lambda runs: compare.run([str(runs), "--draws", "100"]),
    "regate": lambda runs: regate.run([str(runs), "--draws", "100"]),
    "leaderboard": lambda runs: leaderboard.run(
        ["add", str(runs), "--file", str(runs / "leaderboard.csv")]
    ),
}


def with_other_prompts(traces: list[Trace], *doc_ids: int) -> list[Trace]:
    return [
        dataclasses.replace(trace, prompt_sha256=OTHER[:-1] + str(trace.doc_id))
        if trace.task == f"{SUITE}_vt" and trace.doc_id in doc_ids
        else trace
        for trace in traces
    ]


def printed(command: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command says, be it a table with notes or an error."""
    try:
        COMMANDS[command](runs)
    except UsageError as error:
        return str(error)
    told = capsys.readouterr()
    return told.out + told.err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_names_the_document_whose_prompt_differs(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = write_run(tmp_path / "open", answers("open"))
    full = write_run(tmp_path / "closed", with_other_prompts(answers("closed"), 2))
    said = printed(command, tmp_path, capsys)
    assert f"the prompt of {DOCUMENT} differs between runs though task and document agree" in said
    assert OTHER[:8] in said
    for path in (plain, full):  # where to look
        assert str(path.parent) in said
    assert "vt document 1" not in said


@pytest.mark.parametrize("command", COMMANDS)
def test_prompts_that_agree_are_no_news(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "open", answers("open"))
    write_run(tmp_path / "closed", answers("closed"))
    assert "differs between runs" not in printed(command, tmp_path, capsys)


def test_a_leaderboard_row_without_its_full_run_says_whose_prompts_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    only = [[t for t in answers(gate) if t.task == f"{SUITE}_vt"] for gate in ("open", "closed")]
    write_run(tmp_path / "open", only[0])
    write_run(tmp_path / "closed", with_other_prompts(only[1], *range(4)))
    said = printed("leaderboard", tmp_path, capsys)
    assert f"the prompt of {SUITE}_vt document 0, {SUITE}_vt document 1" in said
    assert "1 of these rows has no full run (gate=closed) of the same inputs" in said


def test_where_nothing_pairs_the_error_names_documents_or_what_each_side_has() -> None:
    plain = [stored("vt", i) for i in range(7)]
    full = [stored("vt", i, gate="closed", prompt_sha256=OTHER[:-1] + str(i)) for i in range(7)]
    first_five = ", ".join(f"vt document {i}" for i in range(5))
    message = rf"the prompt of {first_five} and 2 more differs .*_1\.jsonl line 1 .*line 8 "
    with pytest.raises(UsageError, match=message):
        pair_runs(records(*plain, *full))
    cut = stored("vt", 0, gate="closed", prompt_tokens=99)
    with pytest.raises(UsageError, match=r"vt document 0 differs .*100 tokens.*99 tokens"):
        pair_runs(records(plain[0], cut))
    other = stored("fwe", 3, gate="closed")
    message = "plain ones are of vt document 0, vt document 1, …, the full ones of fwe document 3;"
    with pytest.raises(UsageError, match=message):
        pair_runs(records(*plain, other))


def test_two_wordings_that_pair_each_are_meant_so() -> None:
    both = [
        stored(gate=gate, protocol=protocol, prompt_sha256=sha * 64)
        for protocol, sha in (("page", "a"), ("ruler", "b"))
        for gate in ("open", "closed")
    ]
    _, notes = pair_runs(records(*both))
    assert not [note for note in notes if "differs between runs" in note]
    with pytest.raises(UsageError, match=r"differs .*protocol page.*protocol ruler"):
        pair_runs(records(both[0], both[3]))


def test_budgets_of_other_prompts_are_not_counted_as_more_inputs(tmp_path: Path) -> None:
    """A sweep whose every arm had rendered its own prompts: six documents were twelve inputs."""
    for budget, sha in ((0.25, "a"), (0.5, "b")):
        for gate in ("open", "closed"):
            own = [
                dataclasses.replace(trace, prompt_sha256=sha * 63 + str(trace.doc_id))
                for trace in answers(gate, budget=budget)
                if trace.task == f"{SUITE}_vt"
            ]
            write_run(tmp_path / f"{gate} {budget}", own)
    with pytest.raises(UsageError, match=f"same prompt at all budgets: {SUITE}_vt document 0 has"):
        COMMANDS["report"](tmp_path)
