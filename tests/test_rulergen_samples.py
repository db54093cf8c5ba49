"""Generated RULER: what each sample says, read back from its prompt alone."""

from __future__ import annotations

import json
import random
import re
import string
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import astuple
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tiny_models import tiny_tokenizer, trained_tokenizer
from transformers import AutoTokenizer

from page_bench.inputs.errors import UsageError
from page_bench.tasks.protocols import PROTOCOLS, render
from page_bench.tasks.ruler import RULES, doc_of
from page_bench.tasks.rulergen import draft, essays, questions, templates, words
from page_bench.tasks.rulergen.dataset import load
from page_bench.tasks.rulergen.meter import Meter, meter_of
from page_bench.tasks.rulergen.samples import Generator, SampleSettings

NIAH = [task for task in RULES if task.startswith("niah")]
BYTES, SMOL, TRAINED = "bytes", "smollm2", "trained"
CELLS = [
    *(
        (tokenizer, task, length)
        for tokenizer in (SMOL, TRAINED)
        for task in RULES
        for length in (1024, 2048, 4096, 16384)
    ),
    # A unit of text is large where each byte is a token.
    *((BYTES, task, 4096) for task in RULES if task != "cwe"),
    (BYTES, "cwe", 16384),
]
FACT = re.compile(r"One of the special magic (\w+) for (\S+) is: (\S+)\.")
UUID = "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
WORD_KEY = "[a-z]+(-[a-z]+)+"


def write_squad(path: Path, articles: int = 60, paragraphs: int = 6) -> Path:
    """A file in SQuAD's original schema. Each paragraph answers one question, and has another
    that is impossible; the answer stands twice among the references, as it often does there."""
    data = []
    rng = random.Random("squad")
    for a in range(articles):
        rows = []
        for p in range(paragraphs):
            name, year = f"Lodge{a}x{p}", str(rng.randrange(10**7, 10**8))
            filler = "It stood on a hill above the river and was rebuilt twice. " * rng.randint(
                2, 6
            )
            answers = [{"text": year, "answer_start": 0}] * 2
            rows.append(
                {
                    "context": f"Article {a}: {name} has the number {year}. {filler}",
                    "qas": [
                        {
                            "question": f"Which number has {name}?",
                            "answers": answers,
                            "is_impossible": False,
                        },
                        {"question": f"Who is {name}?", "answers": [], "is_impossible": True},
                    ],
                }
            )
        data.append({"title": f"Article {a}", "paragraphs": rows})
    path.write_text(json.dumps({"version": "v2.0", "data": data}), encoding="utf-8")
    return path


def write_hotpotqa(path: Path, rows: int = 60) -> Path:
    """A file in HotpotQA's original schema: two documents of ten lead to the answer."""
    rng = random.Random("hotpotqa")
    entries = []
    for r in range(rows):
        answer = str(rng.randrange(10**7, 10**8))
        context = [
            [f"Hall {r} {i}", ["It is a hall. ", "Guests came by boat. " * rng.randint(1, 8)]]
            for i in range(8)
        ]
        context.insert(rng.randrange(9), [f"Door {r}", [f"Door {r} leads to Room {r}. "]])
        context.insert(rng.randrange(10), [f"Room {r}", ["A room. ", f"Its number is {answer}."]])
        entries.append(
            {
                "question": f"Which number has the room behind Door {r}?",
                "answer": answer,
                "context": context,
                "supporting_facts": [[f"Door {r}", 0], [f"Room {r}", 1], [f"Room {r}", 0]],
            }
        )
    path.write_text(json.dumps(entries), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def squad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_squad(tmp_path_factory.mktemp("squad") / "dev-v2.0.json")


@pytest.fixture(scope="session")
def hotpotqa(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hotpotqa(tmp_path_factory.mktemp("hotpotqa") / "dev_distractor.json")


def ruler_texts() -> Iterator[str]:
    """What a tokenizer learns RULER's language from: its words, templates, prose and values."""
    rng = random.Random("tokenizer")
    yield from words.load().every * 2
    yield from astuple(templates.load()) * 20
    yield " ".join(essays.load("synthetic").words[:20_000])
    for _ in range(2000):
        yield str(rng.randrange(10**7))
        yield str(uuid.UUID(int=rng.getrandbits(128), version=4))
        yield f"VAR {''.join(rng.choices(string.ascii_uppercase, k=5))} = "
        yield f"... {''.join(rng.choices(string.ascii_lowercase, k=6))}"


@pytest.fixture(scope="session")
def meter(default_model_folder: Path) -> Callable[[str], Meter]:
    """The meters of three tokenizers: SmolLM2's, one trained here, one of a token per byte."""

    @cache
    def of(name: str) -> Meter:
        if name == BYTES:
            return Meter(tiny_tokenizer(with_bos=True))
        if name == TRAINED:
            return Meter(trained_tokenizer(ruler_texts(), vocabulary=6000))
        return meter_of({"pretrained": str(default_model_folder)})

    return of


@pytest.fixture
def make(
    meter: Callable[[str], Meter], squad: Path, hotpotqa: Path
) -> Callable[..., dict[str, Any]]:
    """Tokenizer, task, length, index, other settings → sample; nothing is kept on disk."""

    def sample(
        tokenizer: str, task: str, length: int, index: int = 0, **settings: Any
    ) -> dict[str, Any]:
        given = {"essays": "synthetic", "squad": str(squad), "hotpotqa": str(hotpotqa), **settings}
        return Generator(
            SampleSettings(task, length, **given), meter(tokenizer), keep=False
        ).sample(index)

    return sample


Make = Callable[..., dict[str, Any]]


def read_niah(prompt: str) -> tuple[list[str], dict[str, list[str]]]:
    """The values asked for, and all that the text says: key → values in their order."""
    said: dict[str, list[str]] = {}
    for _, key, value in FACT.findall(prompt):
        said.setdefault(key, []).append(value)
    asked = re.findall(
        r"What (?:is|are all) the special magic \w+ for (.+) mentioned in the provided text\?",
        prompt,
    )
    assert len(asked) == 1
    keys = re.split(r", and |, ", asked[0])
    return [value for key in keys for value in said[key]], said


def read_vt(prompt: str) -> list[str]:
    """The variables that have the value asked for; the one-shot example is left out."""
    example, text = (part for part in prompt.split("Memorize and track") if part)
    assert len(re.findall(r"they are: ((?:[A-Z]{3} ?){5})\n", example)) == 1
    names = read_chain(example)
    assert re.findall(r"they are: (.*)\n", example) == [" ".join(names)]
    return read_chain(text)


def read_chain(text: str) -> list[str]:
    values: dict[str, str] = {}
    for name, is_name, right in re.findall(r"VAR ([A-Z]+) = (VAR )?(\w+)", text):
        assert name not in values
        values[name] = values[right] if is_name else right
    asked = re.findall(r"assigned the value (\d+) in the text above", text)
    assert len(asked) == 1
    return [name for name, value in values.items() if value == asked[0]]


def read_lists(prompt: str) -> list[list[str]]:
    """The numbered lists of cwe, each as its words."""
    lists = re.findall(r"often\.\n(.*)\n+Question: What are the 10 most common", prompt)
    found = [re.findall(r"(\d+)\. (\S+)", text) for text in lists]
    for items in found:
        assert [int(number) for number, _ in items] == list(range(1, len(items) + 1))
    return [[word for _, word in items] for items in found]


def read_documents(prompt: str) -> list[str]:
    body = prompt.split("The following are given documents.\n\n")[1]
    body, _ = body.rsplit("\n\nAnswer the question based on the given documents.", 1)
    parts = re.split(r"(?:^|\n\n)Document (\d+):\n", body)
    assert parts[0] == ""
    assert [int(n) for n in parts[1::2]] == list(range(1, len(parts) // 2 + 1))
    return parts[2::2]


def check(row: dict[str, Any]) -> None:
    """Solve a sample by its prompt, and see that it is built as RULER's table says."""
    task, prompt = row["task"], doc_of(row, row["task"], row["length"], "page")["prompt"]
    answer = row["answer"]
    if task in NIAH:
        values, said = read_niah(prompt)
        assert sorted(values) == sorted(answer)
        check_needles(task, prompt, said, answer)
    elif task == "vt":
        assert read_vt(prompt) == answer
        assert len(answer) == 5
        assert all(len(name) == 5 for name in answer)
    elif task == "fwe":
        text = re.findall(r"frequently appeared coded words\. (.*)\n+Question:", prompt)
        counts = Counter(text[0].split()).most_common(5)
        assert counts[0][0] == "..."
        assert [word for word, _ in counts[1:4]] == answer
        assert len({count for _, count in counts}) == 5
    elif task == "cwe":
        check_lists(row, *read_lists(prompt))
    else:
        documents = read_documents(prompt)
        assert len(documents) == len(set(documents)) == row["units"]
        assert sum(answer[0] in document for document in documents) == 1
        assert len(answer) == 1


def check_needles(task: str, prompt: str, said: dict[str, list[str]], answer: list[str]) -> None:
    facts = FACT.findall(prompt)
    values = [value for _, _, value in facts]
    assert len(set(values)) == len(values)
    assert all(prompt.count(value) == 1 for value in values)
    number_of_keys = {"niah_multikey_1": 4, "niah_multiquery": 4}.get(task, 1)
    each = 4 if task == "niah_multivalue" else 1
    if task in ("niah_multikey_2", "niah_multikey_3"):
        assert len(said) > 3
        lines = prompt.split("afterwards.\n")[1].split("\n\nWhat is")[0].split("\n")
        assert [line for line in lines if line and not FACT.fullmatch(line)] == []
    else:
        assert len(said) == number_of_keys
    assert all(len(values) == each for values in said.values())
    uuid_key, uuid_value = task == "niah_multikey_3", task in ("niah_single_3", "niah_multikey_3")
    assert all(re.fullmatch(UUID if uuid_key else WORD_KEY, key) for key in said)
    assert all(re.fullmatch(UUID if uuid_value else r"[1-9]\d{6}", v) for v in values)
    assert {kind for kind, _, _ in facts} == {"uuids" if uuid_value else "numbers"}
    assert len(answer) == (4 if task in ("niah_multivalue", "niah_multiquery") else 1)
    assert ("What is the" in prompt) == (len(answer) == 1)
    assert ("grass is green" in prompt) == (task == "niah_single_1")


def check_lists(row: dict[str, Any], example: list[str], listed: list[str]) -> None:
    short = row["length"] < 4096
    shown, counts = Counter(example), Counter(listed)
    assert sorted(shown.values()) == ([1] * 10 + [3] * 10 if short else [3] * 30 + [10] * 10)
    often, seldom = (6, 1) if short else (30, 3)
    assert sorted(w for w, n in counts.items() if n == often) == sorted(row["answer"])
    assert [n for n in counts.values() if n != often] == [seldom] * row["units"]
    assert not set(shown) & set(counts)


@pytest.mark.real_model
@pytest.mark.parametrize(("tokenizer", "task", "length"), CELLS)
def test_a_sample_can_be_solved_and_fills_its_length(
    tokenizer: str, task: str, length: int, make: Make, meter: Callable[[str], Meter]
) -> None:
    for index in range(3 if length <= 4096 else 1):
        row = make(tokenizer, task, length, index)
        check(row)
        reserved = RULES[task].max_new_tokens
        tokens = [meter(tokenizer).prompt(row, protocol) for protocol in PROTOCOLS]
        assert max(tokens) == row["prompt_tokens"]
        assert row["fill"] == (max(tokens) + reserved) / length <= 1
        assert bool(row["shortfall"]) == (row["fill"] < 0.95)
        # Only documents are so large that one more would be over a twentieth.
        assert task in questions.SOURCES or not row["shortfall"]


@pytest.mark.real_model
def test_the_trained_tokenizer_is_another_and_always_the_same(
    make: Make, meter: Callable[[str], Meter]
) -> None:
    trained = meter(TRAINED)._tokenizer
    for task in RULES:
        text = make(SMOL, task, 1024)["context"]
        ids = trained(text, add_special_tokens=False)["input_ids"]
        assert trained.decode(ids) == text
        assert trained.unk_token_id not in ids
        assert abs(len(ids) / meter(SMOL).text(text) - 1) > 0.02, task
    again = Meter(trained_tokenizer(ruler_texts(), vocabulary=len(trained)))
    assert again.fingerprint == meter(TRAINED).fingerprint


@pytest.mark.real_model
def test_a_system_message_that_the_template_refuses_is_not_counted(
    meter: Callable[[str], Meter],
) -> None:
    row = {"context": "text", "question": "why?", "answer_prefix": " so"}
    rendered = render(row, "page")
    assert rendered.system
    without = meter(TRAINED).text(f"<s>[INST] {rendered.prompt} [/INST]")
    assert meter(TRAINED).prompt(row, "page") == without


@pytest.mark.real_model
@pytest.mark.parametrize("task", RULES)
def test_one_more_unit_would_not_fit(task: str, make: Make, meter: Callable[[str], Meter]) -> None:
    row = make(SMOL, task, 1024)
    generator = Generator(
        SampleSettings(task, 1024, essays="synthetic", squad=None, hotpotqa=None),
        meter(SMOL),
        keep=False,
    )
    if task in questions.SOURCES:
        return check_documents(row, make)
    draft = next(generator._drafts(0))
    assert generator._row(draft.build(row["units"])).items() <= row.items()
    more = max(meter(SMOL).prompts(generator._row(draft.build(row["units"] + 1))).values())
    assert more + RULES[task].max_new_tokens > 1024


def check_documents(row: dict[str, Any], make: Make) -> None:
    """A shortfall of documents names the unit, and the room left is less than the largest has."""
    assert row["shortfall"] in ("", "one more document would not fit")
    assert 1024 * (1 - row["fill"]) < 200


@pytest.mark.real_model
def test_what_does_not_fit_is_refused(make: Make) -> None:
    with pytest.raises(UsageError, match="cwe does not fit into 4096 tokens"):
        make(BYTES, "cwe", 4096)
    with pytest.raises(UsageError, match="qa_1 does not fit into 120 tokens"):
        make(SMOL, "qa_1", 120)


@pytest.mark.real_model
def test_a_set_that_is_used_up_says_so(make: Make, tmp_path: Path) -> None:
    row = make(SMOL, "qa_1", 4096, squad=str(write_squad(tmp_path / "small.json", articles=2)))
    assert row["units"] == 12
    assert row["shortfall"] == "all documents are in it"


@pytest.mark.real_model
def test_documents_come_from_the_same_article_first(make: Make) -> None:
    row = make(SMOL, "qa_1", 1024, 7)  # the second article's second paragraph
    texts = read_documents(row["context"] + row["question"])
    assert sum(text.startswith("Article 1: ") for text in texts) == min(6, len(texts))
    row = make(SMOL, "qa_2", 4096, 5)
    texts = read_documents(row["context"] + row["question"])
    own = [text for text in texts if re.match(r"(Hall|Door|Room) 5\b", text)]
    assert len(own) == 10 < len(texts)
    # Where ten do not fit, the two that lead to the answer are there.
    row = make(SMOL, "qa_2", 512, 5)
    texts = read_documents(row["context"] + row["question"])
    assert {"Door 5", "Room 5"} <= {text.split("\n")[0] for text in texts}


@pytest.mark.real_model
@pytest.mark.parametrize("task", ["niah_multikey_1", "niah_multikey_2", "niah_multikey_3"])
@pytest.mark.parametrize("keys", [1, 4, 12])
def test_near_tie_keys_are_so_many_of_the_same_kind(task: str, keys: int, make: Make) -> None:
    row = make(SMOL, task, 2048, 3, near_tie_keys=keys)
    values, said = read_niah(row["context"] + row["question"])
    assert values == row["answer"]
    assert len(said) == keys
    pattern = UUID if task == "niah_multikey_3" else WORD_KEY
    assert all(re.fullmatch(pattern, key) for key in said)
    assert row["haystack"] == "essay: synthetic"
    assert row["fill"] >= 0.95


@pytest.mark.real_model
def test_more_near_tie_keys_than_depths_are_refused(make: Make) -> None:
    with pytest.raises(UsageError, match="near_tie_keys=41 is more than the 40 depths"):
        make(SMOL, "niah_multikey_3", 2048, near_tie_keys=41)


@pytest.mark.real_model
def test_samples_differ_by_index_and_seed(make: Make) -> None:
    for task in RULES:
        drawn = [make(SMOL, task, 1024, i)["context"] for i in range(2)]
        drawn.append(make(SMOL, task, 1024, 0, seed=43)["context"])
        assert len(set(drawn)) == 3, task


@pytest.mark.real_model
def test_needles_stand_between_the_sentences_of_the_named_text(make: Make, tmp_path: Path) -> None:
    text = tmp_path / "essay.txt"
    text.write_text("".join(f"Sentence {i} is\nhere. " for i in range(1000)), encoding="utf-8")
    row = make(SMOL, "niah_multivalue", 2048, essays=str(text))
    assert row["haystack"] == f"essay: {text}"
    body = row["context"].split("afterwards.\n")[1]
    plain = FACT.sub("", body).split()
    assert len(plain) > 100
    assert plain == text.read_text().split()[: len(plain)]
    for before, after in re.findall(r"(\S+) One of the special.*?: \d+\.(?: (\S+))?", body):
        assert before == "here."
        assert after in ("Sentence", "One", "")


def test_a_text_that_is_too_short_begins_anew(tmp_path: Path) -> None:
    text = tmp_path / "essay.txt"
    text.write_text("One two. Three four!", encoding="utf-8")
    essay = essays.load(str(text))
    assert essay.sentences(7) == ["One two.", "Three four!", "One two.", "Three"]


def test_an_unreachable_essay_names_the_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(essays.VARIABLE, raising=False)
    with pytest.raises(UsageError, match='PAGE_BENCH_ESSAYS, or "synthetic"'):
        essays.load("no-such/data-set")


def test_unreadable_documents_name_the_ways_out(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"rows": []}', encoding="utf-8")
    with pytest.raises(UsageError, match="PAGE_BENCH_SQUAD"):
        questions.load("squad", str(other))
    with pytest.raises(UsageError, match="PAGE_BENCH_HOTPOTQA"):
        questions.load("hotpotqa", str(tmp_path / "missing.json"))


def test_questions_and_references_are_kept_as_the_data_sets_have_them(tmp_path: Path) -> None:
    squad, hotpotqa = tmp_path / "squad.json", tmp_path / "hotpotqa.json"
    qas = [
        # As in SQuAD: a space at the end, one reference twice, one that is longer.
        ("Where is Normandy? ", ["France", "northern France", "France"], False),
        ("Who is Normandy?", [], True),
    ]
    paragraphs = [
        {
            "context": "Normandy is in northern France.",
            "qas": [
                {
                    "question": question,
                    "answers": [{"text": text, "answer_start": 0} for text in answers],
                    "plausible_answers": [{"text": "Normandy", "answer_start": 0}],
                    "is_impossible": impossible,
                }
                for question, answers, impossible in qas
            ],
        },
        {"context": "Café, “Rhine” {0}.", "qas": []},
    ]
    data = [{"title": "Normandy", "paragraphs": paragraphs}]
    squad.write_text(json.dumps({"version": "v2.0", "data": data}), encoding="utf-8")
    corpus = questions.load("squad", str(squad))
    assert corpus.documents == ("Café, “Rhine” {0}.", "Normandy is in northern France.")
    asked = questions.Question("Where is Normandy? ", ("France", "northern France"), (1,), (0,))
    assert corpus.questions == (asked,)
    parts = questions.draft(corpus, asked, "seed", 1024, templates.load()).build(2)
    assert parts.question.endswith("\n\nQuestion: Where is Normandy? ")
    assert sorted(read_documents(parts.context + parts.question)) == list(corpus.documents)

    # As in HotpotQA: an answer that no document says, sentences that bring their spaces along,
    # and a question that has two documents only.
    row = {
        "question": "Are both rivers?",
        "answer": "yes",
        "context": [["Rhine", ["A river.", " It is long."]], ["Seine", ["A river."]]],
        "supporting_facts": [["Seine", 0], ["Rhine", 0]],
    }
    hotpotqa.write_text(json.dumps([row]), encoding="utf-8")
    corpus = questions.load("hotpotqa", str(hotpotqa))
    assert corpus.documents == ("Rhine\nA river. It is long.", "Seine\nA river.")
    assert corpus.questions == (questions.Question("Are both rivers?", ("yes",), (1, 0), ()),)


def test_the_hub_schemas_give_the_same_corpora(
    squad: Path, hotpotqa: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat = [
        {
            "title": article["title"],
            "context": paragraph["context"],
            "question": qa["question"],
            "answers": {"text": [a["text"] for a in qa["answers"]]},
        }
        for article in json.loads(squad.read_text())["data"]
        for paragraph in article["paragraphs"]
        for qa in paragraph["qas"]
    ]
    columns = [
        {
            **row,
            "context": {
                "title": [title for title, _ in row["context"]],
                "sentences": [text for _, text in row["context"]],
            },
            "supporting_facts": {"title": [t for t, _ in row["supporting_facts"]]},
        }
        for row in json.loads(hotpotqa.read_text())
    ]
    rows = {"squad": flat, "hotpotqa": columns}
    monkeypatch.setattr(questions, "_hub", lambda kind: rows[kind])
    for kind, file in (("squad", squad), ("hotpotqa", hotpotqa)):
        monkeypatch.delenv(questions.VARIABLES[kind], raising=False)
        hub, local = questions.load(kind), questions.load(kind, str(file))
        questions.load.cache_clear()
        assert hub.name == questions.HUB[kind][0]
        assert (hub.documents, hub.questions) == (local.documents, local.questions)
        monkeypatch.setenv(questions.VARIABLES[kind], str(file))
        assert questions.load(kind).name == str(file)
        questions.load.cache_clear()


def test_templates_are_those_of_the_installed_lm_eval() -> None:
    from lm_eval.tasks.ruler import fwe_utils, vt_utils

    found = templates.load()
    assert found.vt == vt_utils.CONFIG["variable_tracking"]["template"]
    assert found.vt_prefix == vt_utils.CONFIG["variable_tracking"]["answer_prefix"].strip()
    assert found.fwe + f" {found.fwe_prefix}" == fwe_utils.TEMPLATE
    assert "{context}" in found.niah
    assert "{query}" in found.niah
    for prefix, verb in ((found.niah_prefix, "is"), (found.niah_prefix_plural, "are")):
        assert re.fullmatch(rf".* {{type_needle_v}} for {{query}} .* {verb}", prefix)


def test_templates_that_are_gone_name_the_version_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(templates, "_folder", lambda: tmp_path)
    templates.load.cache_clear()
    with pytest.raises(UsageError, match=r"pip install lm-eval==0\.4\.13"):
        templates.load()


def test_the_word_lists_hold_words_only() -> None:
    lists = words.load()
    assert all(re.fullmatch("[a-z]+(-[a-z]+)*", word) for word in lists.every)
    assert set(lists.nouns) | set(lists.adjectives) < set(lists.every)


@pytest.mark.parametrize("seed", range(20))
def test_the_search_finds_the_largest_that_fits_in_few_steps(seed: int) -> None:
    rng = random.Random(seed)
    steps = [rng.randint(0, 40) if seed % 2 else 24 for _ in range(5000)]
    sums = [100]
    for step in steps:
        sums.append(sums[-1] + step)
    limit = rng.randint(90, sums[-1] + 500)
    asked: list[int] = []

    def measure(units: int) -> int:
        asked.append(units)
        return sums[units]

    low = 3
    best = max((n for n in range(low, 5001) if sums[n] <= limit), default=None)
    found = draft.longest(measure, low, 5000, limit)
    assert found == (None if best is None else (best, sums[best]))
    assert len(asked) <= 25
    assert len(set(asked)) == len(asked)


def test_a_bos_that_the_template_leaves_out_is_counted() -> None:
    tokenizer = tiny_tokenizer(with_bos=True)
    row = {"context": "text", "question": "why?", "answer_prefix": "so"}
    with_it = Meter(tokenizer).prompt(row, "ruler")
    tokenizer.chat_template = tokenizer.chat_template.removeprefix("{{ bos_token }}")
    # lm-eval lets the tokenizer add what the template does not write.
    assert Meter(tokenizer).prompt(row, "ruler") == with_it


@pytest.mark.real_model
def test_more_samples_than_questions_say_so(default_model_folder: Path, tmp_path: Path) -> None:
    squad = str(write_squad(tmp_path / "squad.json", articles=2, paragraphs=2))
    rows = load(4096, "qa_1", pretrained=str(default_model_folder), squad=squad)["test"]
    with pytest.raises(UsageError, match=r"sample 499 of qa_1 has no question: .* num_samples"):
        rows[499]["prompt"]


def test_questions_that_nobody_could_answer_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write_hotpotqa(tmp_path / "hotpotqa.json", rows=4)
    entries = json.loads(file.read_text())
    entries[0]["supporting_facts"].append(["Elsewhere", 0])  # as in HotpotQA's fullwiki setting
    entries[1]["supporting_facts"] = []
    entries[2]["answer"] = " "
    file.write_text(json.dumps(entries))
    corpus = questions.load("hotpotqa", str(file))
    assert [question.text for question in corpus.questions] == [entries[3]["question"]]
    assert len(corpus.documents) == 10
    assert "3 of 4 questions are left out" in caplog.text
    other = tmp_path / "none.json"
    other.write_text(json.dumps(entries[:3]))
    with pytest.raises(UsageError, match="no question with an answer in its documents"):
        questions.load("hotpotqa", str(other))


@pytest.mark.parametrize("field", ["question", "answer"])
def test_a_question_or_answer_that_is_no_text_is_refused(field: str, tmp_path: Path) -> None:
    file = write_hotpotqa(tmp_path / "hotpotqa.json", rows=2)
    entries = json.loads(file.read_text())
    entries[1][field] = 1990
    file.write_text(json.dumps(entries))
    with pytest.raises(UsageError, match="is no text"):
        questions.load("hotpotqa", str(file))


@pytest.mark.real_model
def test_a_tokenizer_is_another_by_its_bos_alone(default_model_folder: Path) -> None:
    """A template may write the BOS, and so decide how long a prompt is."""
    one, other = (AutoTokenizer.from_pretrained(default_model_folder) for _ in range(2))
    assert Meter(one).fingerprint == Meter(other).fingerprint
    other.bos_token = "<jupyter_start>"
    assert Meter(one).fingerprint != Meter(other).fingerprint
