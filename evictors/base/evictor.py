"""The classes that evictors inherit: a score per KV head and position, optionally counts."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from page_bench.evictors.base.budget import BudgetPlan
from page_bench.evictors.base.layer_view import LayerView, Need
from page_bench.inputs.errors import UsageError

Granularity = Literal["shared", "layer", "head"]
"""One keep set for everything, one per layer, or one per layer and KV head."""

GRANULARITIES: tuple[Granularity, ...] = ("shared", "layer", "head")


@dataclass(frozen=True)
class Evictor(ABC):
    """A method that decides which prompt positions leave the KV cache.

    Subclasses are frozen dataclasses. Their fields are the method's hyper-parameters, each with a
    default; on the command line they are `evictor.FIELD=VALUE`. The engine does the rest for all
    of them: caches, protected positions, rounding and top-k.

    Attributes:
        name: the name on the command line, which is also the module's.
        needs: what must be recorded during prefill.
        granularities: which keep sets the method can have.
        refusal: what to do instead where a granularity is not among them.
        variant_defaults: per `variant` the defaults of fields that are None; empty for methods
            with one form. The engine's default is `paper` in granularity `shared`, `published` in
            the others.
        needs_in_words: further needs for the list, for instance those that depend on options.
        defaults_in_words: what None means, by field, for the list.
        note: what else a user should know, for the list.
        revision: of page-bench's own, raised with every change to what the class computes; run
            stores hold answers under it. Evictors from elsewhere are known by their source code.
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[Need]] = frozenset()
    granularities: ClassVar[tuple[Granularity, ...]] = GRANULARITIES
    refusal: ClassVar[str] = ""
    variant_defaults: ClassVar[Mapping[str, Mapping[str, object]]] = {}
    needs_in_words: ClassVar[tuple[str, ...]] = ()
    defaults_in_words: ClassVar[Mapping[str, str]] = {}
    note: ClassVar[str] = ""
    revision: ClassVar[int] = 1

    @abstractmethod
    def score(self, layer: LayerView, n_keep: int | None = None) -> Tensor:
        """Worth of each position to each KV head.

        Args:
            layer: the layer after prefill.
            n_keep: positions that will be kept per KV head on average; few methods read it.

        Returns:
            fp32 `[H_kv, T]`, higher = keep; +inf marks a position that the method always keeps.
            Such positions take part in no normalisation, and one that a head or layer marks is
            marked in an average with others. If a keep set has more of them than it may keep,
            the latest stay. NaN and -inf are refused.
        """

    def vote(self, scores: Tensor) -> Tensor:
        """Scores fp32 `[..., T]` as they enter a mean over heads or layers; default unchanged."""
        return scores

    def allocate(self, scores: Tensor, plan: BudgetPlan) -> Tensor:
        """Positions to keep per layer and KV head, protected ones included; default uniform.

        Args:
            scores: fp32 `[L, H_kv, T]`, after normalisation.
            plan: the budget and the shape of the model.

        Returns:
            int64 `[L, H_kv]`, each between `plan.n_protected` and T; equal within a layer where
            `plan.granularity` is `layer`, equal throughout where it is `shared`. Together at most
            `plan.n_keep` on average, or T each.
        """
        return torch.full((plan.n_layers, plan.n_kv_heads), plan.n_keep)

    def factor(self, layer: LayerView) -> Tensor | None:
        """What a second stage reads besides the score, fp32 `[H_kv, T]`; None without one."""
        return None

    def refine(self, scores: Tensor, factor: Tensor, counts: Tensor, plan: BudgetPlan) -> Tensor:
        """Second stage, once counts are known and heads or layers are averaged as they must be.

        Only called where `factor` gives something.

        Args:
            scores: fp32 `[R, T]`, one row per keep set, +inf as in `score`.
            factor: fp32 `[R, T]`, averaged like the scores.
            counts: int64 `[R]`, positions that each row keeps, protected ones included.
            plan: the budget and the shape of the model.

        Returns:
            fp32 `[R, T]`, the final scores.
        """
        return scores

    def check(self, text: Any) -> None:  # noqa: B027 - most methods fit every model
        """Raise UsageError for a model that the method does not fit, before any weight is loaded.

        Args:
            text: transformers' configuration of the language model.
        """

    def check_options(
        self,
        *options: str,
        at_least: float = -math.inf,
        above: float = -math.inf,
        at_most: float = math.inf,
    ) -> None:
        """Raise UsageError unless these options are None, or at_least ≤ value ≤ at_most and
        value > above; for `__post_init__`.
        """
        for option in options:
            value = getattr(self, option)
            if value is None or (at_least <= value <= at_most and value > above):
                continue
            bounds = (("above", above), ("at least", at_least), ("at most", at_most))
            given = [f"{words} {bound:g}" for words, bound in bounds if math.isfinite(bound)]
            raise UsageError(
                f"evictor.{option}={value} is not allowed; give a number {' and '.join(given)}."
            )

    def always_keeps(self, window: int) -> tuple[int, int]:
        """How many first and how many last positions the method keeps at any budget.

        Args:
            window: the run's observation window w.
        """
        return 0, 0

    def least_kept(self, window: int, n_sink: int = 0, recent: int = 0) -> int:
        """The fewest positions that a prompt may be cut down to.

        Args:
            window: the run's observation window w.
            n_sink, recent: first and last positions that the engine protects.
        """
        first, last = self.always_keeps(window)
        return max(first, n_sink) + max(last, recent)

    def least_on_average(self, plan: BudgetPlan) -> int:
        """The fewest positions per layer and KV head on average that `allocate` can share out.

        Default: any number. A prompt so short that its budget allows fewer keeps as many.
        """
        return 0

    def without_value_norms(self) -> Self:
        """The same for a wrapper that weighs by the values itself; default unchanged."""
        return self

    @property
    def all_needs(self) -> frozenset[Need]:
        """Needs of this evictor, those of a wrapped one included."""
        return self.needs | ({"window_queries"} if self.query_rows else frozenset())

    @property
    def query_rows(self) -> int:
        """Last queries that must be recorded; 0 where the observation window's mean suffices."""
        return 0

    @property
    def reads_budget(self) -> bool:
        """Whether `score` reads `n_keep`; where it does not, all budgets share one score."""
        return False

    @property
    def title(self) -> str:
        """Name as on the command line: `snapkv`, `adakv(snapkv)`."""
        return self.name

    def resolved(self, granularity: Granularity) -> Self:
        """The same with every default that depends on the granularity filled in."""
        if not self.variant_defaults:
            return self
        known: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        variant = known["variant"] or ("paper" if granularity == "shared" else "published")
        if variant not in self.variant_defaults:
            raise UsageError(
                f"evictor.variant={variant} is not a form of {self.name}; give "
                f"{' or '.join(self.variant_defaults)}."
            )
        defaults = self.variant_defaults[variant]
        values = {k: defaults.get(k) if v is None else v for k, v in known.items()}
        return dataclasses.replace(self, **{**values, "variant": variant})


@dataclass(frozen=True)
class Wrapper(Evictor):
    """An evictor that changes what another one does: `evictor=NAME(OTHER)`.

    All it does not override is the other's.

    Attributes:
        base: the wrapped evictor; its options are `evictor.base.FIELD=VALUE`.
        nests: whether it may be inside itself, that is, whether both would act.
    """

    nests: ClassVar[bool] = False

    base: Evictor

    def score(self, layer: LayerView, n_keep: int | None = None) -> Tensor:
        return self.base.score(layer, n_keep)

    def vote(self, scores: Tensor) -> Tensor:
        return self.base.vote(scores)

    def allocate(self, scores: Tensor, plan: BudgetPlan) -> Tensor:
        return self.base.allocate(scores, plan)

    def factor(self, layer: LayerView) -> Tensor | None:
        return self.base.factor(layer)

    def refine(self, scores: Tensor, factor: Tensor, counts: Tensor, plan: BudgetPlan) -> Tensor:
        return self.base.refine(scores, factor, counts, plan)

    def check(self, text: Any) -> None:
        self.base.check(text)

    def always_keeps(self, window: int) -> tuple[int, int]:
        return self.base.always_keeps(window)

    def least_on_average(self, plan: BudgetPlan) -> int:
        return self.base.least_on_average(plan)

    def without_value_norms(self) -> Self:
        return dataclasses.replace(self, base=self.base.without_value_norms())

    @property
    def all_needs(self) -> frozenset[Need]:
        return super().all_needs | self.base.all_needs

    @property
    def query_rows(self) -> int:
        return self.base.query_rows

    @property
    def reads_budget(self) -> bool:
        return self.base.reads_budget

    @property
    def title(self) -> str:
        return f"{self.name}({self.base.title})"

    def resolved(self, granularity: Granularity) -> Self:
        inner = self.base.resolved(granularity)
        return dataclasses.replace(super().resolved(granularity), base=inner)
