"""One prompt in Python: the same answers as through lm-eval, from one prefill."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance

import page_bench
from page_bench import load
from page_bench.commands import cli
from page_bench.engine import engine as engine_module
from page_bench.harness.lm import PageLM
from page_bench.inputs.errors import UsageError

TinyFolder = Callable[[str], Path]
TEXT = " ".join(f"The box of {name} holds {n} nails." for n, name in enumerate("abcdefghijkl"))
GRID: dict[str, Any] = {
    "evictor": ["snapkv", "keydiff", "streamingllm"],
    "granularity": ["shared", "head"],
    "budget": [0.2, 0.5, 1.0],
    "gate": ["page", "open", "closed"],
}
TAU: dict[str, Any] = {"tau": 0.0}


@pytest.fixture(scope="module")
def folder(tiny_folder: TinyFolder) -> str:
    return str(tiny_folder("llama"))


@pytest.fixture(scope="module")
def model(folder: str) -> page_bench.Model:
    return load(folder, dtype="float32", device="cpu")


def request(text: str = TEXT, doc: dict[str, Any] | None = None, tokens: int = 8) -> Instance:
    how = {"until": [], "max_gen_toks": tokens, "do_sample": False}
    return Instance("generate_until", doc or {}, (text, how), 0, metadata=("task", 0, 1))


def through_lm_eval(folder: str, asked: Instance, **arm: Any) -> Any:
    (answer,) = PageLM(folder, dtype="float32", device="cpu", **arm).generate_until([asked], True)
    return answer


def test_every_arm_answers_as_through_lm_eval(folder: str, model: page_bench.Model) -> None:
    answers = model.answers(TEXT, max_new_tokens=8, **GRID, **TAU)
    arms = [
        {"evictor": evictor, "granularity": granularity, "budget": budget, "gate": gate, **TAU}
        for evictor in GRID["evictor"]
        for granularity in GRID["granularity"]
        for budget in GRID["budget"]
        for gate in GRID["gate"]
    ]
    assert len(answers) == len(arms) == 54
    for answer, arm in zip(answers, arms, strict=True):
        alone = through_lm_eval(folder, request(), **arm)
        assert answer.text == alone, arm
        for name in ("gate_open", "kept_kv", "drop", "tau", "must_keep", "answer_limit"):
            assert getattr(answer.trace, name) == getattr(alone.trace, name), (arm, name)
        assert answer.kept.double().mean().item() == pytest.approx(answer.kept_kv), arm
    assert {answer.gate_open for answer in answers} == {True, False}


def test_kept_entries_are_those_that_the_method_keeps(model: page_bench.Model) -> None:
    answer = model.answer(TEXT, evictor="streamingllm", budget=0.3, gate="open", recent=8)
    n = len(answer.tokens)
    n_keep = int(0.3 * n)
    by_hand = torch.zeros(n, dtype=torch.bool)
    by_hand[:4] = by_hand[n - (n_keep - 4) :] = True
    assert answer.kept.shape == (4, 2, n)
    assert torch.equal(answer.kept, by_hand.expand_as(answer.kept))
    assert "".join(answer.tokens).endswith(TEXT)


def test_one_prefill_serves_all_arms(
    model: page_bench.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefills = []
    original = engine_module.Engine._prefilled

    def counted(*args: Any) -> Any:
        prefills.append(args)
        return original(*args)

    monkeypatch.setattr(engine_module.Engine, "_prefilled", counted)
    model.answers(TEXT, max_new_tokens=2, **GRID, **TAU)
    assert len(prefills) == 1


def test_a_context_is_compressed_before_the_question_is_read(
    folder: str, model: page_bench.Model
) -> None:
    context, question = TEXT, "How many nails are in the box of c?"
    answer = model.answer(context=context, question=question, gate="open", max_new_tokens=8)
    asked = request(f"{context}\n\n{question}", {"context": context})
    alone = through_lm_eval(folder, asked, compress="context", gate="open")
    assert (answer.text, answer.kept_kv) == (alone, alone.trace.kept_kv)
    read_later = alone.trace.prompt_tokens - alone.trace.context_tokens
    assert answer.kept[..., -read_later:].all()
    assert not answer.kept[..., :-read_later].all()


def test_messages_go_through_the_template(folder: str, model: page_bench.Model) -> None:
    messages = [{"role": "user", "content": TEXT}]
    text = model.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    answer = model.answer(messages, gate="open", max_new_tokens=8)
    assert answer.text == through_lm_eval(folder, request(text), gate="open")
    assert answer.trace.chat_template is True
    assert model.answer(TEXT, gate="open", max_new_tokens=2).trace.chat_template is False


def test_all_signals_are_seen_without_an_answer(folder: str, model: page_bench.Model) -> None:
    seen = model.observe(TEXT)
    alone = through_lm_eval(folder, request(), gate="open", signals="all")
    assert seen.signals == alone.trace.signals
    assert seen.agreement == alone.trace.agreement
    assert seen.drop == alone.trace.drop == model.answer(TEXT, gate="closed").drop


def test_a_loaded_model_and_defaults_for_its_arms(folder: str) -> None:
    loaded = PageLM(folder, dtype="float32", device="cpu")
    model = load(loaded.model, loaded.tokenizer, evictor="knorm", gate="open", budget=0.4)
    trace = model.answer(TEXT, max_new_tokens=2).trace
    assert (trace.evictor, trace.gate, trace.budget) == ("knorm", "open", 0.4)
    assert model.answer(TEXT, max_new_tokens=2, budget=0.5).trace.budget == 0.5


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "tau=zscore is measured on many prompts"),
        ({"evictor": "snapkvv"}, "snapkvv"),
        ({"buget": 0.5}, "did you mean budget"),
        ({"store": "x"}, "store is for runs"),
        ({"budget": [0.1, 0.2]}, "use answers"),
        ({"prompt": None}, "nothing is asked"),
        ({"context": "x", "question": "y"}, "one or the other"),
        (
            {"prompt": None, "context": "x", "question": "y", "compress": "prompt"},
            "leave compress out",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused(
    model: page_bench.Model, asked: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        model.answer(**{"prompt": TEXT, **asked})


def test_the_package_itself_imports_nothing() -> None:
    code = "import sys, page_bench; print([m for m in sys.modules if m in ('torch', 'typing')])"
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = ['.']; {code}"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent.parent,
    )
    assert done.stdout == "[]\n"
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        page_bench.lod  # noqa: B018


def test_a_finished_run_s_prompt_is_shown(
    tmp_path: Path, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        *("lm_eval", "run", "--model", "page_hf", "--limit", "1", "--log_samples"),
        *("--tasks", "page_quickstart_needle_number", "--device", "cpu"),
        *("--output_path", str(tmp_path / "out"), "--model_args", f"pretrained={folder}"),
        *("dtype=float32", "evictor=adakv(snapkv)", "granularity=head", "gate=page", "tau=-1"),
        "evictor.base.kernel_size=3",
    ]
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    place = ["show", str(tmp_path / "out"), "--task", "page_quickstart_needle_number"]
    assert cli.main([*place, "--doc", "0", "-o", str(tmp_path / "show.html")]) == 0
    html = (tmp_path / "show.html").read_text(encoding="utf-8")
    assert "adakv(snapkv)" in html
    assert "in the run" not in capsys.readouterr().err  # the same answer
    for asked, said in (
        (["--doc", "9"], "no such document"),
        (["--doc", "0", "-o", str(tmp_path / "no" / "x.html")], "there is no folder"),
    ):
        assert cli.main([*place, *asked]) == 1
        assert said in capsys.readouterr().err
