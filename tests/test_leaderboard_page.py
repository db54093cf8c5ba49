"""The leaderboard's page: what is in it, and what a browser makes of it."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from leaderboard_page import BUDGETS, CHROMIUM, EVICTORS, Page, browser, write_board
from PIL import Image

from page_bench.commands import leaderboard
from page_bench.inputs.errors import UsageError
from page_bench.leaderboard.check import read_board
from page_bench.leaderboard.file import Board
from page_bench.leaderboard.page import page
from page_bench.leaderboard.published import read_published
from page_bench.leaderboard.published_rows import published_rows
from page_bench.leaderboard.ranking import groups
from page_bench.leaderboard.row import sealed

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
HOSTILE = '</script><img src=x onerror="window.hit=1"><!--'
ARMS = 1 + 2 * len(EVICTORS) * len(BUDGETS)
RIGHT_TO_LEFT = "abc\u202edcba"


class Elements(HTMLParser):
    """Tags and attributes of a page, and the text of its elements of some names."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._in: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._in and self._in.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        self.texts.append((self._in[-1] if self._in else "", data))


def data_of(html: str) -> dict[str, Any]:
    found = Elements(html)
    (text,) = [
        text
        for (tag, text) in found.texts
        if tag == "script" and text.lstrip().startswith('{"groups"')
    ]
    return json.loads(text)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A leaderboard, with its page built."""
    made = write_board(tmp_path_factory.mktemp("board"))
    assert leaderboard.run(["build", "--file", str(made)]) == 0
    return made


@pytest.fixture(scope="module")
def html(file: Path) -> str:
    return file.with_name("index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def hostile(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with names that try to be more than names."""
    board = read_board(file)
    first = next(row for row in board.rows if row["gate"] == "page")
    evil = sealed({**first, "model": HOSTILE, "command": HOSTILE, "evictor": RIGHT_TO_LEFT})
    tasks = tuple({**t, "row": evil["row"], "task": HOSTILE} for t in board.tasks_of(first))
    path = tmp_path_factory.mktemp("hostile") / "index.html"
    path.write_text(page(Board((evil,), tasks)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as one:
        yield one


@pytest.fixture
def shown(file: Path, window: Page) -> Iterator[Page]:
    """The page in a browser, loaded anew for every test."""
    window.open(file.with_name("index.html"))
    yield window
    assert window.problems == []


def column(one: Page, key: str) -> list[str]:
    """The texts of a column's cells, from top to bottom, without their small print."""
    script = (
        f"[...document.querySelectorAll('#table td.c-{key}')].map(cell => "
        "cell.childNodes[0]?.textContent ?? '')"
    )
    return one.get(script)


def test_the_same_tables_give_the_same_bytes(file: Path, html: str, tmp_path: Path) -> None:
    again = tmp_path / "deep" / "page.html"
    assert leaderboard.run(["build", "--file", str(file), "--output", str(again)]) == 0
    assert again.read_text(encoding="utf-8") == html
    assert [path.name for path in again.parent.iterdir()] == ["page.html"]


def test_the_shipped_page_is_the_one_of_the_shipped_tables() -> None:
    folder = Path(__file__).resolve().parent.parent / "leaderboard"
    table = folder / "leaderboard.csv"
    board = read_board(table) if table.exists() else Board()
    assert (folder / "index.html").read_text(encoding="utf-8") == page(board)


def test_a_page_that_cannot_be_made_is_refused(file: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written"):
        leaderboard.run(["build", "--file", str(file), "--output", str(tmp_path / "file/x.html")])
    with pytest.raises(UsageError, match="cannot be read"):
        leaderboard.run(["build", "--file", str(tmp_path / "none.csv")])


def test_the_page_loads_nothing_and_runs_its_own_script_alone(html: str) -> None:
    tags = Elements(html).tags
    assert not {tag for tag, _ in tags} & {"link", "img", "iframe", "object", "base"}
    for tag, attributes in tags:
        assert "src" not in attributes, tag
        assert str(attributes.get("href", "#")).startswith("#")
        assert not [name for name in attributes if name.startswith("on")]
    (policy,) = [a["content"] for t, a in tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert str(policy).startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in str(policy).split("style-src")[0]
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", html)


def test_every_row_and_task_is_in_the_page(file: Path, html: str) -> None:
    board, data = read_board(file), data_of(html)
    for row in board.rows:
        given = data["rows"][row["row"]]
        assert {k: given.get(k) for k in row} == dict(row)
        tasks = data["tasks"][row["row"]]
        assert [task["task"] for task in tasks] == [t["task"] for t in board.tasks_of(row)]
    places = [p for g in data["groups"] for b in g["bins"] for p in b["places"]]
    assert len(places) == len(data["rows"]) == len({p[0] for p in places})


def test_groups_stand_apart_and_say_what_they_are(file: Path, html: str) -> None:
    data = data_of(html)
    kinds = [group["kind"] for group in data["groups"]]
    assert kinds == sorted(kinds, key=["Measured", "Demonstration", "Published"].index)
    assert kinds[:2] == ["Measured", "Demonstration"]
    assert data["groups"][1]["note"].startswith("Demonstration, no evidence about a method")
    measured = next(g for g in groups(read_board(file).rows) if g.key["model"] == "tiny")
    assert [
        [bin["label"], [[place[0], place[1]] for place in bin["places"]]]
        for bin in data["groups"][0]["bins"]
    ] == [[b.label, [[p.row["row"], p.shown] for p in b.places]] for b in measured.bins]


def test_published_rows_follow_from_the_reported_numbers() -> None:
    rows, tasks, sources = published_rows(read_published())
    assert len({row["row"] for row in rows}) == len(rows) == len(sources)
    mine = [r for r in rows if r["model"] == "Qwen2.5-1.5B" and r["length"] == "4k"]
    assert {row["source"] for row in rows} == {"published"}
    snapkv = {(r["gate"], r["budget"]): r for r in mine if r["evictor"] in ("snapkv", "none")}
    eighths = [b for b in (0.0625, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875)]

    def mean(gate: str, name: str) -> float:
        values = [snapkv[gate, budget][name] for budget in eighths]
        return float(np.mean(np.array(values, dtype=float)))

    # Tables 2 and 22, neither of which the rows are made of.
    assert mean("open", "correct") == pytest.approx(0.438, abs=0.0006)
    assert mean("page", "correct") == pytest.approx(0.559, abs=0.0006)
    assert mean("page", "delta") == pytest.approx(0.121, abs=0.0006)
    assert mean("page", "kept_kv") == pytest.approx(0.584, abs=0.0006)
    assert snapkv["page", 0.0625]["kept_kv"] == pytest.approx(0.297, abs=0.0006)
    assert snapkv["closed", 1.0]["kept_kv"] == 1
    assert [r["harm"] for r in rows if r["harm"] is not None] == []
    own = [task for task in tasks if task["row"] == snapkv["open", 0.5]["row"]]
    assert {str(t["task"]): t["correct"] for t in own}["niah_multikey_3"] == 0.14


def test_names_cannot_end_the_data(hostile: Path) -> None:
    html = hostile.read_text(encoding="utf-8")
    assert HOSTILE not in html
    assert "<img" not in html
    assert data_of(html)["groups"][0]["name"] == HOSTILE
    assert [tag for tag, _ in Elements(html).tags].count("script") == 2


@needs_browser
def test_names_stay_text_in_the_browser(hostile: Path, tmp_path: Path) -> None:
    with browser(tmp_path) as one:
        one.open(hostile)
        one.get("document.querySelector('.opener').click()")
        assert one.get("document.querySelectorAll('img').length") == 0
        assert one.get("window.hit === undefined") is True
        assert one.get("document.querySelector('pre code').textContent") == HOSTILE
        assert one.get("document.querySelector('#group-title bdi').textContent") == HOSTILE
        # A name that turns the writing direction around does so inside its own element only.
        assert column(one, "evictor")[0].startswith(RIGHT_TO_LEFT)
        assert one.get("document.querySelector('td.c-evictor').firstChild.tagName") == "BDI"
        assert one.problems == []


@needs_browser
def test_rows_stand_in_their_ranking_until_a_column_is_chosen(shown: Page, file: Path) -> None:
    ranked = next(g for g in groups(read_board(file).rows) if g.key["model"] == "tiny")
    ids = "[...document.querySelectorAll('tr[data-row]')].map(row => row.dataset.row)"
    cells = "[...document.querySelectorAll('#table td.c-{}')].map(cell => cell.textContent)"
    assert shown.get(ids) == [place.row["row"] for own in ranked.bins for place in own.places]
    assert column(shown, "rank") == [p.shown for own in ranked.bins for p in own.places]
    bins = shown.get("[...document.querySelectorAll('.bin th')].map(th => th.textContent)")
    assert bins == [f"Kept KV {own.label}" for own in ranked.bins]
    button = "document.querySelector('th[data-key={}] > button').click()"
    shown.get(button.format("correct"))
    values = [float(text) for text in column(shown, "correct")]
    assert values == sorted(values, reverse=True)
    assert len(values) == ARMS
    assert shown.get("document.querySelectorAll('.bin').length") == 0
    # Bins are mixed now, so each rank says which it is of.
    ranks = dict(zip(shown.get(ids), shown.get(cells.format("rank")), strict=True))
    assert ranks == {
        p.row["row"]: f"{p.shown}kept KV {own.label}" for own in ranked.bins for p in own.places
    }
    shown.get(button.format("correct"))
    assert [float(text) for text in column(shown, "correct")] == values[::-1]
    sort = "document.querySelector('th[data-key={}]').getAttribute('aria-sort')"
    assert shown.get(sort.format("correct")) == "ascending"
    assert shown.get(sort.format("rank")) == "none"
    # What is not known stands last both ways: the full cache has no harm.
    for _ in range(2):
        shown.get(button.format("harm"))
        assert column(shown, "harm")[-1] == "–"
        known = [float(text) for text in column(shown, "harm")[:-1]]
        assert known in (sorted(known), sorted(known, reverse=True))


@needs_browser
def test_the_table_is_sorted_and_opened_by_keyboard(shown: Page) -> None:
    shown.get("document.querySelector('th[data-key=budget] > button').focus()")
    shown.press("Enter", 13)
    budgets = [float(text) for text in column(shown, "budget")]
    assert budgets == sorted(budgets)
    # The focus is where it was, on a button that was drawn anew.
    assert shown.get("document.activeElement.parentElement.dataset.key") == "budget"
    shown.press("Enter", 13)
    assert [float(text) for text in column(shown, "budget")] == budgets[::-1]
    for _ in range(9):
        shown.press("Tab", 9)
        if shown.get("document.activeElement.classList.contains('opener')"):
            break
    shown.press("Enter", 13)
    assert shown.get("document.activeElement.getAttribute('aria-expanded')") == "true"
    controls = shown.get("document.activeElement.getAttribute('aria-controls')")
    assert shown.get(f"document.getElementById('{controls}').hidden") is False
    shown.press("Enter", 13)
    assert shown.get(f"document.getElementById('{controls}').hidden") is True


@needs_browser
def test_a_row_opens_its_command_and_its_tasks(shown: Page, file: Path) -> None:
    board = read_board(file)
    shown.get("document.querySelectorAll('.opener')[3].click()")
    row_id = shown.get("document.querySelectorAll('tr[data-row]')[3].dataset.row")
    row = next(r for r in board.rows if r["row"] == row_id)
    assert (
        shown.get("document.querySelector('.inside:not([hidden]) pre').textContent")
        == (row["command"])
    )
    lines = shown.get(
        "[...document.querySelectorAll('.inside:not([hidden]) .inner tbody tr')].map(tr => "
        "[...tr.cells].map(cell => cell.childNodes[0].textContent))"
    )
    tasks = board.tasks_of(row)
    assert [line[0] for line in lines] == [task["task"] for task in tasks]
    for line, task in zip(lines, tasks, strict=True):
        assert line[3] == f"{task['correct']:.3f}"
        assert line[6] == f"{task['harm']:.3f}"
    facts = shown.get(
        "[...document.querySelectorAll('.inside:not([hidden]) dt')].map(dt => dt.textContent)"
    )
    assert {"commit", "date", "digest", "torch", "evictor_args"} <= set(facts)
    # Without leave to write the clipboard the command is marked for the keyboard.
    shown.get("document.querySelector('.inside:not([hidden]) .copy').click()")
    told = shown.get(
        "new Promise(done => setTimeout(() => done(1), 50)) && "
        "document.querySelector('.inside:not([hidden]) [role=status]') !== null"
    )
    assert told is True


@needs_browser
def test_filters_narrow_the_table_and_the_charts(shown: Page) -> None:
    def choose(name: str, value: str, event: str = "change") -> None:
        shown.get(
            f"(() => {{ const field = document.getElementById('{name}'); "
            f"field.value = {json.dumps(value)}; field.dispatchEvent(new Event('{event}')); }})()"
        )

    every = shown.get("document.querySelectorAll('#frontier-chart rect').length")
    choose("evictor", "h2o")
    assert set(column(shown, "evictor")) == {"h2o"}
    assert len(column(shown, "evictor")) == 2 * len(BUDGETS)
    choose("gate", "open")
    assert len(column(shown, "evictor")) == len(BUDGETS)
    assert shown.get("document.getElementById('status').textContent") == f"3 of {ARMS} rows"
    # Plain eviction's marks are squares: one for each budget of one evictor.
    assert every == len(BUDGETS) * len(EVICTORS)
    assert shown.get("document.querySelectorAll('#frontier-chart rect').length") == len(BUDGETS)
    choose("find", "0.25", "input")
    assert column(shown, "budget") == ["0.25"]
    choose("find", "nowhere", "input")
    assert shown.get("document.getElementById('status').textContent") == f"0 of {ARMS} rows"
    assert "No row fits" in shown.get("document.getElementById('frontier').textContent")
    shown.get("document.querySelector('[type=reset]').click()")
    assert len(column(shown, "rank")) == ARMS


@needs_browser
def test_words_find_the_rows_that_they_mean(shown: Page, file: Path) -> None:
    rows = {str(r["row"]): r for r in read_board(file).rows if r["model"] == "tiny"}

    def found(words: str) -> list[dict[str, Any]]:
        ids = shown.get(
            "(() => { const field = document.getElementById('find'); "
            f"field.value = {json.dumps(words)}; field.dispatchEvent(new Event('input')); "
            "return [...document.querySelectorAll('tr[data-row]')].map(row => row.dataset.row); "
            "})()"
        )
        return [dict(rows[name]) for name in ids]

    def where(**values: Any) -> list[dict[str, Any]]:
        return [dict(r) for r in rows.values() if all(r[k] == v for k, v in values.items())]

    def same(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> bool:
        return bool(one) and {r["row"] for r in one} == {r["row"] for r in other}

    assert same(found("tau=0.07"), where(gate="page"))
    assert same(found("τ=0.07 evictor=h2o"), where(gate="page", evictor="h2o"))
    assert same(found("TAU=number"), where(gate="page"))
    # Neither a part of a number nor the default of a command that the row is not of.
    assert found("tau=0.0") == found("0.0") == found("budget=0.1") == found("0.1") == []
    assert same(found("budget=0.125"), where(budget=0.125))
    assert same(found("gate=closed"), where(gate="closed"))
    assert same(found("budget=1"), where(gate="closed"))
    measured = where(evictor="snapkv", gate="open", budget=0.5)
    assert same(found(f"correct={measured[0]['correct']:.3f} snapkv gate=open"), measured)
    assert same(found("kept-kv=0.5"), where(kept_kv=0.5))
    assert same(found("tasks=vt"), where())
    assert found("tasks=v") == []
    # Whatever else stands in a command.
    assert same(found("--limit"), where())
    assert found("") == found("  ")
    # Nothing that is typed is a pattern.
    for words in ("(", "\\d", "x-y=1", "-0.5", "a/b=[", "tasks=.t", "tau=-0.5"):
        assert found(words) == [], words


@needs_browser
def test_a_name_from_right_to_left_turns_nothing_else(
    file: Path, window: Page, tmp_path: Path
) -> None:
    name = "\u05d3\u05d2\u05dd-\u05d0"
    board = read_board(file)
    first = next(row for row in board.rows if row["gate"] == "page")
    row = sealed({**first, "model": name})
    tasks = tuple({**t, "row": row["row"]} for t in board.tasks_of(first))
    path = tmp_path / "index.html"
    path.write_text(page(Board((row,), tasks)), encoding="utf-8")
    window.open(path)
    title = "document.getElementById('group-title')"
    assert window.get(f"{title}.firstChild.textContent") == name
    assert window.get(f"{title}.childNodes.length") == 2
    # The rest reads on from left to right: its first letter is right of the name.
    left = window.get(
        f"(() => {{ const range = document.createRange(); const rest = {title}.lastChild; "
        "range.setStart(rest, 1); range.setEnd(rest, 2); "
        f"return range.getBoundingClientRect().left - {title}.firstChild"
        ".getBoundingClientRect().right; })()"
    )
    assert left >= 0
    text = window.get("document.querySelector('#group option').textContent")
    assert text.startswith(f"\u2068{name}\u2069 (")
    assert window.problems == []


@needs_browser
def test_the_note_below_the_table_is_read_on_a_narrow_screen(file: Path, window: Page) -> None:
    size = {"width": 500, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    window.call("Emulation.setDeviceMetricsOverride", **size)
    try:
        window.open(file.with_name("index.html"))
        note = "document.getElementById('table-note')"
        assert window.get(f"{note}.getBoundingClientRect().right") <= 500
        assert window.get(f"{note}.closest('.scroll')") is None
        assert window.get("document.getElementById('table').offsetWidth") > 500
        described = "document.getElementById('table').getAttribute('aria-describedby')"
        assert window.get(described) == "table-note"
    finally:
        window.call("Emulation.clearDeviceMetricsOverride")


@needs_browser
def test_the_frontier_is_drawn_with_what_nothing_beats(shown: Page, file: Path) -> None:
    rows = [row for row in read_board(file).rows if row["model"] == "tiny"]
    marks = "['rect', 'circle', 'path:not([class])'].map(kind => document.querySelectorAll("
    marks += "'#frontier-chart ' + kind).length)"
    assert shown.get(marks) == [6, 6, 1]
    lines = shown.get(
        "[...document.querySelectorAll('#frontier details tbody tr')].map(tr => "
        "[...tr.cells].map(cell => cell.textContent))"
    )
    assert len(lines) == len(rows)
    points = [(float(str(r["kept_kv"])), float(str(r["correct"]))) for r in rows]
    for _, _, kept, correct, _, told in lines:
        beaten = any(
            (k <= float(kept) + 1e-9 and c > float(correct) + 1e-9)
            or (k < float(kept) - 1e-9 and c >= float(correct) - 1e-9)
            for k, c in points
        )
        assert told == ("no" if beaten else "yes"), (kept, correct)
    # The first mark's place is what the axes say: 0 to 1 over 496 × 322 pixels.
    cx, cy = shown.get(
        "(() => { const c = document.querySelector('#frontier-chart circle'); "
        "return [c.getAttribute('cx'), c.getAttribute('cy')].map(Number); })()"
    )
    places = {((50 + k * 496), (334 - c * 322)) for k, c in points}
    assert any(abs(cx - x) < 0.01 and abs(cy - y) < 0.01 for x, y in places)


@needs_browser
def test_harm_is_shown_by_task_at_one_budget(shown: Page, file: Path) -> None:
    board = read_board(file)
    budgets = shown.get("[...document.getElementById('harm-budget').options].map(o => o.value)")
    assert budgets == [str(budget) for budget in BUDGETS]
    lines = shown.get(
        "[...document.querySelectorAll('#harm details tbody tr')].map(tr => "
        "[...tr.cells].map(cell => cell.textContent))"
    )
    wanted = {
        (task["task"], f"{row['evictor']}, {row['gate']}", f"{task['harm']:.3f}")
        for row in board.rows
        if row["model"] == "tiny" and row["budget"] == 0.125
        for task in board.tasks_of(row)
        if task["harm"] is not None
    }
    assert {(task, label, harm) for task, _, label, harm, _, _ in lines} == wanted
    assert all(n == "20" for *_, n in lines)


@needs_browser
def test_published_rows_are_marked_and_ranked_apart(shown: Page) -> None:
    labels = shown.get("[...document.querySelectorAll('#group optgroup')].map(g => g.label)")
    assert labels == ["Measured", "Demonstration", "Published"]
    shown.get(
        "(() => { const s = document.getElementById('group'); "
        "s.value = document.querySelector('#group optgroup:last-child option').value; "
        "s.dispatchEvent(new Event('change')); "
        "document.querySelector('.opener').click(); })()"
    )
    rows = shown.get("document.querySelectorAll('tr[data-row]').length")
    assert rows > 0
    assert shown.get("document.querySelectorAll('td .tag.published').length") == rows
    assert "Published, not measured here" in shown.get(
        "document.querySelector('.inside:not([hidden])').textContent"
    )
    assert "No harm is known" in shown.get("document.getElementById('harm').textContent")


@needs_browser
def test_a_link_to_a_row_opens_it(file: Path, tmp_path: Path) -> None:
    (row,) = [r for r in read_board(file).rows if r["model"] == "small"]
    with browser(tmp_path) as one:
        one.open(file.with_name("index.html"), f"#{row['row']}")
        assert one.get("document.querySelector('.inside:not([hidden])').id") == f"d-{row['row']}"
        note = one.get("document.getElementById('group-note').textContent")
        assert note.startswith("Demonstration")


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_schemes_have_contrast_and_a_toggle_over_them(
    scheme: str, file: Path, tmp_path: Path
) -> None:
    with browser(tmp_path) as one:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        one.call("Emulation.setEmulatedMedia", features=features)
        one.open(file.with_name("index.html"))
        for name, least in (("h1", 7.0), (".lead", 4.5), ("td.c-correct small", 4.5)):
            assert contrast(one, name) >= least, name
        brightness = [background(one)]
        for choice in ("dark", "light", "auto"):
            one.get("document.getElementById('theme').click()")
            assert one.get("document.getElementById('theme').textContent") == f"Colours: {choice}"
            brightness.append(background(one))
        assert brightness[1] < 0.1 < 0.9 < brightness[2]
        assert brightness[0] == brightness[3] == brightness[1 if scheme == "dark" else 2]
        pixels = np.asarray(Image.open(io.BytesIO(one.screenshot())).convert("RGB"))[::3, ::3]
        # Something is drawn: many colours, the paper's the most frequent of them.
        assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 200
        assert pixels.mean() < 60 if scheme == "dark" else pixels.mean() > 220


@needs_browser
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_the_page_is_never_wider_than_the_screen(width: int, file: Path, tmp_path: Path) -> None:
    with browser(tmp_path) as one:
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
        one.call("Emulation.setDeviceMetricsOverride", **size)
        one.open(file.with_name("index.html"))
        one.get("document.querySelectorAll('.opener')[3].click()")
        assert one.get("document.documentElement.scrollWidth") <= width
        assert one.get("document.querySelector('.detail').getBoundingClientRect().width") <= width
        if width < 500:
            assert (
                one.get("getComputedStyle(document.querySelector('td.c-gate')).display") == "none"
            )
            assert "budget 0.125" in one.get("document.querySelector('td.c-evictor').innerText")


@needs_browser
def test_what_a_screen_reader_needs_is_there(shown: Page) -> None:
    unlabelled = (
        "[...document.querySelectorAll('select, input')].filter(field => !field.labels.length)"
        ".length"
    )
    assert shown.get(unlabelled) == 0
    nameless = (
        "[...document.querySelectorAll('button')].filter(button => "
        "!(/[\\p{L}]/u.test(button.textContent) || button.getAttribute('aria-label'))).length"
    )
    assert shown.get(nameless) == 0
    assert shown.get("document.querySelectorAll('svg[role=img] > title').length") == 2
    heads = "[...document.querySelectorAll('th')].every(th => th.hasAttribute('scope'))"
    assert shown.get(heads) is True
    assert shown.get("document.documentElement.lang") == "en"
    twice = (
        "(() => { const ids = [...document.querySelectorAll('[id]')].map(e => e.id); "
        "return ids.length - new Set(ids).size; })()"
    )
    assert shown.get(twice) == 0


def background(one: Page) -> float:
    return luminance(one.get("getComputedStyle(document.body).backgroundColor"))


def contrast(one: Page, selector: str) -> float:
    """WCAG's contrast ratio of an element's text against the paper."""
    ink = luminance(one.get(f"getComputedStyle(document.querySelector('{selector}')).color"))
    low, high = sorted((ink, background(one)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    shares = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))
