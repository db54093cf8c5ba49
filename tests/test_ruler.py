"""RULER from fixed data: which rows, in which order, from where, and what lm-eval makes of them."""

from __future__ import annotations

import dataclasses
import inspect
import json
import logging
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

from page_bench import tasks
from page_bench.inputs.errors import UsageError
from page_bench.tasks import ruler
from page_bench.tasks.metadata import check_names

FOLDER = Path(tasks.__file__).parent
SINGLE = [t for t in ruler.RULES if t.startswith(("niah_single", "niah_multikey"))]
SEVERAL = ["niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe"]
QA = ["qa_1", "qa_2"]
MIXED4 = ["niah_multikey_3", "vt", "fwe", "qa_1"]
PARTITION6 = [*MIXED4, "qa_2", "niah_multivalue"]
NAMES = {"4k": 4096, "8k": 8192, "16k": 16384, "32k": 32768}
METRICS = ("score", "correct", "kept_kv", "gate_open", "head_drop")
ANSWER = "It is alpha0"

Row = dict[str, Any]


def row(task: str, index: int, length: int) -> Row:
    """A row in the schema of the Hub; `ANSWER` holds one reference of row 0, none of row 1."""
    several = [f"alpha{index}", f"beta{index}"]
    return {
        "context": f"{task} of {length}, row {index}.\n",
        "question": "What is it? ",
        "answer_prefix": "Answer: it is",
        "answer": several[:1] if task in SINGLE else several,
        "task": task,
        "max_new_tokens": ruler.RULES[task].max_new_tokens,
    }


def whole(task: str, index: int) -> Row:
    """A row in the schema of the 32K set."""
    parts = row(task, index, 32768)
    text = parts["context"] + parts["question"] + parts["answer_prefix"]
    return {"index": index, "input": text, "outputs": parts["answer"], "length": 32000}


def write(path: Path, rows: Sequence[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        with path.open("wb") as file:
            datasets.Dataset.from_list(list(rows)).to_parquet(file)
    else:
        path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return path


def split(length: int, rows: int = 2) -> list[Row]:
    """A full split, its tasks interleaved."""
    return [row(task, index, length) for index in range(rows) for task in ruler.RULES]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A local copy of both data sets, two rows per task, in the Hub's layout."""
    root = tmp_path_factory.mktemp("ruler")
    for length in ruler.LENGTHS[:3]:
        write(root / "ruler" / str(length) / "test-00000-of-00001.jsonl", split(length))
    for task in ruler.RULES:
        write(
            root / "RULER-32768-Qwen2.5-3B-tokenizer" / "data" / f"{task}-00000-of-00001.jsonl",
            [whole(task, index) for index in range(2)],
        )
    return root


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.delenv(ruler.VARIABLE, raising=False)


def docs(task: str, length: int, **metadata: Any) -> list[Row]:
    return list(ruler.fixed(ruler_length=length, ruler_task=task, **metadata)["test"])


class Constant(LM):
    """Answers everything with `ANSWER`, and keeps what it was asked."""

    tokenizer_name = "none"

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[str, list[tuple[str, dict[str, Any]]]] = {}

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        for request in requests:
            self.asked.setdefault(str(request.task_name), []).append(request.args)
        return [ANSWER for _ in requests]

    def chat_template(self, chat_template: bool | str = False) -> str:
        return "chat"

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        turns = "".join(f"<{turn['role']}>{turn['content']}" for turn in chat_history)
        return turns + ("<assistant>" if add_generation_prompt else "")

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        raise NotImplementedError

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        raise NotImplementedError


def manager(**metadata: Any) -> TaskManager:
    return TaskManager(include_path=str(FOLDER), include_defaults=False, metadata=metadata)


def run(groups: list[str], chat: bool = False, **metadata: Any) -> tuple[Constant, Any]:
    model = Constant()
    outcome = simple_evaluate(
        model,
        tasks=groups,
        task_manager=manager(**metadata),
        bootstrap_iters=0,
        apply_chat_template=chat,
    )
    return model, outcome


def members(size: str) -> dict[str, list[str]]:
    """Group → tasks, as the names say."""
    suites = {"": list(ruler.RULES), "_mixed4": MIXED4, "_partition6": PARTITION6}
    return {
        f"page_ruler_{size}{suite}": [f"page_ruler_{size}{suite}_{task}" for task in chosen]
        for suite, chosen in suites.items()
    }


def test_every_task_and_group_is_registered_and_no_other() -> None:
    expected = {name for size in NAMES for g, ts in members(size).items() for name in (g, *ts)}
    found = {name for name in manager().all_tasks if name.startswith("page_ruler_")}
    assert found == expected
    assert len(expected) == 4 * (13 + 4 + 6) + 4 * 3


@pytest.mark.parametrize("size", NAMES)
def test_every_task_runs_from_a_local_copy(size: str, copy: Path) -> None:
    groups = members(size)
    model, outcome = run(list(groups), ruler_data=str(copy))
    assert set(outcome["results"]) == {n for g, ts in groups.items() for n in (g, *ts)}
    # Of row 0 the answer holds the one reference, or one of two; of row 1 it holds none.
    expected = {
        **{task: {"score": (1 + 0) / 2, "correct": (1 + 0) / 2} for task in SINGLE},
        **{task: {"score": (1 / 2 + 0) / 2, "correct": (0 + 0) / 2} for task in SEVERAL},
        **{task: {"score": (1 + 0) / 2, "correct": (1 + 0) / 2} for task in QA},
    }
    for group, names in groups.items():
        for name in names:
            task = name.removeprefix(f"{group}_")
            for metric, value in expected[task].items():
                assert outcome["results"][name][f"{metric},none"] == value
            asked = [text for text, _ in model.asked[name]]
            assert len(asked) == 2
            for index, text in enumerate(asked):
                assert f"{task} of {NAMES[size]}, row {index}." in text
            paper = group != f"page_ruler_{size}"
            limits = {arguments["max_gen_toks"] for _, arguments in model.asked[name]}
            assert limits == {128 if paper else ruler.RULES[task].max_new_tokens}
            assert all(arguments["until"] == [] for _, arguments in model.asked[name])
            for sample in outcome["samples"][name]:
                assert sample["doc"]["protocol"] == ("page" if paper else "ruler")
                assert set(METRICS) <= set(sample)
            assert outcome["configs"][name]["metadata"]["protocol"] == sample["doc"]["protocol"]
        mean = sum(expected[n.removeprefix(f"{group}_")]["score"] for n in names) / len(names)
        assert outcome["results"][group]["score,none"] == pytest.approx(mean)
        assert {f"{metric},none" for metric in METRICS} <= set(outcome["results"][group])


def test_groups_of_one_length_share_no_task() -> None:
    everything = [name for size in NAMES for names in members(size).values() for name in names]
    assert len(set(everything)) == len(everything)


PROMPTS = {
    ("4k", "ruler", False): "vt of 4096, row 0.\nWhat is it? Answer: it is",
    ("4k", "kvpress", False): "vt of 4096, row 0.\nWhat is it? \nAnswer: it is",
    ("4k", "page", False): "Answer the question concisely.\n\n"
    "vt of 4096, row 0.\n\n\nWhat is it? \nAnswer: it is",
    ("4k", "ruler", True): "<user>vt of 4096, row 0.\nWhat is it?<assistant> Answer: it is",
    ("4k", "kvpress", True): "<user>vt of 4096, row 0.\nWhat is it? <assistant>Answer: it is",
    ("4k", "page", True): "<system>Answer the question concisely."
    "<user>vt of 4096, row 0.\n\n\nWhat is it? \nAnswer: it is<assistant>",
    ("32k", "ruler", True): "<user>vt of 32768, row 0.\nWhat is it? Answer: it is<assistant>",
    ("32k", "page", True): "<system>Answer the question concisely."
    "<user>vt of 32768, row 0.\nWhat is it? Answer: it is\n\n<assistant>",
}


@pytest.mark.parametrize(("size", "protocol", "chat"), PROMPTS)
def test_the_protocol_is_chosen_by_metadata(
    size: str, protocol: str, chat: bool, copy: Path
) -> None:
    name = f"page_ruler_{size}_vt"
    model, outcome = run([name], chat, ruler_data=str(copy), protocol=protocol)
    assert model.asked[name][0][0] == PROMPTS[size, protocol, chat]
    assert outcome["configs"][name]["metadata"]["protocol"] == protocol
    assert outcome["samples"][name][0]["doc"]["protocol"] == protocol


def test_a_document_tells_what_it_is_and_where_its_context_ends(copy: Path) -> None:
    doc = docs("niah_multiquery", 8192, ruler_data=str(copy), protocol="page")[1]
    assert doc == {
        "context": "niah_multiquery of 8192, row 1.\n",
        "question": "What is it? ",
        "answer_prefix": "",
        "task": "niah_multiquery",
        "max_new_tokens": 128,
        "length": 8192,
        "protocol": "page",
        "system": "Answer the question concisely.",
        "prompt": "niah_multiquery of 8192, row 1.\n\n\nWhat is it? \nAnswer: it is",
        "answers": ["alpha1", "beta1"],
        "match": "all",
        "match_paper": "any",
    }
    assert doc["prompt"].startswith(doc["context"])


@pytest.mark.parametrize("task", ruler.RULES)
def test_references_count_as_ruler_and_as_the_paper_count_them(task: str) -> None:
    rule = ruler.RULES[task]
    assert rule.match == ("any" if task in QA else "all")
    # For one reference, "all" and "any" are one.
    paper_asks_for_all = ("vt", "fwe", "cwe", "niah_multivalue", *SINGLE)
    assert rule.match_paper == ("all" if task in paper_asks_for_all else "any")


def test_answer_lengths_are_those_of_ruler() -> None:
    """Read from the task files of the installed lm-eval."""
    folder = Path(sys.modules["lm_eval"].__path__[0]) / "tasks" / "ruler"
    files = {"qa_1": "qa_squad", "qa_2": "qa_hotpot"}
    for task, rule in ruler.RULES.items():
        config = load_yaml(folder / f"{files.get(task, task)}.yaml", resolve_func=False)
        assert rule.max_new_tokens == config["generation_kwargs"]["max_gen_toks"], task


@pytest.mark.parametrize(
    "layout",
    [
        "ruler.jsonl",
        "ruler-4096.parquet",
        "4096/test.parquet",
        "a/4096/b.jsonl",
        "all.jsonl",
    ],
)
@pytest.mark.parametrize("by", ["variable", "metadata"])
def test_a_local_copy_may_be_a_file_or_a_folder(
    layout: str, by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "copy" / layout, split(4096))
    source = str(file if layout.startswith("ruler") else tmp_path / "copy")
    given = {"ruler_data": source} if by == "metadata" else {}
    if by == "variable":
        monkeypatch.setenv(ruler.VARIABLE, source)
    found = docs("cwe", 4096, **given)
    assert [d["context"] for d in found] == ["cwe of 4096, row 0.\n", "cwe of 4096, row 1.\n"]


def test_the_metadata_goes_before_the_variable(
    tmp_path: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ruler.VARIABLE, str(tmp_path / "nowhere"))
    assert len(docs("cwe", 4096, ruler_data=str(copy))) == 2


def test_a_file_without_a_length_in_its_name_is_taken_at_its_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write(tmp_path / "mine.jsonl", split(4096))
    with caplog.at_level(logging.WARNING):
        docs("cwe", 8192, ruler_data=str(file))
    assert "names no length: its rows are taken to be of 8192 tokens" in caplog.text


def test_rows_keep_their_order_over_several_files(tmp_path: Path) -> None:
    rows = split(4096, rows=6)
    write(tmp_path / "4096" / "test-00000-of-00002.parquet", rows[:40])
    write(tmp_path / "4096" / "test-00001-of-00002.parquet", rows[40:])
    found = docs("fwe", 4096, ruler_data=str(tmp_path))
    assert [d["context"] for d in found] == [f"fwe of 4096, row {i}.\n" for i in range(6)]


def test_a_draw_shuffles_the_full_split(tmp_path: Path) -> None:
    rows = split(4096, rows=20)
    file = write(tmp_path / "4096.jsonl", rows)
    shuffled = datasets.Dataset.from_list(rows).shuffle(seed=3)
    expected = [r["context"] for r in shuffled if r["task"] == "vt"]
    drawn = [d["context"] for d in docs("vt", 4096, ruler_data=str(file), draw_seed=3)]
    assert drawn == expected
    in_order = [d["context"] for d in docs("vt", 4096, ruler_data=str(file))]
    assert drawn != in_order
    assert sorted(drawn) == sorted(in_order)
    other = [d["context"] for d in docs("vt", 4096, ruler_data=str(file), draw_seed=2)]
    assert other != drawn


@pytest.mark.parametrize("seed", [True, 1.5, -1, "3"])
def test_a_draw_seed_is_a_whole_number(seed: object, copy: Path) -> None:
    with pytest.raises(UsageError, match="draw_seed="):
        docs("vt", 4096, ruler_data=str(copy), draw_seed=seed)


def test_documents_are_made_as_they_are_read(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    make = ruler.doc_of

    def counted(*args: Any) -> Row:
        made.append(args)
        return make(*args)

    monkeypatch.setattr(ruler, "doc_of", counted)
    table = ruler.fixed(ruler_length=4096, ruler_task="vt", ruler_data=str(copy))["test"]
    assert not made
    assert table[1]["context"] == "vt of 4096, row 1.\n"
    assert len(made) == 1


def test_without_data_both_ways_to_it_are_named() -> None:
    for length, name in ((4096, ruler.HUB), (32768, ruler.HUB_32K)):
        with pytest.raises(UsageError, match=name) as refused:
            docs("vt", length)
        assert "Hub" in str(refused.value)
        assert ruler.VARIABLE in str(refused.value)
        assert '{"ruler_data": "path"}' in str(refused.value)


def test_the_hub_is_asked_for_the_right_part(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load(name: str, configuration: str | None, split: str) -> datasets.Dataset:
        asked.append((name, configuration, split))
        rows = [whole("vt", 0)] if configuration is None else [row("vt", 0, int(configuration))]
        return datasets.Dataset.from_list(rows)

    monkeypatch.setattr(datasets, "load_dataset", load)
    ruler._from_hub.cache_clear()
    for length in ruler.LENGTHS:
        assert len(docs("vt", length)) == 1
    ruler._from_hub.cache_clear()
    assert asked == [
        ("simonjegou/ruler", "4096", "test"),
        ("simonjegou/ruler", "8192", "test"),
        ("simonjegou/ruler", "16384", "test"),
        ("SaylorTwift/RULER-32768-Qwen2.5-3B-tokenizer", None, "vt"),
    ]


def test_mistakes_in_the_data_are_named(tmp_path: Path) -> None:
    def refused(source: Path, task: str = "vt", length: int = 4096) -> str:
        with pytest.raises(UsageError) as error:
            docs(task, length, ruler_data=str(source))
        return str(error.value)

    assert "there is no" in refused(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "no file for vt at 4096" in refused(tmp_path / "empty")
    other = write(tmp_path / "8192.jsonl", split(8192))
    assert "no file for vt at 4096" in refused(other)
    write(tmp_path / "two" / "4096.jsonl", split(4096))
    write(tmp_path / "two" / "4096.parquet", split(4096))
    assert "two formats" in refused(tmp_path / "two")
    few = write(tmp_path / "few-4096.jsonl", [row("vt", 0, 4096)])
    assert "no rows of fwe at 4096" in refused(few, "fwe")
    plain = write(tmp_path / "plain.jsonl", [whole("vt", 0)])
    assert "do not say which task" in refused(plain)
    strange = write(tmp_path / "strange.jsonl", [{"task": "vt", "text": "?"}])
    assert "has the columns task, text" in refused(strange)
    wrong: tuple[object, ...] = ([], [""], [" "], "one text", None, [1234567], ["a", None], 7)
    for i, answer in enumerate(wrong):
        bad = write(tmp_path / f"bad{i}.jsonl", [{**row("vt", 0, 4096), "answer": answer}])
        assert "list of texts that are not empty" in refused(bad)


def test_listing_tasks_imports_neither_torch_nor_loaders() -> None:
    code = (
        "import sys; from lm_eval.tasks import TaskManager\n"
        "names = TaskManager(include_path=sys.argv[1], include_defaults=False).all_tasks\n"
        "heavy = {'torch', 'transformers', 'page_bench.tasks.ruler'} & set(sys.modules)\n"
        "print(sum(name.startswith('page_ruler_') for name in names), heavy or 'light')"
    )
    command = [sys.executable, "-c", code, str(FOLDER)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["104", "light"]


def test_the_answer_length_follows_the_protocol(copy: Path) -> None:
    for protocol, tokens in (("ruler", 30), ("page", 128)):
        loaded = manager(ruler_data=str(copy), protocol=protocol).load(["page_ruler_4k_vt"])
        task = loaded["tasks"]["page_ruler_4k_vt"]
        assert task.config.generation_kwargs["max_gen_toks"] == tokens


def test_a_broken_copy_is_named(tmp_path: Path) -> None:
    (tmp_path / "4096.jsonl").write_text('{"context": ')
    with pytest.raises(UsageError, match=r"4096.jsonl could not be read \(line 1 is no JSON"):
        docs("vt", 4096, ruler_data=str(tmp_path / "4096.jsonl"))
    with pytest.raises(UsageError, match="ruler_data=7 is not a path"):
        docs("vt", 4096, ruler_data=7)


@pytest.mark.parametrize("field", ["context", "question", "answer_prefix"])
@pytest.mark.parametrize("value", [None, 7])
def test_a_row_without_a_part_of_its_prompt_is_named(
    field: str, value: object, tmp_path: Path
) -> None:
    bad = write(tmp_path / "4096.jsonl", [{**row("vt", 0, 4096), field: value}])
    with pytest.raises(UsageError, match=f"has {value} as its `{field}`, which must be a text"):
        docs("vt", 4096, ruler_data=str(bad))


def test_a_whole_prompt_marks_no_context(copy: Path) -> None:
    """Its question would be compressed with it, which `compress=context` must not do."""
    (doc, _) = docs("vt", 32768, ruler_data=str(copy))
    assert doc["prompt"] == "vt of 32768, row 0.\nWhat is it? Answer: it is"
    assert doc["context"] == ""


def test_a_length_may_be_written_as_in_the_names_of_the_tasks(tmp_path: Path) -> None:
    for name in ("4k", "8k"):
        write(tmp_path / f"ruler-{name}.jsonl", [row("vt", 0, NAMES[name])])
    (doc,) = docs("vt", 8192, ruler_data=str(tmp_path))
    assert doc["context"] == "vt of 8192, row 0.\n"
    with pytest.raises(UsageError, match="no file for vt at 8192"):
        docs("vt", 8192, ruler_data=str(tmp_path / "ruler-4k.jsonl"))


def test_hidden_files_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path / ".root" / "4096.jsonl", [row("vt", 0, 4096)])
    write(tmp_path / ".root" / ".ipynb_checkpoints" / "4096.jsonl", [row("vt", 1, 4096)])
    (doc,) = docs("vt", 4096, ruler_data=str(tmp_path / ".root"))
    assert doc["context"] == "vt of 4096, row 0.\n"


@pytest.mark.parametrize(
    ("given", "meant"),
    [("protcol", "protocol"), ("Protocol", "protocol"), ("ruler-data", "ruler_data")],
)
def test_a_misspelt_key_is_refused(given: str, meant: str, copy: Path) -> None:
    with pytest.raises(UsageError, match=f"no task reads '{given}' .* write '{meant}'"):
        docs("vt", 4096, **{"ruler_data": str(copy), given: "page"})


def test_no_argument_of_the_hf_model_is_taken_for_a_misspelt_key() -> None:
    from lm_eval.models.huggingface import HFLM
    from transformers import GenerationConfig, LlamaConfig

    from page_bench import config

    known = {*inspect.signature(HFLM.__init__).parameters, *vars(GenerationConfig())}
    ours = {field.name for field in dataclasses.fields(config.PageConfig)}
    check_names(dict.fromkeys({*known, *ours, *vars(LlamaConfig()), "max_model_len", "seed"}))


def test_each_row_of_a_task_has_its_own_answer_length(tmp_path: Path) -> None:
    rows = [row("vt", i, 4096) | {"max_new_tokens": n} for i, n in enumerate((7, 30, 2))]
    data = str(write(tmp_path / "4096.jsonl", rows))
    (name,) = ["page_ruler_4k_vt"]
    model, outcome = run([name], ruler_data=data)
    assert [arguments["max_gen_toks"] for _, arguments in model.asked[name]] == [7, 30, 2]
    # One length would be untrue of the others.
    assert "max_gen_toks" not in outcome["configs"][name]["generation_kwargs"]
    model = Constant()
    simple_evaluate(
        model,
        tasks=[name],
        task_manager=manager(ruler_data=data),
        bootstrap_iters=0,
        gen_kwargs={"max_gen_toks": 5},
    )
    assert [arguments["max_gen_toks"] for _, arguments in model.asked[name]] == [5, 5, 5]


@pytest.mark.parametrize("length", [0, -1, "30", None, 2.5])
def test_an_answer_length_that_is_none_is_named(length: object) -> None:
    with pytest.raises(UsageError, match="as its `max_new_tokens`, which must be a whole number"):
        ruler.doc_of(row("vt", 0, 4096) | {"max_new_tokens": length}, "vt", 4096, "ruler")
