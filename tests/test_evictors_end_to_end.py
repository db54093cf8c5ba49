"""Every evictor at every granularity through lm-eval, and what cannot be put together."""

from __future__ import annotations

from typing import Any

import lm_eval
import pytest
from evictor_arms import CHECKPOINT_EVICTORS, arms
from lm_eval.tasks import TaskManager
from tiny_models import save_tiny

from page_bench.config import PageConfig
from page_bench.evictors import evictor_class, own_names
from page_bench.evictors.base import GRANULARITIES, Granularity
from page_bench.harness import plugin
from page_bench.harness.hooks import TASKS_FOLDER
from page_bench.inputs.errors import UsageError

BUDGET = 0.25
SHAPE = {"layers": 4, "kv_heads": 2, "dim": 16, "size": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("llama"), "llama"))


@pytest.fixture(scope="module")
def manager(folder: str) -> TaskManager:
    plugin.install()
    return TaskManager(
        include_path=str(TASKS_FOLDER), include_defaults=False, metadata={"pretrained": folder}
    )


@pytest.mark.parametrize(("evictor", "granularity"), arms())
def test_every_evictor_runs_and_keeps_its_budget(
    evictor: str,
    granularity: Granularity,
    folder: str,
    manager: TaskManager,
    checkpoints: dict[str, str],
) -> None:
    extra = {"evictor.checkpoint": checkpoints[evictor]} if evictor in CHECKPOINT_EVICTORS else {}
    results: dict[str, Any] = lm_eval.simple_evaluate(
        model="page_hf",
        model_args={
            "pretrained": folder,
            "dtype": "float32",
            "evictor": evictor,
            "granularity": granularity,
            "budget": BUDGET,
            "gate": "open",
            **extra,
        },
        tasks=["page_quickstart_needle_number"],
        task_manager=manager,
        device="cpu",
        limit=2,
        bootstrap_iters=0,
    )
    page = results["config"]["page"]
    assert (page["evictor"], page["granularity"]) == (evictor, granularity)
    rows = results["samples"]["page_quickstart_needle_number"]
    for row in rows:
        trace = row["resps"][0][0].trace
        kept = trace.prompt_tokens if evictor == "none" else int(BUDGET * trace.prompt_tokens)
        per_entry = 2 * SHAPE["dim"] * SHAPE["size"]
        entries = SHAPE["layers"] * SHAPE["kv_heads"] * kept
        assert trace.kept_kv == kept / trace.prompt_tokens
        assert trace.kv_bytes_kept == entries * per_entry
        # Room for the answer, and nothing padded to the longest head.
        room = SHAPE["layers"] * SHAPE["kv_heads"] * row["doc"].get("max_new_tokens", 64)
        assert trace.kv_bytes_allocated <= (entries + 2 * room) * per_entry


@pytest.mark.parametrize("name", own_names())
def test_a_granularity_without_meaning_is_refused_with_advice(name: str) -> None:
    cls = evictor_class(name)
    for granularity in set(GRANULARITIES) - set(cls.granularities):
        title = f"{name}(streamingllm)" if "base" in cls.__dataclass_fields__ else name
        arguments: dict[str, Any] = {"evictor": title, "granularity": granularity}
        if name in CHECKPOINT_EVICTORS:
            arguments["evictor.checkpoint"] = "somewhere"
        with pytest.raises(UsageError, match=f"no meaning in granularity={granularity}: .*\\.$"):
            PageConfig.from_arguments(arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"evictor": "adakv"}, r"name it in parentheses, as in adakv\(snapkv\)"),
        ({"evictor": "snapkv(h2o)"}, r"wraps no other evictor; leave \(h2o\) out"),
        ({"evictor": "adakv(snapkw)", "granularity": "head"}, "did you mean snapkv"),
        ({"evictor": "snapkv", "evictor.base.window": 3}, "wraps none; leave base. out"),
        (
            {"evictor": "adakv(snapkv)", "granularity": "head", "evictor.base.windw": 3},
            r"evictor\.base\.windw is not an option of snapkv \(did you mean window",
        ),
        ({"evictor": "snapkv", "evictor.variant": "mine"}, "give paper or published"),
        ({"evictor": "snapkv", "evictor.pooling": "median"}, "give avg or max"),
        ({"evictor": "nowhere.py:Mine"}, "there is no file nowhere.py"),
        (
            {"evictor": "criticalkv(criticalkv(snapkv))", "granularity": "head"},
            "has criticalkv inside itself, where only one of the two would act",
        ),
        (
            {"evictor": "adakv(criticalkv(adakv(snapkv)))", "granularity": "head"},
            "has adakv inside itself",
        ),
        ({"granularity": "token"}, "allowed are shared, layer, head"),
        ({"score_norm": "softmax"}, "allowed are none, sum, zscore, rank"),
    ],
)
def test_what_cannot_be_put_together_is_said_before_anything_is_loaded(
    arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        PageConfig.from_arguments(arguments)


def test_wrappers_are_named_with_what_they_wrap_and_its_options() -> None:
    config = PageConfig.from_arguments(
        {
            "evictor": "criticalkv(adakv(expected_attention))",
            "granularity": "head",
            "evictor.base.floor_alpha": 0.3,
            "evictor.base.base.epsilon": 0.01,
        }
    )
    evictor = config.make_evictor()
    assert evictor.title == "criticalkv(adakv(expected_attention))"
    assert evictor.base.floor_alpha == 0.3  # type: ignore[attr-defined]
    assert evictor.base.base.epsilon == 0.01  # type: ignore[attr-defined]
    assert {"queries_before_rotation", "output_projection"} <= evictor.all_needs


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_the_form_of_a_method_follows_the_granularity_unless_it_is_named(
    granularity: Granularity,
) -> None:
    form = "paper" if granularity == "shared" else "published"
    arguments: dict[str, Any] = {"evictor": "snapkv", "granularity": granularity}
    assert PageConfig.from_arguments(arguments).make_evictor().variant == form  # type: ignore[attr-defined]
    for named in ("paper", "published"):
        config = PageConfig.from_arguments({**arguments, "evictor.variant": named})
        assert config.make_evictor().variant == named  # type: ignore[attr-defined]
