"""Charts as PNG and SVG, the same bytes whenever the numbers are the same."""

from __future__ import annotations

import io
import textwrap
from dataclasses import dataclass
from typing import Any

from page_bench.pages.section import Chart

TITLE_LETTERS = 10
"""Of a title, per inch."""
DPI = 144
_STYLE: Any = {
    "svg.hashsalt": "page-bench",
    # A dollar sign in a name is one.
    "text.parse_math": False,
    "font.size": 10.0,
    "axes.titlesize": 11.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
}


@dataclass(frozen=True)
class Drawn:
    """A chart in two formats."""

    png: bytes
    svg: bytes


def drawn(chart: Chart) -> Drawn:
    """Draw a chart under its title; the layout makes room for both."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=chart.size, dpi=DPI, layout="constrained")
        chart.draw(figure)
        # matplotlib's own wrapping reads dollar signs as formulas all the same.
        title = textwrap.fill(chart.title, round(chart.size[0] * TITLE_LETTERS))
        figure.suptitle(title, fontsize="large")
        png, svg = io.BytesIO(), io.BytesIO()
        raster: Any = FigureCanvasAgg(figure)
        # `savefig` draws everything once more beforehand, to no effect here.
        raster.print_png(png, metadata={"Software": None})
        # What was laid out once need not be again.
        figure.set_layout_engine("none")
        vector: Any = FigureCanvasSVG(figure)
        vector.print_svg(svg, metadata={"Date": None, "Creator": None})
    return Drawn(png.getvalue(), svg.getvalue())
