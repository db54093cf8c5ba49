"""Every gate: what it opens, what it needs, and how it is asked for."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from page_bench.engine.decision import Decision
from page_bench.gating import signals
from page_bench.gating.gate import AnswerFacts, Facts, Gate
from page_bench.gating.gates import GATES, Oracle, Random, Retry, TaskOracle, make_gate, opens
from page_bench.gating.profile import DropOptions
from page_bench.gating.signal_gates import SIDES, Page, Static, ThresholdGate
from page_bench.gating.threshold import Threshold
from page_bench.inputs.errors import UsageError
from page_bench.model.answer_signs import repetition, token_entropy

SIGNAL_GATES = [name for name, cls in GATES.items() if issubclass(cls, ThresholdGate)]


def facts(task: str = "vt", seed: int = 0, tau: Threshold | None = None, **more: Any) -> Facts:
    return Facts(task, 0, seed, more.pop("signals", {}), tau, **more)


def at(gate: Gate, value: float, tau: float) -> bool:
    assert gate.signal is not None
    threshold = Threshold(tau, "number", signal=gate.signal)
    return gate.opens(facts(signals={gate.signal: value}, tau=threshold))


def test_there_is_a_gate_for_every_signal_and_one_side_for_each() -> None:
    assert tuple(SIDES) == signals.SIGNALS
    names = {"drop": "page"}
    assert [names.get(signal, signal) for signal in signals.SIGNALS] == SIGNAL_GATES
    for name in SIGNAL_GATES:
        gate = make_gate(name)
        assert gate.side == SIDES[str(gate.signal)]


@pytest.mark.parametrize("name", SIGNAL_GATES)
def test_a_gate_opens_on_its_side_of_tau_and_at_tau(name: str) -> None:
    above = make_gate(name, {"open_when": "above"})
    below = make_gate(name, {"open_when": "below"})
    assert [at(above, value, 0.5) for value in (0.4, 0.5, 0.6)] == [False, True, True]
    assert [at(below, value, 0.5) for value in (0.4, 0.5, 0.6)] == [True, True, False]
    assert not at(above, math.nan, 0.5)
    assert not at(below, math.nan, 0.5)


def test_the_default_side_is_the_one_on_which_d_is_large() -> None:
    # Table 5: rank correlation with D on Qwen2.5-1.5B.
    spearman = {
        "entropy_norm": 0.249,
        "topk_mass_share": -0.050,
        "max_share": 0.122,
        "keynorm_disp": -0.258,
        "entropy_drop": -0.492,
    }
    for signal, correlation in spearman.items():
        assert SIDES[signal] == ("above" if correlation > 0 else "below")
    # A profile that falls steeply, in most steps, to a low plateau has a large D.
    falling, flat = torch.linspace(0.6, 0.2, 12), torch.full((12,), 0.4)
    readings = [
        signals.measure(profile, torch.ones(12, 2, 4), names=("slope", "late_plateau", "drop"))
        for profile in (falling, flat)
    ]
    for name in ("slope", "late_plateau", "drop"):
        low, high = sorted(reading[name] for reading in readings)
        gate = make_gate("page" if name == "drop" else name)
        assert at(gate, readings[0][name], (low + high) / 2)
        assert not at(gate, readings[1][name], (low + high) / 2)


def test_a_threshold_of_another_signal_is_never_compared() -> None:
    tau = Threshold(0.5, "number", signal="drop")
    with pytest.raises(ValueError, match="reads slope, but τ is one of drop"):
        make_gate("slope").opens(facts(signals={"slope": 0.1, "drop": 0.1}, tau=tau))
    with pytest.raises(ValueError, match="needs a threshold"):
        make_gate("page").opens(facts(signals={"drop": 0.1}))


def test_controls_read_no_signal() -> None:
    assert make_gate("open").opens(facts())
    assert not make_gate("closed").opens(facts())
    for name in ("open", "closed", "random", "task_oracle", "retry", "oracle"):
        assert GATES[name].signal is None


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_random_opens_at_its_rate_and_by_the_prompt_alone(rate: float) -> None:
    n = 20_000
    gate = Random(rate=rate)
    opened = [gate.opens(facts(seed=seed)) for seed in range(n)]
    # Five standard deviations: by luck this fails once in more than a million runs.
    assert sum(opened) / n == pytest.approx(rate, abs=5 * math.sqrt(rate * (1 - rate) / n) + 1e-12)
    assert opened[:500] == [gate.opens(facts("fwe", seed)) for seed in range(500)]
    if 0 < rate < 1:
        other = [Random(rate=rate, seed=1).opens(facts(seed=seed)) for seed in range(n)]
        both = sum(a and b for a, b in zip(opened, other, strict=True)) / n
        assert both == pytest.approx(rate * rate, abs=0.02)


def test_task_oracle_closes_on_the_tasks_it_names() -> None:
    gate = TaskOracle("niah_multikey_3|*_hotpotqa + qa_?")
    closed = (
        *("niah_multikey_3", "page_ruler_4k_niah_multikey_3", "page_longbench_hotpotqa"),
        *("page_rulergen_1k_qa_1", "qa_2"),
    )
    opened = ("page_ruler_4k_vt", "page_ruler_4k_niah_multikey_2", "my_niah_multikey_33", "fwe")
    assert not any(gate.opens(facts(task)) for task in closed)
    assert all(gate.opens(facts(task)) for task in opened)
    assert gate.unused(["page_ruler_4k_vt", "qa_1"]) == ["niah_multikey_3", "*_hotpotqa"]
    default = TaskOracle()
    assert not default.opens(facts("page_ruler_4k_mixed4_niah_multikey_3"))
    assert default.opens(facts("page_ruler_4k_mixed4_vt"))


def test_static_decides_once_for_a_task_whatever_the_input_says() -> None:
    gate = Static()
    tau = Threshold(0.07, "number")
    for value in (-1.0, 1.0):
        assert gate.opens(facts(signals={"drop": value}, tau=tau, task_mean=0.08))
        assert not gate.opens(facts(signals={"drop": value}, tau=tau, task_mean=0.06))
    with pytest.raises(UsageError, match="no pilot prompt of fwe"):
        gate.opens(facts("fwe", tau=tau))
    below = make_gate("static", {"signal": "late_plateau"})
    assert (below.signal, below.side) == ("late_plateau", "below")
    tau = Threshold(0.3, "number", signal="late_plateau")
    assert below.opens(facts(tau=tau, task_mean=0.2))


def test_static_refuses_tasks_without_a_pilot_before_anything_is_answered() -> None:
    decided = Decision(Static(), Threshold(0.1, "number"), {"vt": 0.2, "fwe": 0.1})
    decided.check_tasks(["vt", "fwe", "vt"])
    with pytest.raises(UsageError, match="no pilot prompt of qa_1, qa_2, so nothing to decide by"):
        decided.check_tasks(["qa_2", "vt", "qa_1"])
    Decision(Page(), Threshold(0.1, "number")).check_tasks(["qa_1"])


def test_retry_keeps_the_plain_answer_up_to_the_limit() -> None:
    calm, wild = AnswerFacts(0.4, 0.0), AnswerFacts(3.0, 0.9)
    for gate in (Retry(), Retry("repetition"), Retry("entropy", 0.4), Retry("repetition", 0.0)):
        assert gate.needs_answers == ("plain",)
        assert gate.opens(facts())
        assert gate.accepts(calm)
        assert not gate.accepts(wild)
    assert not Retry().accepts(AnswerFacts(math.nan, 0.0))
    assert Retry("entropy", 3.0).accepts(wild)


@pytest.mark.parametrize(
    ("plain", "full", "stands"), [(1.0, 0.0, True), (0.5, 0.5, True), (0.2, 0.9, False)]
)
def test_the_oracle_takes_the_better_answer_and_the_smaller_cache(
    plain: float, full: float, stands: bool
) -> None:
    answers = [AnswerFacts(0.0, 0.0, score) for score in (plain, full)]
    assert Oracle().accepts(*answers) is stands
    assert Oracle.needs_answers == ("plain", "full")
    with pytest.raises(ValueError, match="scores of both"):
        Oracle().accepts(answers[0], None)
    with pytest.raises(ValueError, match="before anything is answered"):
        Page().accepts(answers[0])


def test_labels_are_named_where_they_are_needed() -> None:
    needing = {name for name, cls in GATES.items() if cls.labels != "none"}
    assert needing == {"task_oracle", "static", "oracle"}
    assert "accuracy" in Oracle.labels


def test_options_are_checked_like_those_of_evictors() -> None:
    gate = make_gate("page", {"bins": "half", "late_bin": "strict", "layer_stride": 2.0, "seed": 3})
    assert isinstance(gate, Page)
    assert gate.drop_options(16) == DropOptions(16, "half", "strict", 2, 1.0, 3)
    assert Page().drop_options(32) == DropOptions()
    for name, options, said in (
        ("pagee", {}, "gate=pagee does not exist .did you mean page.*allowed are page, "),
        ("page", {"bin": "half"}, "gate.bin is not an option of page .did you mean bins"),
        ("open", {"rate": 1}, "its options are: none"),
        ("page", {"bins": "fifth"}, "give third or half or quarter"),
        ("page", {"layer_stride": 0}, "gate.layer_stride=0"),
        ("page", {"head_pairs": 0.0}, "gate.head_pairs=0"),
        ("slope", {"open_when": "at"}, "give above or below"),
        ("random", {"rate": 1.5}, r"give a number in \[0, 1\]"),
        ("task_oracle", {"closed": " + "}, "names of tasks"),
        ("retry", {"distress": "fear"}, "give entropy or repetition"),
        ("static", {"signal": "dropp"}, "give drop or entropy_norm"),
    ):
        with pytest.raises(UsageError, match=said):
            make_gate(name, options)


def test_every_gate_stands_by_its_name_with_defaults() -> None:
    for name, cls in GATES.items():
        gate = make_gate(name)
        assert type(gate) is cls
        assert gate.name == name
        assert dataclasses.is_dataclass(gate)


def test_the_gate_by_name_and_drop() -> None:
    threshold = Threshold(0.07, "fixed")
    assert opens("page", 0.07, threshold)
    assert not opens("page", 0.0699, threshold)
    assert opens("open", -1.0, None)
    assert not opens("closed", 1.0, None)
    with pytest.raises(ValueError, match="threshold"):
        opens("page", 1.0, None)


def test_repetition_is_the_share_of_ngrams_seen_before() -> None:
    assert repetition([1, 2, 3]) == 0
    assert repetition([]) == 0
    assert repetition([1, 2, 3, 4, 5, 6]) == 0
    # Seven 4-grams of one token: six have been seen.
    assert repetition([7] * 10) == pytest.approx(6 / 7)
    # 123412341: 1234 2341 3412 4123 1234 2341: two of six.
    assert repetition([1, 2, 3, 4, 1, 2, 3, 4, 1]) == pytest.approx(2 / 6)
    assert repetition([1, 2, 1, 2], n=2) == pytest.approx(1 / 3)


def test_token_entropy_in_nats() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, -torch.inf, 0.0, -torch.inf]])
    assert token_entropy(logits).tolist() == pytest.approx([math.log(4), math.log(2)])
    assert token_entropy(logits.bfloat16()).dtype == torch.float32
    certain = torch.tensor([50.0, 0.0, 0.0])
    assert float(token_entropy(certain)) == pytest.approx(0, abs=1e-6)
