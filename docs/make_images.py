"""Makes docs/images/ from a finished run of sweeps/quickstart.yaml.

    page-bench sweep sweeps/quickstart.yaml --output_path results/quickstart
    python docs/make_images.py results/quickstart

The picture of a page needs Chromium; without it that picture is left as it is.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt

from page_bench.analysis.estimates import share
from page_bench.commands import show
from page_bench.pages.palette import FULL, GATED, PLAIN
from page_bench.records.finished_runs import read_runs
from page_bench.records.suites import split
from page_bench.records.trace import Trace

FOLDER = Path(__file__).parent / "images"
NAMES = {"closed": ("full cache", FULL), "open": ("plain", PLAIN), "page": ("gated", GATED)}


def classes(results: Path, target: Path) -> None:
    """Correct answers by class under the full, the plain and the gated arm, with kept KV."""
    found: dict[tuple[str, str], list[Trace]] = defaultdict(list)
    for record in read_runs([results]):
        found[split(record.trace.task)[1], record.trace.gate].append(record.trace)
    tasks = sorted({task for task, _ in found})
    plt.rcParams.update({"font.size": 10, "svg.hashsalt": "page-bench"})
    figure, axes = plt.subplots(figsize=(7.2, 3.0), layout="constrained")
    for place, (gate, (name, look)) in enumerate(NAMES.items()):
        for number, task in enumerate(tasks):
            traces = found[task, gate]
            right = share(sum(trace.correct == 1 for trace in traces), len(traces))
            kept = sum(trace.kept_kv for trace in traces) / len(traces)
            x = number + (place - 1) * 0.27
            label = name if number == 0 else None
            axes.bar(x, right.value, 0.25, color=look.color, alpha=0.85, label=label)
            axes.vlines(x, right.low, right.high, color="#444", linewidth=1)
            axes.text(x, -0.05, f"{kept:.2f}", ha="center", va="top", fontsize=8, color="#555")
    n = {len(traces) for traces in found.values()}
    axes.set_xticks(range(len(tasks)), [task.replace("_", " ") for task in tasks])
    axes.tick_params(axis="x", pad=20, length=0)
    axes.set(ylim=(0, 1.05), ylabel="correct", title="")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.2), ncols=3, frameon=False)
    axes.text(-0.62, -0.05, "kept KV", va="top", ha="right", fontsize=8, color="#555")
    if len(n) != 1:
        raise SystemExit(f"the classes have {sorted(n)} inputs; run the sweep without --limit.")
    figure.savefig(target, facecolor="white", metadata={"Date": None, "Creator": None})
    plt.close(figure)


def kept(results: Path, target: Path) -> None:
    """The page of a look-up that plain eviction loses."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        print(f"no Chromium: {target} is left as it is", file=sys.stderr)
        return
    (arm,) = {r.path.parent for r in read_runs([results]) if r.trace.gate == "open"}
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "show.html"
        task = ["--task", "page_quickstart_needle_number", "--doc", "0", "-o", str(page)]
        if show.run([str(arm), *task]) != 0:
            raise SystemExit("the page could not be made.")
        words = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        subprocess.run(
            [browser, *words, "--window-size=1000,1000", f"--screenshot={target}", page.as_uri()],
            check=True,
            capture_output=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="folder of the finished sweep")
    results = parser.parse_args().results
    matplotlib.use("svg")
    FOLDER.mkdir(exist_ok=True)
    classes(results, FOLDER / "classes.svg")
    kept(results, FOLDER / "kept.png")


if __name__ == "__main__":
    main()
