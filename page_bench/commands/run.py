"""`page-bench run`: lm-eval's own command, for places where `.pth` files are not processed."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from page_bench.harness import plugin


def run(argv: Sequence[str]) -> int:
    """`lm_eval run …`; the model is page_hf unless another is named."""
    plugin.install()
    from lm_eval.__main__ import cli_evaluate

    named = any(word.split("=")[0] in ("--model", "-M", "--config", "-C") for word in argv)
    model = [] if named or not argv else ["--model", "page_hf"]
    sys.argv = ["page-bench", "run", *model, *argv]  # lm-eval reads its arguments there
    cli_evaluate()
    return 0
