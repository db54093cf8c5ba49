"""What the names of the paper's released logs say: model, context, evictor and seed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from page_bench.analysis.paper_logs.lines import Kind

INVALID = "INVALID"
"""Folders whose names begin so hold what the paper's authors have withdrawn."""

EVICTORS = (
    *("snapkv", "h2o", "streamingllm", "pyramidkv", "manifoldkv", "keydiff", "dbtrimkv"),
    *("dynamickv", "capkv", "knorm", "tova", "random", "expected_attention"),
)
_KINDS = frozenset({"gated", "adakv", "capbound", "drops", "matrix", "sdpa", "eager"})
_CONTEXT = re.compile(r"\d+k", re.IGNORECASE)
_SEED = re.compile(r"seed_?(\d+)")
_SIZE = re.compile(r"n\d+")


@dataclass(frozen=True)
class Names:
    """What a log is of.

    Attributes:
        model, suite: names; the suite is the context, such as `4K`.
        evictor: name; of several in one log, the name before the arm's own.
        seed: of the data; None where not said.
    """

    model: str
    suite: str
    evictor: str
    seed: int | None

    @classmethod
    def of(
        cls,
        path: Path,
        kind: Kind,
        policy: str | None = None,
        given: Mapping[str, str] | None = None,
        seed: int | None = None,
    ) -> Names:
        """From a file's name, such as `gated_h2o_qwen3b_4k.jsonl`, as far as nothing is given.

        Args:
            path: the file.
            kind: of log; those of several evictors name each of them themselves.
            policy: the log's own `score_policy`, which goes before the file's name.
            given: `model`, `context`, `evictor` that go before everything else.
            seed: likewise.
        """
        stem, given = path.stem, given or {}
        said = _SEED.search(stem)
        if said is not None:
            stem = stem.replace(said[0], "")
            seed = int(said[1]) if seed is None else seed
        words = [word for word in stem.split("_") if word]
        context = next((word.upper() for word in words if _CONTEXT.fullmatch(word)), "")
        if "longbench" in words:
            context = "LongBench"
        evictor = next((word for word in words if word in EVICTORS), "snapkv")
        model = [
            word
            for word in words
            if word not in _KINDS
            and word not in EVICTORS
            and word != "longbench"
            and not _CONTEXT.fullmatch(word)
            and not _SIZE.fullmatch(word)
        ]
        suite = given.get("context", context) or "unnamed context"
        return cls(
            given.get("model", "_".join(model)) or path.stem,
            # Other tasks than the main suite's, which no Δ of it is taken over.
            f"{suite} capbound" if words[:1] == ["capbound"] else suite,
            given.get("evictor", policy or evictor) if kind != "arms" else given.get("evictor", ""),
            seed,
        )


def withdrawn(path: Path) -> str | None:
    """The folder above a file that its authors have marked as invalid; None if there is none."""
    return next((part for part in path.parts if part.upper().startswith(INVALID)), None)
