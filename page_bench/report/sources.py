"""What a report is made from: files in, cells out, and what was left out with the reason."""

from __future__ import annotations

import gc
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from page_bench.analysis.cell_notes import cell_notes
from page_bench.analysis.cells import Cell
from page_bench.analysis.gate_choice import Choice, Place
from page_bench.analysis.left_out import left_out
from page_bench.analysis.outcomes import METRICS
from page_bench.analysis.own_cells import cells_of
from page_bench.analysis.paper_logs.lines import is_trace
from page_bench.analysis.paper_logs.logs import read_authors
from page_bench.inputs import json_text
from page_bench.inputs.errors import UsageError
from page_bench.inputs.user_path import user_path
from page_bench.records.finished_runs import Record, read_traces

_SETTINGS = (
    *("model", "dtype", "attn_implementation", "protocol", "chat_template", "compress"),
    *("n_sink", "recent", "window", "top_k"),
)
"""Of traces, what a reader must know to compare them with others."""
_SAMPLES = "samples_*.jsonl"
"""lm-eval's own files, which stand beside traces and hold the same answers."""
_TORCH = re.compile(r"PyTorch version: (\S+)")


@dataclass(frozen=True)
class Source:
    """A file.

    Attributes:
        path: as found.
        n: rows used.
        left_out: why others were not, or the whole file; empty where all were.
    """

    path: Path
    n: int
    left_out: str = ""


@dataclass(frozen=True)
class Sources:
    """All that was read.

    Attributes:
        cells: what statistics are taken from.
        files: with what became of them.
        notes: sentences.
        settings: how many traces were made with which `_SETTINGS`.
        versions: of packages, from results that stand beside traces, and how many say so.
        prompts: by seed, hashes of its prompts.
        cut: by task, whether the full cache answered and tokens allowed: of each answer, the hash
            of its prompt and whether the limit cut it.
    """

    cells: list[Cell]
    files: list[Source]
    notes: list[str]
    settings: Counter[tuple[str, ...]] = field(default_factory=Counter)
    versions: Counter[tuple[str, str]] = field(default_factory=Counter)
    prompts: dict[int, frozenset[str]] = field(default_factory=dict)
    cut: defaultdict[tuple[str, bool, int], list[tuple[str, bool]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    @property
    def setting_names(self) -> tuple[str, ...]:
        """What each of `settings` stands for."""
        return _SETTINGS


def read(words: Sequence[str], choice: Choice) -> Sources:
    """The cells of files and folders.

    Args:
        words: `PATH` or `NAME=VALUE,…:PATH` (see `Place`).
        choice: gate and metric.

    Raises:
        UsageError: nothing is there that a report could be made from.
    """
    own: dict[int | None, dict[Path, Place]] = defaultdict(dict)
    others: dict[Path, tuple[Path, Place]] = {}
    for word in words:
        place = Place.of(word)
        for path in _files(place):
            if is_trace(path):
                if place.names:
                    raise UsageError(
                        f"{word}: {path.name} holds page-bench's own traces, which say themselves "
                        f"what they are of; give seed=NUMBER at most."
                    )
                for seed, files in own.items():
                    if seed != place.seed and path.resolve() in files:
                        raise UsageError(
                            f"{path} is given as seed {seed} and as seed {place.seed}; a replicate "
                            f"is a run on other data."
                        )
                own[place.seed].setdefault(path.resolve(), place)
            else:
                others.setdefault(path.resolve(), (path, place))
    found = Sources([], [], [])
    for seed, files in own.items():
        with _uncollected():
            _read_own(files, seed, choice, found)
    if others:
        read_logs = read_authors(list(others.values()), choice)
        found.cells.extend(read_logs.cells)
        found.notes.extend(read_logs.notes)
        found.files.extend(Source(path, _lines(path)) for path in read_logs.used)
        found.files.extend(Source(path, 0, why) for path, why in read_logs.refused.items())
        if read_logs.refused:
            said = "; ".join(f"{path.name}: {why}" for path, why in read_logs.refused.items())
            if not found.cells:
                raise UsageError(f"nothing is left to report: {said}")
            found.notes.append(f"{len(read_logs.refused)} files were left out: {said}")
    if not found.cells:
        raise UsageError("no input has both a plain and a full answer; add such runs.")
    found.notes.extend(cell_notes(found.cells))
    return found


def _files(place: Place) -> list[Path]:
    path = user_path(place.path)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UsageError(
            f"{path} does not exist; give files or folders with traces, or with the authors' logs."
        )
    files = [file for file in sorted(path.rglob("*.jsonl")) if not file.match(_SAMPLES)]
    if not files:
        raise UsageError(
            f"{path} holds no traces and no logs; give a folder that a run with trace=FOLDER or "
            f"--output_path has written."
        )
    return files


@contextmanager
def _uncollected() -> Iterator[None]:
    """No search for garbage, which among ever more records takes a quarter of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _read_own(files: Iterable[Path], seed: int | None, choice: Choice, found: Sources) -> None:
    records: list[Record] = []
    for path in files:
        # Only ablations of D read these, and they are most of a line.
        read = read_traces(path, without=("margin", "pair_agreement"))
        records += read
        lacking, why = left_out((r.trace for r in read), choice.metric or METRICS[0])
        found.files.append(Source(path, len(read) - lacking, why))
        found.settings.update(
            tuple(str(getattr(record.trace, name)) for name in _SETTINGS) for record in read
        )
        for trace in (record.trace for record in read):
            if trace.cut is not None and trace.answer_limit is not None:
                kind = trace.task, trace.kept_all_because is not None, trace.answer_limit
                found.cut[kind].append((trace.prompt_sha256, trace.cut))
        _beside(path, found)
    prompts = frozenset(record.trace.prompt_sha256 for record in records)
    if seed is not None:
        for other, theirs in found.prompts.items():
            if theirs == prompts:
                raise UsageError(
                    f"seed {other} and seed {seed} have the very same prompts; a replicate is a "
                    f"run on other data."
                )
        found.prompts[seed] = prompts
    cells, notes = cells_of(records, choice, seed)
    found.cells.extend(cells)
    found.notes.extend(notes if seed is None else [f"seed {seed}: {note}" for note in notes])


def _beside(path: Path, found: Sources) -> None:
    """What the results of the run that wrote a trace say of it."""
    for file in sorted(path.parent.glob("results_*.json")):
        try:
            results: dict[str, Any] = json_text.parse(file.read_bytes(), nan=True)
            page = results["config"]["page"]
            if Path(page["trace_file"] or "").name != path.name:
                continue
            torch = _TORCH.search(str(results.get("pretty_env_info", "")))
            said = {
                "torch": torch and torch[1],
                "transformers": results.get("transformers_version"),
                "lm_eval": results.get("lm_eval_version"),
                "device": page.get("device"),
            }
            warnings = [str(warning) for warning in page.get("warnings", [])]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        found.versions.update((name, str(value)) for name, value in said.items() if value)
        known = set(found.notes)
        found.notes.extend(
            note
            for note in (f"a run warned: {warning}" for warning in warnings)
            if note not in known
        )


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(bool(line.strip()) for line in file)
