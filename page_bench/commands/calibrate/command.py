"""`page-bench calibrate`: measure a pilot, write the calibration, print τ by every rule."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from page_bench.commands.calibrate.documents import Request
from page_bench.commands.calibrate.measure import measure
from page_bench.commands.calibrate.pilots import PILOTS
from page_bench.commands.calibrate.report import describe, pilot_table
from page_bench.commands.shared.argument_types import share, whole_number
from page_bench.gating.rules import MIDPOINT_SIZE, OPEN_RATE, THETA_Z
from page_bench.gating.threshold import PILOT_SEED
from page_bench.harness.own_runs import MODEL
from page_bench.inputs import json_text
from page_bench.inputs.errors import UsageError
from page_bench.inputs.user_path import user_path
from page_bench.records.trace import writable_folder

_EPILOG = """\
use it:  lm_eval --model page_hf --model_args tau=zscore,calibration=FILE,… --limit N …
where N is --test_limit. A file serves one model, dtype, attention implementation and length."""


def run(argv: Sequence[str], task_manager: Any = None) -> int:
    """Run the command with its arguments.

    Args:
        argv: what follows `calibrate`.
        task_manager: see `pilot_run.measure`.
    """
    args = _parser().parse_args(list(argv))
    output = user_path(args.output, "--output")
    writable_folder(str(output.parent))  # before the model is loaded
    if output.is_dir():
        raise UsageError(f"--output {output} is a folder; name a file.")
    result = measure(_request(args), task_manager)
    result.calibration.save(output)
    print(describe(result.calibration))
    if result.comparison:
        print("", pilot_table(result.comparison), sep="\n")
    for note in result.notes:
        print(f"note: {note}")
    print(f"\nwritten to {output}; τ for the other signals stands there.")
    return 0


def _request(args: argparse.Namespace) -> Request:
    return Request(
        model_args=_model_args(args.model, args.model_args),
        tasks=[name for word in args.tasks for name in word.split(",") if name],
        pilot=args.pilot,
        compare=args.compare_pilots,
        length=args.length,
        pilot_size=args.pilot_size,
        test_limit=args.test_limit,
        in_run=args.in_run,
        midpoint_size=args.midpoint_size,
        theta_z=args.theta_z,
        open_rate=args.open_rate,
        seed=args.seed,
        answers=args.answers,
        chat=args.apply_chat_template,
        metadata=_json(args.metadata),
        device=args.device,
    )


def _model_args(model: str | None, more: str) -> dict[str, Any]:
    """Model arguments, from `--model NAME` or `--model NAME=VALUE,…` and `--model_args`."""
    from lm_eval.utils import simple_parse_args_string

    arguments = dict(simple_parse_args_string(more))
    if model and model != MODEL:  # as on lm_eval's command line, where the name is an argument
        named = {"pretrained": model} if "=" not in model else simple_parse_args_string(model)
        doubled = sorted({*named} & {*arguments})
        if doubled:
            raise UsageError(
                f"--model and --model_args both give {', '.join(doubled)}; give it once."
            )
        arguments |= named
    return arguments


def _json(text: str) -> dict[str, Any]:
    try:
        value = json_text.parse(text)
    except ValueError as error:
        raise UsageError(f"--metadata {text} is not JSON ({error}); give an object.") from error
    if not isinstance(value, dict):
        raise UsageError(f"--metadata {text} is not a JSON object; give one.")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="page-bench calibrate",
        description="Measure the threshold τ on a pilot and write it to a file.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", help="a model's name, or model arguments as NAME=VALUE,…")
    add("--model_args", "-a", default="", help="model arguments, as for lm_eval")
    add("--tasks", nargs="*", default=[], help="lm-eval tasks or groups that will be tested")
    add("--pilot", choices=PILOTS, help="draw from these RULER tasks only")
    add("--length", help="of generated inputs, such as 4k; read from the tasks' names if it can be")
    add("--pilot_size", type=whole_number(2), default=100, help="prompts of the pilot (100)")
    add(
        "--test_limit",
        type=whole_number(1),
        default=100,
        help="first documents of each task, left for the test (100)",
    )
    add("--in_run", action="store_true", help="draw the pilot from the test's own documents")
    add(
        "--midpoint_size",
        type=whole_number(0),
        default=MIDPOINT_SIZE,
        help=f"generated inputs of each of the midpoint's two tasks ({MIDPOINT_SIZE}; 0: none)",
    )
    add("--theta_z", type=float, default=THETA_Z, help=f"for tau=zscore ({THETA_Z})")
    add("--open_rate", type=share, default=OPEN_RATE, help=f"for tau=quantile ({OPEN_RATE})")
    add("--compare_pilots", action="store_true", help="say how τ moves with the pilot's tasks")
    add(
        "--answers",
        action="store_true",
        help="answer the pilot by the evictor and budget of the model arguments and by the full "
        "cache, and say which way D points (two passes more)",
    )
    add("--apply_chat_template", action="store_true", help="as the test will")
    add("--metadata", default="{}", help="for the tasks, as JSON")
    add("--device", help="such as cuda or cpu")
    add("--seed", type=whole_number(0), default=PILOT_SEED, help="of the draws")
    add("--output", default="calibration.json", help="file to write (calibration.json)")
    return parser
