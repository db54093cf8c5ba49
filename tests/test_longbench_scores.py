"""LongBench's nine metrics against cases whose value is counted out or comes from lm-eval."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import pytest
from fuzzywuzzy import fuzz
from lm_eval.tasks.longbench import metrics as lm_eval_metrics

from page_bench.records.trace import Answer
from page_bench.tasks import longbench_scores as scores

Case = tuple[str, list[str], float]


def f1(same: int, answered: int, referred: int) -> float:
    """F1 of `same` words among those of the answer and of the reference."""
    precision, recall = same / answered, same / referred
    return 2 * precision * recall / (precision + recall)


def rouge(same: int, answered: int, referred: int) -> float:
    """The same as the package `rouge` computes it: 1e-8 in the denominator."""
    precision, recall = same / answered, same / referred
    return 2 * (precision * recall) / (precision + recall + 1e-8)


def check(metric: str, case: Case, classes: list[str] | None = None) -> None:
    answer, references, expected = case
    assert scores.best(metric, answer, references, classes or []) == pytest.approx(
        expected, abs=1e-12
    )


QA_F1: list[Case] = [
    ("Paris", ["Paris"], 1.0),
    ("paris.", ["Paris"], 1.0),  # case, punctuation
    ("The Paris", ["a Paris"], 1.0),  # articles go
    ("in Paris", ["Paris"], f1(1, 2, 1)),  # {in, Paris} and {Paris}: 2/3
    ("Paris Paris", ["Paris"], f1(1, 2, 1)),  # counted once
    ("the big red house", ["red house"], f1(2, 3, 2)),  # "the" goes: 4/5
    ("London", ["Paris", "London town", "London"], 1.0),  # the best of three
    ("London", ["Paris", "London town"], f1(1, 1, 2)),
    ("", ["Paris"], 0.0),
    ("Paris", [""], 0.0),
    ("the", ["the"], 0.0),  # nothing is left of either
    ("Paris", [], 0.0),
    ("well-known", ["wellknown"], 1.0),  # the hyphen is punctuation
    ("well known", ["well-known"], 0.0),  # {well, known} and {wellknown}
]

QA_F1_ZH: list[Case] = [
    ("厦门大学", ["厦门大学"], 1.0),
    ("厦门大学。", ["厦门大学"], 1.0),  # punctuation
    ("《厦门大学》!", ["厦门大学"], f1(1, 2, 1)),  # 《 is not in LongBench's list: two words
    ("北京", ["我爱北京天安门"], f1(1, 1, 4)),  # 我 爱 北京 天安门: 2/5
    ("我爱北京", ["我爱北京天安门"], f1(3, 3, 4)),
    ("上海", ["北京", "上海"], 1.0),
    ("上海", ["北京"], 0.0),
    ("", ["北京"], 0.0),
    ("。", ["北京"], 0.0),
    ("ABC", ["abc"], 1.0),  # case
    ("北京 北京", ["北京"], f1(1, 2, 1)),
    ("北京", [], 0.0),
]

ROUGE_L: list[Case] = [
    ("the cat sat", ["the cat sat"], rouge(3, 3, 3)),
    ("the cat sat", ["the cat"], rouge(2, 3, 2)),
    ("a b c d", ["a x c y"], rouge(2, 4, 4)),  # a, c
    ("c a", ["a c"], rouge(1, 2, 2)),  # order counts
    ("Cat", ["cat"], 0.0),  # case counts
    ("cat,", ["cat"], 0.0),  # so does a comma
    ("a. b", ["a b"], rouge(2, 2, 2)),  # "." splits sentences, whose unions count
    ("a a a", ["a"], rouge(1, 1, 1)),  # of distinct words
    ("x", ["y", "x z", "x"], rouge(1, 1, 1)),
    ("x", ["y", "x z"], rouge(1, 1, 2)),
    ("", ["a"], 0.0),
    (".", ["a"], 0.0),
    ("a", [""], 0.0),
    ("a", [], 0.0),
]

ROUGE_L_ZH: list[Case] = [
    ("我爱北京天安门", ["我爱北京天安门"], rouge(4, 4, 4)),
    ("北京", ["我爱北京天安门"], rouge(1, 1, 4)),
    ("天安门北京", ["北京天安门"], rouge(1, 2, 2)),  # order counts
    ("我爱北京。", ["我爱北京"], rouge(3, 4, 3)),  # "。" is a word
    ("上海", ["北京", "上海"], rouge(1, 1, 1)),
    ("上海", ["北京"], 0.0),
    ("", ["北京"], 0.0),
    ("北京", [""], 0.0),
    ("北京北京", ["北京"], rouge(1, 1, 1)),  # of distinct words
    ("北京", [], 0.0),
]

CLASSES = ["Other location", "Location", "City", "Individual", "Date"]
CLASSIFICATION: list[Case] = [
    ("City", ["City"], 1.0),
    (" City\n", ["City"], 1.0),
    ("City or Date", ["City"], 1 / 2),
    ("City, Date, Individual", ["Date"], 1 / 3),
    ("Date", ["City"], 0.0),
    ("city", ["City"], 0.0),  # case counts
    ("Other location", ["Other location"], 1.0),  # "Location" is written otherwise
    ("", ["City"], 0.0),
    ("Town", ["City"], 0.0),
    ("Date.", ["City", "Date"], 1.0),
    ("Date", [], 0.0),
]

COUNT: list[Case] = [
    ("5", ["5"], 1.0),
    ("There are 5 paragraphs.", ["5"], 1.0),
    ("5 of 10", ["5"], 1 / 2),
    ("5, 5, 6", ["5"], 2 / 3),
    ("15", ["5"], 0.0),
    ("05", ["5"], 0.0),
    ("five", ["5"], 0.0),
    ("", ["5"], 0.0),
    ("5.5", ["5"], 1.0),  # the numbers 5 and 5
    ("7", ["5", "7"], 1.0),
    ("5", [], 0.0),
]

RETRIEVAL: list[Case] = [
    ("Paragraph 5", ["Paragraph 5"], 1.0),
    ("paragraph 5.", ["Paragraph 5"], 1.0),
    ("5", ["Paragraph 5"], 1.0),
    ("Paragraph 15", ["Paragraph 5"], 0.0),
    ("Paragraph 5 or Paragraph 6", ["Paragraph 5"], 1 / 2),
    ("5 5 6", ["Paragraph 5"], 2 / 3),
    ("段落5", ["Paragraph 5"], 1.0),
    ("none", ["Paragraph 5"], 0.0),
    ("", ["Paragraph 5"], 0.0),
    ("Paragraph 7", ["Paragraph 5", "Paragraph 7"], 1.0),
    ("Paragraph 5", [], 0.0),
]

RETRIEVAL_ZH: list[Case] = [
    ("段落5", ["段落5"], 1.0),
    ("答案是段落5。", ["段落5"], 1.0),
    ("5", ["段落5"], 1.0),
    ("段落15", ["段落5"], 0.0),
    ("段落5或段落6", ["段落5"], 1 / 2),
    ("5、5、6", ["段落5"], 2 / 3),
    ("Paragraph 5", ["段落5"], 1.0),
    ("没有", ["段落5"], 0.0),
    ("", ["段落5"], 0.0),
    ("段落7", ["段落5", "段落7"], 1.0),
    ("段落5", [], 0.0),
]

CODE_SIMILARITY: list[Case] = [
    ("x = 1", ["x = 1"], 1.0),
    ("abcd", ["abxd"], 0.75),  # 2·3 of 8 characters
    ("abc", ["abcde"], 0.75),  # 2·3 of 8
    ("ab", ["cd"], 0.0),
    ("\n\nx = 1\ny = 2", ["x = 1"], 1.0),  # newlines first
    ("# comment\nx = 1", ["x = 1"], 1.0),
    ("// comment\n```python\nx = 1", ["x = 1"], 1.0),
    ("x = 1  # one", ["x = 1"], 0.0),  # the only line has a comment
    ("  x = 1", ["x = 1"], 0.83),  # 2·5 of 12; spaces count
    ("X", ["x"], 0.0),  # so does case
    ("", ["x"], 0.0),
    (" \nx = 1", ["x = 1"], 0.33),  # the first line is one space: 2·1 of 6
    ("打印(x)", ["打印(y)"], 0.8),  # 2·4 of 10
    ("b", ["a", "b"], 1.0),
    ("b", [], 0.0),
]


@pytest.mark.parametrize("case", QA_F1)
def test_qa_f1(case: Case) -> None:
    check("qa_f1", case)


@pytest.mark.parametrize("case", QA_F1_ZH)
def test_qa_f1_zh(case: Case) -> None:
    check("qa_f1_zh", case)


@pytest.mark.parametrize("case", ROUGE_L)
def test_rouge_l(case: Case) -> None:
    check("rouge_l", case)


@pytest.mark.parametrize("case", ROUGE_L_ZH)
def test_rouge_l_zh(case: Case) -> None:
    check("rouge_l_zh", case)


@pytest.mark.parametrize("case", CLASSIFICATION)
def test_classification(case: Case) -> None:
    check("classification", case, CLASSES)


def test_classes_within_the_right_class_are_no_wrong_answers() -> None:
    classes = ["财经", "财经新闻", "体育"]
    check("classification", ("财经新闻", ["财经新闻"], 1.0), classes)
    check("classification", ("财经新闻", ["财经"], 1 / 2), classes)
    check("classification", ("财经新闻、体育", ["财经新闻"], 1 / 2), classes)


@pytest.mark.parametrize("case", COUNT)
def test_count(case: Case) -> None:
    check("count", case)


@pytest.mark.parametrize("case", RETRIEVAL)
def test_retrieval(case: Case) -> None:
    check("retrieval", case)


@pytest.mark.parametrize("case", RETRIEVAL_ZH)
def test_retrieval_zh(case: Case) -> None:
    check("retrieval_zh", case)


@pytest.mark.parametrize("case", CODE_SIMILARITY)
def test_code_similarity(case: Case) -> None:
    check("code_similarity", case)


@pytest.mark.parametrize(
    ("metric", "scorer", "cases"),
    [
        ("qa_f1", "get_qa_f1_score", QA_F1),
        ("qa_f1_zh", "get_qa_f1_zh_score", QA_F1_ZH),
        ("rouge_l", "get_rouge_score", ROUGE_L),
        ("rouge_l_zh", "get_rouge_zh_score", ROUGE_L_ZH),
        ("classification", "get_classification_score", CLASSIFICATION),
        ("count", "get_count_score", COUNT),
        ("retrieval", "get_retrieval_score", RETRIEVAL),
        ("retrieval_zh", "get_retrieval_zh_score", RETRIEVAL_ZH),
        # Where the first line is blank lm-eval goes on to the next.
        ("code_similarity", "get_code_sim_score", [c for c in CODE_SIMILARITY if c[0][:1] != " "]),
    ],
)
def test_every_case_has_the_value_that_lm_eval_gives(
    metric: str, scorer: str, cases: list[Case]
) -> None:
    assert len(cases) >= 10
    for answer, references, expected in cases:
        doc = {"answers": references, "all_classes": CLASSES}
        (given,) = getattr(lm_eval_metrics, scorer)(doc, [answer]).values()
        assert given == pytest.approx(expected, abs=1e-12)


# Pieces that meet the rules of some metric: articles, numbers, classes, marks of comments,
# punctuation of both kinds, letters whose lower case is longer, white space of all sorts.
PIECES = (
    *("the", "a", "The", "an", "cat", "Cat", "sat", "5", "15", "05", "٣", "Paragraph 5", "段落5"),
    *(
        "Location",
        "Other location",
        "City",
        "Date",
        "x = 1",
        "# c",
        "//",
        "`",
        ".",
        ". ",
        "。",
        "，",
    ),
    *(
        "我",
        "爱",
        "北京",
        "天安门",
        "会议",
        "讨论了",
        "–",
        "…",
        "～",
        "﹏",
        "İ",
        "ß",
        "é",
        "e\u0301",
    ),
    *(" ", "  ", "\n", "\t", "\u3000", "\xa0", "\u2028", "-", "_", "'", '"', "😀", "0", "1", "2"),
)


def texts(rng: random.Random) -> tuple[str, str]:
    """An answer and a reference that share some of their pieces."""
    common = rng.choices(PIECES, k=rng.randrange(6))

    def text() -> str:
        pieces = [*common, *rng.choices(PIECES, k=rng.randrange(6))]
        rng.shuffle(pieces)
        return rng.choice(("", " ")).join(pieces)

    return text(), text()


def test_random_texts_have_the_value_that_lm_eval_gives() -> None:
    rng, classes = random.Random(0), [*CLASSES, "Other", "location", "City of", "Cit"]
    above_zero = dict.fromkeys(scores.METRICS, 0)
    for _ in range(600):
        answer, reference = texts(rng)
        asked = {name: reference for name in ("qa_f1", "qa_f1_zh", "rouge_l", "rouge_l_zh")}
        asked["classification"] = rng.choice(classes)
        asked["count"] = str(rng.choice((5, 15)))
        asked["retrieval"] = f"Paragraph {rng.choice((5, 15))}"
        asked["retrieval_zh"] = f"段落{rng.choice((5, 15))}"
        names = {"rouge_l": "rouge_score", "rouge_l_zh": "rouge_zh_score"}
        for metric, wanted in asked.items():
            theirs = getattr(lm_eval_metrics, names.get(metric, f"{metric}_score"))
            expected = (
                theirs(answer, wanted, all_classes=classes)
                if metric not in names
                else (theirs(answer, wanted))
            )
            assert scores.METRICS[metric](answer, wanted, classes) == expected
            above_zero[metric] += expected > 0
    del above_zero["code_similarity"]
    assert min(above_zero.values()) > 40


def test_code_similarity_is_fuzzywuzzys_ratio() -> None:
    # Which here is the pure one: python-Levenshtein, which gives other numbers, is not installed.
    assert fuzz.SequenceMatcher.__module__ == "difflib"
    rng, parts = random.Random(0), []
    for _ in range(2000):
        pair = ["".join(c for c in text if c not in "\n#/`") for text in texts(rng)]
        pair[0] = pair[0].removeprefix("\n")
        parts.append(pair)
    # Above 200 characters difflib takes what is frequent for junk.
    parts += [[text * 40 for text in pair] for pair in parts[:50]]
    values = [scores.code_similarity(*pair) for pair in parts]
    assert values == [fuzz.ratio(*pair) / 100 for pair in parts]
    assert len(set(values)) > 80
    for pair in (["", ""], ["", "x"], ["x", ""]):
        assert scores.code_similarity(*pair) == fuzz.ratio(*pair) / 100


def test_no_metric_imports_what_is_under_the_gpl() -> None:
    code = (
        "import sys; sys.modules['fuzzywuzzy'] = None;"
        "from page_bench.tasks.longbench_scores import METRICS;"
        "print([m('段落5 Paragraph 5', '段落5 Paragraph 5', ()) for m in METRICS.values()])"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.count(",") == 8
    assert done.stderr == ""


def test_code_similarity_keeps_to_longbench_where_lm_eval_skips_a_blank_line() -> None:
    assert scores.code_similarity(" \nx = 1", "x = 1") == 0.33
    assert lm_eval_metrics.code_sim_score(" \nx = 1", "x = 1") == 1.0


def test_long_texts_without_full_stops_keep_their_rouge() -> None:
    words = [f"w{i}" for i in range(600)]
    others = [word if i % 3 == 0 else f"v{i}" for i, word in enumerate(words)]
    limit = sys.getrecursionlimit()
    value = scores.rouge_l(" ".join(words), " ".join(others))
    assert value == pytest.approx(rouge(200, 600, 600), abs=1e-12)
    assert sys.getrecursionlimit() == limit
    assert lm_eval_metrics.rouge_score(" ".join(words), " ".join(others)) == 0.0


def test_long_chinese_texts_keep_their_rouge() -> None:
    # Ten distinct words each, of which 会议 讨论 了 预算 。 stand in both.
    answer = "会议讨论了预算。大家同意增加教育投入。" * 60
    reference = "会议讨论了预算。经理反对减少医疗支出。" * 60
    value = scores.rouge_l_zh(answer, reference)
    assert value == pytest.approx(rouge(5, 10, 10), abs=1e-12)
    assert lm_eval_metrics.rouge_zh_score(answer, reference) == 0.0


@pytest.mark.parametrize(
    ("answer", "references", "expected"),
    [
        ("It is PARIS.", ["Paris"], 1.0),
        ("It is Paris.", ["Rome", "paris"], 1.0),
        ("It is Paris.", ["Rome"], 0.0),
        ("anything", ["", "  "], 0.0),
        ("anything", [], 0.0),
        ("", ["Paris"], 0.0),
        ("答案：厦门大学。", ["厦门大学"], 1.0),
        ("Parisian", ["Paris"], 1.0),
        ("Par is", ["Paris"], 0.0),
        ("line\nParis", ["Paris"], 1.0),
    ],
)
def test_correct_is_any_reference_that_is_not_blank(
    answer: str, references: list[str], expected: float
) -> None:
    assert scores.contains_any(answer, references) == expected


def doc(subset: str, protocol: str = "longbench", **fields: Any) -> dict[str, Any]:
    return {"subset": subset, "protocol": protocol, "all_classes": [], **fields}


def test_some_subsets_are_scored_by_the_first_line() -> None:
    told = doc("triviaqa", answers=["Rome", "Paris"])
    result = scores.score(told, ["\nParis\nPassage: more"])
    assert (result["score"], result["correct"]) == (1.0, 1.0)
    result = scores.score(told, ["Oslo\nParis"])
    assert (result["score"], result["correct"]) == (0.0, 0.0)
    told = doc("hotpotqa", answers=["Paris"])
    result = scores.score(told, ["Oslo\nParis"])
    assert (result["score"], result["correct"]) == (f1(1, 2, 1), 1.0)


def test_under_the_papers_protocol_correct_looks_at_the_whole_answer() -> None:
    result = scores.score(doc("triviaqa", "page", answers=["Paris"]), ["Oslo\nParis"])
    assert (result["score"], result["correct"]) == (0.0, 1.0)


def test_kvpress_takes_white_space_off_the_front() -> None:
    answer = " \n  x = 1"
    assert scores.score(doc("lcc", "kvpress", answers=["x = 1"]), [answer])["score"] == 1.0
    assert scores.score(doc("lcc", answers=["x = 1"]), [answer])["score"] == 0.33


def test_a_subset_of_longbench_e_has_the_metric_of_its_base() -> None:
    told = doc("trec_e", answers=["City"])
    assert scores.score({**told, "all_classes": CLASSES}, ["City or Date\n"])["score"] == 0.5


def test_the_five_numbers_are_those_of_every_page_task() -> None:
    result = scores.score(doc("qasper", answers=["Paris"]), [Answer("Paris", None)])
    assert set(result) >= {"score", "correct", "kept_kv", "gate_open", "head_drop"}
