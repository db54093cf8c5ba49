"""Evictors from elsewhere: an installed package's, and a class in a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import random_prompt, tiny_model

from page_bench.commands import cli
from page_bench.config import PageConfig
from page_bench.evictors import evictor_class, evictor_names, make_evictor
from page_bench.evictors.base import Granularity, Wrapper
from page_bench.inputs.errors import UsageError
from page_bench.model.attention import observing
from page_bench.model.keep_plan import positions_to_keep
from page_bench.model.prefill import prefill
from page_bench.model.scoring import Scorer

HEAD = """\
from dataclasses import dataclass
from typing import ClassVar

import torch

from page_bench.evictors.base import Evictor, Wrapper


"""

EVERY_NTH = (
    HEAD
    + '''\
@dataclass(frozen=True)
class EveryNth(Evictor):
    """Keeps every n-th position, then the others from the start."""

    name: ClassVar[str] = "every_nth"

    step: int = 3

    def score(self, layer, n_keep=None):
        position = torch.arange(layer.prompt_tokens, device=layer.keys.device)
        score = (position % self.step == 0).float() - position / (2 * layer.prompt_tokens)
        return score.expand(layer.n_kv_heads, -1)


@dataclass(frozen=True)
class Inverse(Wrapper):
    """Keeps what another evictor would drop."""

    name: ClassVar[str] = "inverse"
    nests: ClassVar[bool] = True

    def score(self, layer, n_keep=None):
        return -self.base.score(layer, n_keep)
'''
)

LENGTH, WINDOW, N_SINK, N_KEEP = 60, 8, 4, 24

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package of one module: its files and metadata in a folder of `sys.path`."""
    modules: list[str] = []

    def put(package: str, code: str, **points: str) -> None:
        site = tmp_path / f"site_{package}"
        info = site / f"{package}-1.0.dist-info"
        info.mkdir(parents=True)
        (site / f"{package}.py").write_text(code)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"{name} = {target}" for name, target in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[page_bench.evictors]", *lines, ""]))
        monkeypatch.syspath_prepend(str(site))
        modules.append(package)

    yield put
    for module in modules:
        sys.modules.pop(module, None)


@pytest.fixture
def in_file(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a file with this code and gives its path."""

    def write(code: str) -> Path:
        path = tmp_path / "mine.py"
        path.write_text(code)
        return path

    return write


def kept(title: str, granularity: Granularity = "shared", **options: Any) -> list[set[int]]:
    """Kept positions of each keep set, on a tiny model, as a run would choose them."""
    arguments = {f"evictor.{option}": value for option, value in options.items()}
    config = PageConfig.from_arguments(
        {
            "evictor": title,
            "granularity": granularity,
            "budget": N_KEEP / LENGTH,
            "window": WINDOW,
            **arguments,
        }
    )
    model, evictor = tiny_model("llama"), config.make_evictor()
    with observing(model):
        ids = random_prompt(LENGTH)
        filled = prefill(model, ids, window=WINDOW, room=1, scorers=[Scorer(evictor, N_KEEP)])
    plan = positions_to_keep(evictor, filled, config)
    assert not isinstance(plan, str)
    return [set(row.nonzero().flatten().tolist()) for row in plan.members.flatten(0, 1)]


def every(step: int) -> set[int]:
    """What `EveryNth` keeps besides the protected positions."""
    middle = range(N_SINK, LENGTH - WINDOW)
    best = sorted(middle, key=lambda i: (i % step != 0, i))[: N_KEEP - N_SINK - WINDOW]
    return {*range(N_SINK), *best, *range(LENGTH - WINDOW, LENGTH)}


# What works.


def test_an_installed_evictor_is_one_like_ours(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("nth_kv", EVERY_NTH, every_nth="nth_kv:EveryNth", inverse="nth_kv:Inverse")
    assert {"every_nth", "inverse", "snapkv"} <= set(evictor_names())
    assert kept("every_nth") == [every(3)]
    assert kept("every_nth", step=4) == [every(4)]
    assert cli.main(["evictors"]) == 0
    shown = capsys.readouterr().out
    assert "every_nth             Keeps every n-th position, then the others" in shown
    assert "inverse(OTHER) " in shown
    assert "step: int = 3" in shown


def test_an_installed_evictor_stands_inside_ours_and_around_ours(install: Install) -> None:
    install("nth_kv", EVERY_NTH, every_nth="nth_kv:EveryNth", inverse="nth_kv:Inverse")
    # Four layers of two KV heads, all with the same scores.
    assert kept("adakv(every_nth)", "head", **{"base.step": 4}) == [every(4)] * 8
    snapkv, dropped = kept("snapkv"), kept("inverse(snapkv)")
    protected = {*range(N_SINK), *range(LENGTH - WINDOW, LENGTH)}
    assert snapkv[0] & dropped[0] == protected
    evictor = make_evictor("inverse(inverse(snapkv))", {"base.base.kernel_size": 3}, "head")
    assert evictor.title == "inverse(inverse(snapkv))"


def test_a_class_in_a_file_is_an_evictor(
    in_file: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = in_file(EVERY_NTH)
    assert kept(f"{path}:EveryNth", step=5) == [every(5)]
    # Relative paths and more than one class of a file are fine.
    monkeypatch.chdir(path.parent)
    assert kept("mine.py:EveryNth", "layer") == [every(3)] * 4
    assert issubclass(evictor_class("mine.py:Inverse"), Wrapper)


def test_a_class_in_a_file_stands_inside_wrappers_and_wraps(
    in_file: Callable[[str], Path],
) -> None:
    path = in_file(EVERY_NTH)
    assert kept(f"adakv({path}:EveryNth)", "head", **{"base.step": 2}) == [every(2)] * 8
    twice = f"{path}:Inverse({path}:Inverse({path}:EveryNth))"
    assert kept(twice, "shared", **{"base.base.step": 2}) == [every(2)]


def test_two_files_of_the_same_name_do_not_mix(tmp_path: Path) -> None:
    for step in (2, 5):
        (tmp_path / str(step)).mkdir()
        (tmp_path / str(step) / "mine.py").write_text(
            EVERY_NTH.replace("step: int = 3", f"step: int = {step}")
        )
    assert [kept(f"{tmp_path / str(step)}/mine.py:EveryNth") for step in (2, 5)] == [
        [every(2)],
        [every(5)],
    ]


# What does not, and what is said.


def refused(title: str, **options: object) -> str:
    with pytest.raises(UsageError) as error:
        make_evictor(title, options, "shared")
    said = str(error.value)
    assert "\n" not in said
    return said


BODY = """
    name: ClassVar[str] = "mine"

    def score(self, layer, n_keep=None):
        return layer.keys[..., 0].float()
"""


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def Mine():\n    pass\n", "is not an evictor; make it a subclass of"),
        ("class Mine:\n    pass\n", "is not an evictor; make it a subclass of"),
        (
            "@dataclass(frozen=True)\nclass Mine(Evictor):\n    name: ClassVar[str] = 'mine'\n",
            "is not an evictor; make it a subclass of page_bench.evictors.base.Evictor that "
            "defines score",
        ),
        (f"class Mine(Evictor):{BODY}", "needs the decorator @dataclass(frozen=True)"),
        (
            "@dataclass(frozen=True)\nclass Mine(Evictor):"
            + BODY.replace('    name: ClassVar[str] = "mine"\n', ""),
            "has no name; give it name: ClassVar[str]",
        ),
        (f"@dataclass\nclass Mine(Evictor):{BODY}", "could not be imported: cannot inherit non-"),
        ("import no_such_package_at_all\n", "could not be imported: No module named"),
        ("class Mine(:\n", "could not be imported: invalid syntax"),
        ("class Other:\n    pass\n", "has no class Mine"),
    ],
)
def test_a_file_that_holds_no_usable_evictor_is_named(
    code: str, said: str, in_file: Callable[[str], Path]
) -> None:
    path = in_file(HEAD + code)
    sentence = refused(f"{path}:Mine")
    assert said in sentence
    assert str(path) in sentence
    # A file that failed leaves nothing behind: mended, it is found.
    path.write_text(f"{HEAD}@dataclass(frozen=True)\nclass Mine(Evictor):{BODY}")
    if "could not be imported" in said:
        assert evictor_class(f"{path}:Mine").name == "mine"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def Mine():\n    pass\n", "is not an evictor; make it a subclass of"),
        (f"class Mine(Evictor):{BODY}", "needs the decorator @dataclass(frozen=True)"),
        ("import no_such_package_at_all\n", "could not be imported: No module named"),
        ("class Other:\n    pass\n", "could not be imported: module 'broken_kv' has no attribute"),
        (
            f"@dataclass(frozen=True)\nclass Mine(Evictor):{BODY.replace('mine', 'yours')}",
            "calls itself 'yours'; give its class name: ClassVar[str] = 'mine'",
        ),
    ],
)
def test_an_installed_evictor_that_cannot_be_used_is_named_and_hides_no_other(
    code: str, said: str, install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("broken_kv", HEAD + code, mine="broken_kv:Mine")
    sentence = refused("mine")
    assert said in sentence
    assert "broken_kv:Mine" in sentence
    assert cli.main(["evictors"]) == 1
    shown = capsys.readouterr()
    assert "\nsnapkv " in shown.out
    assert shown.err == f"page-bench: {sentence}\n"


def test_one_name_from_two_packages_is_refused(install: Install) -> None:
    install("first_kv", EVERY_NTH, every_nth="first_kv:EveryNth")
    install("second_kv", EVERY_NTH, every_nth="second_kv:EveryNth")
    sentence = refused("every_nth")
    assert "is given by 2 installed packages" in sentence
    assert "first_kv:EveryNth" in sentence
    assert "second_kv:EveryNth" in sentence


def test_a_missing_file_and_an_unknown_name_say_what_there_is(
    tmp_path: Path, install: Install
) -> None:
    assert f"there is no file {tmp_path}/none.py" in refused(f"{tmp_path}/none.py:Mine")
    install("nth_kv", EVERY_NTH, every_nth="nth_kv:EveryNth")
    sentence = refused("every_nht")
    assert "did you mean every_nth?" in sentence
    assert "or path/to/file.py:ClassName" in sentence


def test_wrapping_where_there_is_nothing_to_wrap_is_refused(
    in_file: Callable[[str], Path],
) -> None:
    path = in_file(EVERY_NTH)
    assert "name it in parentheses, as in inverse(snapkv)" in refused(f"{path}:Inverse")
    assert "wraps no other evictor; leave (snapkv) out" in refused(f"{path}:EveryNth(snapkv)")
    assert "wraps none; leave base. out" in refused(f"{path}:EveryNth", **{"base.step": 2})


def test_options_of_others_are_checked_like_ours(in_file: Callable[[str], Path]) -> None:
    path = in_file(EVERY_NTH)
    said = refused(f"{path}:EveryNth", stepp=2)
    assert "evictor.stepp is not an option of every_nth (did you mean step?)" in said
    assert "evictor.step" in said
    said = refused(f"{path}:Inverse({path}:EveryNth)", **{"base.step": "two"})
    assert "evictor.base.step='two' is not a value" in said
    assert "every_nth" in said
    said = refused(f"{path}:Inverse({path}:EveryNth)", step=2)
    assert "evictor.step is not an option of inverse" in said


def test_scores_of_the_wrong_shape_are_refused(in_file: Callable[[str], Path]) -> None:
    one_row = BODY.replace("layer.keys[..., 0].float()", "layer.keys[0, :, 0].float()")
    path = in_file(f"{HEAD}@dataclass(frozen=True)\nclass Mine(Evictor):{one_row}")
    with pytest.raises(UsageError, match=r"evictor mine scored with .* it must give"):
        kept(f"{path}:Mine")


def test_a_need_that_was_not_declared_is_named(in_file: Callable[[str], Path]) -> None:
    undeclared = BODY.replace("layer.keys[..., 0].float()", "layer.keys_before_rotation[..., 0]")
    path = in_file(f"{HEAD}@dataclass(frozen=True)\nclass Mine(Evictor):{undeclared}")
    with pytest.raises(UsageError, match=r"reads keys_before_rotation.*add needs: ClassVar"):
        kept(f"{path}:Mine")
    declared = undeclared.replace(
        "    def", '    needs: ClassVar = frozenset({"keys_before_rotation"})\n\n    def', 1
    )
    other = path.with_name("declared.py")
    other.write_text(f"{HEAD}@dataclass(frozen=True)\nclass Mine(Evictor):{declared}")
    assert len(kept(f"{other}:Mine")[0]) == N_KEEP


def test_an_evictor_from_elsewhere_cannot_change_the_models_tensors(
    in_file: Callable[[str], Path],
) -> None:
    """In fp32 `.float()` copies nothing, so that arithmetic in place would reach the cache."""
    code = (
        HEAD
        + """\
@dataclass(frozen=True)
class Mine(Evictor):
    name: ClassVar[str] = "mine"
    needs: ClassVar[frozenset] = frozenset({"hidden_states", "output_projection", "attention_mass"})

    def score(self, layer, n_keep=None):
        for tensor in (
            layer.keys, layer.values, layer.window_attention, layer.hidden_states,
            layer.output_projection, layer.attention_mass,
        ):
            tensor.mul_(2)
        return layer.values.norm(dim=-1)

    def allocate(self, scores, plan):
        scores.mul_(-1)
        return super().allocate(scores, plan)
"""
    )
    path = in_file(code)
    config = PageConfig(evictor=f"{path}:Mine", budget=N_KEEP / LENGTH, window=WINDOW)
    model, evictor = tiny_model("llama"), config.make_evictor()
    wrapped = make_evictor(f"adakv({path}:Mine)", {}, "head")
    ids = random_prompt(LENGTH)
    with observing(model):
        plain = prefill(model, ids, window=WINDOW, room=1)
        scorers = [Scorer(evictor, N_KEEP), Scorer(wrapped, N_KEEP)]
        filled = prefill(model, ids, window=WINDOW, room=1, scorers=scorers)
    plan = positions_to_keep(evictor, filled, config)
    assert torch.equal(filled.logits, plain.logits)
    observed = (filled.observation.window_attention, plain.observation.window_attention)
    assert torch.equal(*observed)
    for layer, expected in zip(filled.cache.layers, plain.cache.layers, strict=True):
        assert torch.equal(layer.keys, expected.keys)
        assert torch.equal(layer.values, expected.values)
    # Both scored by the same values, and the largest ones stay.
    first, second = filled.scores.values()
    norms = torch.stack([layer.values[0].norm(dim=-1) for layer in plain.cache.layers])
    for scores in (first, second):
        torch.testing.assert_close(torch.stack([s.score for s in scores]), 2 * norms)
    best = norms.mean((0, 1))[N_SINK : LENGTH - WINDOW].topk(N_KEEP - N_SINK - WINDOW).indices
    kept_there = {int(i) + N_SINK for i in best}
    assert not isinstance(plan, str)
    assert kept_there <= set(plan.members[0, 0].nonzero().flatten().tolist())


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("where: Path = Path('x')", "an option where of type Path"),
        ("layers: tuple[int, ...] = (1, 2)", "an option layers of type tuple[int, ...]"),
        ("names: frozenset = frozenset()", "an option names of type frozenset"),
        ("limit: float = float('inf')", "has inf as the default of limit"),
        ("limit: int = Path('x')", "as the default of limit"),
    ],
)
def test_options_that_no_record_can_hold_are_refused(
    option: str, said: str, in_file: Callable[[str], Path]
) -> None:
    body = BODY.replace("\n    def", f"\n    {option}\n\n    def")
    code = f"from pathlib import Path\n{HEAD}@dataclass(frozen=True)\nclass Mine(Evictor):{body}"
    assert said in refused(f"{in_file(code)}:Mine")


FAILURES = {
    "score": ("failed in score (KeyError: 'boom')", "    def score(self, layer, n_keep=None):"),
    "factor": ("failed in factor (KeyError: 'boom')", "    def factor(self, layer):"),
    "allocate": ("failed in allocate (KeyError: 'boom')", "    def allocate(self, scores, plan):"),
    "vote": ("failed in vote (KeyError: 'boom')", "    def vote(self, scores):"),
    "options": ("did not take its options (KeyError: 'boom')", "    def __post_init__(self):"),
}


@pytest.mark.parametrize("step", FAILURES)
def test_what_an_evictor_raises_bears_its_name(step: str, in_file: Callable[[str], Path]) -> None:
    said, line = FAILURES[step]
    score = "" if step == "score" else BODY.partition("\n\n")[2]
    code = f"    name: ClassVar[str] = 'mine'\n{score}\n{line}\n        raise KeyError('boom')\n"
    path = in_file(f"{HEAD}@dataclass(frozen=True)\nclass Mine(Evictor):\n{code}")
    with pytest.raises(UsageError) as raised:
        kept(f"{path}:Mine")
    assert said in str(raised.value)
    assert "mine" in str(raised.value)
    assert isinstance(raised.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("torch.full((4, 2), 24.5)", "allocated counts of torch.float32"),
        ("[[24, 24]] * 4", "allocated counts of list"),
        ("torch.full((4, 2), 25)", "keeps 200 entries, but the budget .* is 192"),
        # One layer may have more if another has less.
        ("torch.tensor([[60, 60], [20, 20], [12, 12], [12, 12]])", "keeps 208 entries"),
    ],
)
def test_counts_beyond_the_budget_or_of_another_kind_are_refused(
    returned: str, said: str, in_file: Callable[[str], Path]
) -> None:
    allocate = f"\n    def allocate(self, scores, plan):\n        return {returned}\n"
    code = f"{HEAD}@dataclass(frozen=True)\nclass Mine(Evictor):{BODY}{allocate}"
    with pytest.raises(UsageError, match=said):
        kept(f"{in_file(code)}:Mine", "head")


@pytest.mark.parametrize("count", [12, 20, 24])
def test_fewer_entries_than_the_budget_are_allowed(
    count: int, in_file: Callable[[str], Path]
) -> None:
    allocate = (
        f"\n    def allocate(self, scores, plan):\n        return torch.full((4, 2), {count})\n"
    )
    code = f"{HEAD}@dataclass(frozen=True)\nclass Mine(Evictor):{BODY}{allocate}"
    assert [len(positions) for positions in kept(f"{in_file(code)}:Mine", "head")] == [count] * 8


def test_a_path_may_begin_with_a_tilde_and_hold_spaces_and_parentheses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "with space (copy)"
    folder.mkdir()
    (folder / "mine.py").write_text(EVERY_NTH)
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in (folder / "mine.py", "~/with space (copy)/mine.py"):
        assert kept(f"{path}:EveryNth", step=5) == [every(5)]
        both = kept(f"{path}:Inverse( {path}:Inverse({path}:EveryNth) )")
        assert both == [every(3)]
        assert kept(f" adakv ( {path}:EveryNth ) ", "head") == [every(3)] * 8
