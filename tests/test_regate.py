"""A gate's decisions on stored runs are those of an actual run."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from stored_traces import pair, paired, stored
from tiny_models import FAMILIES, random_prompt, tiny_model, tiny_tokenizer

from page_bench.analysis.pairs import Pair, pair_runs
from page_bench.analysis.regate import OWN_PILOT, Tau, decide, find_decision, is_task, pilot_of
from page_bench.analysis.stored_signals import signal_of
from page_bench.config import PageConfig
from page_bench.engine.decision import Decision
from page_bench.engine.engine import Engine
from page_bench.engine.make_trace import trace_of
from page_bench.engine.prompt import Prompt
from page_bench.engine.summary import RunSummary
from page_bench.gating.calibration import Calibration, ModelFacts, PilotInput
from page_bench.gating.fingerprint import Fingerprint
from page_bench.gating.gates import make_gate
from page_bench.gating.match import settings_of
from page_bench.gating.profile import DropOptions, drop_of, mean_of_pairs
from page_bench.gating.signal_gates import SIDES
from page_bench.gating.threshold import select_pilot
from page_bench.inputs.errors import UsageError
from page_bench.model import attention
from page_bench.model.decode import AnswerRequest
from page_bench.records.finished_runs import Record, Sample, read_runs
from page_bench.records.trace import Trace, write_traces

# What came of a sample; times differ from run to run, and D with the way it is taken.
OUTCOME = (
    *("answer", "new_tokens", "score", "correct", "correct_paper", "gate_open", "kept_tokens"),
    *("kept_kv", "kv_bytes_full", "kv_bytes_kept", "kept_all_because", "mean_token_entropy"),
)
TASKS = ("niah_multikey_3", "vt")
RunModel = Callable[..., list[Record]]


def score(answer_ids: Sequence[int]) -> float:
    """A task's score, which means nothing but differs from answer to answer."""
    return sum(answer_ids) % 3 / 2


@pytest.fixture(scope="module")
def run_model(tmp_path_factory: pytest.TempPathFactory) -> RunModel:
    """Answers sixteen prompts under an arm; returns the traces that were written."""
    attention.register()
    model = tiny_model("llama")
    model.set_attn_implementation("page_sdpa")
    tokenizer = tiny_tokenizer(FAMILIES["llama"].with_bos)
    facts = ModelFacts("tiny", Fingerprint("c", "w"), "float32", "sdpa")
    request = AnswerRequest(4, (), {"do_sample": False, "eos_token_id": None})
    prompts = [
        Prompt(
            *(TASKS[i % 2], i // 2, 0, None, f"prompt {i}"),
            *(tuple(random_prompt(100 + 3 * i, i)[0].tolist()), None, 0, request, score),
        )
        for i in range(16)
    ]

    def run(**arguments: Any) -> list[Record]:
        config = PageConfig.from_arguments(
            {"window": 8, "budget": 0.25, "top_k": 12, "signals": "pairs", **arguments}
        )
        outcomes, decided = Engine(model, tokenizer, config).run(prompts)
        traces = []
        for prompt, outcome in zip(prompts, outcomes, strict=True):
            ids = outcome.answer.answer_ids
            found = trace_of(facts, config, prompt, outcome, decided.threshold, str(ids), False)
            right = float(score(ids) == 1)
            traces.append(
                dataclasses.replace(found, score=score(ids), correct=right, correct_paper=right)
            )
        path = tmp_path_factory.mktemp("run") / "trace_1.jsonl"
        write_traces(path, traces)
        return read_runs([path])

    return run


@pytest.fixture(scope="module")
def stored_pairs(run_model: RunModel) -> list[Pair]:
    """Each input, plain and full."""
    arms, notes = pair_runs([*run_model(gate="open"), *run_model(gate="closed")])
    assert notes == []
    (pairs,) = arms.values()
    assert len(pairs) == 16
    assert sum(pair.plain.answer != pair.full.answer for pair in pairs) >= 12
    assert {pair.plain.score != pair.full.score for pair in pairs} == {True, False}
    return pairs


FIVE_GATES: list[tuple[str, dict[str, Any]]] = [
    ("page", {}),
    ("page", {"bins": "half", "late_bin": "strict"}),
    ("max_share", {}),
    ("late_plateau", {}),
    ("static", {}),
]
OTHER_GATES: list[tuple[str, dict[str, Any]]] = [
    ("page", {"head_pairs": 0.5, "seed": 3}),
    ("page", {"layer_stride": 2, "open_when": "below"}),
    *((name, {}) for name in SIDES if name not in ("drop", "max_share", "late_plateau")),
    ("static", {"signal": "max_share"}),
]
CASES = [
    *((*gate, tau) for gate in FIVE_GATES for tau in ("zscore", "quantile", "lowest", "median")),
    *((*gate, "beyond") for gate in FIVE_GATES),
    *((*gate, "zscore") for gate in OTHER_GATES),
    ("page", {}, "fixed"),
]


@pytest.mark.parametrize(
    ("gate", "options", "tau"), CASES, ids=[f"{g} {o} {t}".replace("'", "") for g, o, t in CASES]
)
def test_regating_equals_a_gated_run_sample_for_sample(
    gate: str,
    options: dict[str, Any],
    tau: str,
    stored_pairs: list[Pair],
    run_model: RunModel,
) -> None:
    chosen = make_gate(gate, options)
    values = sorted(signal_of(pair.plain, str(chosen.signal), chosen) for pair in stored_pairs)
    numbers = {"median": statistics.median(values), "lowest": values[0], "beyond": values[-1] + 1}
    given: float | str = numbers.get(tau, tau)
    decided, notes = find_decision(
        chosen, Tau(given, theta_z=-0.3, pilot_size=9, open_rate=0.6), stored_pairs
    )
    taken = decide(stored_pairs, decided)

    actual = run_model(
        gate=gate,
        tau=given,
        theta_z=-0.3,
        pilot_size=9,
        open_rate=0.6,
        **{f"gate.{name}": value for name, value in options.items()},
    )
    assert notes == []
    assert decided.threshold is not None
    assert {record.trace.tau for record in actual} == {decided.threshold.tau}
    assert_same(stored_pairs, taken, actual)
    if tau in ("zscore", "quantile", "median") and gate != "static":
        assert set(taken) == {True, False}


@pytest.mark.parametrize(
    ("gate", "options"),
    [
        ("open", {}),
        ("closed", {}),
        ("random", {"rate": 0.4, "seed": 7}),
        ("task_oracle", {}),
        ("oracle", {}),
        ("retry", {}),
    ],
)
def test_regating_a_control_equals_its_run(
    gate: str, options: dict[str, Any], stored_pairs: list[Pair], run_model: RunModel
) -> None:
    if gate == "retry":
        entropies = (pair.plain.mean_token_entropy for pair in stored_pairs)
        options = {"limit": statistics.median(entropies)}
    decided, _ = find_decision(make_gate(gate, options), Tau(), stored_pairs)
    taken = decide(stored_pairs, decided)
    actual = run_model(gate=gate, **{f"gate.{name}": value for name, value in options.items()})
    assert_same(stored_pairs, taken, actual)
    if gate not in ("open", "closed"):
        assert set(taken) == {True, False}


def test_gated_runs_serve_as_halves_of_others(
    stored_pairs: list[Pair], run_model: RunModel
) -> None:
    """What opens below τ and what opens above are together all plain and all full answers."""
    tau = statistics.median(pair.plain.drop for pair in stored_pairs) + 1e-9
    sides = ({"gate.open_when": side} for side in ("above", "below"))
    (pairs,) = pair_runs([r for side in sides for r in run_model(gate="page", tau=tau, **side)])[
        0
    ].values()
    for found, expected in zip(pairs, stored_pairs, strict=True):
        assert found.sample == expected.sample
        assert found.plain.answer == expected.plain.answer
        assert found.full.answer == expected.full.answer


def assert_same(pairs: list[Pair], taken: list[bool], actual: list[Record]) -> None:
    """Every sample of a run came out as the re-gated one does."""
    traces = {Sample.of(record.trace): record.trace for record in actual}
    assert traces.keys() == {pair.sample for pair in pairs}
    for one, plain in zip(pairs, taken, strict=True):
        regated, ran = one.gated(plain), traces[one.sample]
        for field in OUTCOME:
            assert getattr(regated, field) == getattr(ran, field), (one.sample, field)


def test_d_is_taken_anew_for_other_bins_layers_and_head_pairs() -> None:
    agreement = [0.9, 0.7, 0.6, 0.5, 0.2, 0.1]
    pairs = [[a - 0.05, a, a + 0.05] for a in agreement]
    trace = stored(agreement=agreement, drop=0.65, pair_agreement=pairs, top_k=16)
    assert signal_of(trace, "drop") == 0.65
    for options in ({"bins": "half"}, {"layer_stride": 2}, {"bins": "quarter"}):
        wanted = drop_of(agreement, DropOptions(**options))
        assert signal_of(trace, "drop", make_gate("page", options)) == wanted
    few = DropOptions(16, head_pairs=0.3, seed=2)
    found = signal_of(trace, "drop", make_gate("page", {"head_pairs": 0.3, "seed": 2}))
    assert found == drop_of(mean_of_pairs(pairs, few), few)


def test_the_deployed_d_is_taken_anew_where_a_run_took_another() -> None:
    agreement = [0.9, 0.7, 0.6, 0.5, 0.2, 0.1]
    trace = stored(agreement=agreement, gate="page", gate_args={"bins": "half"}, drop=0.4)
    assert signal_of(trace, "drop") == pytest.approx(0.8 - 0.15)
    assert signal_of(trace, "drop", make_gate("page", {"bins": "half"})) == 0.4


def test_readings_of_the_profile_need_no_signals() -> None:
    trace = stored(agreement=[0.9, 0.6, 0.3], signals={"drop": 0.6, "max_share": 0.1})
    assert signal_of(trace, "late_plateau") == pytest.approx(0.3)
    assert signal_of(trace, "monotonicity") == 1.0
    assert signal_of(trace, "max_share") == 0.1


@pytest.mark.parametrize(
    ("name", "options", "remedy"),
    [
        ("entropy_norm", {}, "run again with signals=all"),
        ("drop", {"head_pairs": 0.5}, "run again with signals=pairs"),
    ],
)
def test_what_a_trace_lacks_is_named(name: str, options: dict[str, Any], remedy: str) -> None:
    gate = make_gate("page", options)
    with pytest.raises(UsageError, match=remedy):
        signal_of(stored(pair_agreement=None), name, gate)


def test_the_pilot_is_the_run_s() -> None:
    pairs = [pair(task, i, i / 10, 1.0, 1.0) for task in ("fwe", "vt") for i in range(30)]
    places = [(p.sample.task, p.sample.doc_id) for p in pairs]
    values = [pairs[i].plain.drop for i in select_pilot(places, 25)]
    found, _ = find_decision(make_gate("page"), Tau("zscore", -1.0, 0.5, 25), pairs)
    assert found.threshold is not None
    assert found.threshold.tau == statistics.fmean(values) - statistics.pstdev(values)
    assert found.threshold.pilot_n == 25
    assert set(found.task_means) == {"fwe", "vt"}


def test_budgets_and_repeats_of_an_input_are_one_pilot_prompt() -> None:
    once = [pair("vt", i, i / 10, 1.0, 1.0) for i in range(5)]
    again = [
        pair("vt", i, i / 10, 1.0, 1.0, **change)
        for i in range(5)
        for change in ({"budget": 0.5}, {"repeat": 1})
    ]
    found = [find_decision(make_gate("page"), Tau(), some)[0] for some in (once, once + again)]
    assert found[0] == found[1]


def test_the_midpoint_lies_between_its_two_tasks() -> None:
    pairs = [
        *(pair("page_ruler_4k_niah_multikey_3", i, 0.04, 0.0, 1.0) for i in range(3)),
        *(pair("page_ruler_4k_vt", i, 0.16, 1.0, 1.0) for i in range(30)),
        *(pair("page_ruler_4k_fwe", i, 0.9, 1.0, 1.0) for i in range(3)),
    ]
    found, _ = find_decision(make_gate("page"), Tau("midpoint"), pairs)
    assert found.threshold is not None
    assert found.threshold.tau == pytest.approx(0.10)
    assert found.threshold.pilot_n == 3 + 20
    with pytest.raises(UsageError, match="tau=midpoint needs inputs"):
        find_decision(make_gate("page"), Tau("midpoint"), pairs[3:])


def calibrated(folder: Path, seen: Sequence[Pair] = (), chat: bool = True, **model: str) -> Path:
    """A calibration of the model of `stored`, whose pilot has D of 0.0 and 0.2.

    Args:
        folder: for the file.
        seen: inputs whose prompts are the pilot's probes and its own.
        chat: whether a chat template was applied.
        model: facts of another one.
    """
    facts = {"name": "tiny", "dtype": "float32", "attn_implementation": "sdpa", **model}
    hashes = [one.sample.prompt_sha256 for one in seen] or ["0", "1"]
    inputs = [PilotInput("vt", 100 + i, 100, hashes[i], {"drop": i / 5}) for i in (0, 1)]
    calibration = Calibration(
        model=ModelFacts(fingerprint=Fingerprint("c", "w"), **facts),
        settings=settings_of(window=32, top_k=32, compress="prompt", chat=chat),
        protocols=(),
        tasks=("vt",),
        pilot=None,
        pilot_kind="held-out",
        test_limit=100,
        seed=1,
        inputs=tuple(inputs),
    )
    calibration.save(folder / "calibration.json")
    return folder / "calibration.json"


def test_a_calibration_takes_the_place_of_the_pilot(tmp_path: Path) -> None:
    pairs = [pair("vt", i, 0.5, 1.0, 1.0) for i in range(3)]
    tau = Tau("zscore", -1.0, calibration=calibrated(tmp_path))
    found, notes = find_decision(make_gate("page"), tau, pairs)
    assert found.threshold is not None
    assert found.threshold.tau == pytest.approx(0.1 - 0.1)
    assert found.task_means == {"vt": pytest.approx(0.1)}
    assert notes == []


@pytest.mark.parametrize(
    ("model", "gate", "difference"),
    [
        ({"name": "other"}, {}, "model other in the file, tiny in this run"),
        ({"attn_implementation": "eager"}, {}, "attention implementation eager in the file"),
        ({"dtype": "bfloat16"}, {}, "dtype bfloat16 in the file"),
        ({}, {"bins": "half"}, "gate.bins third in the file, half in this run"),
    ],
)
def test_a_calibration_of_another_run_is_refused(
    model: dict[str, Any], gate: dict[str, object], difference: str, tmp_path: Path
) -> None:
    path = calibrated(tmp_path, **model)
    pairs = [pair("vt", i, 0.5, 1.0, 1.0) for i in range(3)]
    with pytest.raises(UsageError, match=difference):
        find_decision(make_gate("page", gate), Tau(calibration=path), pairs)
    _, (warning,) = find_decision(
        make_gate("page", gate), Tau(calibration=path, mismatch="warn"), pairs
    )
    assert difference in warning


def test_a_pilot_that_holds_the_test_inputs_is_told(tmp_path: Path) -> None:
    pairs = [pair("vt", i, 0.5, 1.0, 1.0) for i in range(3)]
    path = calibrated(tmp_path, pairs[:2])
    _, (note,) = find_decision(make_gate("page"), Tau(calibration=path), pairs)
    assert note == f"2 of these 3 inputs stand in the pilot of {path} as well: τ has seen them."
    _, (note,) = find_decision(make_gate("static"), Tau(0.1, calibration=path), pairs)
    assert "the means of tasks have seen them" in note
    _, notes = find_decision(make_gate("page"), Tau(calibration=path), pairs[2:])
    assert notes == []


@pytest.mark.parametrize(("chat", "differs"), [(True, False), (False, True), (None, False)])
def test_a_calibration_with_another_chat_template_is_refused(
    chat: bool | None, differs: bool, tmp_path: Path
) -> None:
    pairs = [pair("vt", i, 0.5, 1.0, 1.0, chat_template=chat) for i in range(3)]
    tau = Tau(calibration=calibrated(tmp_path, chat=True), mismatch="warn")
    _, notes = find_decision(make_gate("page"), tau, pairs)
    assert any("chat True in the file, False in this run" in note for note in notes) is differs


@pytest.mark.parametrize(
    ("gate", "tau", "source"),
    [
        ("page", Tau(), OWN_PILOT),
        ("page", Tau("midpoint"), OWN_PILOT),
        ("static", Tau(0.1), OWN_PILOT),
        ("page", Tau(calibration=Path("tau.json")), "tau.json"),
        ("page", Tau(0.1), None),
        ("random", Tau(), None),
    ],
)
def test_where_the_pilot_comes_from(gate: str, tau: Tau, source: str | None) -> None:
    assert pilot_of(make_gate(gate), tau) == source


def test_lengths_under_one_tau_are_told_as_in_a_run() -> None:
    pairs = [
        pair(f"page_ruler_{name}_vt", i, i / 9, 1.0, 1.0, prompt_tokens=length)
        for name, length in (("4k", 4000), ("16k", 16000))
        for i in range(3)
    ]
    _, (note,) = find_decision(make_gate("page"), Tau(), pairs)
    assert note.startswith("one τ serves prompts of very different length: typically 4000 tokens")
    assert find_decision(make_gate("page"), Tau(), pairs[:3])[1] == []
    assert find_decision(make_gate("open"), Tau(), pairs)[1] == []


def test_equal_values_that_open_together_are_told() -> None:
    """A quarter was to open, but 26 of 30 inputs have the lowest D."""
    pairs = [pair("vt", i, 0.5 if i < 26 else 0.6, 1.0, 1.0) for i in range(30)]
    tau = Tau("quantile", open_rate=0.25)
    found, (note,) = find_decision(make_gate("page"), tau, pairs)
    assert "opens 1.00 of the pilot where open_rate=0.25 was asked for" in note
    assert RunSummary(threshold=found.threshold).to_config()["pilot_open"] == 1.0
    apart = [pair("vt", i, i / 30, 1.0, 1.0) for i in range(30)]
    found, notes = find_decision(make_gate("page"), tau, apart)
    assert notes == []  # 8 of 30 is the share of 0.25, rounded up to whole prompts
    assert RunSummary(threshold=found.threshold).to_config()["pilot_open"] == 8 / 30


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(UsageError, match="tau=zscor does not exist"):
        find_decision(make_gate("page"), Tau("zscor"), [pair("vt", 0, 0.1, 1.0, 1.0)])


def test_a_gate_opens_from_tau_on_and_not_on_nan() -> None:
    pairs = [pair("vt", i, drop, 1.0, 1.0) for i, drop in enumerate((0.07, 0.0699, math.nan))]
    above, below = (
        find_decision(make_gate("page", {"open_when": side}), Tau("fixed"), pairs)[0]
        for side in ("above", "below")
    )
    assert decide(pairs, above) == [True, False, False]
    assert decide(pairs, below) == [True, True, False]


def test_the_oracle_takes_the_better_answer_and_the_plain_one_if_equal() -> None:
    pairs = [pair("vt", i, 0.1, plain, full) for i, (plain, full) in enumerate(ORACLE)]
    assert decide(pairs, Decision(make_gate("oracle"))) == [True, False, True, True]
    unscored = dataclasses.replace(pairs[0].plain, score=None)
    with pytest.raises(UsageError, match="has no score; use --metric correct"):
        decide([Pair(pairs[0].sample, unscored, pairs[0].full)], Decision(make_gate("oracle")))


ORACLE = ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.0, 0.0))


def test_the_oracle_is_one_of_the_metric_asked_for() -> None:
    """The plain answer scores more and yet is wrong, or the other way round."""
    pairs = paired(
        stored(doc_id=0, score=0.5, correct=0.0),
        stored(doc_id=0, gate="closed", score=0.4, correct=1.0),
        stored(doc_id=1, score=0.2, correct=1.0),
        stored(doc_id=1, gate="closed", score=0.3, correct=0.0),
    )
    decided = Decision(make_gate("oracle"))
    assert decide(pairs, decided, "score") == decide(pairs, decided) == [True, False]
    assert decide(pairs, decided, "correct") == [False, True]


def test_a_retry_keeps_the_full_answer_where_the_plain_one_is_in_distress() -> None:
    pairs = paired(
        *(stored(doc_id=i, mean_token_entropy=e) for i, e in enumerate((0.2, 1.5))),
        *(stored(doc_id=i, gate="closed", mean_token_entropy=0.0) for i in (0, 1)),
    )
    assert decide(pairs, Decision(make_gate("retry", {"limit": 1.0}))) == [True, False]


def test_a_static_gate_decides_by_task() -> None:
    pairs = [
        *(pair("niah_multikey_3", i, (0.01, 0.2)[i], 1.0, 1.0) for i in (0, 1)),
        *(pair("vt", i, (0.01, 0.4)[i], 1.0, 1.0) for i in (0, 1)),
    ]
    gate = make_gate("static")
    found, _ = find_decision(gate, Tau(0.15), pairs)
    assert decide(pairs, found) == [False, False, True, True]


@pytest.mark.parametrize(
    ("task", "meant"),
    [("niah_multikey_3", True), ("page_rulergen_2k_niah_multikey_3", True), ("vt", False)],
)
def test_tasks_are_known_by_their_last_name(task: str, meant: bool) -> None:
    assert is_task("niah_multikey_3", task) is meant


def test_all_fields_compared_are_fields_of_a_trace() -> None:
    assert set(OUTCOME) <= {field.name for field in dataclasses.fields(Trace)}
