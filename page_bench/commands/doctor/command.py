"""`page-bench doctor`: checks on the user's own model, device and dtype, before the GPU night."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from page_bench.commands.shared.argument_types import whole_number
from page_bench.inputs.errors import UsageError

_EPILOG = """\
example:  page-bench doctor -a pretrained=NAME,dtype=bfloat16 --apply_chat_template
Each line is held against something that page-bench does not compute itself: transformers' generate,
eager attention, masks in place of removal, the memory that tensors really take. Exit status 1 says
that a line failed; a warning says that numbers stand, but for less than they seem to."""

_SHOWN = {"pass": "ok  ", "warn": "warn", "fail": "FAIL", "skip": "skip"}


def run(argv: Sequence[str]) -> int:
    """Run the command with its arguments; 1 where a check failed."""
    args = _parser().parse_args(list(argv))
    # These load torch and lm-eval.
    from tqdm import tqdm

    from page_bench.commands.doctor.capacity import LENGTHS, capacity
    from page_bench.commands.doctor.checks import CHECKS, outcome
    from page_bench.commands.doctor.subject import Subject
    from page_bench.commands.doctor.verdict import Verdict
    from page_bench.harness.load_model import load_lm

    known = [*CHECKS, "capacity"]
    chosen = args.checks or known
    if unknown := sorted(set(chosen) - set(known)):
        raise UsageError(f"there is no check {', '.join(unknown)}; choose of {', '.join(known)}.")
    if args.length not in LENGTHS:
        raise UsageError(
            f"--length {args.length} is not generated; choose of {', '.join(map(str, LENGTHS))}."
        )
    lm = load_lm(args.model_args, args.device, "doctor")
    subject = Subject(lm, args.tokens, args.new_tokens, args.apply_chat_template)
    checks = {**CHECKS, "capacity": lambda examined: capacity(examined, args.samples, args.length)}
    verdicts: dict[str, Verdict] = {}
    with tqdm(chosen, desc="doctor", unit="check", disable=args.json) as bar:
        for name in bar:
            bar.set_postfix_str(name)
            verdicts[name] = outcome(checks[name], subject)
    setting = {
        "model": lm.model_name,
        "dtype": lm.model_facts().dtype,
        "attn_implementation": lm.attn_implementation,
        "device": str(lm.device),
        "evictor": lm.page.evictor,
        "prompt_tokens": subject.ids.shape[1],
    }
    failed = sum(verdict.status == "fail" for verdict in verdicts.values())
    if args.json:
        found = {name: asdict(verdict) for name, verdict in verdicts.items()}
        print(json.dumps({**setting, "failed": failed, "checks": found}))
    else:
        print(", ".join(f"{name} {value}" for name, value in setting.items()))
        for name, verdict in verdicts.items():
            print(f"{_SHOWN[verdict.status]}  {name:<24}{verdict.said}")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="page-bench doctor",
        description="Whether page-bench gives right numbers with a model, on this device.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model_args", "-a", default="", help="model arguments, as for lm_eval")
    add("--device", help="such as cuda or cpu")
    add("--apply_chat_template", action="store_true", help="ask as a user's turn")
    add("--tokens", type=whole_number(64), default=400, metavar="T", help="of the prompt (400)")
    add("--new_tokens", type=whole_number(2), default=16, metavar="N", help="per answer (16)")
    add("--samples", type=whole_number(1), default=5, metavar="N", help="per capacity task (5)")
    add("--length", type=int, default=1, metavar="K", help="thousands of tokens there (1)")
    add("--checks", nargs="+", metavar="NAME", help="these alone (all)")
    add("--json", action="store_true", help="print one JSON object")
    return parser
