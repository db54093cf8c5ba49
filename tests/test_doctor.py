"""The doctor passes sound models, and fails at the right line where something is broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import FAMILIES, save_tiny
from tokenizers import Tokenizer

from page_bench.commands.doctor import command
from page_bench.commands.doctor.capacity import capacity
from page_bench.commands.doctor.checks import CHECKS, outcome
from page_bench.commands.doctor.references import mean_entropy, storage_bytes
from page_bench.commands.doctor.subject import Subject
from page_bench.engine import prefilled_prompt
from page_bench.engine.prefilled_prompt import PromptPass
from page_bench.gating.signals import agreements
from page_bench.harness.lm import PageLM
from page_bench.inputs.errors import UsageError
from page_bench.model.decode import read
from page_bench.model.keep_plan import evict


def subject(folder: Path, **arguments: Any) -> Subject:
    lm = PageLM(str(folder), device="cpu", **{"dtype": "float32", **arguments})
    return Subject(lm, tokens=400, new_tokens=6, chat=False)


@pytest.fixture(scope="module")
def tiny(tiny_folder: Callable[[str], Path]) -> Subject:
    return subject(tiny_folder("llama"))


def tensors_of(model: Any) -> list[tuple[str, Any]]:
    """Weights and buffers; the rotary frequencies of a model in half precision are fp32."""
    return [*model.named_parameters(), *model.named_buffers()]


# What follows from the tiny models' shape: they have one layer per third, and plain rotations.
SHAPE = {"changing_rotation": "skip", "layers_compared": "warn"}


def statuses(examined: Subject) -> dict[str, str]:
    """Of all checks whose outcome is not known from the tiny models' shape."""
    found: dict[str, str] = {
        name: outcome(check, examined).status for name, check in CHECKS.items()
    }
    assert {name: found.pop(name) for name in SHAPE} == SHAPE
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_sound_models_pass_every_line(tiny_folder: Callable[[str], Path], family: str) -> None:
    found = {name: check(subject(tiny_folder(family))) for name, check in CHECKS.items()}
    assert {name: v.status for name, v in found.items()} == {
        **dict.fromkeys(CHECKS, "pass"),
        **SHAPE,
    }, found


def test_a_position_too_far_shows(tiny: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        prefilled_prompt, "read", lambda model, rows, ids, start: read(model, rows, ids, start + 1)
    )
    found = statuses(tiny)
    seeing = ("positions", "masking_equals_removal", "decoded_together")
    assert [found.pop(name) for name in seeing] == ["fail"] * 3
    assert set(found.values()) == {"pass"}


def test_the_last_token_twice_shows(tiny: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        prefilled_prompt,
        "evict",
        lambda filled, keep, room, _: evict(filled, keep, room + 1, False),
    )
    found = statuses(tiny)
    assert found["masking_equals_removal"] == found["decoded_together"] == "fail"
    assert found["plain_generation"] == "pass"


def test_a_closed_gate_that_evicts_shows(tiny: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = PromptPass._plan
    page = replace(tiny.page, budget=0.25)
    monkeypatch.setattr(
        PromptPass, "_plan", lambda self, eviction: plan(self, eviction if eviction else page)
    )
    assert CHECKS["plain_generation"](tiny).status == "fail"


def test_a_wrong_agreement_shows(tiny: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        prefilled_prompt,
        "agreements",
        lambda *args: agreements(*args).flip(0),  # late layers for early ones
    )
    found = statuses(tiny)
    assert found.pop("drop_against_eager") == "fail"
    assert set(found.values()) == {"pass"}


def test_kept_entries_counted_wrongly_show(tiny: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefilled_prompt, "kv_bytes", lambda cache: 4096)
    found = statuses(tiny)
    assert found.pop("bytes_freed") == "fail"
    assert set(found.values()) == {"pass"}


def test_a_doubled_bos_shows(
    tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    examined = subject(tiny_folder("llama"))
    bos = examined.lm.tokenizer.bos_token_id
    assert bos is not None, "the test model's tokenizer has a BOS"
    encode = PageLM.tok_batch_encode

    def doubled(self: PageLM, *args: Any, **kwargs: Any) -> Any:
        ids, mask = encode(self, *args, **kwargs)
        more = torch.full((len(ids), 2), bos, dtype=ids.dtype)
        return torch.cat([more, ids], -1), torch.cat([torch.ones_like(more), mask], -1)

    monkeypatch.setattr(PageLM, "tok_batch_encode", doubled)
    assert CHECKS["one_bos"](examined).status == "fail"


def test_other_ids_than_those_of_the_file_show(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "model", "llama")
    for name, changes in (
        ("tokenizer.json", {"normalizer": {"type": "Lowercase"}}),
        # This class has a normaliser of its own.
        ("tokenizer_config.json", {"tokenizer_class": "Qwen2Tokenizer"}),
    ):
        content = json.loads((folder / name).read_text(encoding="utf-8"))
        (folder / name).write_text(json.dumps({**content, **changes}), encoding="utf-8")
    found = CHECKS["published_tokens"](subject(folder))
    assert found.status == "warn"
    assert "of 7 texts have other ids by tokenizer.json than by AutoTokenizer" in found.said
    whole = Tokenizer.from_file(str(folder / "tokenizer.json"))
    figures: dict[str, Any] = {**found.figures}
    ids = whole.encode(figures["text"], add_special_tokens=False).ids
    assert figures["tokenizer_json"] == ids != figures["auto_tokenizer"]
    examined = subject(folder)
    (folder / "tokenizer.json").unlink()
    assert CHECKS["published_tokens"](examined).status == "skip"


def test_a_prompt_across_the_boundary_of_the_rotation_is_tried(
    tiny_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0}
    folder = save_tiny(tmp_path, "llama", max_position_embeddings=128, rope_parameters=parameters)
    examined = subject(folder, max_length=512)
    found = CHECKS["changing_rotation"](examined)
    assert (found.status, found.figures["boundary"]) == ("pass", 128)
    # A rotation that does not follow the answer's length is not generate's.
    monkeypatch.setattr(PromptPass, "_is_turning", False)
    assert CHECKS["changing_rotation"](examined).status != "pass"


def test_ties_of_coarse_scores_are_a_warning(
    tiny: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    from page_bench.commands.doctor import arms, checks

    planned = arms.planned

    def coarse(*args: Any) -> Any:
        filled, plan = planned(*args)
        for layers in filled.scores.values():
            layers[:] = [replace(layer, score=layer.score * 0) for layer in layers]
        filled.scored_by(tiny.page.make_evictor(), 30)
        return filled, plan

    sound = CHECKS["tied_scores"](tiny)
    monkeypatch.setattr(checks, "planned", coarse)
    tied = CHECKS["tied_scores"](tiny)
    assert (sound.status, sound.figures) == ("pass", {"float32": 0.0})
    assert (tied.status, tied.figures) == ("warn", {"float32": 1.0})


def test_half_precision_is_held_against_fp32(tiny_folder: Callable[[str], Path]) -> None:
    examined = subject(tiny_folder("llama"), dtype="bfloat16")
    before = {name: tensor.clone() for name, tensor in tensors_of(examined.model)}
    found = CHECKS["tied_scores"](examined)
    assert {"bfloat16", "float32"} <= found.figures.keys()
    after = dict(tensors_of(examined.model))
    assert {tensor.dtype for tensor in after.values()} == {torch.bfloat16, torch.float32}
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, rtol=0, atol=0)
    assert CHECKS["masking_equals_removal"](examined).status in ("pass", "warn")


@pytest.mark.parametrize(
    ("answer", "expected"), [("wrong", "fail"), ("right", "pass"), ("half", "warn")]
)
def test_capacity_says_whether_the_model_answers_at_all(
    tiny: Subject, monkeypatch: pytest.MonkeyPatch, answer: str, expected: str
) -> None:
    import lm_eval

    def evaluate(**given: Any) -> dict[str, Any]:
        assert given["model"].page.gate == "closed"
        right = {"wrong": [0.0] * 5, "right": [1.0] * 5, "half": [1.0, 1.0, 1.0, 0.0, 0.0]}[answer]
        rows = [{"correct": value, "resps": [[str(i)]]} for i, value in enumerate(right)]
        return {"samples": {name: rows for name in given["tasks"]}}

    monkeypatch.setattr(lm_eval, "simple_evaluate", evaluate)
    monkeypatch.setattr(type(tiny.lm), "max_length", property(lambda self: 4096))
    found = capacity(tiny, 5, 1)
    assert found.status == expected
    assert found.figures["n"] == 10


def test_capacity_is_skipped_where_prompts_do_not_fit(tiny: Subject) -> None:
    assert capacity(tiny, 1, 8).status == "skip"


@pytest.mark.real_model
def test_the_default_model_passes(default_model_folder: Path) -> None:
    examined = replace(subject(default_model_folder), tokens=120, new_tokens=4)
    found = {name: check(examined) for name, check in CHECKS.items()}
    assert {name: v.status for name, v in found.items()} == {
        **dict.fromkeys(CHECKS, "pass"),
        "changing_rotation": "skip",
    }, found


def test_the_command_prints_verdicts_and_fails_with_them(
    tiny_folder: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tiny_folder("llama")
    words = ["-a", f"pretrained={folder},dtype=float32", "--device", "cpu", "--tokens", "400"]
    assert command.run([*words, "--checks", "positions", "one_bos", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["failed"] == 0
    assert found["checks"]["positions"]["status"] == "pass"
    monkeypatch.setattr(prefilled_prompt, "read", lambda m, rows, ids, start: read(m, rows, ids, 0))
    assert command.run([*words, "--checks", "positions", "one_bos"]) == 1
    assert "FAIL  positions" in capsys.readouterr().out


def test_unknown_checks_and_lengths_are_refused() -> None:
    with pytest.raises(UsageError, match="no check nothing"):
        command.run(["--checks", "nothing"])
    with pytest.raises(UsageError, match="--length 3"):
        command.run(["--length", "3"])


def test_references() -> None:
    assert mean_entropy(torch.zeros(2, 4)) == pytest.approx(1.3862944)
    base = torch.zeros(10, dtype=torch.float32)
    assert storage_bytes([base, base[2:], {"x": torch.zeros(3, dtype=torch.int64)}]) == 40 + 24
