"""One row, three protocols, to the character; with a chat template and without."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import pytest
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from tiny_models import save_tiny, tiny_tokenizer
from transformers import AutoTokenizer

from page_bench.harness.hooks import TASKS_FOLDER
from page_bench.inputs.errors import UsageError
from page_bench.tasks import protocols
from page_bench.tasks.metadata import protocol_in
from page_bench.tasks.prompt_task import PromptTask
from page_bench.tasks.turns import FOLDED

# Shaped as in the data set: the space before the answer prefix ends the question.
NEEDLE = {
    "context": "Remember the numbers.\nOne magic number for tin is: 7.\n",
    "question": "What is the magic number for tin? ",
    "answer_prefix": "The magic number for tin is",
}
CHAIN = {
    "context": "Track the variables.\n\nVAR A = 1\n",
    "question": "Question: Find all variables of value 1. ",
    "answer_prefix": "Answer: they are: ",
}
WHOLE = {"context": "All of it. The answer is", "question": "", "answer_prefix": ""}

GOLDEN = {
    ("ruler", "needle"): (
        "",
        "Remember the numbers.\nOne magic number for tin is: 7.\nWhat is the magic number for tin?",
        " The magic number for tin is",
    ),
    ("kvpress", "needle"): (
        "",
        "Remember the numbers.\nOne magic number for tin is: 7.\n"
        "What is the magic number for tin? ",
        "The magic number for tin is",
    ),
    ("page", "needle"): (
        "Answer the question concisely.",
        "Remember the numbers.\nOne magic number for tin is: 7.\n\n\n"
        "What is the magic number for tin? \nThe magic number for tin is",
        "",
    ),
    ("ruler", "chain"): (
        "",
        "Track the variables.\n\nVAR A = 1\nQuestion: Find all variables of value 1.",
        " Answer: they are: ",
    ),
    ("kvpress", "chain"): (
        "",
        "Track the variables.\n\nVAR A = 1\nQuestion: Find all variables of value 1. ",
        "Answer: they are: ",
    ),
    ("page", "chain"): (
        "Answer the question concisely.",
        "Track the variables.\n\nVAR A = 1\n\n\nQuestion: Find all variables of value 1. \n"
        "Answer: they are: ",
        "",
    ),
    ("ruler", "whole"): ("", "All of it. The answer is", ""),
    ("kvpress", "whole"): ("", "All of it. The answer is", ""),
    ("page", "whole"): ("Answer the question concisely.", "All of it. The answer is\n\n", ""),
}
ROWS = {"needle": NEEDLE, "chain": CHAIN, "whole": WHOLE}

CHAT = {
    "ruler": "<user>Remember the numbers.\nOne magic number for tin is: 7.\n"
    "What is the magic number for tin?</user><model> The magic number for tin is",
    "kvpress": "<user>Remember the numbers.\nOne magic number for tin is: 7.\n"
    "What is the magic number for tin? </user><model>The magic number for tin is",
    "page": "<system>Answer the question concisely.</system>"
    "<user>Remember the numbers.\nOne magic number for tin is: 7.\n\n\n"
    "What is the magic number for tin? \nThe magic number for tin is</user><model>",
}
PLAIN = {
    "ruler": "Remember the numbers.\nOne magic number for tin is: 7.\n"
    "What is the magic number for tin? The magic number for tin is",
    "kvpress": "Remember the numbers.\nOne magic number for tin is: 7.\n"
    "What is the magic number for tin? \nThe magic number for tin is",
    "page": "Answer the question concisely.\n\n"
    "Remember the numbers.\nOne magic number for tin is: 7.\n\n\n"
    "What is the magic number for tin? \nThe magic number for tin is",
}


@pytest.mark.parametrize(("protocol", "row"), GOLDEN)
def test_golden_turns(protocol: str, row: str) -> None:
    rendered = protocols.render(ROWS[row], protocol)
    assert (rendered.system, rendered.prompt, rendered.answer_prefix) == GOLDEN[protocol, row]
    assert rendered.prompt.startswith(ROWS[row]["context"])


@pytest.mark.parametrize("protocol", protocols.PROTOCOLS)
@pytest.mark.parametrize("row", ROWS)
def test_the_side_on_which_a_source_keeps_the_space_does_not_matter(
    protocol: str, row: str
) -> None:
    question = ROWS[row]["question"]
    asked = question.rstrip(" ")
    moved = {**ROWS[row], "question": asked}
    moved["answer_prefix"] = question[len(asked) :] + moved["answer_prefix"]
    assert protocols.render(moved, protocol) == protocols.render(ROWS[row], protocol)


def test_protocols_differ_by_single_characters() -> None:
    ruler, page, kvpress = (protocols.render(NEEDLE, p) for p in ("ruler", "page", "kvpress"))
    assert kvpress.prompt == ruler.prompt + " "
    assert ruler.answer_prefix == " " + kvpress.answer_prefix
    assert page.prompt == f"{NEEDLE['context']}\n\n{NEEDLE['question']}\n{NEEDLE['answer_prefix']}"


def doc(protocol: str, row: dict[str, str] = NEEDLE) -> dict[str, Any]:
    rendered = protocols.render(row, protocol)
    return {"protocol": protocol, "answers": ["7"], "max_new_tokens": 30, **vars(rendered)}


@pytest.mark.parametrize("protocol", protocols.PROTOCOLS)
def test_golden_text_without_a_chat_template(protocol: str) -> None:
    assert protocols.plain_text(doc(protocol)) == PLAIN[protocol]


def chat(messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
    """A chat template as lm-eval's models apply theirs."""
    template = (
        "{% for m in messages %}"
        "{% if m.role == 'assistant' %}<model>{{ m.content }}"
        "{% else %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endif %}{% endfor %}"
        "{% if opening %}<model>{% endif %}"
    )
    return jinja2.Template(template, keep_trailing_newline=True).render(
        messages=messages, opening=add_generation_prompt
    )


@pytest.fixture
def task() -> Callable[[str], PromptTask]:
    def build(protocol: str) -> PromptTask:
        import datasets

        return PromptTask(
            {
                "class": PromptTask,
                "task": "one_row",
                "output_type": "generate_until",
                "test_split": "test",
                "custom_dataset": lambda **_: {"test": datasets.Dataset.from_list([doc(protocol)])},
                "description": "{{system}}",
                "doc_to_text": "{{prompt}}",
                "gen_prefix": "{{answer_prefix}}",
                "doc_to_target": "{{answers[0]}}",
                "process_results": len,
                "num_fewshot": 0,
                "generation_kwargs": {"until": []},
                "metric_list": [
                    {"metric": "score", "aggregation": "mean", "higher_is_better": True}
                ],
            }
        )

    return build


@pytest.mark.parametrize("protocol", protocols.PROTOCOLS)
@pytest.mark.parametrize("multiturn", [True, False])
def test_golden_prompts_through_lm_eval(
    task: Callable[[str], PromptTask], protocol: str, multiturn: bool
) -> None:
    built = task(protocol)

    def prompt(**options: Any) -> str:
        built.build_all_requests(**options)
        return str(built.instances[0].args[0])

    assert prompt() == PLAIN[protocol]
    with_chat = {
        "apply_chat_template": True,
        "chat_template": chat,
        "fewshot_as_multiturn": multiturn,
    }
    assert prompt(**with_chat) == CHAT[protocol]
    assert prompt(system_instruction="Be kind.") == f"Be kind.\n\n{PLAIN[protocol]}"
    assert "<system>Be kind." in prompt(system_instruction="Be kind.", **with_chat)


DROPPING = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content | trim }} [/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content }}{% endif %}{% endfor %}"
)
REFUSING = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    + DROPPING
)


def as_lm_eval_applies_it(template: str) -> Callable[..., str]:
    """lm-eval's own method, which renders without the system role where that is refused."""
    tokenizer = tiny_tokenizer(False)
    tokenizer.chat_template = template
    lm = SimpleNamespace(tokenizer=tokenizer, chat_template_args={})
    return partial(HFLM.apply_chat_template, lm)


@pytest.mark.parametrize("template", [DROPPING, REFUSING])
@pytest.mark.parametrize("multiturn", [True, False])
def test_a_template_without_system_role_loses_no_words(
    task: Callable[[str], PromptTask],
    template: str,
    multiturn: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    built, ruler = task("page"), task("ruler")
    options: dict[str, Any] = {
        "apply_chat_template": True,
        "chat_template": as_lm_eval_applies_it(template),
        "fewshot_as_multiturn": multiturn,
    }
    # Counted by hand: system message, blank line, the user's turn of `page`, trimmed.
    asked = (
        "Remember the numbers.\nOne magic number for tin is: 7.\n\n\n"
        "What is the magic number for tin? \nThe magic number for tin is"
    )
    for _ in range(2):
        built.build_all_requests(**options)
        (request,) = built.instances
        assert request.args[0] == f"[INST] Answer the question concisely.\n\n{asked} [/INST]"
        assert request.doc[FOLDED] is True
    assert built.dump_config()["metadata"][FOLDED] is True
    assert [r.message for r in caplog.records if r.name.startswith("page_bench")] == [
        "The chat template shows no system message, so that of one_row is put at the beginning of "
        "the user's turn."
    ]
    built.build_all_requests(**options, system_instruction="Be kind.")
    assert (
        built.instances[0]
        .args[0]
        .startswith("[INST] Be kind.\n\nAnswer the question concisely.\n\nRemember")
    )
    ruler.build_all_requests(**options)
    assert ruler.instances[0].doc[FOLDED] is False
    assert FOLDED not in (ruler.dump_config().get("metadata") or {})
    ruler.build_all_requests(**options, system_instruction="Be kind.")
    assert ruler.instances[0].args[0].startswith("[INST] Be kind.\n\nRemember")


@pytest.mark.parametrize(
    ("template", "protocol", "reason"),
    [
        (DROPPING.replace("m.content | trim", "m.content[:40]"), "page", "leaves out the user t"),
        (DROPPING.replace("assistant", "nobody"), "ruler", "refuses a part .continue_final_m"),
        (REFUSING.replace("messages[0].role == 'system'", "true"), "ruler", "refuses a part .no "),
    ],
)
def test_a_template_that_loses_other_words_is_refused(
    task: Callable[[str], PromptTask], template: str, protocol: str, reason: str
) -> None:
    with pytest.raises(UsageError, match=f"^the chat template {reason}"):
        task(protocol).build_all_requests(
            apply_chat_template=True, chat_template=as_lm_eval_applies_it(template)
        )


def test_a_users_system_instruction_reaches_both_models(tmp_path: Path) -> None:
    folder = str(save_tiny(tmp_path, "qwen3"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = REFUSING
    tokenizer.save_pretrained(folder)
    task = "page_quickstart_needle_word"
    metadata = {"pretrained": folder, "prompt_tokens": 400}
    manager = TaskManager(include_path=str(TASKS_FOLDER), include_defaults=False, metadata=metadata)
    prompts = []
    for model in ("hf", "page_hf"):
        results: Any = simple_evaluate(
            model=model,
            model_args={"pretrained": folder, **({"gate": "closed"} if model != "hf" else {})},
            tasks=[task],
            task_manager=manager,
            limit=1,
            device="cpu",
            apply_chat_template=True,
            system_instruction="Be kind.",
            bootstrap_iters=0,
        )
        assert results["configs"][task]["metadata"][FOLDED] is True
        (sample,) = results["samples"][task]
        prompts.append(sample["arguments"][0][0])
        answer = sample["resps"][0][0]
    assert prompts[0] == prompts[1]
    assert prompts[0].startswith("[INST] Be kind.\n\n")
    assert answer.trace.system_in_user_turn is True


def test_the_protocol_is_read_from_the_metadata() -> None:
    assert protocol_in({}, protocols.PROTOCOLS, "RULER") == "ruler"
    page = {"protocol": "page", "tau": "zscore"}
    assert protocol_in(page, protocols.PROTOCOLS, "RULER") == "page"


@pytest.mark.parametrize(("wrong", "near"), [("pages", "page"), ("KVpress", "kvpress"), (3, "")])
def test_an_unknown_protocol_is_refused_with_the_nearest(wrong: object, near: str) -> None:
    with pytest.raises(UsageError, match="ruler, page, kvpress") as refused:
        protocol_in({"protocol": wrong}, protocols.PROTOCOLS, "RULER")
    assert f'"protocol": "{near}' in str(refused.value)
    with pytest.raises(ValueError, match="protocol is one of"):
        protocols.render(NEEDLE, str(wrong))


def test_answers_under_page_are_as_long_as_the_papers() -> None:
    assert [protocols.answer_tokens("page", n) for n in (30, 128, 512)] == [128, 128, 512]
    assert protocols.answer_tokens("ruler", 30) == 30


def test_examples_are_refused(task: Callable[[str], PromptTask]) -> None:
    built = task("ruler")
    assert built.config.generation_kwargs["max_gen_toks"] == 30
    with pytest.raises(UsageError, match="one_row has no examples to show"):
        built.fewshot_context(doc("ruler"), num_fewshot=2)
