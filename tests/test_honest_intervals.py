"""Intervals hold what they promise, and no file of a report claims what its inputs cannot show."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stored_traces import stored

from page_bench.analysis.gate_choice import Choice
from page_bench.analysis.regate import Tau
from page_bench.records.trace import Trace, write_traces
from page_bench.report.build import build
from page_bench.report.files import write
from page_bench.report.settings import Settings
from page_bench.report.sources import read

BENCHMARK = runpy.run_path(str(Path(__file__).parent.parent / "benchmarks" / "coverage.py"))
LAYERS = [0.6, 0.5, 0.4]


def traces(n: int, full: float, plain: float, *, drops: tuple[float, ...]) -> list[Trace]:
    """n inputs of each of two tasks, alike but for D, at two budgets and with the full cache."""
    made = []
    for task in ("niah_multikey_3", "vt"):
        for i in range(n):
            drop = drops[i % len(drops)]
            shared: dict[str, Any] = {"drop": drop, "agreement": LAYERS}
            name = f"page_ruler_4k_{task}"
            made.append(stored(name, i, gate="closed", correct=full, **shared))
            for budget in (0.25, 0.5):
                made.append(stored(name, i, correct=plain, budget=budget, kept_kv=budget, **shared))
    return made


CASES = {
    "0 of 25": traces(25, 0.0, 0.0, drops=(0.0, 0.2)),
    "25 of 25": traces(25, 1.0, 1.0, drops=(0.0, 0.2)),
    "25 of 25, none of them evicted": traces(25, 1.0, 0.0, drops=(0.0, 0.2)),
    "1 of 1": traces(1, 1.0, 0.0, drops=(0.2,)),
    "always open": traces(25, 1.0, 0.0, drops=(0.2, 0.3)),
    "never open": traces(25, 1.0, 0.0, drops=(0.01, 0.02)),
    "one class": [t for t in traces(25, 1.0, 0.0, drops=(0.0, 0.2)) if t.task.endswith("vt")],
}


def made(folder: Path, held: list[Trace], charts: bool = False) -> Path:
    """The folder of a report on these traces, by default without its charts, which take long."""
    write_traces(folder / "runs" / "trace_1.jsonl", held)
    sources = read([str(folder / "runs")], Choice(tau=Tau(0.07)))
    whole = build(sources, Settings(draws=200))
    if not charts:
        bare = [dataclasses.replace(section, charts=()) for section in whole.sections]
        whole = dataclasses.replace(whole, sections=bare)
    (folder / "out").mkdir()
    write(whole, folder / "out")
    return folder / "out"


@pytest.fixture(scope="module", params=CASES, ids=str)
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("honest"), CASES[request.param])


def test_no_file_of_a_report_claims_what_it_does_not_know(report: Path) -> None:
    texts = [p for p in sorted(report.rglob("*")) if p.suffix in (".json", ".md", ".html", ".csv")]
    assert len(texts) > 20
    for path in texts:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\bnan\b", text, re.IGNORECASE), path
        for low, high in re.findall(r"\[(−?-?[\d.]+), (−?-?[\d.]+)\]", text):
            assert low != high, (path, low)


def test_no_chart_says_nan(tmp_path: Path) -> None:
    found = list(made(tmp_path, CASES["1 of 1"], charts=True).rglob("*.svg"))
    assert len(found) > 5
    for path in found:
        assert not re.search(r"\bnan\b", path.read_text(encoding="utf-8"), re.IGNORECASE), path


def test_only_what_is_exact_has_no_width(report: Path) -> None:
    numbers = json.loads((report / "report.json").read_text(encoding="utf-8"))
    found = list(_estimates(numbers))
    assert found
    for one in found:
        if one["low"] is None:
            # An interval from a share without any loss reaches to infinity, which JSON has not.
            unbounded = one["method"] == "wilson" and one["high"] is None
            assert one["method"] in ("n too small", "no spread", "not defined") or unbounded
        elif one["method"] == "exact":
            assert one["low"] == one["value"] == one["high"]
        elif one["high"] is not None:
            assert one["high"] - one["low"] > 1e-9, one
            assert one["value"] is not None
    for path in (report / "tables").glob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                for name in [n for n in row if n.endswith(" method") and row[n]]:
                    stem = name.removesuffix(" method")
                    low, high, method = row[f"{stem} low"], row[f"{stem} high"], row[name]
                    assert (low == "") == (high == "")
                    assert bool(low) or method in ("n too small", "no spread", "not defined")
                    assert low == "" or method == "exact" or float(low) < float(high), (path, row)


def test_zero_of_25_is_what_wilson_says_in_every_table(tmp_path: Path) -> None:
    """Accuracy, headroom, Δ and harm of 0 of 25: at most 0.133 (statsmodels), never ±0."""
    made(tmp_path, CASES["0 of 25"])
    read = {
        ("budgets_tasks", "plain"): ("0.0", 0.0, 0.1332),
        ("harm", "plain harm"): ("0.0", 0.0, 0.1332),
        ("oracle_headroom", "headroom"): ("0.0", 0.0, 0.1332),
        ("decomposition", "Δ"): ("0.0", -0.1332, 0.1332),
    }
    for (table, column), (value, low, high) in read.items():
        with (tmp_path / "out" / "tables" / f"{table}.csv").open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                assert row[column] == value
                ends = float(row[f"{column} low"]), float(row[f"{column} high"])
                assert ends == pytest.approx((low, high), abs=1e-4)
    # Both tasks together are 50 inputs, in every section alike.
    for table, column in (("frontier_points", "plain"), ("oracle", "plain"), ("budgets", "gated")):
        with (tmp_path / "out" / "tables" / f"{table}.csv").open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                assert float(row[f"{column} high"]) == pytest.approx(0.0714, abs=1e-4)


def _estimates(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict) and {"value", "low", "high", "method"} <= set(value):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _estimates(part)


@pytest.mark.parametrize("n", [2, 5, 20, 100])
def test_wilson_covers_what_it_claims_on_average(n: int) -> None:
    mean, least, most = BENCHMARK["wilson"](n)
    assert 0.93 <= mean <= 0.98
    assert least < mean < most


def test_intervals_hold_the_truth_or_are_not_given() -> None:
    """A short run of benchmarks/coverage.py; 0.90 less three standard errors of its samples."""
    worlds = BENCHMARK["WORLDS"][:1]
    counts = BENCHMARK["coverage"](sizes=(2, 20), repeats=30, seed=1, many=4_000, worlds=worlds)
    assert len(counts) > 25
    for name, by_n in counts.items():
        for n, count in by_n.items():
            if count.given >= 20:
                error = np.sqrt(0.9 * 0.1 / count.given)
                assert count.coverage >= 0.90 - 3 * error, (name, n, count)
    # Of two inputs per task, a bootstrap has no say.
    for name in ("mean D", "recovery", "AUC, by task", "τ by z-score (n prompts)"):
        assert counts[name][2].all >= 20
        assert counts[name][2].given == 0


@pytest.mark.parametrize("n", [2, 5, 20, 100])
def test_p_of_no_difference_is_rarely_small_without_one(n: int) -> None:
    assert BENCHMARK["rejections"](n, 400) <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 400)
