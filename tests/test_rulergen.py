"""Generated RULER as lm-eval's data set: lazy, kept on disk, and the same wherever it is made."""

from __future__ import annotations

import copy
import hashlib
import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml
from test_rulergen_samples import write_hotpotqa, write_squad
from transformers import AutoTokenizer

from page_bench import tasks
from page_bench.inputs.errors import UsageError
from page_bench.tasks.lazy_docs import LazyDoc
from page_bench.tasks.protocols import PROTOCOLS
from page_bench.tasks.ruler import RULES
from page_bench.tasks.rulergen import samples
from page_bench.tasks.rulergen.dataset import FIELDS, load
from page_bench.tasks.rulergen.samples import Generator

FOLDER = Path(tasks.__file__).parent / "page_rulergen"
LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128)


@pytest.fixture
def metadata(
    default_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """What a run passes to the loader, every source local; samples are kept in a fresh folder."""
    monkeypatch.setenv("PAGE_BENCH_CACHE", str(tmp_path / "cache"))
    return {
        "pretrained": str(default_model_folder),
        "essays": "synthetic",
        "squad": str(write_squad(tmp_path / "squad.json")),
        "hotpotqa": str(write_hotpotqa(tmp_path / "hotpotqa.json")),
    }


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """(task, index) of every sample that was made and not read from disk."""
    seen: list[tuple[str, int]] = []
    original = Generator._make

    def make(self: Generator, index: int) -> dict[str, Any]:
        seen.append((self.settings.task, index))
        return original(self, index)

    monkeypatch.setattr(Generator, "_make", make)
    return seen


class Blank(LM):
    """Answers nothing; keeps the prompts."""

    def __init__(self) -> None:
        super().__init__()
        self.prompts: list[str] = []

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        self.prompts += [request.args[0] for request in requests]
        return ["" for _ in requests]

    def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> Any:
        raise NotImplementedError

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> Any:
        raise NotImplementedError


def manager(metadata: dict[str, Any] | None = None) -> TaskManager:
    """Of our tasks only: lm-eval needs seconds to index its own."""
    return TaskManager(include_path=str(FOLDER), include_defaults=False, metadata=metadata)


def digest(rows: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps([dict(row) for row in rows]).encode()).hexdigest()


@pytest.mark.real_model
def test_reaching_a_document_makes_no_other(
    metadata: dict[str, Any], made: list[tuple[str, int]]
) -> None:
    rows = load(1024, "niah_multikey_3", **metadata)["test"]
    assert len(rows) == 500
    assert tuple(rows.features) == FIELDS
    list(rows)  # as lm-eval does for few-shot documents
    assert made == []
    assert rows[321]["index"] == 321
    assert made == [("niah_multikey_3", 321)]
    assert [row["index"] for row in islice(rows, 0, 3)] == [0, 1, 2]
    assert [row["index"] for row in rows[498:]] == [498, 499]
    assert len(made) == 6


@pytest.mark.real_model
@pytest.mark.parametrize(
    ("how", "indices"),
    [({"limit": 2}, [0, 1]), ({"samples": {"page_rulergen_1k_niah_single_1": [7, 400]}}, [7, 400])],
)
def test_lm_eval_makes_what_it_is_asked_for(
    how: dict[str, Any], indices: list[int], metadata: dict[str, Any], made: list[tuple[str, int]]
) -> None:
    task = "page_rulergen_1k_niah_single_1"
    results = simple_evaluate(Blank(), tasks=[task], task_manager=manager(metadata), **how)
    docs = [sample["doc"] for sample in results["samples"][task]]
    assert [doc["index"] for doc in docs] == indices
    # The first document is read when the task is constructed.
    assert sorted({index for _, index in made}) == sorted({0, *indices})
    assert len(made) == len({0, *indices})
    assert results["n-samples"][task] == {"original": 500, "effective": 2}
    assert json.loads(json.dumps(docs[0]))["answers"] == docs[0]["answers"] != []


@pytest.mark.real_model
def test_a_group_has_the_samples_of_its_tasks_alone(metadata: dict[str, Any]) -> None:
    group = simple_evaluate(
        Blank(), tasks=["page_rulergen_1k"], task_manager=manager(metadata), limit=2
    )["samples"]
    assert sorted(group) == sorted(f"page_rulergen_1k_{task}" for task in RULES)
    # What the group has kept would be read back.
    monkey = pytest.MonkeyPatch()
    with monkey.context() as m:
        m.setattr(Generator, "_read", lambda self, index: None)
        for task in list(RULES)[::-1]:
            alone = load(1024, task, **metadata)["test"]
            rows = [dict(alone[i]) for i in (1, 0)]
            docs = [sample["doc"] for sample in group[f"page_rulergen_1k_{task}"]]
            assert [dict(doc) for doc in docs] == rows[::-1], task


@pytest.mark.real_model
def test_another_process_makes_the_same_bytes(
    metadata: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = ("niah_multikey_1", "niah_multikey_3", "vt", "cwe", "fwe", "qa_1", "qa_2")
    here = {task: digest([load(1024, task, **metadata)["test"][5]]) for task in chosen}
    code = (
        "import sys, json, random; sys.path.insert(0, 'tests')\n"
        "from test_rulergen import digest, load\n"
        "metadata, chosen = json.loads(sys.argv[1])\n"
        "random.seed(1)\n"
        "there = {}\n"
        "for task in chosen[::-1]:\n"
        "    rows = load(1024, task, **metadata)['test']\n"
        "    rows[9]['prompt']\n"
        "    there[task] = digest([rows[5]])\n"
        "print(json.dumps(there))\n"
    )
    monkeypatch.setenv("PAGE_BENCH_CACHE", str(tmp_path / "other"))
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    there = subprocess.run(
        [sys.executable, "-c", code, json.dumps([metadata, chosen])],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(there.stdout.splitlines()[-1]) == here


@pytest.mark.real_model
def test_a_set_is_kept_on_disk_by_all_that_decides_it(
    metadata: dict[str, Any],
    made: list[tuple[str, int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tiny_folder: Callable[[str], Path],
) -> None:
    def first(length: int = 1024, task: str = "niah_multikey_1", **changes: Any) -> str:
        return digest([load(length, task, **{**metadata, **changes})["test"][0]])

    before = first()
    assert first() == before
    assert first(draw_seed=None, num_samples=3) == before
    assert len(made) == 1
    other = tmp_path / "essay.txt"
    other.write_text("Other words are here. " * 50, encoding="utf-8")
    for changes in (
        {"length": 1025},
        {"task": "niah_multikey_2"},
        {"ruler_seed": 43},
        {"near_tie_keys": 2},
        {"essays": str(other)},
        {"pretrained": str(tiny_folder("qwen2")), "length": 2048},
    ):
        count = len(made)
        first(**changes)
        assert len(made) == count + 1, changes
    monkeypatch.setattr(samples, "GENERATOR_VERSION", samples.GENERATOR_VERSION + 1)
    count = len(made)
    assert first() == before
    assert len(made) == count + 1


@pytest.mark.real_model
def test_a_damaged_file_is_made_anew(metadata: dict[str, Any], made: list[Any]) -> None:
    before = digest([load(1024, "fwe", **metadata)["test"][0]])
    (file,) = Path(metadata["squad"]).parent.glob("cache/rulergen/fwe_1024_*/00000.json")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert digest([load(1024, "fwe", **metadata)["test"][0]]) == before
    assert len(made) == 2
    assert file.read_bytes() == whole
    assert [path.name for path in file.parent.iterdir()] == ["00000.json"]


@pytest.mark.real_model
def test_a_cache_that_cannot_be_written_is_reported(
    metadata: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "a_file").write_text("")
    monkeypatch.setenv("PAGE_BENCH_CACHE", str(tmp_path / "a_file"))
    samples = load(1024, "vt", **metadata)["test"]
    assert samples[0]["answers"]
    assert samples[1]["answers"]
    assert [record.message.count("cannot be kept") for record in caplog.records] == [1]


@pytest.mark.real_model
def test_a_draw_is_an_order_of_the_same_samples(metadata: dict[str, Any]) -> None:
    def drawn(**changes: Any) -> list[dict[str, Any]]:
        return [dict(r) for r in load(1024, "fwe", num_samples=5, **metadata, **changes)["test"]]

    plain, one, two = drawn(), drawn(draw_seed=1), drawn(draw_seed=2)
    assert [row["index"] for row in plain] == [0, 1, 2, 3, 4]
    assert one != plain
    assert one != two
    assert sorted(one, key=lambda row: row["index"]) == plain


@pytest.mark.real_model
def test_protocols_word_the_same_sample(metadata: dict[str, Any]) -> None:
    docs = {p: load(1024, "vt", protocol=p, **metadata)["test"][0] for p in PROTOCOLS}
    worded = ("system", "prompt", "answer_prefix", "protocol")
    same = [{k: v for k, v in doc.items() if k not in worded} for doc in docs.values()]
    assert same[0] == same[1] == same[2]
    assert (
        len({doc["system"] + doc["prompt"] + "|" + doc["answer_prefix"] for doc in docs.values()})
        == 3
    )
    for protocol, doc in docs.items():
        assert doc["protocol"] == protocol
        assert doc["prompt"].startswith(doc["context"])


@pytest.mark.real_model
@pytest.mark.parametrize("templated", [True, False])
def test_prompts_as_lm_eval_sends_them_are_within_their_length(
    templated: bool, metadata: dict[str, Any], default_model_folder: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(default_model_folder)

    def chat_template(messages: Any, add_generation_prompt: bool = True) -> str:
        return str(
            tokenizer.apply_chat_template(
                messages,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        )

    names = [f"page_rulergen_1k_{task}" for task in ("niah_single_1", "vt", "fwe", "qa_1")]
    longest: dict[str, list[int]] = {name: [] for name in names}
    for protocol in PROTOCOLS:
        loaded = manager({**metadata, "protocol": protocol}).load(names)["tasks"]
        for name in names:
            task = loaded[name]
            doc = task.eval_docs[0]
            prompt = task.fewshot_context(
                doc,
                num_fewshot=0,
                apply_chat_template=templated,
                chat_template=chat_template if templated else None,
                gen_prefix=task.doc_to_prefix(doc),
            )
            tokens = len(tokenizer(prompt, add_special_tokens=not templated)["input_ids"])
            longest[name].append(tokens)
            assert tokens <= doc["prompt_tokens"]
            assert doc["prompt_tokens"] + task.config.generation_kwargs["max_gen_toks"] <= 1024
            if templated and protocol == PROTOCOLS[-1]:
                assert max(longest[name]) == doc["prompt_tokens"]


def test_a_row_is_a_dict_to_everybody() -> None:
    values = {field: [field] for field in FIELDS}

    def row() -> LazyDoc:
        return LazyDoc(FIELDS, lambda: dict(values))

    assert len(row()) == len(FIELDS)
    assert "prompt" in row()
    assert "other" not in row()
    lazy = LazyDoc(FIELDS, lambda: pytest.fail("made before it is read"))
    assert "prompt" in lazy
    assert len(lazy) == len(FIELDS)
    assert {**row()} == dict(row()) == row() == row().copy() == values
    assert row() | {"x": 1} == {"x": 1} | row() == {**values, "x": 1}
    assert (lambda **kwargs: kwargs)(**row()) == values
    assert list(row().values()) == list(values.values())
    assert row().get("prompt") == ["prompt"]
    assert row().get("other", 3) == 3
    assert json.loads(json.dumps(row())) == values
    assert pickle.loads(pickle.dumps(row())) == values
    assert copy.deepcopy(row()) == copy.copy(row()) == values
    assert repr(row()) == repr(values)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_samples": 0}, "num_samples=0"),
        ({"ruler_seed": "a"}, "ruler_seed='a'"),
        ({"draw_seed": 1.5}, "draw_seed=1.5"),
        ({"near_tie_keys": 0}, "near_tie_keys=0"),
        ({"protocol": "pages"}, "no protocol 'pages'"),
        ({"n_samples": 3}, "write 'num_samples'"),
        ({"essays": 5}, "essays=5 is not a path"),
        ({"squad": ["a"]}, r"squad=\['a'\] is not a path"),
        ({"hotpotqa": ""}, "hotpotqa='' is not a path"),
    ],
)
def test_wrong_metadata_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(4096, "niah_multikey_3", **wrong)


def test_every_length_has_all_tasks_under_a_group() -> None:
    expected = {"_base.yaml"}
    for thousands in LENGTHS:
        group = f"page_rulergen_{thousands}k"
        names = [f"{group}_{task}" for task in RULES]
        config = load_yaml(FOLDER / f"{group}.yaml")
        assert config["group"] == group
        assert config["task"] == names
        metrics = [m["metric"] for m in config["aggregate_metric_list"]]
        assert metrics == ["score", "correct", "kept_kv", "gate_open", "head_drop"]
        for task, name in zip(RULES, names, strict=True):
            config = load_yaml(FOLDER / f"{name}.yaml", resolve_func=False)
            assert config["task"] == name
            assert config["dataset_kwargs"] == {
                "ruler_length": thousands * 1024,
                "ruler_task": task,
            }
            assert config["generation_kwargs"] == {
                "until": [],
                "max_gen_toks": RULES[task].max_new_tokens,
                "do_sample": False,
            }
        expected |= {f"{name}.yaml" for name in (group, *names)}
    assert {path.name for path in FOLDER.iterdir()} == expected


def test_listing_tasks_makes_nothing(made: list[Any]) -> None:
    known = manager().all_tasks
    assert "page_rulergen_128k" in known
    assert "page_rulergen_4k_niah_multikey_3" in known
    assert made == []
