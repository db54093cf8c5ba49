"""Calibration files: written, read back, and refused where they belong to another run."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import tiny_config, tiny_model
from transformers import AutoModelForCausalLM

from page_bench.config import PageConfig
from page_bench.engine.decision import calibration_warnings, from_calibration
from page_bench.engine.prompt import PromptFacts
from page_bench.gating.calibration import (
    Calibration,
    ModelFacts,
    PilotInput,
    load,
    threshold_from,
)
from page_bench.gating.fingerprint import Fingerprint, model_fingerprint
from page_bench.gating.gates import make_gate
from page_bench.gating.match import mismatches, overlap, refuse_mismatch, settings_of
from page_bench.gating.rules import midpoint_threshold, quantile_threshold
from page_bench.gating.signal_gates import Page
from page_bench.gating.threshold import zscore_threshold
from page_bench.inputs.errors import UsageError
from page_bench.model import attention

DROPS = [0.01, 0.03, 0.05, 0.07, 0.09, 0.11]
SETTINGS = settings_of(window=32, top_k=32, compress="prompt", chat=True)
MODEL = ModelFacts("org/model", Fingerprint("c" * 64, "w" * 64), "bfloat16", "sdpa")


def pilot_input(i: int, drop: float, task: str = "page_ruler_4k_vt") -> PilotInput:
    return PilotInput(task, 100 + i, 4000 + i, f"{task}{i}", {"drop": drop, "slope": -drop})


@pytest.fixture
def calibration() -> Calibration:
    tasks = ("page_ruler_4k_fwe", "page_ruler_4k_vt")
    return Calibration(
        model=MODEL,
        settings=SETTINGS,
        protocols=("page",),
        tasks=tasks,
        pilot="mixed4",
        pilot_kind="held-out",
        test_limit=100,
        seed=1234,
        inputs=tuple(pilot_input(i, drop, tasks[i % 2]) for i, drop in enumerate(DROPS)),
        probes=(
            *(pilot_input(i, 0.02, "page_rulergen_4k_niah_multikey_3") for i in range(3)),
            *(pilot_input(i, 0.10, "page_rulergen_4k_vt") for i in range(3)),
        ),
        thresholds=(zscore_threshold(DROPS, -0.69),),
    )


def test_a_file_holds_all_of_a_calibration(calibration: Calibration, tmp_path: Path) -> None:
    first = calibration.inputs[0]
    odd = dataclasses.replace(first, signals={"drop": 0.1 + 0.2, "slope": math.nan})
    inputs = (odd, *calibration.inputs[1:])
    whole = dataclasses.replace(calibration, inputs=inputs)
    rules = ("zscore", "midpoint", "quantile")
    thresholds = tuple(threshold_from(whole, rule) for rule in rules)
    whole = dataclasses.replace(whole, thresholds=thresholds)
    path = tmp_path / "deep" / "c.json"
    whole.save(path)
    read = load(path)
    assert math.isnan(read.inputs[0].signals["slope"])
    assert read.inputs[0].signals["drop"] == 0.1 + 0.2
    same = dataclasses.replace(read, inputs=(odd, *read.inputs[1:]))
    assert same == whole
    record = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert record["prompt_tokens"] == {"typical": 4002.5, "min": 4000, "max": 4005}
    assert [*tmp_path.rglob("*")] == [path.parent, path]


def test_what_is_no_calibration_is_refused(calibration: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    with pytest.raises(UsageError, match=r"cannot be read \(No such file"):
        load(path)
    calibration.save(path)
    record = json.loads(path.read_text())
    for text in (
        *("", "[]", "{}", json.dumps({**record, "format": 1, "model": {}})),
        json.dumps({k: v for k, v in record.items() if k != "inputs"}),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match="is no calibration"):
            load(path)
    path.write_text(json.dumps({**record, "format": 99}))
    with pytest.raises(UsageError, match="has format 99, but this version reads 1"):
        load(path)


def every(key: str, value: object) -> Callable[[dict[str, Any]], object]:
    """An edit of all inputs."""
    return lambda record: [one.update({key: value}) for one in record["inputs"]]


EDITS: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda record: record.update(inputs=[]), "it holds no inputs"),
    (every("prompt_tokens", "1k"), r"calibration.inputs\[0\].prompt_tokens is '1k', not a whole"),
    (every("prompt_tokens", 1000.5), r"prompt_tokens is 1000.5, not a whole number"),
    (every("signals", {"drop": "0.1"}), r"inputs\[0\].signals.drop is '0.1', not a number"),
    (every("signals", {"drop": True}), r"signals.drop is True, not a number"),
    (every("signals", [0.1]), r"inputs\[0\].signals is \[0.1\], not an object"),
    (every("signals", {"drop": 1e999}), "it is not JSON"),
    (every("note", "mine"), r"inputs\[0\].note does not exist"),
    (lambda record: record.update(note="mine"), "calibration.note does not exist"),
    (lambda record: record.update(settings=["window"]), "settings is .*, not an object"),
    (lambda record: record.update(settings=None), "settings is None, not an object"),
    (lambda record: record["settings"].update(window=[32]), r"window is \[32\], not a text or"),
    (lambda record: record.update(protocols=None), "protocols is None, not a list"),
    (lambda record: record.update(tasks="vt"), "tasks is 'vt', not a list"),
    (lambda record: record.update(model=None), "model is None, not an object"),
    (lambda record: record["model"].update(fingerprint="abc"), "fingerprint is 'abc', not an obj"),
    (lambda record: record.update(seed=None), "seed is None, not a whole number"),
    (lambda record: record.update(seed="a"), "seed is 'a', not a whole number"),
    (lambda record: record.update(seed=-1), "seed is -1, but seeds start at 0"),
    (lambda record: record.update(pilot=6), "pilot is 6, not a text or null"),
    (lambda record: record.update(pilot_kind="fresh"), "'fresh', not held-out or in-run"),
    (lambda record: record["thresholds"][0].update(tau="x"), r"thresholds\[0\].tau is 'x'"),
    (lambda record: record["thresholds"][0].update(interval=[0.1]), "interval is .* a list or nul"),
    (lambda record: record["thresholds"][0].update(rule="fixed"), "tau=fixed of drop, which no"),
    (lambda record: record["thresholds"][0].update(signal="d"), "do not give the tau=zscore of d"),
]


@pytest.mark.parametrize(("edit", "said"), EDITS)
def test_a_file_edited_out_of_shape_is_refused_in_one_sentence(
    edit: Callable[[dict[str, Any]], object], said: str, calibration: Calibration, tmp_path: Path
) -> None:
    path = tmp_path / "c.json"
    calibration.save(path)
    record = json.loads(path.read_text())
    edit(record)
    path.write_text(json.dumps(record))
    with pytest.raises(UsageError, match=f"is no calibration .*{said}") as refused:
        load(path)
    assert str(refused.value).endswith("; give the file that `page-bench calibrate` wrote.")


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (
            lambda record: record["thresholds"][0].update(tau=99),
            r"tau of tau=zscore of drop 99, but its inputs give 0\.036",
        ),
        (
            lambda record: record["thresholds"][0].update(tau=None),
            r"tau of tau=zscore of drop nan, but its inputs give 0\.036",
        ),
        (
            lambda record: record["thresholds"][0].update(theta_z=0.5),
            r"tau of tau=zscore of drop 0\.036\d+, but its inputs give 0\.07",
        ),
        (
            lambda record: record["inputs"][0]["signals"].update(drop=0.5),
            r"tau of tau=zscore of drop 0\.036\d+, but its inputs give 0\.02",
        ),
        (lambda record: record["inputs"].extend(record["inputs"]), "pilot_n .* 6, .* give 12"),
        (lambda record: record["prompt_tokens"].update(min=1), "'min': 1, .*give {.*'min': 4000,"),
    ],
)
def test_an_edit_that_would_be_ignored_is_refused(
    edit: Callable[[dict[str, Any]], object], said: str, calibration: Calibration, tmp_path: Path
) -> None:
    path = tmp_path / "c.json"
    calibration.save(path)
    record = json.loads(path.read_text())
    edit(record)
    path.write_text(json.dumps(record))
    with pytest.raises(UsageError, match=f"c.json says .*{said}"):
        load(path)


def test_thresholds_come_from_the_pilot(calibration: Calibration) -> None:
    zscore = threshold_from(calibration, "zscore", theta_z=-0.5)
    assert zscore.tau == zscore_threshold(DROPS, -0.5).tau
    quantile = threshold_from(calibration, "quantile", open_rate=0.5)
    assert quantile.tau == quantile_threshold(DROPS, 0.5).tau
    midpoint = threshold_from(calibration, "midpoint")
    assert midpoint.tau == midpoint_threshold([0.02], [0.10]).tau == pytest.approx(0.06)
    assert (zscore.pilot_n, midpoint.pilot_n) == (6, 6)
    for threshold in (zscore, quantile, midpoint):
        # Six prompts settle no τ.
        assert threshold.interval is None
        assert threshold.undecided is None
    slope = threshold_from(calibration, "zscore", signal="slope", side="below", theta_z=-0.5)
    assert slope.tau == pytest.approx(-zscore.tau)
    assert calibration.task_means("drop") == pytest.approx(
        {"page_ruler_4k_fwe": 0.05, "page_ruler_4k_vt": 0.07}
    )


def test_what_a_calibration_does_not_hold_is_named(calibration: Calibration) -> None:
    with pytest.raises(UsageError, match="tau=fixed reads no calibration"):
        threshold_from(calibration, "fixed")
    with pytest.raises(UsageError, match="does not hold max_share; it holds drop, slope"):
        threshold_from(calibration, "zscore", signal="max_share")
    bare = dataclasses.replace(calibration, probes=())
    with pytest.raises(UsageError, match="no inputs for tau=midpoint"):
        threshold_from(bare, "midpoint")


def test_the_same_run_has_no_differences(calibration: Calibration) -> None:
    other_name = dataclasses.replace(MODEL, name="/a/local/copy")
    for model in (MODEL, other_name):
        assert mismatches(calibration, model, [3900, 4100], SETTINGS, {"page"}) == []
    # What one side does not know cannot differ.
    assert mismatches(calibration, MODEL, [], {"budget": 0.5}) == []


OTHER_DTYPE = dataclasses.replace(
    MODEL, dtype="float32", fingerprint=Fingerprint("c" * 64, "x" * 64)
)
OTHER_MODEL = dataclasses.replace(
    MODEL, name="org/other", fingerprint=Fingerprint("c" * 64, "x" * 64)
)
OTHER_CONFIGURATION = dataclasses.replace(MODEL, fingerprint=Fingerprint("d" * 64, "w" * 64))


@pytest.mark.parametrize(
    ("model", "tokens", "settings", "protocols", "named"),
    [
        (OTHER_DTYPE, [4000], {}, (), ["dtype bfloat16 in the file, float32 in this run"]),
        (
            dataclasses.replace(MODEL, attn_implementation="eager"),
            [4000],
            {},
            (),
            ["attention implementation sdpa in the file, eager in this run"],
        ),
        (
            OTHER_MODEL,
            [4000],
            {},
            (),
            ["model org/model (cccccccc/wwwwwwww) in the file, org/other (cccccccc/xxxxxxxx)"],
        ),
        (OTHER_CONFIGURATION, [4000], {}, (), ["model org/model (cccccccc/wwwwwwww) in the file"]),
        (MODEL, [8000, 8100, 2000], {}, (), ["typical prompt length 4002.5 in the file, 8000"]),
        (MODEL, [2000], {}, (), ["typical prompt length 4002.5 in the file, 2000 tokens in this"]),
        (MODEL, [4000], {"top_k": 8}, (), ["top_k 32 in the file, 8 in this run"]),
        (MODEL, [4000], {"chat": False}, (), ["chat True in the file, False in this run"]),
        (MODEL, [4000], {}, ("ruler",), ["protocol page in the file, ruler in this run"]),
        (
            dataclasses.replace(OTHER_DTYPE, attn_implementation="eager"),
            [1000],
            {"gate.bins": "half"},
            (),
            ["dtype bfloat16", "attention implementation", "typical prompt", "gate.bins third"],
        ),
    ],
)
def test_another_run_is_refused_and_each_difference_named(
    calibration: Calibration,
    model: ModelFacts,
    tokens: list[int],
    settings: dict[str, Any],
    protocols: tuple[str, ...],
    named: list[str],
) -> None:
    found = mismatches(calibration, model, tokens, {**SETTINGS, **settings}, protocols)
    assert len(found) == len(named)
    for phrase, start in zip(found, named, strict=True):
        assert phrase.startswith(start)
    with pytest.raises(UsageError) as refused:
        refuse_mismatch("c.json", found, "error")
    sentence = str(refused.value)
    assert sentence.startswith(f"calibration=c.json belongs to another run: {found[0]}")
    assert sentence.endswith("; calibrate anew, or give calibration_mismatch=warn.")
    warning = refuse_mismatch("c.json", found, "warn")
    assert warning is not None
    assert all(phrase in warning for phrase in found)


def test_no_difference_is_neither_error_nor_warning() -> None:
    assert refuse_mismatch("c.json", [], "error") is None
    with pytest.raises(UsageError, match="calibration_mismatch=ignore does not exist"):
        refuse_mismatch("c.json", [], "ignore")


def test_test_prompts_that_the_pilot_has_seen_are_counted(calibration: Calibration) -> None:
    pilot = {one.prompt_sha256 for one in calibration.inputs}
    probes = {one.prompt_sha256 for one in calibration.probes}
    assert (len(pilot), len(probes), pilot & probes) == (6, 6, set())
    for rule in ("zscore", "quantile", "static"):
        assert overlap(calibration, pilot | {"another"}, rule) == 6
        assert overlap(calibration, probes, rule) == 0
    assert overlap(calibration, {*list(probes)[:4], "another"}, "midpoint") == 4
    assert overlap(calibration, pilot, "midpoint") == 0
    for rule in ("0.07", "fixed"):
        assert overlap(calibration, pilot | probes, rule) == 0


@pytest.mark.parametrize(
    ("arguments", "of_pilot", "of_probes"),
    [
        ({"tau": "zscore"}, ["the pilot", "τ has"], None),
        ({"tau": "quantile"}, ["the pilot", "τ has"], None),
        ({"tau": "midpoint"}, None, ["the midpoint's inputs", "τ has"]),
        ({"tau": 0.1, "gate": "static"}, ["the pilot", "the means of tasks have"], None),
    ],
)
def test_a_run_on_prompts_that_its_decision_was_measured_on_says_so(
    arguments: dict[str, Any],
    of_pilot: list[str] | None,
    of_probes: list[str] | None,
    calibration: Calibration,
    tmp_path: Path,
) -> None:
    path = tmp_path / "c.json"
    calibration.save(path)
    config = PageConfig(calibration=str(path), **arguments)
    for inputs, words in ((calibration.inputs, of_pilot), (calibration.probes, of_probes)):
        prompts = [PromptFacts(4000, "page", one.prompt_sha256) for one in inputs]
        said = calibration_warnings(config, MODEL, prompts, chat=True)
        expected = []
        if words is not None:
            where, who = words
            expected = [
                f"6 prompts of this run stand in {where} of {path} as well: {who} seen them."
            ]
        assert said == expected


def test_only_gate_page_takes_d_another_way() -> None:
    deployed = settings_of(window=32, top_k=32, compress="prompt")
    assert deployed == settings_of(window=32, top_k=32, compress="prompt", gate=make_gate("closed"))
    half = settings_of(window=32, top_k=32, compress="prompt", gate=Page(bins="half"))
    assert {name for name in half if half[name] != deployed[name]} == {"gate.bins"}


@pytest.fixture(scope="module")
def fingerprint() -> Callable[..., Fingerprint]:
    def of(seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> Fingerprint:
        return model_fingerprint(tiny_model("llama", seed, **changes).to(dtype))

    return of


def test_a_fingerprint_knows_weights_and_configuration(
    fingerprint: Callable[..., Fingerprint],
) -> None:
    base = fingerprint()
    assert base == fingerprint()
    other_weights = fingerprint(seed=1)
    assert other_weights.configuration == base.configuration
    assert other_weights.weights != base.weights
    # A rotation that no weight shows.
    rope = fingerprint(rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    assert rope.weights == base.weights
    assert rope.configuration != base.configuration
    half = fingerprint(dtype=torch.bfloat16)
    assert half.configuration == base.configuration
    assert half.weights != base.weights


def test_a_fingerprint_does_not_depend_on_how_the_model_was_loaded(tmp_path: Path) -> None:
    attention.register()
    model = tiny_model("llama")
    model.save_pretrained(tmp_path / "here")
    prints = {
        model_fingerprint(
            AutoModelForCausalLM.from_pretrained(
                tmp_path / "here", dtype=torch.float32, attn_implementation=implementation
            )
        )
        for implementation in ("sdpa", "eager")
    }
    assert len(prints) == 1
    assert prints == {model_fingerprint(model)}
    half = AutoModelForCausalLM.from_pretrained(tmp_path / "here", dtype=torch.bfloat16)
    assert model_fingerprint(half).configuration == model_fingerprint(model).configuration


def test_an_adapter_is_another_model() -> None:
    from peft import LoraConfig, get_peft_model

    model = tiny_model("llama")
    base = model_fingerprint(model)
    adapted = get_peft_model(model, LoraConfig(target_modules=["q_proj"]))
    assert model_fingerprint(adapted).weights != base.weights
    assert model_fingerprint(adapted).configuration == base.configuration


def test_weights_that_are_elsewhere_enter_by_shape() -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(tiny_config("llama"))
    assert model_fingerprint(model).weights != model_fingerprint(tiny_model("llama")).weights


def test_the_last_number_of_a_parameter_counts() -> None:
    model = tiny_model("llama")
    before = model_fingerprint(model).weights
    with torch.no_grad():
        model.lm_head.weight.view(-1)[-1] += 1
    assert model_fingerprint(model).weights != before


def test_the_runs_own_theta_is_taken(calibration: Calibration, tmp_path: Path) -> None:
    calibration.save(tmp_path / "c.json")
    arm = PageConfig(calibration=str(tmp_path / "c.json"), tau="zscore", theta_z=0.5)
    found = from_calibration(arm).threshold
    assert found is not None
    assert found.tau == pytest.approx(zscore_threshold(DROPS, 0.5).tau)
    assert found.tau != pytest.approx(zscore_threshold(DROPS, -0.69).tau)
