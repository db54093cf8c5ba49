"""`page-bench latency`: what decoding from a full, an evicted and a gated cache costs."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence

from page_bench.commands.shared.argument_types import whole_number
from page_bench.inputs.errors import UsageError

_EPILOG = """\
example:  page-bench latency -a pretrained=NAME,evictor=snapkv,budget=0.125 --lengths 1024 4096
The gate's decision is given, so that both its outcomes are measured; τ has no bearing on cost."""


def run(argv: Sequence[str]) -> int:
    """Run the command with its arguments."""
    args = _parser().parse_args(list(argv))
    # These load torch and lm-eval.
    from tqdm import tqdm

    from page_bench.commands.latency import bench as latency
    from page_bench.commands.latency import costs as latency_costs
    from page_bench.commands.latency import peak_memory
    from page_bench.commands.latency import peaks as latency_peaks
    from page_bench.commands.latency import report as latency_report
    from page_bench.model.prefill import base_model

    bench, model_name, most = latency.load(args.model_args, args.device, args.new_tokens)
    lengths = list(dict.fromkeys(args.lengths))
    if max(lengths) + args.new_tokens > most:
        raise UsageError(
            f"{max(lengths)} prompt tokens and {args.new_tokens} new ones do not fit into the "
            f"{most} positions of {model_name}; give shorter --lengths, or max_length."
        )
    device = base_model(bench.model).device
    counter = None if args.no_memory else peak_memory.counter(device)
    loads = [os.getloadavg()[0]]
    rows, mixes = [], []
    found: dict[tuple[int, str], latency_peaks.Peaks] = {}
    names = bench.configurations
    # Watched last on CUDA: what libraries set up once for themselves is no part of a run.
    total = len(lengths) * len(names) * (args.rounds + 1 + (counter is not None))
    with tqdm(total=total, desc="latency", unit="run", disable=args.json) as bar:
        for length in lengths:
            runs = latency_costs.rounds_of(bench, length, args.rounds, bar.update)
            these = latency_costs.costs(length, runs)
            rows += these
            mix = latency_costs.expected(these, bench.config.open_rate)
            mixes += [] if mix is None else [mix]
        loads.append(os.getloadavg()[0])
        for length in lengths if counter else []:
            for name in names:
                if device.type == "cuda":
                    seen = latency_peaks.peaks(bench, name, length)
                else:
                    seen = latency_peaks.fresh_peaks(
                        args.model_args, args.device, args.new_tokens, name, length
                    )
                found[length, name] = seen
                bar.update()
    setting = latency_report.setting_of(bench, model_name, args.rounds, counter, loads)
    if not args.json:
        print(latency_report.tables(setting, rows, mixes, found))
        print()
    print(json.dumps(latency_report.as_json(setting, rows, mixes, found)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="page-bench latency",
        description="Time and memory of full, plain and gated decoding, for one model and arm.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model_args", "-a", default="", help="model arguments, as for lm_eval")
    add(
        "--lengths",
        nargs="+",
        type=whole_number(1),
        default=[1024, 4096],
        metavar="T",
        help="prompt tokens (1024 4096)",
    )
    add(
        "--new_tokens", type=whole_number(2), default=32, metavar="N", help="made by every run (32)"
    )
    add("--rounds", type=whole_number(1), default=5, metavar="N", help="runs per configuration (5)")
    add("--device", help="such as cuda or cpu")
    add("--no_memory", action="store_true", help="leave peak memory out")
    add("--json", action="store_true", help="print the JSON line alone")
    return parser
