"""LongBench's tasks: their prompts, how they are cut, and a run of every one of them."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager
from transformers import AutoTokenizer

from page_bench import tasks
from page_bench.inputs.errors import UsageError
from page_bench.tasks import longbench, longbench_prompts
from page_bench.tasks.longbench_rows import VARIABLE, rows_of
from page_bench.tasks.longbench_subsets import PAGE_SUBSETS, SUBSETS, SUBSETS_E, max_new_tokens

TinyFolder = Callable[[str], Path]
ALL = (*SUBSETS, *SUBSETS_E)
GROUPS = ["page_longbench", "page_longbench_e", "page_longbench_page"]
NAMES = {
    **{f"page_longbench_{subset}": subset for subset in ALL},
    **{f"page_longbench_page_{subset}": subset for subset in PAGE_SUBSETS},
}

# SHA-256 of LongBench's templates (config/dataset2prompt.json), CONTEXT and QUESTION put in.
TEMPLATES = {
    "narrativeqa": "1763961ccff3a0d1",
    "qasper": "7d3cd3725f7fde75",
    "multifieldqa_en": "e0bf4b3a8023d95b",
    "multifieldqa_zh": "43f35050606b5efe",
    "hotpotqa": "062ed0c7fbe5df50",
    "2wikimqa": "062ed0c7fbe5df50",
    "musique": "062ed0c7fbe5df50",
    "dureader": "74a570fe1e43b262",
    "gov_report": "e64c669fb47c1fb6",
    "qmsum": "0bfd359f68004e6d",
    "multi_news": "2fa37178a851e562",
    "vcsum": "333ce30a208ff7d1",
    "trec": "1cf881a9d7d5a8bf",
    "triviaqa": "75d05412986b8b73",
    "samsum": "7ef5bb1f6431013b",
    "lsht": "a31702ae3c1e89c8",
    "passage_count": "fa3f78681dd457ea",
    "passage_retrieval_en": "4b904a85354c0804",
    "passage_retrieval_zh": "311e124f1e5120ac",
    "lcc": "c3d427e651b3b7cc",
    "repobench-p": "c248c7918a128529",
}
_REFERENCES = {
    "retrieval": "Paragraph 7",
    "retrieval_zh": "段落7",
    "count": "7",
    "classification": "City",
    "code_similarity": "    return total",
    "qa_f1_zh": "厦门大学",
    "rouge_l_zh": "会议讨论了预算",
}
_LAST_LINES = {"trec": "Type:", "triviaqa": "Answer:", "samsum": "Summary: ", "lsht": "类别："}


def original_rows(subset: str, passage: str = "word " * 40) -> list[dict[str, Any]]:
    """Two rows as in LongBench's own files."""
    base = subset.removesuffix("_e")
    asked = f"What is it?\n{_LAST_LINES[base]}" if base in _LAST_LINES else "What is it?"
    reference = _REFERENCES.get(SUBSETS[base].metric, "the answer")
    return [
        {
            "input": asked,
            "context": f"Passage {i}: {passage}",
            "answers": [reference, "another reference"] if SUBSETS[base].metric == "qa_f1"
            else [reference],
            "all_classes": ["City", "Date"] if base in ("trec", "lsht") else None,
            "length": 40 + i,
            "language": "zh" if base.endswith("_zh") else "en",
            "dataset": subset,
            "_id": f"{subset}-{i}",
        }
        for i in range(2)
    ]  # fmt: skip


def hub_rows(subset: str, passage: str = "word " * 40) -> list[dict[str, Any]]:
    """Two rows as in the Hub's data set, which have their template in them."""
    template = longbench_prompts.template_of(subset)
    rows = []
    for row in original_rows(subset, passage):
        parts = longbench_prompts.parts_of(row, template)
        samsum = subset.startswith("samsum")  # says its prefix twice
        rows.append(
            {
                **{k: v for k, v in row.items() if k != "input"},
                "context": parts.context,
                "question": parts.question + (parts.answer_prefix if samsum else ""),
                "answer_prefix": parts.answer_prefix.strip() if samsum else parts.answer_prefix,
                "task": subset.removesuffix("_e"),
                "max_new_tokens": SUBSETS[subset.removesuffix("_e")].max_new_tokens + 20,
            }
        )
    return rows


def write(folder: Path, rows: Callable[[str], list[dict[str, Any]]] = hub_rows) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for subset in ALL:
        lines = [json.dumps(row, ensure_ascii=False) for row in rows(subset)]
        (folder / f"{subset}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A local copy in the Hub's schema: two rows of each of the 34 subsets."""
    return write(tmp_path_factory.mktemp("longbench"))


@pytest.fixture
def metadata(copy: Path, tiny_folder: TinyFolder) -> dict[str, Any]:
    return {"longbench_data": str(copy), "pretrained": str(tiny_folder("qwen2"))}


def docs(subset: str, metadata: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    return list(longbench.load(subset, **metadata, **more)["test"])


class Recorder(LM):
    """Answers every request with one text, or with its reference, and keeps what it was asked."""

    tokenizer_name = "recorder"

    def __init__(self, text: str | None = "Paragraph 7") -> None:
        super().__init__()
        self.text = text
        self.requests: list[Instance] = []

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        self.requests += requests
        return [r.doc["answers"][0] if self.text is None else self.text for r in requests]

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        turns = "".join(f"<{m['role']}>{m['content']}</{m['role']}>" for m in chat_history)
        return turns + ("<assistant>" if add_generation_prompt else "")

    def chat_template(self, chat_template: bool | str = False) -> str:
        return "turns"

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        raise NotImplementedError

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        raise NotImplementedError


def manager(metadata: dict[str, Any]) -> TaskManager:
    folder = str(Path(tasks.__file__).parent / "page_longbench")
    return TaskManager(include_path=folder, include_defaults=False, metadata=metadata)


def evaluate(model: LM, names: list[str], metadata: dict[str, Any], **options: Any) -> Any:
    return simple_evaluate(
        model, tasks=names, task_manager=manager(metadata), bootstrap_iters=0, **options
    )


def test_all_tasks_and_groups_are_registered(metadata: dict[str, Any]) -> None:
    known = manager(metadata)
    assert set(known.all_subtasks) == set(NAMES)
    categories = {rules.category for rules in SUBSETS.values()}
    groups = {f"page_longbench_{c}{e}" for c in categories for e in ("", "_e")}
    groups |= {"page_longbench", "page_longbench_e", "page_longbench_page"}
    assert set(known.all_groups) == groups
    assert (len(SUBSETS), len(SUBSETS_E), len(PAGE_SUBSETS)) == (21, 13, 9)


@dataclass(frozen=True)
class Run:
    chat: bool
    outcome: dict[str, Any]
    requests: dict[str, list[Instance]]


@pytest.fixture(scope="module", params=["plain", "chat"])
def run(request: pytest.FixtureRequest, copy: Path, tiny_folder: TinyFolder) -> Run:
    """All tasks at once, answered with their first references; with and without chat template."""
    model = Recorder(None)
    metadata = {"longbench_data": str(copy), "pretrained": str(tiny_folder("qwen2"))}
    chat = request.param == "chat"
    outcome = evaluate(model, GROUPS, metadata, apply_chat_template=chat)
    asked: dict[str, list[Instance]] = {}
    for instance in model.requests:
        asked.setdefault(instance.task_name, []).append(instance)
    return Run(chat, outcome, asked)


def test_nothing_is_skipped(run: Run) -> None:
    assert set(NAMES) <= set(run.outcome["results"])
    assert set(run.requests) == set(NAMES)
    assert len(NAMES) == 34 + 9


@pytest.mark.parametrize("name", NAMES)
def test_every_task_runs_from_a_local_copy(name: str, run: Run) -> None:
    result = run.outcome["results"][name]
    assert result["score,none"] == pytest.approx(1.0, abs=1e-8)
    assert result["correct,none"] == 1.0
    assert (result["kept_kv,none"], result["gate_open,none"]) == (1.0, 0.0)
    assert math.isnan(result["head_drop,none"])
    assert run.outcome["n-samples"][name] == {"original": 2, "effective": 2}
    protocol = "page" if name.startswith("page_longbench_page_") else "longbench"
    assert run.outcome["configs"][name]["metadata"]["protocol"] == protocol
    assert {s["doc"]["protocol"] for s in run.outcome["samples"][name]} == {protocol}
    samsum = NAMES[name].startswith("samsum")
    for request in run.requests[name]:
        options = request.args[1]
        assert options["max_gen_toks"] == max_new_tokens(NAMES[name], protocol)
        assert options["until"] == (["\n"] if samsum else [])
        assert options["do_sample"] is False
        assert request.doc["prompt"].startswith(request.doc["context"])
        assert "Passage" in request.doc["context"]


@pytest.mark.parametrize("name", NAMES)
def test_six_subsets_go_without_chat_template(name: str, run: Run) -> None:
    page = name.startswith("page_longbench_page_")
    raw = ("trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p")
    for request in run.requests[name]:
        prompt, system = request.doc["prompt"], request.doc["system"]
        assert bool(system) == page
        if not run.chat:
            assert request.args[0] == (f"{system}\n\n{prompt}" if page else prompt)
        elif page:
            turns = f"<system>{system}</system><user>{prompt}</user><assistant>"
            assert request.args[0] == turns
        elif NAMES[name].removesuffix("_e") in raw:
            assert request.args[0] == prompt
        else:
            assert request.args[0] == f"<user>{prompt}</user><assistant>"


def test_groups_are_means_over_their_tasks(metadata: dict[str, Any]) -> None:
    outcome = evaluate(Recorder("Paragraph 7"), GROUPS, metadata, limit=1)
    for name in GROUPS:
        prefix = "page_longbench_page_" if name == "page_longbench_page" else "page_longbench_"
        subsets = {"page_longbench": SUBSETS, "page_longbench_e": SUBSETS_E}.get(name, PAGE_SUBSETS)
        scores = [outcome["results"][prefix + subset]["score,none"] for subset in subsets]
        group = outcome["groups"][name]
        assert group["score,none"] == pytest.approx(sum(scores) / len(scores))
        assert 0 < group["score,none"] < 1
        for metric in ("correct", "kept_kv", "gate_open", "head_drop"):
            assert f"{metric},none" in group


@pytest.mark.parametrize("subset", SUBSETS)
def test_original_rows_get_the_template_of_longbench(subset: str) -> None:
    row = {"context": "CONTEXT", "input": "QUESTION", "answers": ["x"]}
    parts = longbench_prompts.parts_of(row, longbench_prompts.template_of(subset))
    prompt = parts.context + parts.asked
    assert hashlib.sha256(prompt.encode()).hexdigest()[:16] == TEMPLATES[subset]


@pytest.mark.parametrize("subset", ALL)
def test_rows_with_and_without_a_template_make_the_same_prompt(
    subset: str, metadata: dict[str, Any], tmp_path: Path
) -> None:
    plain = write(tmp_path, original_rows)
    ours = docs(subset, metadata)
    theirs = docs(subset, {**metadata, "longbench_data": str(plain)})
    assert [d["prompt"] for d in ours] == [d["prompt"] for d in theirs]
    assert [d["context"] for d in ours] == [d["context"] for d in theirs]
    for doc in ours:
        assert doc["prompt"].count("Passage ") == 1
        assert doc["prompt"].count("What is it?") <= 1
        lines = doc["prompt"].rstrip().splitlines()
        assert lines.count(lines[-1]) == 1


def test_a_row_that_lost_its_answer_prefix_is_refused(
    metadata: dict[str, Any], tmp_path: Path
) -> None:
    rows = [{k: v for k, v in r.items() if k != "answer_prefix"} for r in hub_rows("qasper")]
    (tmp_path / "qasper.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(UsageError, match="no field `answer_prefix`"):
        docs("qasper", {**metadata, "longbench_data": str(tmp_path)})


GOLDEN = {
    "longbench": "HEADPassage\n\nINSTRUCTION\n\nQuestion: What?\nAnswer:",
    "page": (
        "<system>Answer the question based on the context. Be concise.</system>"
        "<user>HEADPassage\n\nINSTRUCTION\n\n\n\nQuestion: What?\n\nAnswer:</user><assistant>"
    ),
    "kvpress": (
        "<user>HEADPassage\n\nINSTRUCTION\n\nQuestion: What?\n</user><assistant>Answer:</assistant>"
    ),
}


@pytest.mark.parametrize("protocol", GOLDEN)
def test_the_exact_prompt_of_each_protocol(
    protocol: str, metadata: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        longbench_prompts,
        "template_of",
        lambda subset: "HEAD{{context}}\n\nINSTRUCTION\n\nQuestion: {{question}}\nAnswer:",
    )
    row = {"context": "Passage", "input": "What?", "answers": ["x"]}
    (tmp_path / "hotpotqa.jsonl").write_text(json.dumps(row))
    model = Recorder()
    options = {**metadata, "longbench_data": str(tmp_path), "protocol": protocol}
    evaluate(model, ["page_longbench_hotpotqa"], options, apply_chat_template=True)
    golden = GOLDEN[protocol]
    expected = f"<user>{golden}</user><assistant>" if protocol == "longbench" else golden
    assert model.requests[0].args[0] == expected
    assert (
        model.requests[0].args[1]["max_gen_toks"]
        == {
            "longbench": 32,
            "page": 128,
            "kvpress": 52,
        }[protocol]
    )


@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_a_long_prompt_loses_its_middle(
    family: str, metadata: dict[str, Any], tiny_folder: TinyFolder
) -> None:
    # One token per byte, and a BOS before the text of llama.
    options = {**metadata, "pretrained": str(tiny_folder(family))}
    (whole, _) = docs("hotpotqa", options)
    (short, _) = docs("hotpotqa", options, longbench_max_length=301)
    bos = 1 if family == "llama" else 0
    assert whole["cut_tokens"] == 0
    assert whole["prompt_tokens"] == len(whole["prompt"]) + bos
    assert short["prompt"] == whole["prompt"][: 150 - bos] + whole["prompt"][-150:]
    assert short["cut_tokens"] == whole["prompt_tokens"] - 300
    assert (short["longest"], short["prompt_tokens"]) == (301, whole["prompt_tokens"])
    # The boundary of the context is where it was: the question follows it in full.
    question = whole["prompt"][len(whole["context"]) :]
    assert short["prompt"] == short["context"] + question
    tokenizer = AutoTokenizer.from_pretrained(options["pretrained"])
    ids = tokenizer(whole["prompt"]).input_ids
    decoded = [tokenizer.decode(i, skip_special_tokens=True) for i in (ids[:150], ids[-150:])]
    assert short["prompt"] == "".join(decoded)


def test_a_cut_never_splits_a_character(metadata: dict[str, Any]) -> None:
    (whole, _) = docs("dureader", metadata)
    for longest in range(60, 90):
        (short, _) = docs("dureader", metadata, longbench_max_length=longest)
        assert "\ufffd" not in short["prompt"]
        start = next(
            i for i in range(len(whole["prompt"])) if not short["prompt"].startswith(
                whole["prompt"][: i + 1]
            )
        )  # fmt: skip
        assert whole["prompt"].endswith(short["prompt"][start:])
        assert len(short["prompt"].encode()) <= longest + 2


def test_a_question_longer_than_half_the_limit_is_cut_too(metadata: dict[str, Any]) -> None:
    (whole, _) = docs("hotpotqa", metadata)
    (short, _) = docs("hotpotqa", metadata, longbench_max_length=20)
    assert short["prompt"] == whole["prompt"][:10] + whole["prompt"][-10:]
    assert short["context"] == whole["prompt"][:10]


def test_kvpress_cuts_the_context_on_the_right(metadata: dict[str, Any]) -> None:
    kvpress = {**metadata, "protocol": "kvpress"}
    (whole, _) = docs("hotpotqa", kvpress)
    (short, _) = docs("hotpotqa", kvpress, longbench_max_length=100)
    assert short["context"] == whole["context"][:100]
    assert short["prompt"] == short["context"] + whole["prompt"][len(whole["context"]) :]
    assert short["cut_tokens"] == whole["prompt_tokens"] - 100 == len(whole["context"]) - 100


@pytest.mark.parametrize(
    ("options", "longest"),
    [
        ({}, 8192 - 596),  # the tokenizer's own limit
        ({"max_length": 4096}, 3500),  # as LongBench for models of 4K
        ({"max_length": 131072}, 8192 - 596),
        ({"max_length": 4096, "longbench_max_length": 31500}, 31500),
    ],
)
def test_the_limit(options: dict[str, int], longest: int, metadata: dict[str, Any]) -> None:
    assert docs("qasper", metadata, **options)[0]["longest"] == longest


def test_the_limit_without_any_is_that_of_longbench(
    metadata: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(metadata["pretrained"], model_max_length=int(1e30))
    monkeypatch.setattr(longbench, "tokenizer_of", lambda metadata: tokenizer)
    assert docs("qasper", metadata)[0]["longest"] == 31500


def test_a_limit_that_leaves_nothing_is_refused(metadata: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="leaves nothing"):
        docs("qasper", metadata, max_length=512)


def test_the_paper_skips_long_inputs_and_says_how_many(
    metadata: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    short, long = hub_rows("qasper")[0], hub_rows("qasper", "word " * 4900)[1]
    (tmp_path / "qasper.jsonl").write_text("\n".join(map(json.dumps, (long, short, long))))
    options = {**metadata, "longbench_data": str(tmp_path), "protocol": "page"}
    with caplog.at_level(logging.WARNING):
        (doc,) = docs("qasper", options)
    assert (doc["row"], doc["skipped"], doc["longest"]) == (1, 2, 24000)
    assert doc["cut_tokens"] == 0
    assert "2 of 3 inputs are longer than 24000 tokens and are skipped" in caplog.text
    assert len(docs("qasper", options, longbench_skip_above=40000)) == 3
    with pytest.raises(UsageError, match="all 3 inputs of qasper are longer than 10 tokens"):
        docs("qasper", options, longbench_skip_above=10)


def test_the_chat_template_counts_towards_the_papers_limit(metadata: dict[str, Any]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(metadata["pretrained"])
    paper = {**metadata, "protocol": "page"}
    turns = [
        [
            {"role": "system", "content": d["system"]},
            {"role": "user", "content": d["prompt"]},
        ]
        for d in docs("qasper", paper)
    ]
    texts = [
        tokenizer.apply_chat_template(t, tokenize=False, add_generation_prompt=True) for t in turns
    ]
    lengths = {len(tokenizer(t, add_special_tokens=False).input_ids) for t in texts}
    assert len(lengths) == 1
    (length,) = lengths
    assert len(docs("qasper", paper, longbench_skip_above=length)) == 2
    with pytest.raises(UsageError, match="all 2 inputs"):
        docs("qasper", paper, longbench_skip_above=length - 1)


def test_answer_lengths_of_the_paper() -> None:
    given = {subset: max_new_tokens(subset, "page") for subset in PAGE_SUBSETS}
    # The larger of 128 and the Hub's own, which is LongBench's and 20 more.
    assert given == {**dict.fromkeys(PAGE_SUBSETS, 128), "qasper": 148, "passage_count": 32}


def test_only_what_is_asked_for_is_made(
    metadata: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    cut = longbench_prompts.cut_middle

    def counted(context: str, *rest: Any) -> Any:
        made.append(context)
        return cut(context, *rest)

    monkeypatch.setattr(longbench_prompts, "cut_middle", counted)
    evaluate(Recorder(), ["page_longbench_qasper"], metadata, limit=1)
    assert len(made) == 1


def test_an_unknown_protocol_is_refused(metadata: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="choose one of longbench, page, kvpress"):
        docs("qasper", {**metadata, "protocol": "ruler"})


def layouts(folder: Path) -> dict[str, Path]:
    """Copies of qasper, each laid out in another way."""
    from datasets import Dataset

    rows = hub_rows("qasper")
    table = Dataset.from_list(rows)
    lines = "\n".join(map(json.dumps, rows))
    places = {name: folder / name for name in ("parquet", "hub", "original", "parts")}
    for place in (places["parquet"], places["hub"] / "qasper", places["original"] / "data"):
        place.mkdir(parents=True)
    table.to_parquet(str(places["parquet"] / "qasper.parquet"))
    table.to_parquet(str(places["hub"] / "qasper" / "test-00000-of-00001.parquet"))
    (places["original"] / "data" / "qasper.jsonl").write_text(lines)
    (places["parts"] / "qasper").mkdir(parents=True)
    for number, row in enumerate(rows):
        (places["parts"] / "qasper" / f"{number}.jsonl").write_text(json.dumps(row))
    others = "\n".join(map(json.dumps, hub_rows("hotpotqa")))
    (folder / "all.jsonl").write_text(f"{others}\n{lines}\n")
    return {**places, "one file": folder / "all.jsonl"}


@pytest.mark.parametrize("layout", ["parquet", "hub", "original", "parts", "one file"])
@pytest.mark.parametrize("by_variable", [False, True])
def test_layouts_of_a_local_copy(
    layout: str, by_variable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    place = str(layouts(tmp_path)[layout])
    if by_variable:
        monkeypatch.setenv(VARIABLE, place)
    rows = rows_of("qasper", {} if by_variable else {"longbench_data": place})
    assert [dict(row) for row in rows] == hub_rows("qasper")


def test_data_that_is_nowhere_is_named_with_both_remedies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    for metadata in ({}, {"longbench_data": str(tmp_path)}):
        with pytest.raises(UsageError, match=r"longbench_data.*PAGE_BENCH_LONGBENCH"):
            rows_of("qasper", metadata)
    (tmp_path / "qasper.jsonl").write_text('{"context": "x", "answers": ["y"]}\n')
    with pytest.raises(UsageError, match="have no question"):
        rows_of("qasper", {"longbench_data": str(tmp_path)})


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"longbench_max_length": "abc"}, "longbench_max_length='abc' is not allowed"),
        ({"max_length": "x"}, "max_length='x' is not allowed"),
        ({"protocol": "page", "longbench_skip_above": "x"}, "longbench_skip_above='x'"),
        ({"draw_seed": 1}, "LongBench is run whole"),
        ({"longbench_data": 5}, "longbench_data=5 is not a path"),
        ({"tokenizer": "/nowhere/at/all"}, "the tokenizer of /nowhere/at/all could not be loaded"),
        ({"tokenizer": 5}, "tokenizer=5 is no tokenizer"),
        ({"protcol": "page"}, "write 'protocol'"),
        ({"tokenizer": str(Path(__file__).parent)}, "could not be loaded"),
    ],
)
def test_metadata_that_makes_no_sense_is_named(
    more: dict[str, Any], sentence: str, metadata: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match=sentence):
        docs("qasper", {**metadata, **more})


@pytest.mark.parametrize("text", ['{"context": ', '{"context": "x", "input": "y", "answers": []}'])
def test_a_broken_row_is_named(text: str, tmp_path: Path) -> None:
    good = json.dumps({"context": "x", "input": "y", "answers": ["z"]})
    (tmp_path / "qasper.jsonl").write_text(f"{good}\n{text}\n")
    with pytest.raises(UsageError, match=r"qasper.jsonl (could not be read|has no `answers`)"):
        rows_of("qasper", {"longbench_data": str(tmp_path)})


@pytest.mark.parametrize(
    ("subset", "wrong", "sentence"),
    [
        # Its letters would be five references, one of which stands in almost every answer.
        ("hotpotqa", {"answers": "Paris"}, "has 'Paris' as its `answers`"),
        ("hotpotqa", {"answers": [None]}, r"has \[None\] as its `answers`"),
        ("hotpotqa", {"context": None}, "no text in its field `context`"),
        ("hotpotqa", {"question": 5}, "no text in its field `question`"),
        ("hotpotqa", {"dataset": "musique"}, "says that it is of musique"),
        ("hotpotqa_e", {"dataset": "musique_e", "task": "x"}, "says that it is of musique"),
        ("trec", {"all_classes": None}, "no list `all_classes`"),
        ("lsht", {"all_classes": "City"}, "no list `all_classes`"),
        ("passage_retrieval_en", {"answers": ["7"]}, "name no paragraph"),
        ("passage_retrieval_zh", {"answers": ["Paragraph 7"]}, "name no paragraph"),
    ],
)
@pytest.mark.parametrize("protocol", ["longbench", "page"])
def test_a_row_that_would_be_scored_wrongly_is_refused(
    subset: str,
    wrong: dict[str, Any],
    sentence: str,
    protocol: str,
    metadata: dict[str, Any],
    tmp_path: Path,
) -> None:
    good, bad = hub_rows(subset)
    lines = [json.dumps(row) for row in (good, {**bad, **wrong})]
    (tmp_path / f"{subset}.jsonl").write_text("\n".join(lines))
    with pytest.raises(UsageError, match=rf"row 1 of LongBench's {subset} .*{sentence}"):
        docs(subset, {**metadata, "longbench_data": str(tmp_path), "protocol": protocol})


def test_references_may_be_numbers(metadata: dict[str, Any], tmp_path: Path) -> None:
    row = {**hub_rows("passage_count")[0], "answers": [7]}
    (tmp_path / "passage_count.jsonl").write_text(json.dumps(row))
    (doc,) = docs("passage_count", {**metadata, "longbench_data": str(tmp_path)})
    assert doc["answers"] == ["7"]


def test_one_file_keeps_longbench_e_apart(tmp_path: Path) -> None:
    extra = [dict(row, dataset="qasper", task="qasper_e") for row in hub_rows("qasper_e")]
    rows = [*hub_rows("qasper"), *hub_rows("qasper_e"), *extra]
    file = tmp_path / "all.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    place = {"longbench_data": str(file)}
    assert [row["_id"] for row in rows_of("qasper", place)] == ["qasper-0", "qasper-1"]
    assert [row["_id"] for row in rows_of("qasper_e", place)] == 2 * ["qasper_e-0", "qasper_e-1"]


def test_a_template_may_refuse_the_papers_system_message(
    metadata: dict[str, Any], tmp_path: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(metadata["pretrained"])
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no') }}"
        "{% endif %}[{{ m['content'] }}]{% endfor %}"
    )
    tokenizer.save_pretrained(tmp_path)
    options = {**metadata, "pretrained": str(tmp_path), "protocol": "page"}
    (first, _) = docs("qasper", options)
    length = len(f"[{first['prompt']}]".encode())  # one token per byte
    assert len(docs("qasper", options, longbench_skip_above=length)) == 2
    with pytest.raises(UsageError, match="all 2 inputs"):
        docs("qasper", options, longbench_skip_above=length - 1)
