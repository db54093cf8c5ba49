"""One answer of one prompt: its text, what the gate decided, what the cache kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import torch
from torch import Tensor

from page_bench.inputs.errors import UsageError
from page_bench.inputs.user_path import user_path
from page_bench.model.keep_plan import KeepPlan
from page_bench.pages.kept_page import ShownAnswer, kept_page
from page_bench.records.trace import Trace


@dataclass(frozen=True, eq=False)
class Answer:
    """An answer under one arm.

    Attributes:
        text: as lm-eval's `hf` model would hand it to a task.
        tokens: the prompt's tokens as text, `T` of them; special tokens included.
        kept: bool `[L, H_kv, T]` on the CPU: whether a layer with full attention kept a token's
            entry for a KV head. All True where the gate stayed closed.
        trace: the record that a run would write of it, see `Trace`.
        others: gives the full cache's and the plain answer to the same prompt, by these names.
    """

    text: str
    tokens: list[str] = field(repr=False)
    kept: Tensor = field(repr=False)
    trace: Trace = field(repr=False)
    others: Callable[[], Mapping[str, Answer]] = field(repr=False)

    @property
    def drop(self) -> float:
        """D, the head-agreement drop of this prompt; a number whatever the gate."""
        return self.trace.drop

    @property
    def agreement(self) -> list[float]:
        """Head agreement of each layer with full attention, `L` of them."""
        return self.trace.agreement

    @property
    def gate_open(self) -> bool:
        """Whether the answer is the evictor's; else it is the full cache's."""
        return self.trace.gate_open

    @property
    def kept_kv(self) -> float:
        """Kept entries / full entries, counted in the cache."""
        return self.trace.kept_kv

    @property
    def tau(self) -> float | None:
        """The gate's threshold; None where it reads none."""
        return self.trace.tau

    def show(self, path: str | Path | None = None) -> str:
        """A page that shows the prompt shaded by what was kept, beside its answers.

        The full cache's and the plain answer are computed for it where they are not known.

        Args:
            path: file to write, replaced if it is there; None writes none.

        Returns:
            The page's HTML.

        Raises:
            UsageError: the file cannot be written.
        """
        html = self._page()
        if path is not None:
            target = user_path(path, "show")
            try:
                target.write_text(html, encoding="utf-8")
            except OSError as error:
                raise UsageError(
                    f"{target} cannot be written ({error.strerror or error}); give the name of a "
                    f"file in a folder that is there."
                ) from error
        return html

    def _repr_html_(self) -> str:
        """In a notebook, the page in a frame."""
        return (
            f'<iframe srcdoc="{escape(self._page())}" title="What the cache kept" '
            f'style="width: 100%; height: 48rem; border: 0"></iframe>'
        )

    def _page(self) -> str:
        trace = self.trace
        gate = trace.gate if trace.tau is None else f"{trace.gate}, τ = {trace.tau:.3g}"
        facts = {
            "model": trace.model,
            "evictor": f"{trace.evictor}, {trace.granularity}",
            "budget": f"{trace.budget:g}",
            "gate": f"{gate}: {'open' if self.gate_open else 'closed'}",
            "D": f"{self.drop:.3f}",
            "kept KV": f"{self.kept_kv:.3f}",
            "prompt": f"{trace.prompt_tokens} tokens",
        }
        shown = self.others()
        if trace.gate not in ("open", "closed"):
            shown = {**shown, f"gate {trace.gate}": self}
        answers = [
            ShownAnswer(name, f"kept KV {one.kept_kv:.3f}", one.text) for name, one in shown.items()
        ]
        return kept_page(
            f"What {trace.evictor} kept of one prompt",
            self.tokens,
            self.kept.numpy(),
            trace.full_attention_layers,
            self.agreement,
            facts,
            answers,
        )

    def __str__(self) -> str:
        gate = "open" if self.gate_open else "closed"
        return f"{self.text!r} (gate {gate}, D = {self.drop:.3f}, kept KV {self.kept_kv:.3f})"


def kept_entries(plan: KeepPlan | None, shape: tuple[int, int], n_tokens: int) -> Tensor:
    """bool `[L, H_kv, T]` of a plan, which may hold one set for several layers or heads.

    Args:
        plan: None where nothing was evicted.
        shape: L and H_kv.
        n_tokens: T; tokens behind those that the plan speaks of were read later, and stay.
    """
    kept = torch.ones(*shape, n_tokens, dtype=torch.bool)
    if plan is not None:
        kept[..., : plan.members.shape[-1]] = plan.members.cpu()
    return kept
