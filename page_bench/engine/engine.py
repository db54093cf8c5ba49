"""Prompts in, answers out: prefill, observe, decide, evict, decode."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from page_bench.config import PageConfig
from page_bench.engine import decision
from page_bench.engine.decision import Decision
from page_bench.engine.decode_batches import lowered_warning
from page_bench.engine.grid_work import Compute, Computed, Filled, Work
from page_bench.engine.memory import Case, Memory, missing
from page_bench.engine.prefilled_prompt import ArmAnswer, PromptPass, spread_for
from page_bench.engine.processes import ALONE, Processes
from page_bench.engine.prompt import Prompt
from page_bench.engine.refusals import check_arms, check_signal, naming
from page_bench.gating.gate import AnswerFacts
from page_bench.gating.threshold import select_pilot
from page_bench.model.keep_plan import KeepPlan
from page_bench.records.trace import Seen

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """What came of one prompt under one arm.

    Attributes:
        seen: what the prefill showed.
        gate_open: whether the answer is the evictor's.
        answer: the plain arm's answer if it is, else the full cache's.
        discarded_s: seconds spent on answers that a gate read and discarded.
    """

    seen: Seen
    gate_open: bool
    answer: ArmAnswer
    discarded_s: float = 0.0


class Engine:
    """Answers prompts under one arm, or fills a store with the answers of many.

    Args:
        model: a model whose attention implementation is one of `attention.register`.
        tokenizer: its tokenizer.
        config: the arm.
        sampling_seed: enters the random numbers of every prompt when sampling.
        memory: what was computed before; None remembers nothing.
        decode_rows: see `PromptPass`.
        processes: those that share out the prompts; all of them have one pilot.
        on_plan: called with a prompt, an eviction and its keep sets once these are known.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Any,
        config: PageConfig,
        sampling_seed: int = 0,
        memory: Memory | None = None,
        decode_rows: int | None = None,
        processes: Processes = ALONE,
        on_plan: Callable[[Prompt, PageConfig, KeepPlan], object] = lambda *_: None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.config = config
        self.sampling_seed = sampling_seed
        self.memory = memory
        self.decode_rows = decode_rows
        self.processes = processes
        self.on_plan = on_plan

    def run(
        self, prompts: Sequence[Prompt], progress: Callable[[Outcome], object] = lambda _: None
    ) -> tuple[list[Outcome], Decision]:
        """Answer all prompts under the arm.

        Args:
            prompts: in any order.
            progress: called with the outcome of each prompt that is done.

        Returns:
            Outcomes in the order of the prompts, and what decided.

        Raises:
            UsageError: a pilot is needed and there are too few prompts, or the gate needs scores
                that the documents do not give.
        """
        check_arms(self.model, self.tokenizer, prompts, [self.config])
        done: dict[int, Outcome] = {}
        if self.config.needs_pilot:
            done, decided = self._run_pilot(prompts, progress)
        elif self.config.calibration is not None:
            decided = decision.from_calibration(self.config)
            decided.check_tasks({prompt.task for prompt in prompts})
        else:
            decided = decision.without_pilot(self.config)
        # Longest first: if memory runs out, it does so at once.
        for i in sorted(range(len(prompts)), key=lambda i: -len(prompts[i].input_ids)):
            if i not in done:
                done[i] = self._answer(self._case(prompts[i]), decided)
                progress(done[i])
        return [done[i] for i in range(len(prompts))], decided

    def fill(
        self,
        prompts: Sequence[Prompt],
        configs: Sequence[PageConfig],
        progress: Callable[[Filled], object] = lambda _: None,
        compute: Compute | None = None,
    ) -> Filled:
        """Compute what the arms of a grid need and the store lacks: one prefill per prompt.

        Args:
            prompts: in any order.
            configs: arms that share window, `top_k` and `compress`.
            progress: called with what it took so far, after each prompt that is done.
            compute: does the work; None for this engine itself.

        Returns:
            What it took.
        """
        memory = self.memory
        assert memory is not None, "nothing to fill"
        check_arms(self.model, self.tokenizer, prompts, configs)
        filled = Filled()

        def lacking() -> Iterator[Work]:
            for prompt in sorted(prompts, key=lambda prompt: -len(prompt.input_ids)):
                signals, evictions = missing(memory, prompt, configs)
                if signals or evictions:
                    yield Work(prompt, signals, evictions)
                else:
                    filled.stored += 1
                    progress(filled)

        warned = False
        for work, done in (compute or self._compute_all)(lacking()):
            for answer in done.answers:
                if answer.decode_rows_lowered and not warned:
                    log.warning(lowered_warning(memory.decode_rows))
                    warned = True
            memory.keep(
                work.prompt,
                list(zip(work.signals, done.seen, strict=True)),
                list(zip(work.evictions, done.answers, strict=True)),
            )
            filled.add(done)
            progress(filled)
        return filled

    def compute(self, work: Work) -> Computed:
        """Prefill a prompt once, and answer all that is asked of it."""
        arms = [eviction for eviction in work.evictions if eviction is not None]
        with naming(work.prompt):
            at_hand = self._prefilled(work.prompt, arms, work.signals)
            seen = [at_hand.seen(config) for config in work.signals]
            answers = at_hand.answers(work.evictions, last=True) if work.evictions else []
        return Computed(
            seen,
            answers,
            at_hand.prompt_tokens,
            at_hand.new_tokens,
            {
                "prefill": at_hand.prefill_s,
                "signals": sum(one.gate_s for one in seen),
                "evict": at_hand.evict_s,
                "decode": at_hand.decode_s,
            },
        )

    def _compute_all(self, work: Iterator[Work]) -> Iterator[tuple[Work, Computed]]:
        return ((one, self.compute(one)) for one in work)

    def _run_pilot(
        self, prompts: Sequence[Prompt], progress: Callable[[Outcome], object]
    ) -> tuple[dict[int, Outcome], Decision]:
        """Answer the pilot's prompts and find what decides, keeping no cache.

        τ is known only after the last of them, so each is decoded as the threshold of those
        before it suggests; the few that τ decides otherwise are answered again.
        """
        first = [i for i, prompt in enumerate(prompts) if prompt.repeat == 0]
        mine = [(prompts[i].task, prompts[i].doc_id) for i in first]
        shares = self.processes.gather(mine)
        whose = [(rank, j) for rank, share in enumerate(shares) for j in range(len(share))]
        pilot = select_pilot([shares[rank][j] for rank, j in whose], self.config.pilot_size)
        signal = str(self.config.make_gate().signal)
        measured: dict[int, tuple[str, float]] = {}

        def decided(of: Mapping[int, tuple[str, float]], final: bool = False) -> Decision:
            # Two equal values stand for the one that is there at first.
            twice = 1 if final or len(of) > 1 else 2
            tasks, values = zip(*(of[place] for place in sorted(of)), strict=True)
            return decision.from_pilot(self.config, tasks * twice, values * twice, final)

        drawn = [shares[whose[n][0]][whose[n][1]][0] for n in pilot]
        early = decision.from_pilot(self.config, drawn, [0.0] * len(drawn), final=False)
        early.check_tasks({task for share in shares for task, _ in share})
        done: dict[int, Outcome] = {}
        for place, number in enumerate(pilot):
            rank, j = whose[number]
            if rank != self.processes.rank:
                continue
            i = first[j]
            case = self._case(prompts[i])
            with naming(prompts[i]):
                measured[place] = prompts[i].task, case.seen.signals[signal]
            done[i] = self._answer(case, decided(measured))
            progress(done[i])
        everywhere = {k: v for share in self.processes.gather(measured) for k, v in share.items()}
        final = decided(everywhere, final=True)
        for i, outcome in done.items():
            if outcome.gate_open != final.opens(prompts[i], outcome.seen.signals):
                done[i] = self._answer(self._case(prompts[i]), final)
        return done, final

    def _answer(self, case: Case, decided: Decision) -> Outcome:
        """Decide on one prompt and answer it."""
        with naming(case.prompt):
            return self._decided(case, decided)

    def _decided(self, case: Case, decided: Decision) -> Outcome:
        seen, gate = case.seen, decided.gate
        check_signal(case.prompt, case.config, seen)
        if not decided.opens(case.prompt, seen.signals):
            return Outcome(seen, False, case.answer(evicted=False))
        if not gate.needs_answers:
            return Outcome(seen, True, case.answer(evicted=True))
        plain = case.answer(evicted=True, last=False)
        full = case.answer(evicted=False) if "full" in gate.needs_answers else None
        facts = [None if a is None else _facts(case.prompt, a) for a in (plain, full)]
        assert facts[0] is not None
        if gate.accepts(facts[0], facts[1]):
            return Outcome(seen, True, plain, 0.0 if full is None else full.own_decode_s)
        wasted = plain.evict_s + plain.own_decode_s
        if full is None:
            # Whoever has evicted must prefill again.
            wasted += seen.prefill_s
            full = case.answer(evicted=False)
        return Outcome(seen, False, full, wasted)

    def _case(self, prompt: Prompt) -> Case:
        evictions = [] if self.config.gate == "closed" else [self.config]
        return Case(
            prompt,
            self.config,
            lambda: self._prefilled(prompt, evictions, [self.config]),
            self.memory,
        )

    def _prefilled(
        self, prompt: Prompt, evictions: Sequence[PageConfig], observed: Sequence[PageConfig]
    ) -> PromptPass:
        """A prompt after its prefill, ready to be answered under some evictions.

        Args:
            prompt: the sample.
            evictions: arms whose answers may be asked for.
            observed: arms whose signals may be asked for.
        """
        return PromptPass(
            self.model,
            self.tokenizer,
            prompt,
            evictions,
            window=self.config.window,
            spread=spread_for(observed),
            seed=(prompt.seed + prompt.repeat + self.sampling_seed) % 2**63,
            decode_rows=self.decode_rows,
            on_plan=functools.partial(self.on_plan, prompt),
        )


def _facts(prompt: Prompt, answer: ArmAnswer) -> AnswerFacts:
    score = None if prompt.score is None else prompt.score(answer.answer_ids)
    return AnswerFacts(answer.mean_token_entropy, answer.repetition, score)
