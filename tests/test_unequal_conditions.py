"""Batches, padding, templates, dtypes, quantised weights, adapters: the same answers, or a no."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import lm_eval
import peft
import pytest
import torch
import transformers
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from test_lm import QUESTIONS, requests, trace_of
from tiny_models import FAMILIES, save_tiny, tiny_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.quantizers import auto as quantizers

from page_bench.commands.doctor.checks import CHECKS
from page_bench.commands.doctor.references import eager_agreement
from page_bench.commands.doctor.subject import Subject
from page_bench.gating.fingerprint import model_fingerprint
from page_bench.harness import plugin
from page_bench.harness.lm import PageLM
from page_bench.inputs.errors import UsageError
from page_bench.model import default_model, quantization
from page_bench.model.capture import captured

TinyFolder = Callable[[str], Path]

# From 26 to 470 tokens, in no order.
TEXTS = ["The fox. " * n + "What does it do?" for n in (20, 1, 50, 4, 2, 33, 9)]
HALF = [*((family, "bfloat16") for family in FAMILIES), ("llama", "float16"), ("qwen2", "float16")]
WITH_BOS = [name for name, family in FAMILIES.items() if family.with_bos]


@pytest.fixture(scope="module")
def stock(tiny_folder: TinyFolder) -> Callable[..., HFLM]:
    """lm-eval's own model of a family, in fp32 unless told otherwise."""

    def load(family: str, **arguments: Any) -> HFLM:
        return HFLM(str(tiny_folder(family)), device="cpu", **{"dtype": "float32", **arguments})

    return load


def page_lm(folder: Path, **arguments: Any) -> PageLM:
    return PageLM(str(folder), device="cpu", **{"dtype": "float32", "window": 8, **arguments})


def said(lm: HFLM, texts: Sequence[str] = QUESTIONS, **generation: Any) -> list[str]:
    answers: list[str] = lm.generate_until(requests([*texts], **generation), disable_tqdm=True)
    return answers


@pytest.fixture(scope="module")
def evaluate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., list[Any]]]:
    """`simple_evaluate` without what lm-eval looks up of the machine, seconds each time."""
    plugin.install()
    manager = TaskManager(str(tmp_path_factory.mktemp("tasks")), include_defaults=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)
        yield partial(_evaluate, manager)


def _evaluate(
    manager: TaskManager, model: str, folder: Path, batch_size: int | str = 1, **given: Any
) -> list[Any]:
    """Samples of one task with prompts of very different length, by `simple_evaluate`."""
    rows = [{"text": text} for text in TEXTS]
    task = {
        "task": "unequal",
        "custom_dataset": lambda **_: {"test": datasets.Dataset.from_list(rows)},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{text}}",
        "doc_to_target": "x",
        "generation_kwargs": {"until": ["zz"], "max_gen_toks": 8},
        "metric_list": [{"metric": "exact_match"}],
    }
    arguments = {"pretrained": str(folder), "dtype": "float32", **given.pop("model_args", {})}
    results = lm_eval.simple_evaluate(
        model=model,
        model_args=arguments,
        tasks=[task],
        task_manager=manager,
        batch_size=batch_size,
        device="cpu",
        bootstrap_iters=0,
        **given,
    )
    assert results is not None
    rows = results["samples"]["unequal"]
    return sorted(rows, key=lambda row: row["doc_id"])


def decisions(samples: Sequence[Any]) -> list[tuple[Any, ...]]:
    """What came of each sample, times aside."""
    traces = [trace_of(sample["resps"][0][0]) for sample in samples]
    return [
        (trace.answer, trace.drop, trace.tau, trace.gate_open, trace.kept_kv, trace.kv_bytes_kept)
        for trace in traces
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_size_changes_nothing(
    family: str, tiny_folder: TinyFolder, evaluate: Callable[..., list[Any]]
) -> None:
    folder = tiny_folder(family)
    sizes = (1, 2, "auto:4") if family == "llama" else (1, 7)
    arm = {"model_args": {"window": 8, "budget": 0.25}}
    found = [decisions(evaluate("page_hf", folder, size, **arm)) for size in sizes]
    assert all(one == found[0] for one in found)
    assert {gate_open for _, _, _, gate_open, _, _ in found[0]} == {True, False}
    # Left padding, in lm-eval's own batches, is for the same answers.
    closed = evaluate("page_hf", folder, 7, model_args={"window": 8, "gate": "closed"})
    batched = evaluate("hf", folder, 7)
    answers = [sample["resps"][0][0] for sample in batched]
    assert [sample["resps"][0][0] for sample in closed] == answers
    assert len(set(answers)) > 1


@pytest.mark.parametrize("change", [{"padding_side": "left"}, {"padding_side": "right"}, "no pad"])
def test_how_a_tokenizer_pads_changes_nothing(change: Any, tiny_folder: TinyFolder) -> None:
    folder = tiny_folder("llama")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if change == "no pad":
        tokenizer.pad_token = None
    else:
        tokenizer.padding_side = change["padding_side"]
    lm = page_lm(folder, gate="open", budget=0.5, tokenizer=tokenizer, batch_size=7)
    assert said(lm) == said(page_lm(folder, gate="open", budget=0.5))
    assert change == "no pad" or tokenizer.padding_side == change["padding_side"]


SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}"
)
THINKING = "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
TURNS = tiny_tokenizer(False).chat_template
TEMPLATES = {
    "bos": "{{ bos_token }}" + TURNS,
    "no bos": TURNS,
    "system": "{{ bos_token }}" + SYSTEM + TURNS,
    "thinking": TURNS + THINKING,
}


@pytest.fixture(scope="module")
def templated_folder(
    tiny_folder: TinyFolder, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], Path]:
    """The tiny model of a family with another chat template."""

    def folder(family: str, template: str) -> Path:
        path = tmp_path_factory.mktemp(template.replace(" ", "_"))
        shutil.copytree(tiny_folder(family), path, dirs_exist_ok=True)
        (path / "chat_template.jinja").write_text(TEMPLATES[template])
        return path

    return folder


@pytest.mark.parametrize("add_bos_token", [None, True, False])
@pytest.mark.parametrize("template", ["bos", "no bos", "system"])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_token_ids_under_a_template_are_those_of_hf(
    family: str,
    template: str,
    add_bos_token: bool | None,
    templated_folder: Callable[[str, str], Path],
) -> None:
    folder = templated_folder(family, template)
    arguments: dict[str, Any] = {"add_bos_token": add_bos_token, "dtype": "float32"}
    hf = HFLM(str(folder), device="cpu", **arguments)
    lm = PageLM(str(folder), device="cpu", gate="closed", **arguments)
    bos = lm.tokenizer.bos_token_id
    for history in (
        [{"role": "user", "content": QUESTIONS[0]}],
        [{"role": "system", "content": "Hm."}, {"role": "user", "content": QUESTIONS[0]}],
    ):
        text = hf.apply_chat_template(history)
        assert lm.apply_chat_template(history) == text
        assert ("Be kind." in text) == (template == "system" and len(history) == 1)
        (prompt,) = lm.prompts(requests([text]))
        assert list(prompt.input_ids) == hf.tok_batch_encode([text])[0][0].tolist()
        written = family in WITH_BOS and template != "no bos"
        added = family in WITH_BOS and add_bos_token is not False
        assert [*prompt.input_ids].count(bos) == int(written or added)
        pairs = lm.contexts([_multiple_choice(text)])[0][0].input_ids
        assert list(pairs) == hf._encode_pair(text, " jumps")[0]


def _multiple_choice(context: str, choice: str = " jumps") -> Instance:
    return Instance("loglikelihood", {}, (context, choice), 0, metadata=("task", 0, 1))


@pytest.mark.parametrize(
    ("template", "arguments", "words"),
    [
        ("system", {}, "system\nBe kind."),
        ("system", {"system_instruction": "Be brief."}, "system\nBe brief."),
        ("bos", {"model_args": {"add_bos_token": True}}, "<s><|im_start|>user"),
        ("thinking", {"model_args": {"enable_thinking": False}}, "<think></think>"),
        (
            "thinking",
            {"model_args": {"chat_template_args": {"enable_thinking": False}}},
            "<think></think>",
        ),
    ],
)
def test_a_template_in_an_evaluation_is_that_of_hf(
    template: str,
    arguments: dict[str, Any],
    words: str,
    templated_folder: Callable[[str, str], Path],
    evaluate: Callable[..., list[Any]],
) -> None:
    folder = templated_folder("llama", template)
    arguments = {**arguments, "apply_chat_template": True, "limit": 3}
    expected = evaluate("hf", folder, **arguments)
    closed = {**arguments.pop("model_args", {}), "window": 8, "gate": "closed"}
    found = evaluate("page_hf", folder, model_args=closed, **arguments)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["arguments"] == theirs["arguments"]
        assert words in ours["arguments"][0][0]
        assert ours["resps"][0][0] == theirs["resps"][0][0]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_tied_embeddings_answer_as_in_hf(family: str, tied: bool, tmp_path: Path) -> None:
    folder = save_tiny(tmp_path, family, tie_word_embeddings=tied)
    lm = page_lm(folder, gate="closed")
    assert (lm.model.lm_head.weight is lm.model.model.embed_tokens.weight) is tied
    assert said(lm) == said(HFLM(str(folder), device="cpu", dtype="float32"))


@pytest.mark.parametrize(
    "asked",
    [
        {"do_sample": True, "temperature": 0.6, "top_p": 0.9},  # hf answers greedily all the same
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3},
        {"forced_bos_token_id": 65, "forced_eos_token_id": 66, "begin_suppress_tokens": [67]},
        {"min_new_tokens": 12, "suppress_tokens": [*range(0, 200, 3)]},
        {"max_new_tokens": 4, "max_length": 20},
        {"cache_implementation": "hybrid", "use_cache": False, "eos_token_id": None},
    ],
)
def test_a_generation_config_is_honoured_as_in_hf(
    asked: dict[str, Any], stock: Callable[..., HFLM], tiny_folder: TinyFolder
) -> None:
    hf, lm = stock("llama"), page_lm(tiny_folder("llama"), gate="closed")
    before = said(hf)
    for model in (hf.model, lm.model):
        for name, value in asked.items():
            setattr(model.generation_config, name, value)
    expected = said(hf)
    assert said(lm) == expected
    assert (expected != before) is ("do_sample" not in asked and "use_cache" not in asked)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"num_beams": 3}, "beam_search"),
        ({"prompt_lookup_num_tokens": 3}, "assisted_generation"),
        ({"cache_implementation": "quantized"}, "asks for a quantised KV cache"),
        ({"max_new_tokens": 30}, "max_new_tokens=30, which lm-eval's hf model follows in place"),
    ],
)
def test_a_generation_config_that_cannot_be_honoured_is_refused(
    asked: dict[str, Any], sentence: str, tiny_folder: TinyFolder
) -> None:
    lm = page_lm(tiny_folder("llama"), gate="closed")
    for name, value in asked.items():
        setattr(lm.model.generation_config, name, value)
    with pytest.raises(UsageError, match=sentence):
        said(lm)


def test_as_many_tokens_as_a_generation_config_says_can_be_asked_for(
    stock: Callable[..., HFLM], tiny_folder: TinyFolder
) -> None:
    hf, lm = stock("llama"), page_lm(tiny_folder("llama"), gate="closed")
    for model in (hf.model, lm.model):
        model.generation_config.max_new_tokens = 30
    assert said(lm, max_gen_toks=30) == said(hf)


@pytest.mark.parametrize(
    "asked",
    [
        *({"cache_implementation": kind} for kind in ("quantized", "static", "offloaded", "paged")),
        *({"use_cache": False}, {"cache_config": {"nbits": 4}}, {"prefill_chunk_size": 4}),
    ],
)
def test_another_cache_is_refused(asked: dict[str, Any], tiny_folder: TinyFolder) -> None:
    (name,) = asked
    with pytest.raises(UsageError, match=rf"{name}=.* of task document 0 .*leave it out"):
        said(page_lm(tiny_folder("llama"), gate="closed"), **asked)


@pytest.mark.parametrize(("family", "dtype"), HALF)
def test_half_precision_answers_like_hf_one_prompt_at_a_time(
    family: str, dtype: str, tiny_folder: TinyFolder, stock: Callable[..., HFLM]
) -> None:
    """Token for token: the same products in the same order, whatever rounding does to them."""
    expected = said(stock(family, dtype=dtype))
    for arm in ({"gate": "closed"}, {"gate": "open", "budget": 1}):
        answers = said(page_lm(tiny_folder(family), dtype=dtype, **arm))
        assert answers == expected
        assert trace_of(answers[0]).dtype == dtype


@pytest.mark.parametrize(("family", "dtype"), HALF)
def test_likelihoods_in_half_precision_are_those_of_hf_up_to_rounding(
    family: str, dtype: str, tiny_folder: TinyFolder, stock: Callable[..., HFLM]
) -> None:
    """A continuation is read after its context, in a pass of its own, so that sums round anew."""
    asked = [_multiple_choice(text, choice) for text in QUESTIONS for choice in (" it jumps", " s")]
    arguments = {"dtype": dtype, "softmax_dtype": "float32"}
    expected = stock(family, **arguments).loglikelihood(asked, disable_tqdm=True)
    lm = page_lm(tiny_folder(family), gate="closed", **arguments)
    found = lm.loglikelihood(asked, disable_tqdm=True)
    assert [value for value, _ in found] == pytest.approx([v for v, _ in expected], abs=0.1)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]


@pytest.mark.parametrize(("family", "dtype"), HALF)
def test_d_in_half_precision_is_that_of_the_same_queries_and_keys(
    family: str, dtype: str, tiny_folder: TinyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly in fp32; near the matrices that eager attention itself rounds to half precision."""
    lm = page_lm(tiny_folder(family), dtype=dtype, attn_implementation="eager", gate="open")
    home = sys.modules[type(lm.model).__module__]
    eager = home.eager_attention_forward
    seen: list[list[set[int]]] = []

    def watched(module: Any, query: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
        length = key.shape[2]
        if query.shape[2] == length:
            keys = key[0].float().repeat_interleave(module.num_key_value_groups, 0)
            logits = query[0, :, -8:].float() @ keys.mT * module.scaling
            hidden = torch.ones(8, length, dtype=torch.bool).triu(length - 7)
            rows = logits.masked_fill(hidden, -torch.inf).softmax(-1).mean(1)
            order = rows.sort(dim=-1, descending=True, stable=True).indices[:, :32]
            seen.append([set(head) for head in order.tolist()])
        return eager(module, query, key, *args, **kwargs)

    monkeypatch.setattr(home, "eager_attention_forward", watched)
    trace = trace_of(said(lm, TEXTS[:1])[0])
    monkeypatch.undo()
    assert len(trace.agreement) == len(seen)
    for recorded, heads in zip(trace.agreement, seen, strict=True):
        pairs = [len(a & b) / len(a | b) for a, b in combinations(heads, 2)]
        assert recorded == pytest.approx(sum(pairs) / len(pairs), abs=1e-6)
    ids = torch.tensor([lm.prompts(requests(TEXTS[:1]))[0].input_ids])
    rounded = eager_agreement(lm.model, ids, 8, 32)
    assert trace.agreement == pytest.approx(rounded, abs=0.06)


def test_answers_in_mixed_precision_are_examined_in_mixed_precision(
    tiny_folder: TinyFolder,
) -> None:
    lm = page_lm(tiny_folder("llama"), mixed_precision_dtype="bfloat16")
    found = {name: check(Subject(lm, 400, 4, False)) for name, check in CHECKS.items()}
    # The tiny Llama's rotation is the same at all lengths.
    assert found.pop("changing_rotation").status == "skip"
    assert {verdict.status for verdict in found.values()} <= {"pass", "warn"}, found
    assert [*found["tied_scores"].figures] == ["float32, autocast bfloat16"]


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"quant_method": "gptq", "bits": 4}, "quantised with gptq cannot be loaded here"),
        ({"quant_method": "nothing"}, "quantised with nothing .*Unknown quantization type"),
        ({"bits": 4}, "no `quant_method`"),
    ],
)
def test_weights_that_only_claim_to_be_quantised_are_refused(
    config: dict[str, Any], sentence: str, tiny_folder: TinyFolder, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=sentence):
        page_lm(_quantised(tiny_folder("llama"), tmp_path, config))


def _quantised(folder: Path, to: Path, config: dict[str, Any]) -> Path:
    shutil.copytree(folder, to / "model")
    path = to / "model" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": config}))
    return to / "model"


def test_weights_that_are_expanded_say_so(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    """Without a GPU transformers expands fp8 weights; the same file answers otherwise on one."""
    if torch.cuda.is_available():
        pytest.skip("fp8 weights stay what they are on a GPU")
    lm = page_lm(_quantised(tiny_folder("llama"), tmp_path, {"quant_method": "fp8"}), gate="open")
    answer = said(lm)[0]
    assert trace_of(answer).dtype == lm.model_facts().dtype == "float32, fp8 weights expanded"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"load_in_2bit": True}, "load_in_2bit is not an argument of bitsandbytes"),
        ({"bnb_4bit_quant_type": "nf4"}, "alone quantises nothing; add load_in_4bit=True"),
        ({"load_in_4bit": True, "load_in_8bit": True}, "is no way to quantise"),
        ({"quantization_config": "4bit"}, "no quantisation that transformers knows"),
        ({"load_in_4bit": True, "quantization_config": {"bits": 4}}, "give one of them"),
        ({"gptqmodel": True}, "could not be loaded: .*gptqmodel"),
    ],
)
def test_quantisation_that_cannot_be_is_one_sentence(
    arguments: dict[str, Any], sentence: str, tiny_folder: TinyFolder
) -> None:
    with pytest.raises(UsageError, match=sentence):
        page_lm(tiny_folder("llama"), **arguments)


def test_quantisation_that_is_asked_for_reaches_transformers(
    tiny_folder: TinyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the place of a library that does it: a quantiser that rounds all weights to one digit."""
    monkeypatch.setitem(quantizers.AUTO_QUANTIZER_MAPPING, "bitsandbytes_8bit", Rounding)
    lm = page_lm(tiny_folder("llama"), load_in_8bit=True, gate="closed")
    plain = page_lm(tiny_folder("llama"), gate="closed")
    assert said(lm) != said(plain)
    assert lm.model.hf_quantizer.quantization_config.load_in_8bit is True
    assert lm.model_facts().dtype == "float32, bitsandbytes 8-bit weights"
    assert plain.model_facts().dtype == "float32"
    assert [*CHECKS["tied_scores"](Subject(lm, 400, 4, False)).figures] == [lm.model_facts().dtype]
    # Not asking is asking for none.
    assert quantization.asked_for({"load_in_8bit": False, "load_in_4bit": None}) is None


class Rounding(transformers.quantizers.HfQuantizer):
    requires_calibration = False
    is_serializable = False
    is_trainable = False

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        for weight in model.parameters():
            weight.data = weight.data.round(decimals=1)
        return model


class Packed(torch.Tensor):
    """Weights that only their own library can read, as those of torchao are."""

    codes: torch.Tensor

    @staticmethod
    def __new__(cls, codes: torch.Tensor) -> Packed:
        make: Any = torch.Tensor._make_wrapper_subclass
        packed: Packed = make(cls, codes.shape, dtype=torch.bfloat16)
        packed.codes = codes
        return packed

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["codes"], None

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.detach.default:
            return args[0]
        if func is torch.ops.aten.mm.default:
            return args[0] @ args[1].codes.to(args[0].dtype)
        if func is torch.ops.aten.t.default:
            return Packed(args[0].codes.T)
        raise NotImplementedError(func)


def test_weights_that_are_no_plain_tensor_are_told_apart() -> None:
    def hashed(codes: torch.Tensor) -> str:
        model: Any = torch.nn.Module()
        model.config = SimpleNamespace(to_diff_dict=dict)
        model.weight = torch.nn.Parameter(Packed(codes), requires_grad=False)
        return model_fingerprint(model).weights

    codes = torch.arange(12, dtype=torch.int8).view(3, 4)
    assert hashed(codes) == hashed(codes.clone()) != hashed(codes + 1)


def test_an_output_projection_of_no_plain_tensor_is_read_by_applying_it() -> None:
    codes = torch.arange(32, dtype=torch.int8).view(4, 8)
    attention: Any = torch.nn.Module()
    attention.o_proj = torch.nn.Linear(8, 4, bias=False)
    attention.o_proj.weight = torch.nn.Parameter(Packed(codes), requires_grad=False)
    query = torch.zeros(1, 2, 3, 4, dtype=torch.bfloat16)
    found = captured(attention, None, query, query, {"output_projection"})["output_projection"]
    assert torch.equal(found, codes.T.bfloat16().reshape(2, 4, 4))


def test_ways_to_quantise_are_told_apart() -> None:
    def hashed(way: str) -> str:
        model: Any = torch.nn.Module()
        config = {"quantization_config": {"quant_type": {"default": {"_type": way}}}}
        model.config = SimpleNamespace(to_diff_dict=lambda: config)
        return model_fingerprint(model).configuration

    assert hashed("weights alone") == hashed("weights alone") != hashed("activations too")


def test_a_gguf_file_is_expanded_wherever_the_default_model_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not hasattr(transformers, "GgufConfig"):
        pytest.skip("this transformers expands every GGUF file")
    asked: dict[str, Any] = {}
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *_, **kw: asked.update(kw))
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *_, **kw: None)
    default_model._load(Path("some/file.gguf"))
    assert asked["quantization_config"].dequantize is True
    packed = SimpleNamespace(
        hf_quantizer=SimpleNamespace(quantization_config=transformers.GgufConfig()),
        modules=lambda: [torch.nn.Linear(1, 1)],
    )
    assert quantization.weights_name(packed) is None


TARGETS = ["q_proj", "v_proj", "down_proj"]
ADAPTERS: dict[str, dict[str, Any]] = {
    "lora": {"target_modules": TARGETS},
    "rslora": {"target_modules": TARGETS, "use_rslora": True},
    "dora": {"target_modules": TARGETS, "use_dora": True},
    "modules_to_save": {"target_modules": TARGETS, "modules_to_save": ["lm_head", "embed_tokens"]},
}


@pytest.mark.parametrize(
    ("kind", "dtype"), [*((kind, "float32") for kind in ADAPTERS), ("dora", "bfloat16")]
)
def test_an_adapter_answers_as_in_hf_and_merged(
    kind: str, dtype: str, tiny_folder: TinyFolder, tmp_path: Path
) -> None:
    folder = tiny_folder("qwen2")
    config = peft.LoraConfig(r=4, init_lora_weights=False, **ADAPTERS[kind])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        adapted = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(folder), config)
    if kind == "modules_to_save":
        with torch.no_grad():
            adapted.base_model.model.lm_head.weight.roll(1, 0)
            adapted.base_model.model.lm_head.modules_to_save.default.weight *= -1
    adapted.save_pretrained(tmp_path / "adapter")
    arguments = {"peft": str(tmp_path / "adapter"), "dtype": dtype}
    expected = said(HFLM(str(folder), device="cpu", **arguments))
    lm = page_lm(folder, gate="closed", **arguments)
    assert said(lm) == expected
    assert said(page_lm(folder, gate="open", budget=1, **arguments)) == expected
    plain = said(page_lm(folder, gate="closed", dtype=dtype))
    assert expected != plain
    if dtype == "float32":
        adapted.merge_and_unload().save_pretrained(tmp_path / "merged")
        AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "merged")
        GenerationConfig.from_pretrained(folder).save_pretrained(tmp_path / "merged")
        whole = page_lm(tmp_path / "merged", gate="closed")
        assert said(whole) == expected
        drops = [trace_of(said(one, TEXTS[:1])[0]).drop for one in (lm, whole)]
        assert drops[0] == pytest.approx(drops[1], abs=1e-3)


@pytest.mark.parametrize("kind", [peft.PromptTuningConfig, peft.PromptEncoderConfig])
def test_learned_prompts_are_refused_before_weights_are_loaded(
    kind: Any, tiny_folder: TinyFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_folder("llama")
    model = AutoModelForCausalLM.from_pretrained(folder)
    config = kind(task_type="CAUSAL_LM", num_virtual_tokens=4)
    peft.get_peft_model(model, config).save_pretrained(tmp_path)

    def no_weights(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(PageLM, "_create_model", no_weights)
    with pytest.raises(UsageError, match="puts entries of its own into the KV cache"):
        page_lm(folder, peft=str(tmp_path))


def test_an_adapter_that_does_not_fit_is_one_sentence(
    tiny_folder: TinyFolder, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"peft=.*nowhere cannot be read"):
        page_lm(tiny_folder("llama"), peft=str(tmp_path / "nowhere"))
    other = AutoModelForCausalLM.from_pretrained(tiny_folder("qwen3"))
    config = peft.LoraConfig(target_modules=["q_proj"])
    peft.get_peft_model(other, config).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"could not be loaded: .*size mismatch"):
        page_lm(tiny_folder("llama"), peft=str(tmp_path))


@pytest.mark.parametrize(
    "arguments",
    [{"peft": "some/adapter"}, {"revision": "other"}, {"load_in_4bit": True}, {"delta": "x"}],
)
def test_a_loaded_model_takes_nothing_that_acts_while_loading(
    arguments: dict[str, Any], stock: Callable[..., HFLM]
) -> None:
    hf = stock("llama")
    with pytest.raises(UsageError, match="this model is loaded already"):
        PageLM(hf.model, tokenizer=hf.tokenizer, **arguments)


@pytest.mark.real_model
def test_the_default_model_in_bf16_answers_like_hf(default_model_folder: Path) -> None:
    texts = [text + "The secret number is" for text in ("", "The secret number is 7421. " * 6)]
    arguments: dict[str, Any] = {"device": "cpu", "dtype": "bfloat16"}
    expected = said(HFLM(str(default_model_folder), **arguments), texts, max_gen_toks=6)
    lm = PageLM(str(default_model_folder), gate="closed", **arguments)
    assert said(lm, texts, max_gen_toks=6) == expected
    assert "7421" in expected[1]
