"""A chart as SVG inside a page: drawn here, so that it is there without a script; the script only adds to it.

Each series carries the texts of its points, made from the same numbers as the tables; the script shows them and
never writes a number of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from l2dp.report import words
from l2dp.report.document import Chart, Point, Series
from l2dp.report.palette import LIGHT, MARKERS, OUTLINES, STATUS_MARKERS

LEFT, TOP, RIGHT, BOTTOM, WIDTH, HEIGHT = 84, 16, 22, 66, 760, 430
APART = 110
MOST_MARKS = 25


class Axis:
    """A straight or logarithmic scale from values to places on the page."""

    def __init__(self, first: float, last: float, start: float, end: float, log: bool) -> None:
        self.log = log
        self.first, self.last = (math.log10(first), math.log10(last)) if log else (first, last)
        self.start, self.end = start, end

    def at(self, value: float) -> float:
        place = math.log10(value) if self.log else value
        share = (place - self.first) / (self.last - self.first)
        return self.start + (self.end - self.start) * min(1.0, max(0.0, share))


def figure(chart: Chart) -> Iterator[str]:
    """The figure with its legend, as HTML."""
    name = words.escape(chart.name)
    yield f'<figure class="chart" id="{name}">'
    yield (
        f'<div class="plot" tabindex="0" role="group" aria-roledescription="chart" '
        f'aria-label="{words.escape(chart.title)}: arrow keys read the values">'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{words.escape(_title(chart))}" '
        f'aria-describedby="{name}-text"><desc id="{name}-text">{words.escape(described(chart))}</desc>'
    )
    yield from _drawing(chart)
    yield '<path class="cursor" d=""/></svg><div class="hint" role="status" hidden></div></div>'
    yield from _legend(chart)
    yield "</figure>"


def described(chart: Chart) -> str:
    """The picture in words: where every series starts and ends, for the first few."""
    told = [series for series in chart.series if series.points and series.shown]
    parts = []
    for series in told:
        first, last = series.points[0], series.points[-1]
        parts.append(f"{series.label}: {first.y_text} {first.x_text}")
        if last is not first:
            parts[-1] += f", {last.y_text} {last.x_text}"
    return "; ".join(parts)


def classes(series: Series) -> str:
    turn, colour = divmod(series.style, len(LIGHT))
    return f"s{colour} t{turn % 3}{' released' if series.released else ''}{'' if series.shown else ' off'}"


def _title(chart: Chart) -> str:
    return f"{chart.y_label} against {chart.x_label}"


def _drawing(chart: Chart) -> Iterator[str]:
    points = [point for series in chart.series for point in series.points]
    apart = any(math.isinf(point.x) for point in points)
    right = WIDTH - RIGHT - (APART if apart else 0)
    x, x_ticks = _x_axis(chart, [point.x for point in points if math.isfinite(point.x)], right)
    y, y_ticks = _y_axis(chart, points)
    for value, text in y_ticks:
        at = y.at(value)
        yield f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>'
        yield f'<text class="y" x="{LEFT - 10}" y="{at:.1f}" dy=".35em">{text}</text>'
    for value, text in x_ticks:
        yield f'<text class="x" x="{x.at(value):.1f}" y="{HEIGHT - BOTTOM + 26}">{text}</text>'
    yield f'<text class="x" x="{(LEFT + right) / 2:.1f}" y="{HEIGHT - 8}">{words.escape(chart.x_label)}</text>'
    if apart:
        yield f'<path class="grid dash" d="M{right + 14} {TOP}V{HEIGHT - BOTTOM}"/>'
        middle = (right + 14 + WIDTH - RIGHT) / 2
        yield f'<text class="x" x="{middle:.1f}" y="{HEIGHT - BOTTOM + 26}">{words.escape(chart.apart)}</text>'
    if chart.line_at is not None:
        yield f'<path class="level" d="M{LEFT} {y.at(chart.line_at):.1f}H{WIDTH - RIGHT}"/>'
    for index, series in enumerate(chart.series):
        # Methods without a place on the axis stand side by side, so that none hides another.
        beside = right + 30 + (WIDTH - RIGHT - right - 46) * ((index * 5) % 8) / 7
        yield from _series(chart, index, series, lambda value, beside=beside: _place(x, value, beside), y)  # type: ignore[misc]


def _place(axis: Axis, value: float, beside: float) -> float:
    return beside if math.isinf(value) else axis.at(value)


def _series(chart: Chart, index: int, series: Series, x: Callable[[float], float], y: Axis) -> Iterator[str]:
    places = [(x(point.x), y.at(point.y)) for point in series.points]
    texts = words.escape("|".join(point.y_text for point in series.points))
    where = words.escape("|".join(point.x_text for point in series.points))
    yield f'<g class="{classes(series)} {chart.marks}" data-i="{index}" data-x="{where}" data-v="{texts}">'
    bounded = [
        (px, y.at(point.low), y.at(point.high))
        for (px, _), point in zip(places, series.points, strict=True)
        if point.low is not None and point.high is not None
    ]
    if chart.marks == "status":
        bars = "".join(f"M{px:.1f} {low:.1f}V{high:.1f}" for px, low, high in bounded)
        yield f'<path class="bars" d="{bars}"/>' if bars else ""
    elif len(bounded) > 1:
        edge = "L".join(f"{px:.1f} {high:.1f}" for px, _, high in bounded)
        back = "L".join(f"{px:.1f} {low:.1f}" for px, low, _ in reversed(bounded))
        yield f'<path class="band" d="M{edge}L{back}z"/>'
    steps = ["M" if not place or math.isinf(point.x) else "L" for place, point in enumerate(series.points)]
    line = "".join(f"{step}{px:.1f} {py:.1f}" for step, (px, py) in zip(steps, places, strict=True))
    yield f'<path class="line" d="{line}"/>'
    if chart.marks == "status":
        for (px, py), point in zip(places, series.points, strict=True):
            status = point.status or "none"
            yield f'<path class="mark {status}" d="M{px:.1f} {py:.1f}{OUTLINES[STATUS_MARKERS[status]]}"/>'
    else:
        outline = OUTLINES[MARKERS[series.style % len(MARKERS)]]
        marked = places[:: max(1, math.ceil(len(places) / MOST_MARKS))]
        yield f'<path class="mark" d="{"".join(f"M{px:.1f} {py:.1f}{outline}" for px, py in marked)}"/>'
    yield "</g>"


def _legend(chart: Chart) -> Iterator[str]:
    yield "<figcaption>"
    if chart.about:
        yield f"<p>{words.escape(chart.about)}</p>"
    if chart.marks == "status":
        there = {point.status for series in chart.series for point in series.points}
        keys = "".join(
            f'<li><svg class="st {status}" viewBox="-8 -8 16 16" aria-hidden="true">'
            f'<path d="M0 0{OUTLINES[marker]}"/></svg>{words.status_words(status)}</li>'
            for status, marker in STATUS_MARKERS.items()
            if status in there
        )
        yield f'<ul class="keys">{keys}</ul>'
    if len(chart.series) > 2:
        yield (
            '<p class="all"><button type="button" data-all="true">show all</button> '
            '<button type="button" data-all="false">hide all</button></p>'
        )
    yield '<ul class="legend">'
    for index, series in enumerate(chart.series):
        if chart.marks == "status":
            # Shape and colour tell the status here, and a method may have points of several.
            status = (series.points[0].status if series.points else None) or "none"
            look, mark, marker = "status", f"mark {status}", STATUS_MARKERS[status]
        else:
            look, mark = classes(series).removesuffix(" off"), "mark"
            marker = MARKERS[series.style % len(MARKERS)]
        line = '<path class="line" d="M2 8H42"/>'
        drawn = f'<g class="{look}">{line}<path class="{mark}" d="M22 8{OUTLINES[marker]}"/></g>'
        yield (
            f'<li><button type="button" aria-pressed="{"true" if series.shown else "false"}" data-i="{index}">'
            f'<svg class="key" viewBox="0 0 44 16" aria-hidden="true">{drawn}</svg>'
            f"<span>{words.escape(series.label)}</span></button></li>"
        )
    yield "</ul></figcaption>"


def _x_axis(chart: Chart, values: list[float], right: float) -> tuple[Axis, list[tuple[float, str]]]:
    if chart.x_log:
        first, last = min(values, default=1.0), max(values, default=1.0)
        room = 1.4 if first == last else (last / first) ** 0.06
        axis = Axis(first / room, last * room, LEFT, right, True)
        wanted = sorted(set(values)) if len(set(values)) <= 12 else _decades(first, last)
        kept: list[tuple[float, str]] = []
        for value in wanted:
            if not kept or axis.at(value) - axis.at(kept[-1][0]) >= 44:
                kept.append((value, f"{value:g}"))
        return axis, kept
    last = max(values, default=1.0)
    room = 0.02 * (last - 1) or 0.5
    axis = Axis(1 - room, last + room, LEFT, right, False)
    return axis, [(tick, str(tick)) for tick in words.ticks(1 - room, last + room)]


def _decades(first: float, last: float) -> list[float]:
    """Powers of ten around a range, thinned to at most eight."""
    low, high = math.floor(math.log10(first)), math.ceil(math.log10(last))
    step = max(1, math.ceil((high - low) / 8))
    return [10.0**power for power in range(high, low - step, -step)][::-1]


def _y_axis(chart: Chart, points: list[Point]) -> tuple[Axis, list[tuple[float, str]]]:
    bottom, top = HEIGHT - BOTTOM, TOP
    if chart.y_form == "percent":
        return Axis(0, 1, bottom, top, False), [(value / 100, f"{value}%") for value in range(0, 101, 20)]
    values = [point.y for point in points] or [1.0]
    if chart.y_form == "log":
        level = [chart.line_at] if chart.line_at is not None else []
        decades = _decades(min(values + level), max([*values, 1.0] if level else values))
        if len(decades) == 1:
            decades = [decades[0] / 10, decades[0]]
        return Axis(decades[0], decades[-1], bottom, top, True), [(value, f"{value:g}") for value in decades]
    lows = [point.low for point in points if point.low is not None]
    highs = [point.high for point in points if point.high is not None]
    low, high = min([*values, *lows, 0.0]), max([*values, *highs, 0.0])
    step = next(
        scale * 10.0**power for power in range(-12, 300) for scale in (1, 2, 5) if high - low <= 6 * scale * 10.0**power
    )
    first, last = math.floor(low / step), max(math.ceil(high / step), math.floor(low / step) + 1)
    ticks = [(place * step, f"{place * step:g}") for place in range(first, last + 1)]
    return Axis(first * step, last * step, bottom, top, False), ticks
