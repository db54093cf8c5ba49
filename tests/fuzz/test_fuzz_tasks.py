"""Options of tasks: documents as they were asked for, or one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from fuzzing import check_sentence, damaged, fuzzed, json_text, outcome, texts, values
from hypothesis import example, given
from hypothesis import strategies as st
from lm_eval._cli.utils import try_parse_json

from page_bench.inputs.errors import UsageError
from page_bench.tasks import longbench, protocols, quickstart, ruler
from page_bench.tasks.longbench_subsets import SUBSETS
from page_bench.tasks.metadata import NAMES, check_names
from page_bench.tasks.rulergen import dataset
from page_bench.tasks.rulergen.dataset import FIELDS
from page_bench.tasks.tokenizer import tokenizer_of

TASKS = ("niah_single_1", "niah_multikey_2", "vt", "fwe")
"""Those that need neither essays nor files."""


@pytest.fixture(scope="module")
def tokenizer(tiny_folder: Callable[[str], Path]) -> str:
    return str(tiny_folder("llama"))


@pytest.fixture(scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAGE_BENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


_FITTING: dict[str, st.SearchStrategy[Any]] = {
    "protocol": st.sampled_from([*protocols.PROTOCOLS, "longbench"]),
    "draw_seed": st.integers(0, 5),
    "prompt_tokens": st.integers(100, 400),
    "ruler_seed": st.integers(0, 5),
    "num_samples": st.integers(1, 6),
    "near_tie_keys": st.integers(1, 4),
    "essays": st.just("synthetic"),
    "longbench_max_length": st.integers(2, 400),
    "longbench_skip_above": st.integers(1, 400),
}


@st.composite
def options(draw: st.DrawFn, wild: int = 2) -> dict[str, Any]:
    """Metadata of which at most so many entries are wild."""
    names = draw(st.lists(st.sampled_from(sorted(_FITTING)), max_size=4, unique=True))
    found = {name: draw(_FITTING[name]) for name in names}
    for _ in range(draw(st.integers(0, wild))):
        found[draw(st.sampled_from(NAMES) | texts)] = draw(values)
    return found


def as_given(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """The metadata as `--metadata` brings it: through JSON."""
    try:
        read = try_parse_json(json.dumps(metadata))
    except ValueError:
        return None
    return dict(read) if isinstance(read, dict) else None


@pytest.mark.usefixtures("_cache")
@fuzzed(60)
@given(options(), st.sampled_from(TASKS), st.sampled_from([512, 1024]))
@example({"num_samples": 10**12}, "vt", 512)
@example({"protocol": ["page"]}, "vt", 512)
def test_generated_ruler(tokenizer: str, metadata: dict[str, Any], task: str, length: int) -> None:
    given = as_given(metadata)
    if given is None or "tokenizer" in given or "pretrained" in given or "model" in given:
        return
    found = outcome(lambda: dataset.load(length, task, **given, tokenizer=tokenizer))
    if found is None:
        return
    rows = found["test"]
    assert len(rows) == (500 if given.get("num_samples") is None else given["num_samples"])
    doc = outcome(lambda: dict(rows[0].items()))
    if doc is not None:
        assert tuple(doc) == FIELDS
        assert doc["protocol"] == given.get("protocol", "ruler")
        assert doc["seed"] == (42 if given.get("ruler_seed") is None else given["ruler_seed"])
        if given.get("draw_seed") is None:
            assert doc["index"] == 0
        assert doc["prompt_tokens"] + ruler.RULES[task].max_new_tokens <= length


@fuzzed(8)
@given(options(wild=1))
@example({"prompt_tokens": 10**12})
def test_quickstart(tokenizer: str, metadata: dict[str, Any]) -> None:
    given = as_given(metadata)
    if given is None or "tokenizer" in given or "pretrained" in given or "model" in given:
        return
    for name in ("protocol", "draw_seed"):
        given.pop(name, None)
    found = outcome(lambda: quickstart.needle_word(**given, tokenizer=tokenizer))
    if found is not None:
        limit = given.get("prompt_tokens", quickstart.PROMPT_TOKENS)
        assert all(row["prompt_tokens"] <= limit for row in found["test"])


@fuzzed(60)
@given(options(), st.sampled_from(sorted(SUBSETS)))
def test_longbench(
    tokenizer: str, tmp_path_factory: pytest.TempPathFactory, metadata: dict[str, Any], subset: str
) -> None:
    given = as_given(metadata)
    if given is None or "tokenizer" in given or "pretrained" in given or "model" in given:
        return
    file = tmp_path_factory.getbasetemp() / f"{subset}.jsonl"
    row = {"context": "Some words. " * 40, "input": "Who?", "answers": ["Paragraph 1 段落1"]}
    file.write_text(json.dumps({**row, "dataset": subset, "all_classes": ["x"]}))
    given = {"longbench_data": str(file), **given}
    found = outcome(lambda: longbench.load(subset, **given, tokenizer=tokenizer))
    doc = None if found is None else outcome(lambda: found["test"][0])
    if doc is not None:
        assert doc["protocol"] == given.get("protocol", "longbench")
        limit = given.get("longbench_max_length")
        if doc["protocol"] == "longbench" and limit is not None:
            assert doc["longest"] == limit
            assert doc["prompt_tokens"] - doc["cut_tokens"] <= limit


ROW = {
    "context": "A text that says it.",
    "question": "What?",
    "answer_prefix": " It is",
    "answer": ["it"],
    "max_new_tokens": 30,
}


@fuzzed(100)
@given(data=st.data())
def test_rows_of_ruler(data: st.DataObject) -> None:
    row = json.loads(json_text(data.draw(damaged(ROW)), depth=3).replace("9" * 6000, "9"))
    if not isinstance(row, dict) or not row.keys() >= ROW.keys():
        return  # columns are checked for the whole table
    protocol = data.draw(st.sampled_from(protocols.PROTOCOLS))
    doc = outcome(lambda: ruler.doc_of(row, "vt", 4096, protocol))
    if doc is not None:
        assert doc["answers"] == row["answer"]
        assert row["context"] in doc["prompt"]


@fuzzed(100)
@given(texts | st.sampled_from(["protocl", "Protocol", "num-samples", "ruler_sed", "essay"]))
def test_names_of_options(name: str) -> None:
    """A near miss is refused, and never passed over."""
    try:
        check_names({name: 1})
    except UsageError as error:
        check_sentence(str(error))
        assert name not in NAMES


@pytest.mark.parametrize("name", ["protocl", "num-samples", "draw_sed"])
def test_a_misspelt_option_is_refused(name: str, tokenizer: str) -> None:
    with pytest.raises(UsageError, match="no task reads"):
        dataset.load(512, "vt", **{name: 1}, tokenizer=tokenizer)


@fuzzed(60)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "tokenizer": values,
            "pretrained": values,
            "model": values,
            "revision": values,
            "subfolder": values,
            "gguf_file": values,
            "trust_remote_code": st.sampled_from([None, False, "no", 0, [], {}]),
        },
    )
)
@example({"tokenizer": "x", "revision": [1]})
def test_names_of_tokenizers(metadata: dict[str, Any]) -> None:
    given = as_given(metadata)
    if given and any(given.get(name) for name in ("tokenizer", "pretrained", "model")):
        outcome(lambda: tokenizer_of(given))
