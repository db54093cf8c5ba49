"""The import hook by which plain `lm_eval` comes to know page-bench.

A `.pth` file calls `install` at every interpreter start, so this module imports nothing but `sys`.
Once one of the lm-eval modules named in `_ATTACHMENTS` has been executed, `harness.hooks` attaches
to it.
"""

import sys

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_ATTACHMENTS = {
    "lm_eval.models": ("register_model",),
    "lm_eval.tasks.manager": ("add_tasks",),
    "lm_eval.evaluator": ("complete_evaluations", "score_traces"),
    "lm_eval._cli.harness": ("end_cleanly",),
}
"""Module of lm-eval → functions of `harness.hooks` that take it; each may run repeatedly."""


def install() -> None:
    """Attach to lm-eval's modules as they are imported, and to those that already are."""
    if not any(isinstance(finder, _PostImportFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _PostImportFinder())
    for name in _ATTACHMENTS:
        if name in sys.modules:
            _attach(sys.modules[name])


def _attach(module: "ModuleType") -> None:
    """Attach to one module; lm-eval itself goes on working if that fails."""
    try:
        from page_bench.harness import hooks

        for name in _ATTACHMENTS[module.__name__]:
            getattr(hooks, name)(module)
    except Exception as error:
        import warnings

        warnings.warn(
            f"page-bench does not fit this release of lm-eval ({module.__name__}: {error!r}), so "
            "page_hf may not work; page-bench's constraints.txt names a release that fits.",
            RuntimeWarning,
            stacklevel=2,
        )


class _PostImportFinder:
    """Finds the modules in `_ATTACHMENTS` where the other finders do, and hooks their execution."""

    def find_spec(
        self,
        fullname: str,
        path: "Sequence[str] | None" = None,
        target: "ModuleType | None" = None,
    ) -> "ModuleSpec | None":
        if fullname not in _ATTACHMENTS:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(fullname, path, target) if find is not None else None
            if spec is not None and spec.loader is not None:
                spec.loader = _HookedLoader(spec.loader)  # type: ignore[assignment]
                return spec
        return None


class _HookedLoader:
    """Passes everything to the real loader, and attaches to the module it has executed."""

    def __init__(self, loader: "Any") -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> "Any":
        return getattr(self._loader, name)

    def exec_module(self, module: "ModuleType") -> None:
        # The module keeps its real loader, as tools that look for its source expect.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _attach(module)
