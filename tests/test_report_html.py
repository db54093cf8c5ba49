"""The report's pages: what they hold is shown as it is, and they need nothing but themselves."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from page_bench.analysis.intervals import Estimate, share
from page_bench.pages.figures import drawn
from page_bench.pages.section import Chart, Section, Table, Value
from page_bench.report import html, markdown
from page_bench.report.build import Report
from page_bench.report.files import csv_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NASTY = "<script src='http://evil.example/x.js'>alert(1)</script>"
VOID = {"meta", "img", "br", "link"}


def draw(figure: Figure) -> None:
    figure.subplots().plot([0, 1], [0, 1], color="#0072B2", lw=4)


def report(rows: int = 3, word: str = NASTY) -> Report:
    values: list[list[Value]] = [[word, i, 0.5, share(i % 10, 10), None, True] for i in range(rows)]
    table = Table("numbers", f"What of {word}?", ["task", "i", "x", "ρ", "y", "z"], values, [word])
    chart = Chart("line", "Does it rise?", draw, f"A line, {word}.")
    data = Section("data", "What was read", word, [Table("d", "Which?", ["m", "n"], [[word, 3]])])
    return Report(word, {"seed": 1}, [word], data, [Section("s1", "First", word, [table], [chart])])


def page(rows: int = 3, word: str = NASTY) -> str:
    made = report(rows, word)
    charts = {chart.name: drawn(chart) for s in made.sections for chart in s.charts}
    return html.page(made, charts)


class Page(HTMLParser):
    """Elements of a page; fails where they are not well nested."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.found if name == tag]


def test_names_and_answers_are_text() -> None:
    found = Page(page())
    assert not found.all("script")
    # title, heading, note, two texts, table title, three rows, note, caption, data row
    assert found.text.count("alert(1)") >= 10
    assert all("alert(1)" not in name for name, _ in found.found)


def test_an_attribute_cannot_be_left() -> None:
    found = Page(page(word='x" onload="alert(1)'))
    assert all("onload" not in attributes for _, attributes in found.found)


def test_nothing_is_fetched() -> None:
    for _, attributes in Page(page(word="plain")).found:
        for name in ("src", "href", "srcset", "data", "action"):
            assert attributes.get(name, "#").startswith(("#", "data:image/")), attributes
    text = page(word="plain")
    assert "url(" not in text
    assert "@import" not in text
    assert "default-src 'none'" in text


def test_headings_anchors_and_contents() -> None:
    found = Page(page())
    ids = [attributes["id"] for _, attributes in found.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [attributes["href"] for attributes in found.all("a")]
    assert links == ["#notes", "#data", "#s1"]
    assert {link[1:] for link in links} <= {*ids}
    assert len(found.all("h1")) == 1


def test_charts_have_alternatives_and_tables_headings() -> None:
    found = Page(page(word="names"))
    (image,) = found.all("img")
    assert image["alt"] == "Does it rise? A line, names."
    assert image["src"].startswith("data:image/svg+xml;base64,")
    assert {attributes["scope"] for attributes in found.all("th")} == {"col"}
    assert len(found.all("th")) == 6 + 2


def test_light_and_dark_and_small_screens() -> None:
    text = page()
    assert "prefers-color-scheme: dark" in text
    assert "width=device-width" in text
    assert "max-width: 40rem" in text


def test_estimates_say_n_where_the_table_has_no_column_for_it() -> None:
    text = page(word="names")
    assert "<td>names</td>" in text
    assert ">0.100 [0.018, 0.404] (n=10)<" in text
    assert ">–<" in text
    assert ">yes<" in text


def test_long_tables_are_folded_away_and_whole() -> None:
    assert not Page(page(rows=html.LONG)).all("details")
    long = Page(page(rows=html.LONG + 1, word="names"))
    assert len(long.all("details")) == 1
    assert len(long.all("tr")) == html.LONG + 1 + 1 + 2


def test_csv_expands_estimates_and_disarms_formulas() -> None:
    rows: list[list[Value]] = [
        ["=cmd()", share(1, 10), -0.5, None],
        ["vt", Estimate(np.nan, np.nan, np.nan, 0, "bootstrap"), float("nan"), True],
    ]
    lines = csv_text(Table("t", "t?", ["task", "ρ", "Δ", "z"], rows)).splitlines()
    assert lines[0] == "task,ρ,ρ low,ρ high,ρ n,ρ method,Δ,z"
    first = share(1, 10)
    assert lines[1] == f"'=cmd(),0.1,{first.low!r},{first.high!r},10,wilson,-0.5,"
    assert lines[2] == "vt,,,,0,bootstrap,,True"


def test_markdown_keeps_its_cells_and_shows_markup_as_text() -> None:
    word = "a|b\n[x](http://y) <b> `c` *d*"
    lines = markdown.table_lines(Table("t", "t?", ["task", "n"], [[word, 3]]))
    assert lines[1] == "| --- | --: |"
    assert lines[2].count("|") - lines[2].count("\\|") == 3
    assert "\\<b\\>" in lines[2]
    assert "\\[x\\](http" in lines[2]
    text = markdown.page(report(word=word), "tables", "figures")
    assert "[CSV](tables/numbers.csv)" in text
    assert "](figures/line.svg)" in text


def test_charts_have_the_same_bytes_each_time() -> None:
    chart = report().sections[0].charts[0]
    first, second = drawn(chart), drawn(chart)
    assert first == second
    assert not re.search(rb"\d{4}-\d\d-\d\dT\d\d:", first.svg)


def chromium(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("chromium is not installed")
    return subprocess.run(
        [
            program,
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            "--hide-scrollbars",
            f"--user-data-dir={tmp_path / 'profile'}",
            *words,
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("width", [1200, 390])
def test_a_browser_shows_the_page(width: int, tmp_path: Path) -> None:
    from matplotlib.image import imread

    path, shot = tmp_path / "report.html", tmp_path / "shot.png"
    path.write_text(page(word="names"), encoding="utf-8")
    done = chromium(tmp_path, f"--window-size={width},1400", f"--screenshot={shot}", path.as_uri())
    assert shot.exists(), done.stderr
    pixels = imread(shot)[..., :3]
    # Text and lines on an even ground, and the chart's blue line, which is drawn from its SVG.
    assert pixels.shape[:2] == (1400, width)
    assert len(np.unique((pixels * 255).astype(np.uint8).reshape(-1, 3), axis=0)) > 50
    blue = np.abs(pixels - np.array([0x00, 0x72, 0xB2]) / 255).max(-1) < 0.05
    assert blue.sum() > 100


def test_a_browser_runs_and_fetches_nothing(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(page(), encoding="utf-8")
    done = chromium(tmp_path, "--dump-dom", path.as_uri())
    shown = Page(done.stdout[done.stdout.index("<html") :])
    assert not shown.all("script")
    assert len(shown.all("table")) == 2
    assert NASTY in shown.text
