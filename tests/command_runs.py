"""Script: lm-eval's commands in a process where page-bench is not installed, and where it is.

Started by `test_other_models.py` with `python -S`, so that no `.pth` file is read. Both processes
are forked from one that has imported what takes long, none of it lm-eval's or page-bench's.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

FOLDERS = ("without", "with")


def main(folder: Path, commands: list[list[str]]) -> None:
    import datasets
    import torch
    import transformers  # noqa: F401
    from torch.utils import collect_env

    torch.set_num_threads(1)
    vars(collect_env)["get_pretty_env_info"] = lambda: "environment"
    for name in FOLDERS:
        sys.stdout.flush()
        if (child := os.fork()) == 0:
            try:
                os.chdir(folder / name)
                vars(datasets.config)["HF_DATASETS_CACHE"] = folder / name / "datasets"
                if name == "with":
                    import page_bench.harness.plugin

                    page_bench.harness.plugin.install()
                for number, words in enumerate(commands):
                    run(number, words)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        if os.waitpid(child, 0)[1] != 0:
            raise SystemExit(f"the process {name} page-bench has failed")


def run(number: int, words: list[str]) -> None:
    """One command as `lm_eval` runs it; what it prints goes to a file, as does its status."""
    file = os.open(f"{number}.txt", os.O_WRONLY | os.O_CREAT)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(file, stream.fileno())
    from lm_eval.tasks import manager

    without_defaults(manager)
    from lm_eval.__main__ import cli_evaluate

    sys.argv = ["lm_eval", *words]
    status: Any = 0
    try:
        cli_evaluate()
    except SystemExit as ended:
        status = ended.code
    except Exception:
        traceback.print_exc()
        status = 1
    if "wandb" in sys.modules:
        import wandb

        wandb.teardown()
    print(f"status {status}", flush=True)


def without_defaults(manager: Any) -> None:
    """Leave out lm-eval's own tasks, whose 13,000 files take 15 s to read."""
    index, root = manager.TaskIndex, Path(str(manager.__file__)).parent
    if not hasattr(index, "_all_files"):
        index._all_files = staticmethod(index._iter_yaml_files)
        index._iter_yaml_files = staticmethod(
            lambda path: iter(()) if path == root else index._all_files(path)
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
