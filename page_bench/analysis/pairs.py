"""The plain and the full record of the same input, put together."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from page_bench.analysis.stored_signals import recorded_options
from page_bench.inputs.errors import UsageError
from page_bench.records.finished_runs import Arm, Record, Sample
from page_bench.records.trace import Trace

DROP_TOLERANCE = 1e-4
"""Two runs whose D of one input differ by more have not seen the same."""


_NAMED = 5
"""Documents that a sentence names, at most."""
_NOT_COMPARED = (
    "answers to different prompts are not compared, and each counts as an input of its own."
)


@dataclass(frozen=True)
class Pair:
    """One input of one arm: its answer under eviction and its answer from the full cache.

    Attributes:
        sample: the input.
        plain: record under eviction, whatever gate opened for it. It says what the prefill
            showed. Where it kept everything (`kept_all_because`), that is its outcome.
        full: record with the full cache, from any arm of the same model.
    """

    sample: Sample
    plain: Trace
    full: Trace

    def gated(self, takes_plain: bool) -> Trace:
        """The record of the answer that a gate gives."""
        return self.plain if takes_plain else self.full


@dataclass(frozen=True)
class Family:
    """Arms that differ in nothing but their budget.

    Attributes:
        arm: the one with the smallest budget.
        label: what tells it from the other families.
        budgets: by budget, ascending, the pairs.
    """

    arm: Arm
    label: str
    budgets: dict[float, list[Pair]]

    @property
    def pairs(self) -> list[Pair]:
        """Those of all budgets, in their order."""
        return [pair for own in self.budgets.values() for pair in own]

    @property
    def pooled(self) -> dict[float, list[Pair]]:
        """The budgets that stand together for one number: those below 1, as in the paper.

        All of them if none is below 1.
        """
        return {b: own for b, own in self.budgets.items() if b < 1} or self.budgets


def families(arms: Mapping[Arm, list[Pair]]) -> list[Family]:
    """Arms put together across their budgets, in order."""
    together: dict[Arm, dict[float, list[Pair]]] = defaultdict(dict)
    for arm in sorted(arms):
        together[dataclasses.replace(arm, budget=0)][arm.budget] = arms[arm]
    return [
        Family(
            dataclasses.replace(common, budget=min(budgets)),
            common.label(together),
            budgets,
        )
        for common, budgets in together.items()
    ]


def pair_runs(records: Iterable[Record]) -> tuple[dict[Arm, list[Pair]], list[str]]:
    """Put the plain and the full record of each input together.

    Args:
        records: of runs with any gate: where it opened a record is plain, else full. Runs with
            gate=open and gate=closed go first where several have the same answer.

    Returns:
        Pairs by arm, both sorted, and sentences on what does not fit.

    Raises:
        UsageError: one run stands there twice, or there is not a single pair.
    """
    plain: dict[tuple[Arm, Sample], list[Record]] = defaultdict(list)
    full: dict[tuple[tuple[str, ...], Sample], list[Record]] = defaultdict(list)
    seen: dict[tuple[object, ...], Record] = {}
    for record in records:
        trace = record.trace
        sample, arm = Sample.of(trace), Arm.of(trace)
        run = (arm, sample, trace.gate, str(trace.gate_args), trace.tau_variant, trace.tau)
        if run in seen:
            raise UsageError(
                f"{sample} stands twice for evictor={arm.evictor} budget={arm.budget:g} "
                f"gate={trace.gate}, in "
                f"{seen[run].where} and in {record.where}; leave one of the runs out."
            )
        seen[run] = record
        if trace.gate_open:
            plain[arm, sample].append(record)
        else:
            full[_model(arm), sample].append(record)
    notes = []
    pairs: dict[Arm, list[Pair]] = defaultdict(list)
    unlike: list[str] = []
    for (arm, sample), found in sorted(plain.items(), key=lambda item: item[0]):
        best, others = _best(found, "open", arm), full.get((_model(arm), sample), [])
        alike = [other for other in others if not _asked_otherwise(best, other.trace)]
        if alike:
            pairs[arm].append(Pair(sample, best, _best(alike, "closed", arm)))
        elif others:
            unlike.append(_asked_otherwise(best, others[0].trace))
    differing = prompts_that_differ((one.trace, one.where) for one in seen.values())
    if not pairs:
        raise UsageError(_why_no_pair(plain.keys(), full.keys(), unlike, differing))
    paired = {(_model(arm), pair.sample) for arm, own in pairs.items() for pair in own}
    lone_plain = len(plain) - sum(len(own) for own in pairs.values())
    lone_full = len(full.keys() - paired)
    if lone_plain or lone_full:
        notes.append(
            f"{lone_plain} plain records without a full one and {lone_full} full records without a "
            f"plain one were left out."
        )
    if unlike:
        notes.append(
            f"{len(unlike)} of these plain records have a full one that was asked for otherwise "
            f"({unlike[0]}); run both with the same generation settings."
        )
    notes += [f"{differing}; {_NOT_COMPARED}"] if differing else []
    notes += _wordings(pairs)
    notes += _disagreements(plain.values(), "plain") + _disagreements(full.values(), "full")
    notes += _unlike([pair for own in pairs.values() for pair in own])
    return dict(pairs), notes


def prompts_that_differ(traces: Iterable[tuple[Trace, str]]) -> str:
    """Which documents' prompts differ between runs of one model though task and number agree.

    Prompts whose records say that they are worded otherwise (protocol, chat template) are meant
    to differ where each has a plain and a full answer; they are named where one lacks its other.

    Args:
        traces: each with its place, for a reader.

    Returns:
        A clause that names the documents, and two places of the first; empty where all agree.
    """
    found: dict[tuple[object, ...], dict[Sample, tuple[Trace, str]]] = defaultdict(dict)
    sides: dict[tuple[object, ...], dict[Sample, set[bool]]] = defaultdict(dict)
    for trace, where in traces:
        sample = Sample.of(trace)
        model = (trace.model, trace.dtype, trace.attn_implementation, trace.compress)
        place: tuple[object, ...] = (*model, sample.task, sample.doc_id, sample.repeat)
        found[place].setdefault(sample, (trace, where))
        sides[place].setdefault(sample, set()).add(trace.gate_open)
    names: dict[str, list[tuple[Trace, str]]] = {}
    for place, own in found.items():
        if len(own) == 1:
            continue
        unpaired = any(len(answers) == 1 for answers in sides[place].values())
        if unpaired or len({_wording(trace) for trace, _ in own.values()}) < len(own):
            names.setdefault(str(next(iter(own))), list(own.values())[:2])
    if not names:
        return ""
    listed = ", ".join(list(names)[:_NAMED])
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    first = next(iter(names.values()))
    places = " and ".join(f"{where} ({_told_of(trace)})" for trace, where in first)
    return (
        f"the prompt of {listed}{more} differs between runs though task and document agree "
        f"(compare {places})"
    )


def _wording(trace: Trace) -> tuple[str | None, bool | None]:
    return trace.protocol, trace.chat_template


def _told_of(trace: Trace) -> str:
    """What a record says of its prompt."""
    said = [f"{trace.prompt_tokens} tokens", f"sha256 {trace.prompt_sha256[:8]}"]
    said += [] if trace.protocol is None else [f"protocol {trace.protocol}"]
    if trace.chat_template is not None:
        said.append(f"chat template {'on' if trace.chat_template else 'off'}")
    return ", ".join(said)


def _model(arm: Arm) -> tuple[str, ...]:
    """What a full cache's answer depends on: neither the evictor nor what D is taken from."""
    return arm.model, arm.dtype, arm.attn_implementation, arm.compress


def _best(found: Sequence[Record], gate: str, arm: Arm) -> Trace:
    """The record of a run that has the answer for every input, of the same arm if there is one."""
    if len(found) == 1:
        return found[0].trace
    return min(found, key=lambda r: (r.trace.gate != gate, Arm.of(r.trace) != arm)).trace


def _asked_otherwise(plain: Trace, full: Trace) -> str:
    """How the two answers were asked for, as far as it differs; empty where it does not."""
    if plain.asked is None or full.asked is None or plain.asked == full.asked:
        return ""
    names = sorted(plain.asked.keys() | full.asked.keys())
    return "; ".join(
        f"{name} {plain.asked.get(name)} plain, {full.asked.get(name)} full"
        for name in names
        if plain.asked.get(name) != full.asked.get(name)
    )


def _wordings(arms: Iterable[Arm]) -> list[str]:
    """A sentence where arms differ in nothing but the wording of the prompts."""
    wordings: dict[Arm, set[tuple[str, str]]] = defaultdict(set)
    for arm in arms:
        common = dataclasses.replace(arm, protocol="", chat_template="", budget=0)
        wordings[common].add((arm.protocol, arm.chat_template))
    if all(len(own) == 1 for own in wordings.values()):
        return []
    return [
        "prompts of different protocol or chat template stand apart, each kind with a τ of its "
        "own; a run over tasks of several protocols has one τ for all."
    ]


def _disagreements(groups: Iterable[Sequence[Record]], kind: str) -> list[str]:
    differ = 0
    for group in groups:
        if len(group) == 1:
            continue
        answers: dict[str, set[str]] = defaultdict(set)
        for record in group:
            answers[json.dumps(record.trace.asked, sort_keys=True)].add(record.trace.answer)
        differ += any(len(own) > 1 for own in answers.values())
    if not differ:
        return []
    return [f"{differ} {kind} answers differ between runs that should have the same; see the logs."]


def _unlike(pairs: Iterable[Pair]) -> list[str]:
    gaps = [
        abs(pair.plain.drop - pair.full.drop)
        for pair in pairs
        if (pair.plain.window, recorded_options(pair.plain))
        == (pair.full.window, recorded_options(pair.full))
    ]
    gaps = [gap for gap in gaps if not math.isnan(gap)]
    if max(gaps, default=0.0) <= DROP_TOLERANCE:
        return []
    return [
        f"D of the same input differs by up to {max(gaps):.4f} between plain and full runs: they "
        f"come from different hardware or versions."
    ]


def _why_no_pair(
    plain: Iterable[tuple[Arm, Sample]],
    full: Iterable[tuple[tuple[str, ...], Sample]],
    unlike: Sequence[str],
    differing: str,
) -> str:
    plain, full = list(plain), list(full)
    if not plain or not full:
        kind, gate = ("plain", "open") if not plain else ("full", "closed")
        return f"there is no {kind} record; add a run with gate={gate} on the same inputs."
    if not {_model(arm) for arm, _ in plain} & {model for model, _ in full}:
        return (
            "plain and full records are of different models, dtypes, attention implementations or "
            "compress; add a run with gate=closed of the same."
        )
    if unlike:
        return (
            f"plain and full answers were asked for otherwise ({unlike[0]}); add a run with "
            f"gate=closed with the generation settings of the plain one."
        )
    if differing:
        return (
            f"no input has both a plain and a full record: {differing}; run both with the same "
            f"chat template, truncation and data."
        )
    inputs = [sorted({str(sample) for _, sample in own}) for own in (plain, full)]
    names = [", ".join(own[:2]) + ", …" * (len(own) > 2) for own in inputs]
    return (
        f"no input has both a plain and a full record: the plain ones are of {names[0]}, the full "
        f"ones of {names[1]}; add a run with gate=closed on the same inputs."
    )
