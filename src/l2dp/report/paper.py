"""Charts for paper: the same series as on the page, drawn by Matplotlib as SVG, PDF or PNG."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from l2dp import durable
from l2dp.report import comparison, latex, lines, methods, spreadsheet, words
from l2dp.report.document import Chart, Document, Series
from l2dp.report.palette import LIGHT, MARKERS, STATUS_LIGHT, STATUS_MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEGEND_WIDTH = 85
MOST_IN_LEGEND = 30


def curve_png(results: list[lines.Result], path: Path, title: str) -> None:
    """Draw average accuracy against the number of tasks, one line per method, dashed for `released`."""
    found = [method for setting in methods.settings(lines.read(results)) for method in setting.methods]
    drawn = pictures(comparison.accuracy_chart("accuracy", found), ["png"], title)
    durable.write_bytes(path, drawn["png"])


def write_figures(document: Document, folder: Path, forms: Sequence[str]) -> None:
    """Every chart of a document in every format, named after the chart."""
    durable.make_folder(folder)
    for chart in document.charts():
        for form, data in pictures(chart, forms, "").items():
            durable.write_bytes(folder / f"{chart.name}.{form}", data)


def write_tables(document: Document, folder: Path) -> None:
    """Every table as LaTeX and CSV, and the points of every chart as CSV."""
    for table in document.tables():
        durable.write_bytes(folder / f"{table.name}.tex", latex.table(table).encode())
        durable.write_bytes(folder / f"{table.name}.csv", spreadsheet.table(table).encode())
    for chart in document.charts():
        durable.write_bytes(folder / f"{chart.name}.csv", spreadsheet.chart(chart).encode())


def pictures(chart: Chart, forms: Sequence[str], title: str) -> dict[str, bytes]:
    """One chart as a file of its own in each format. The same chart makes the same bytes."""
    from matplotlib import rc_context

    found = {}
    # Text stays text in SVG and PDF; without dates and random ids, equal charts are equal files.
    with rc_context({"svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": chart.name}), quiet():
        drawn = figure(chart, title)
        for form in forms:
            made = io.BytesIO()
            metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form)
            drawn.savefig(made, format=form, metadata=metadata)
            found[form] = made.getvalue()
    return found


@contextmanager
def quiet() -> Iterator[None]:
    """A name in a script the font lacks is drawn as boxes; a warning on the terminal would help nobody."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


def figure(chart: Chart, title: str) -> Figure:
    """The chart with its legend below it."""
    # Imported here because it takes longer than printing a table, which needs none of it.
    from matplotlib.figure import Figure

    shown = [series for series in chart.series if series.shown and series.points][:MOST_IN_LEGEND]
    labels = [textwrap.fill(words.clean(series.label), LEGEND_WIDTH) for series in shown]
    legend_lines = sum(label.count("\n") + 1 for label in labels)
    made = Figure(figsize=(8.0, 4.6 + 0.24 * legend_lines), dpi=150, layout="constrained")
    axes = made.add_subplot()
    handles = draw(axes, chart, shown)
    if title:
        axes.set_title(words.short(title, 66), fontsize=13, parse_math=False)
    # Matplotlib drops legend entries that start with an underscore; a method may be called so.
    labels = [f" {label}" if label.startswith("_") else label for label in labels]
    legend = made.legend(handles, labels, loc="outside lower center", ncols=1, fontsize=11, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return made


def draw(axes: Axes, chart: Chart, shown: Sequence[Series]) -> list[Any]:
    """The series on their axes; returns what the legend shows for each."""
    finite = [point.x for series in chart.series for point in series.points if math.isfinite(point.x)]
    last = max(finite, default=1.0)
    scale = 100.0 if chart.y_form == "percent" else 1.0
    if chart.x_log:
        axes.set_xscale("log")
    if chart.y_form == "log":
        axes.set_yscale("log")
    handles = [_draw_series(axes, chart, series, scale, last) for series in shown]
    if chart.y_form == "percent":
        axes.set_ylim(0, 100)
        axes.yaxis.set_major_formatter("{x:.0f}%")
    if chart.line_at is not None:
        axes.axhline(chart.line_at, color=STATUS_LIGHT["none"], linestyle="--", linewidth=1.2)
    if chart.x_log:
        wanted = sorted(set(finite)) if len(set(finite)) <= 8 else None
        if wanted:
            apart = any(math.isinf(point.x) for series in shown for point in series.points)
            axes.set_xticks(
                [*wanted, *([_apart(last)] if apart else [])],
                [*(f"{value:g}" for value in wanted), *([chart.apart.replace(" ", "\n")] if apart else [])],
            )
            axes.set_xticks([], minor=True)
    else:
        room = 0.02 * (last - 1) or 0.5
        axes.set_xlim(1 - room, last + room)
        axes.set_xticks(words.ticks(1 - room, last + room))
    axes.tick_params(labelsize=11)
    axes.set_xlabel(chart.x_label, fontsize=12)
    axes.set_ylabel(chart.y_label, fontsize=12)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return handles


def _draw_series(axes: Axes, chart: Chart, series: Series, scale: float, last: float) -> Any:
    turn, colour = divmod(series.style, len(LIGHT))
    x = [_apart(last) if math.isinf(point.x) else point.x for point in series.points]
    y = [scale * point.y for point in series.points]
    bounds = [
        (place, scale * point.low, scale * point.high)
        for place, point in zip(x, series.points, strict=True)
        if point.low is not None and point.high is not None
    ]
    if chart.marks == "status":
        handle = axes.plot(x, y, color=STATUS_LIGHT["none"], linewidth=1.0, alpha=0.7)[0]
        for place, low, high in bounds:
            axes.plot([place, place], [low, high], color=STATUS_LIGHT["none"], linewidth=1.4)
        for place, value, point in zip(x, y, series.points, strict=True):
            status = point.status or "none"
            open_shape = status in ("none", "claimed")
            handle = axes.plot(
                [place],
                [value],
                linestyle="",
                marker=STATUS_MARKERS[status],
                markersize=8,
                color=STATUS_LIGHT[status],
                markerfacecolor="white" if open_shape else STATUS_LIGHT[status],
            )[0]
        return handle
    if len(bounds) > 1:
        places, lows, highs = zip(*bounds, strict=True)
        axes.fill_between(places, lows, highs, color=LIGHT[colour], alpha=0.17, linewidth=0)
    return axes.plot(
        x,
        y,
        color=LIGHT[colour],
        linestyle=(0, (5, 2.5)) if series.released else ("-", "-.", ":")[turn % 3],
        marker=MARKERS[colour],
        markerfacecolor="white" if series.released else LIGHT[colour],
        markersize=6,
        markevery=max(1, math.ceil(len(x) / 25)),
        linewidth=1.8,
    )[0]


def _apart(last: float) -> float:
    """Where points without a place on a logarithmic axis stand."""
    return last * 3.0
