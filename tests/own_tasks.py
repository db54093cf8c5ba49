"""Tasks as a user's YAML files define them, of every kind that lm-eval scores in its own way."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from page_bench.harness.hooks import TASKS_FOLDER

WORDS = ("amber", "birch", "cedar", "delta", "ember", "frost", "grove", "haven", "inlet", "jolly")
N_DOCS = 6
CHOICES = ("e", "t", "o", "q")

_GENERATE = """\
output_type: generate_until
generation_kwargs: {{until: [], max_gen_toks: 6, do_sample: false}}
"""
_FIRST_LETTER = "{function: regex, regex_pattern: '(?s)(.)', group_select: 0}"
_TASKS = {
    # A page task, with its own scorer.
    "own_page": """\
include: {folder}/page_quickstart/_base.yaml
""",
    # The same with its answers changed before they are scored, in two ways side by side.
    "own_filtered": """\
include: {folder}/page_quickstart/_base.yaml
filter_list:
  - name: strip
    filter: [{{function: remove_whitespace}}, {{function: take_first}}]
  - name: shout
    filter: [{{function: uppercase}}, {{function: take_first}}]
""",
    "own_exact": _GENERATE
    + """\
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{letter}}}}"
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
filter_list:
  - name: letter
    filter: [{letter}, {{function: take_first}}]
""",
    "own_choice": """\
output_type: multiple_choice
doc_to_text: "{{{{prompt}}}}"
doc_to_choice: {choices}
doc_to_target: "{{{{number}}}}"
metric_list: [{{metric: acc_norm}}, {{metric: acc}}]
""",
    # One answer of each document counts: the one that most of its three agree on.
    "own_vote": _GENERATE
    + """\
repeats: 3
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{letter}}}}"
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
filter_list:
  - name: vote
    filter: [{letter}, {{function: majority_vote}}, {{function: take_first}}]
""",
    # Not 0 or 1: a share of the reference's characters.
    "own_graded": _GENERATE
    + """\
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{letter}}}}"
process_results: !function own_scorer.graded
metric_list: [{{metric: share, aggregation: mean, higher_is_better: true}}]
""",
    # A number of the whole data set alone.
    "own_unscored": _GENERATE
    + """\
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{letter}}}}"
process_results: !function own_scorer.pair
metric_list: [{{metric: both, aggregation: !function own_scorer.count}}]
""",
}
_SCORER = """\
def graded(doc, results):
    return {"share": len(set(results[0]) & set(doc["whole"])) / len(set(doc["whole"]))}


def pair(doc, results):
    return {"both": (doc["letter"], results[0])}


def count(pairs):
    return len(pairs)
"""
NAMES = tuple(_TASKS)


@dataclass(frozen=True)
class Wanted:
    """What one document's references are.

    Attributes:
        answers: of the page tasks.
        letter: of `exact_match`.
        whole: of the graded task.
        number: of the right choice.
    """

    answers: list[str]
    letter: str
    whole: str
    number: int


def write_tasks(folder: Path, wanted: Sequence[Wanted], words: int = 12) -> Path:
    """The YAML files and their documents; returns the folder.

    Args:
        folder: is made.
        wanted: document by document.
        words: of each prompt, several tokens each.
    """
    folder.mkdir(parents=True, exist_ok=True)
    docs = folder / "docs.jsonl"
    with docs.open("w", encoding="utf-8") as file:
        for i, refs in enumerate(wanted):
            text = " ".join(WORDS[(i * 5 + j * (i + 1)) % len(WORDS)] for j in range(words))
            shared = {"prompt": f"{text} ", "answer_prefix": "Answer:", "match": "all"}
            file.write(json.dumps(shared | asdict(refs)) + "\n")
    (folder / "own_scorer.py").write_text(_SCORER, encoding="utf-8")
    for name, text in _TASKS.items():
        filled = text.format(folder=TASKS_FOLDER, letter=_FIRST_LETTER, choices=list(CHOICES))
        head = f"task: {name}\ntest_split: test\nnum_fewshot: 0\n"
        data = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {docs}}}}}\n"
        (folder / f"{name}.yaml").write_text(filled + head + data, encoding="utf-8")
    return folder
