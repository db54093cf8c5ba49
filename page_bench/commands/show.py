"""`page-bench show`: one prompt of a finished run, with what its cache kept, as a page."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from page_bench.commands.shared.argument_types import whole_number
from page_bench.config import is_ours
from page_bench.inputs import json_text
from page_bench.inputs.errors import UsageError
from page_bench.records.finished_runs import Record, read_runs
from page_bench.records.trace import Trace

_EPILOG = """\
The run must have been made with --log_samples, which keeps the prompts. What the cache kept is not
part of a record, so the model is loaded and the prompt computed again.

example: page-bench show results/demo --task page_quickstart_needle_number --doc 0"""


def run(argv: Sequence[str]) -> int:
    """Run the command with its arguments."""
    args = _parser().parse_args(list(argv))
    record = the_record(read_runs([args.results]), args.task, args.doc, args.repeat)
    sample = _sample(record)
    results = _results(record.path)
    target = Path(args.output)
    if not target.parent.is_dir():
        raise UsageError(f"--output {target}: there is no folder {target.parent}; make it first.")
    from page_bench.api.model import load  # loads torch and lm-eval

    print("page-bench show: computing the prompt again", file=sys.stderr)
    given = results["config"]["model_args"] or {}
    chosen = {} if args.device is None else {"device": args.device}
    same = {k: v for k, v in given.items() if not is_ours(k) or k == "truncation"}
    model = load(**{"model": same.pop("pretrained", None), **same, **chosen})
    answer = model.answer_again(record.trace, sample["text"], sample["doc"])
    if answer.text != record.trace.answer:
        print(
            f"page-bench show: the answer is {answer.text!r} now and was {record.trace.answer!r} "
            f"in the run; what the page shows is of now",
            file=sys.stderr,
        )
    answer.show(target)
    print(target)
    return 0


def the_record(records: Sequence[Record], task: str, doc: int, repeat: int = 0) -> Record:
    """The one record of a document.

    Raises:
        UsageError: there is none, or there are several arms.
    """
    of_task = [record for record in records if record.trace.task == task]
    if not of_task:
        known = ", ".join(sorted({record.trace.task for record in records}))
        raise UsageError(f"--task {task}: the run has no such task; it has {known}.")
    found = [
        record for record in of_task if (record.trace.doc_id, record.trace.repeat) == (doc, repeat)
    ]
    if not found:
        ids = sorted({record.trace.doc_id for record in of_task})
        raise UsageError(
            f"--doc {doc}: {task} has no such document; it has {len(ids)}, from {ids[0]} to "
            f"{ids[-1]}."
        )
    if len(found) > 1:
        folders = ", ".join(sorted({str(record.path.parent) for record in found}))
        raise UsageError(
            f"{len(found)} arms hold {task} document {doc}; give the folder of one: {folders}."
        )
    if found[0].trace.asked is None or "continuations" in found[0].trace.asked:
        raise UsageError(
            f"{found[0].where} is no generated answer, or does not say how it was asked for; show "
            f"takes answers of generate_until that this page-bench has written."
        )
    return found[0]


def _sample(record: Record) -> dict[str, Any]:
    """The prompt's text and its document, from the samples that lm-eval wrote beside the trace."""
    trace = record.trace
    for row in _rows(record.path.parent.glob("samples_*.jsonl"), trace):
        arguments = row.get("arguments")
        if isinstance(arguments, Mapping):
            text = arguments.get("gen_args_0", {}).get("arg_0")
            if isinstance(text, str) and row.get("prompt_hash") == trace.prompt_sha256:
                return {"text": text, "doc": row.get("doc", {})}
    raise UsageError(
        f"{record.path.parent} holds no samples with the prompt of {trace.task} document "
        f"{trace.doc_id}; run again with --log_samples."
    )


def _rows(paths: Iterator[Path], trace: Trace) -> Iterator[dict[str, Any]]:
    for path in sorted(paths):
        if path.name.startswith(f"samples_{trace.task}_"):
            with path.open("rb") as file:
                for line in file:
                    try:
                        row = json_text.parse(line, nan=True, twice=True, halves=None)
                    except (ValueError, json.JSONDecodeError) as error:
                        raise UsageError(f"{path} is damaged ({error}); run again.") from error
                    if isinstance(row, dict):
                        yield row


def _results(trace_file: Path) -> dict[str, Any]:
    """The latest results beside a trace, which name the model."""
    files = sorted(trace_file.parent.glob("results_*.json"))
    if not files:
        raise UsageError(f"{trace_file.parent} holds no results_*.json, which names the model.")
    found: dict[str, Any] = json_text.parse(
        files[-1].read_bytes(), nan=True, twice=True, halves=None
    )
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="page-bench show",
        description="Show one prompt of a finished run: its text shaded by what the cache kept, "
        "layers × positions, and its answers side by side.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("results", metavar="RESULTS", help="folder of a run, or its trace")
    add("--task", "-t", required=True, help="lm-eval's name of the task")
    add("--doc", type=whole_number(0), required=True, metavar="N", help="number of the document")
    add("--repeat", type=whole_number(0), default=0, metavar="N", help="of several answers (0)")
    add("--output", "-o", default="show.html", metavar="FILE", help="page to write (show.html)")
    add("--device", help="such as cuda; the run's own if left out")
    return parser
