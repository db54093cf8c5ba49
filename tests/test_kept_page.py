"""The page of one prompt: what is in it, and what a browser makes of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from leaderboard_page import CHROMIUM, Page, browser

from page_bench.pages.kept_page import ShownAnswer, differences, kept_page

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
TOKENS = ["<b>", " one", " two", "\n", " three", "</script>", " four", "!", "\u2028", " five"]
ANSWERS = [
    ShownAnswer("full cache", "kept KV 1.000", "The number is 2108308."),
    ShownAnswer("plain", "kept KV 0.300", "The number is 210838, <i>I think</i>."),
]


def written(folder: Path, kept: np.ndarray, tokens: list[str]) -> Path:
    layers = list(range(len(kept)))
    agreement = [0.5 + layer / 100 for layer in layers]
    facts = {"evictor": "snapkv", "D": "0.070"}
    html = kept_page("What <snapkv> kept", tokens, kept, layers, agreement, facts, ANSWERS)
    path = folder / "show.html"
    path.write_text(html, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def kept() -> np.ndarray:
    """3 layers, 2 heads: head 0 of layer 1 keeps all, everything else the first two tokens."""
    found = np.zeros((3, 2, len(TOKENS)), dtype=bool)
    found[..., :2] = True
    found[1, 0] = True
    return found


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory, kept: np.ndarray) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("page")
    with browser(folder, "1100,900") as page:
        page.open(written(folder, kept, TOKENS))
        yield page


def titles(page: Page) -> list[str]:
    """What each token's tooltip says of it."""
    text = page.get(
        "JSON.stringify([...document.querySelectorAll('#prompt span')].map(s=>s.title))"
    )
    found: list[str] = json.loads(text)
    return found


def shares(page: Page) -> list[int]:
    return [int(title.split()[-2]) for title in titles(page)]


@needs_browser
def test_tokens_are_shaded_by_the_pairs_that_kept_them(opened: Page) -> None:
    opened.press("Escape", 27)
    assert shares(opened) == [100, 100] + [17] * 8  # one of six pairs
    said = "document.querySelector('#prompt').textContent"
    assert opened.get(said) == "".join(TOKENS)
    assert not opened.problems


@needs_browser
def test_the_keyboard_chooses_layer_and_head(opened: Page) -> None:
    opened.press("Escape", 27)
    for _ in range(2):
        opened.press("ArrowDown", 40)
    assert opened.get("document.querySelector('#layer').value") == "1"
    assert shares(opened) == [100, 100] + [50] * 8
    opened.press("ArrowRight", 39)
    assert shares(opened) == [100] * 10
    opened.press("ArrowRight", 39)
    assert shares(opened) == [100, 100] + [0] * 8
    assert opened.get("document.querySelectorAll('#prompt .gone').length") == 8


@needs_browser
def test_answers_stand_side_by_side_with_their_differences(opened: Page) -> None:
    marked = "[...document.querySelectorAll('article mark')].map(m=>m.textContent).join('|')"
    assert opened.get(marked) == "210838, <i>I think</i>"
    assert opened.get("document.querySelectorAll('article').length") == 2
    assert opened.get("document.querySelector('h1').textContent") == "What <snapkv> kept"
    assert opened.get("document.querySelectorAll('#agreement circle').length") == 3


@needs_browser
def test_a_prompt_of_32k_tokens_can_be_used(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    kept = rng.random((32, 8, 32_768)) < 0.125
    path = written(tmp_path, kept, [f" w{i}" for i in range(32_768)])
    assert path.stat().st_size < 3_000_000
    with browser(tmp_path, "390,844") as page:
        page.open(path)
        start = time.perf_counter()
        page.press("ArrowDown", 40)
        assert page.get("document.querySelector('#layer').value") == "0"
        assert time.perf_counter() - start < 20  # a page that hangs, on any machine
        assert page.get("document.documentElement.scrollWidth <= innerWidth")
        by_hand = round(100 * kept[0, :, 5].mean())
        assert page.get("document.querySelectorAll('#prompt span')[5].title").endswith(
            f"{by_hand} %"
        )


def test_differences_are_words() -> None:
    assert differences("a b c", "a x c") == [("a ", False), ("x", True), (" c", False)]
    assert differences("", "new") == [("new", True)]
    assert differences("same", "same") == [("same", False)]
    assert differences("gone", "") == []
