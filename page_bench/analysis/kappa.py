"""κ, the margin-to-noise ratio: how far it is from certifying a gate (paper, appendix G)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from page_bench.analysis.ablation import Ablation, Contrast
from page_bench.analysis.intervals import Estimate
from page_bench.model.window import required_margin


@dataclass(frozen=True)
class Margins:
    """κ of the inputs of one arm.

    Attributes:
        n: inputs.
        layers, heads: L layers with full attention, H query heads.
        median: per input the median over layers and heads; mean over inputs.
        highest: of any layer and head of any input.
        required: the least κ at which the paper's bound on a wrongly opened gate says anything,
            from `lowest_required` for the shortest input to `highest_required` for the longest.
        reached: share of layers and heads whose κ is at least what its input requires; mean over
            inputs.
        contrast: of each input's median on closed and harmed inputs. No gate reads κ, so the side
            is a convention.
    """

    n: int
    layers: int
    heads: int
    median: Estimate
    highest: float
    lowest_required: float
    highest_required: float
    reached: Estimate
    contrast: Contrast


def margins(ablation: Ablation) -> Margins | None:
    """κ of the inputs of an ablation; None where a record does not hold it."""
    traces = [pair.plain for pair in ablation.pairs]
    kappas = [
        np.array(trace.margin, dtype=np.float64) for trace in traces if trace.margin is not None
    ]
    if len(kappas) < len(traces):
        return None
    required = [
        required_margin(kappa.shape[0], kappa.shape[1], trace.context_tokens or trace.prompt_tokens)
        for kappa, trace in zip(kappas, traces, strict=True)
    ]
    medians = [_median(kappa) for kappa in kappas]
    reached = [np.mean(kappa >= least) for kappa, least in zip(kappas, required, strict=True)]
    return Margins(
        n=len(traces),
        layers=kappas[0].shape[0],
        heads=kappas[0].shape[1],
        median=ablation.bootstrap.mean(medians),
        highest=float(max(np.nanmax(kappa, initial=-np.inf) for kappa in kappas)),
        lowest_required=min(required),
        highest_required=max(required),
        reached=ablation.bootstrap.mean(reached, "share"),
        contrast=ablation.contrast("κ (median)", medians, "above"),
    )


def _median(kappa: np.ndarray) -> float:
    """Over all that are numbers; NaN if none is."""
    known = kappa[~np.isnan(kappa)]
    return float(np.median(known)) if known.size else float("nan")
