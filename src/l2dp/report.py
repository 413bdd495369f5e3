"""Tables, figures and one self-contained page from results in the `result.json` format.

Presentation only: nothing here trains or reads raw data, and no accuracy is shown without its guarantee and
its status. Names and notes may come from strangers' files: they are shown as text, never interpreted.
"""

from __future__ import annotations

import html
import io
import math
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from l2dp import durable
from l2dp.budget import Guarantee
from l2dp.errors import BadInput
from l2dp.metrics import average_forgetting

Result = dict[str, Any]

# Okabe and Ito's colour-blind safe hues, darkened or lightened for a contrast of 3:1 to the background.
LIGHT = ("#0072b2", "#d55e00", "#007a5a", "#a8457f", "#8a6100", "#4a5560")
DARK = ("#56b4e9", "#ff8a3d", "#2cc295", "#e29bc4", "#e6b800", "#c0c8d0")
MARKERS = ("o", "s", "^", "D", "v", "P")
LARGEST_MATRIX = 25
HEAT_STEPS = 20

STATUS_MEANS = {
    "proved": "the argument is written down, its premises are tested, and the audit has not beaten it.",
    "claimed": "somebody says so; nobody here has proved or broken it.",
    "refuted": "the source claims this ε, and an attack beats it.",
    "none": "no privacy at all.",
}


@dataclass(frozen=True)
class Row:
    """One line of the table. Accuracy and forgetting are fractions after the last task, or None."""

    method: str
    guarantee: str
    average_accuracy: float | None
    forgetting: float | None
    seconds: float | None

    def cells(self) -> tuple[str, str, str, str, str]:
        """The columns as printed, the same in the terminal and on the page."""
        return (
            self.method,
            self.guarantee,
            _percent(self.average_accuracy),
            "–" if self.forgetting is None else f"{self.forgetting:z.3f}",
            "–" if self.seconds is None else f"{self.seconds:z.1f}",
        )


COLUMNS = ("method", "guarantee", "average accuracy", "forgetting", "seconds")


@dataclass(frozen=True)
class _Line:
    """One way of testing one result; `released` is θ alone, not the authors' test with the secret draws."""

    method: str
    guarantee: Guarantee
    curve: list[float | None]
    forgetting: list[float | None]
    matrix: list[list[float | None]]
    seconds: float | None
    style: int
    released: bool

    @property
    def label(self) -> str:
        return f"{self.method} — {self.guarantee}"

    @property
    def row(self) -> Row:
        return Row(
            method=self.method,
            guarantee=str(self.guarantee),
            average_accuracy=self.curve[-1] if self.curve else None,
            forgetting=self.forgetting[-1] if self.forgetting else None,
            seconds=self.seconds,
        )

    @property
    def points(self) -> list[tuple[int, float]]:
        return [(tasks, value) for tasks, value in enumerate(self.curve, start=1) if value is not None]


def table_rows(results: list[Result]) -> list[Row]:
    """One row per result, and for a result with `released` accuracies one more."""
    return [line.row for line in _lines(results)]


def print_table(rows: Sequence[Row], console: Console) -> None:
    """Print the rows to a Rich console; narrow terminals wrap the text columns and never cut a guarantee."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    # The other columns usually take 59: on a terminal of 80 the method is what wraps, not the guarantee.
    table.add_column(COLUMNS[0], overflow="fold", max_width=max(10, console.width - 59))
    table.add_column(COLUMNS[1], overflow="fold")
    for name in COLUMNS[2:]:
        table.add_column(name.replace(" ", "\n"), justify="right", overflow="fold", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(_clean(cell)) for cell in row.cells()))
    console.print(table)


def curve_png(results: list[Result], path: Path, title: str) -> None:
    """Draw average accuracy against the number of tasks, one line per result, dashed for `released`."""
    # Imported here because it takes longer than printing a table, which needs none of it.
    from matplotlib.figure import Figure

    lines = _lines(results)
    labels = [textwrap.fill(line.label, 85) for line in lines]
    legend_lines = sum(label.count("\n") + 1 for label in labels)
    figure = Figure(figsize=(8.0, 4.6 + 0.24 * legend_lines), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    handles = []
    for line in lines:
        turn, colour = divmod(line.style, len(LIGHT))
        handles += axes.plot(
            [tasks for tasks, _ in line.points],
            [100.0 * value for _, value in line.points],
            color=LIGHT[colour],
            linestyle=(0, (5, 2.5)) if line.released else ("-", "-.", ":")[turn % 3],
            marker=MARKERS[colour],
            markerfacecolor="white" if line.released else LIGHT[colour],
            markersize=6,
            markevery=max(1, math.ceil(len(line.points) / 25)),
            linewidth=1.8,
        )
    axes.set_ylim(0, 100)
    axes.set_xlim(*_task_range(lines))
    axes.set_xticks(_ticks(*_task_range(lines)))
    axes.yaxis.set_major_formatter("{x:.0f}%")
    axes.tick_params(labelsize=11)
    axes.set_xlabel("number of tasks", fontsize=12)
    axes.set_ylabel("average accuracy", fontsize=12)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(_short(title, 66), fontsize=13, parse_math=False)
    # Matplotlib drops legend entries that start with an underscore; a method may be called so.
    labels = [f" {label}" if label.startswith("_") else label for label in labels]
    legend = figure.legend(handles, labels, loc="outside lower center", ncols=1, fontsize=11, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)
    png = io.BytesIO()
    with warnings.catch_warnings():
        # A name in a script the font lacks is drawn as boxes; a warning on the terminal would help nobody.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        figure.savefig(png, format="png")
    durable.write_bytes(path, png.getvalue())


def html_page(results: list[Result], path: Path, title: str, notes: list[str]) -> None:
    """Write one page with the table, the curves and the accuracy matrices. It needs no network, no script."""
    lines = _lines(results)
    statuses = [status for status in STATUS_MEANS if any(line.guarantee.status == status for line in lines)]
    page = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        # Even a flaw in the escaping could then load and run nothing.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        '<meta name="color-scheme" content="light dark">',
        f"<title>{_escape(title)}</title>\n<style>\n{_style()}</style>\n</head>\n<body>\n<main>",
        f"<h1>{_escape(title)}</h1>\n<p>{_escape(_setting(results))}</p>",
        *_headline(lines),
        "<dl>",
        *(
            f"<div><dt>{'claimed, refuted' if status == 'refuted' else status}</dt>"
            f"<dd>{STATUS_MEANS[status]}</dd></div>"
            for status in statuses
        ),
        "</dl>\n<h2>Average accuracy</h2>",
        *_svg_curves(lines),
        "<h2>Accuracy, task by task</h2>",
        "<p>A row is the model after learning that task, a column a task it is tested on. Outlined: the task "
        "just learned. To its right, in italics: tasks still to come.</p>",
        *(part for line in lines for part in _heat_map(line)),
    ]
    if notes:
        page += ["<h2>Notes</h2>\n<ul>", *(f"<li>{_escape(note)}</li>" for note in notes), "</ul>"]
    page.append("</main>\n</body>\n</html>\n")
    durable.write_bytes(path, "\n".join(page).encode())


def _lines(results: list[Result]) -> list[_Line]:
    if not results:
        raise BadInput("no results to report; name a run directory that holds a result.json")
    lines: list[_Line] = []
    for style, result in enumerate(results):
        try:
            lines += _lines_of(result, style, _telling_apart(result, results))
        except (AttributeError, KeyError, TypeError, ValueError) as flaw:
            name = _short(str(result.get("learner", "?")), 40) if isinstance(result, dict) else "?"
            raise BadInput(
                f"result {style + 1} (learner {name}) is not in the result.json format: "
                f"{_short(repr(flaw), 80)}; run it again"
            ) from None
    return lines


def _lines_of(result: Result, style: int, telling_apart: str) -> Iterator[_Line]:
    learner = _short(str(result["learner"]), 60)
    guarantee = _guarantee(result["guarantee"])
    matrix = _matrix(result["accuracy_matrix"])
    seconds = _number(result.get("seconds"))
    released = result.get("released")
    yield _Line(
        method=f"{learner}{' (noisy test: needs the secret draws)' if released else ''}{telling_apart}",
        guarantee=guarantee,
        curve=_numbers(result["average_accuracy"]),
        forgetting=_numbers(result["average_forgetting"]),
        matrix=matrix,
        seconds=seconds,
        style=style,
        released=False,
    )
    if released:
        matrix = _matrix(released["accuracy_matrix"])
        yield _Line(
            method=f"{learner} (released: θ alone){telling_apart}",
            guarantee=guarantee,
            curve=_numbers(released["average_accuracy"]),
            forgetting=average_forgetting(matrix),
            matrix=matrix,
            seconds=seconds,
            style=style,
            released=True,
        )


def _guarantee(stated: dict[str, Any]) -> Guarantee:
    words = {key: stated[key] for key in ("status", "unit", "adjacency") if key in stated}
    numbers: dict[str, Any] = {
        key: _number(stated.get(key)) for key in ("epsilon", "delta", "source_epsilon", "source_delta")
    }
    if words["status"] not in STATUS_MEANS:
        raise ValueError(f"unknown status {words['status']!r}")
    return Guarantee(**words, **numbers, source_overlap=int(_number(stated.get("source_overlap")) or 1))


def _telling_apart(result: Result, results: list[Result]) -> str:
    """What of the setting differs between the results, so that no two rows look the same by accident."""
    differing = [
        f"{key} {result.get(key)}"
        for key in ("benchmark", "protocol", "tasks", "seed")
        if len({str(other.get(key)) for other in results}) > 1
    ]
    return _clean("".join(f", {part}" for part in differing))


def _setting(results: list[Result]) -> str:
    """What all results have in common, in one line."""
    shared = {
        key: results[0].get(key)
        for key in ("benchmark", "tasks", "protocol", "seed", "version")
        if results[0].get(key) is not None and len({str(result.get(key)) for result in results}) == 1
    }
    return " · ".join(f"{key} {value}" if key != "tasks" else _tasks(value) for key, value in shared.items())


def _headline(lines: list[_Line]) -> Iterator[str]:
    # The roles restate what the tags mean, because browsers forget it where a phone's style stacks the cells.
    yield '<div class="wide" role="region" aria-label="Results" tabindex="0">'
    yield '<table class="headline" role="table">'
    yield "<caption>After the last task: every accuracy beside its privacy guarantee</caption>"
    yield (
        '<thead><tr role="row">'
        + "".join(f'<th scope="col" role="columnheader">{column}</th>' for column in COLUMNS)
        + "</tr></thead><tbody>"
    )
    for line in lines:
        method, guarantee, *numbers = (_escape(cell) for cell in line.row.cells())
        fine_print = f"<small>{_escape(_fine_print(line.guarantee))}</small>" if line.guarantee.epsilon else ""
        yield (
            f'<tr role="row"><th scope="row" role="rowheader">{method}</th>'
            f'<td role="cell"><b class="{line.guarantee.status}">{guarantee}</b>{fine_print}</td>'
            + "".join(f'<td role="cell">{number}</td>' for number in numbers)
            + "</tr>"
        )
    yield "</tbody></table></div>"


def _fine_print(guarantee: Guarantee) -> str:
    """For whom the guarantee holds, and what it becomes for a source record that is in several tasks."""
    text = f"per {guarantee.unit}, {guarantee.adjacency}"
    if guarantee.source_overlap > 1 and guarantee.source_epsilon is not None:
        source = Guarantee(guarantee.status, guarantee.source_epsilon, guarantee.source_delta)
        text += f"; a source record is in {guarantee.source_overlap} tasks: {source}"
    return text


def _svg_curves(lines: list[_Line]) -> Iterator[str]:
    left, top, right, bottom, width, height = 84, 16, 18, 66, 760, 450
    first, last = _task_range(lines)

    def x(tasks: float) -> float:
        return left + (width - left - right) * (tasks - first) / (last - first)

    def y(value: float) -> float:
        return height - bottom - (height - top - bottom) * value

    described = "; ".join(
        f"{line.label}: {_percent(line.points[0][1])} after {_tasks(line.points[0][0])}, "
        f"{_percent(line.points[-1][1])} after {_tasks(line.points[-1][0])}"
        for line in lines
        if line.points
    )
    yield (
        f'<figure><svg viewBox="0 0 {width} {height}" role="img" aria-labelledby="curves-title curves-text">'
        '<title id="curves-title">Average accuracy against the number of tasks</title>'
        f'<desc id="curves-text">{_escape(described)}</desc>'
    )
    for percent in range(0, 101, 20):
        at = y(percent / 100)
        yield f'<path class="grid" d="M{left} {at:.1f}H{width - right}"/>'
        yield f'<text class="y" x="{left - 10}" y="{at:.1f}" dy=".35em">{percent}%</text>'
    for tasks in _ticks(first, last):
        yield f'<text class="x" x="{x(tasks):.1f}" y="{height - bottom + 26}">{tasks}</text>'
    yield f'<text class="x" x="{(left + width - right) / 2:.1f}" y="{height - 8}">number of tasks</text>'
    for line in lines:
        shape = line.style % len(MARKERS)
        places = [(x(tasks), y(value)) for tasks, value in line.points]
        path = "M" + "L".join(f"{px:.1f} {py:.1f}" for px, py in places)
        yield f'<g class="{_classes(line)}">'
        if len(places) > 1:
            yield f'<path class="line" d="{path}"/>'
        every = max(1, math.ceil(len(places) / 25))
        for (px, py), (tasks, value) in list(zip(places, line.points, strict=True))[::every]:
            hint = _escape(f"{line.label}: {_percent(value)} after {_tasks(tasks)}")
            yield f'<path class="mark" d="{_marker(shape, px, py)}"><title>{hint}</title></path>'
        yield "</g>"
    yield '</svg><figcaption><ul class="legend">'
    for line in lines:
        shape = line.style % len(MARKERS)
        yield (
            f'<li><svg class="key" viewBox="0 0 44 16" aria-hidden="true"><g class="{_classes(line)}">'
            f'<path class="line" d="M2 8H42"/><path class="mark" d="{_marker(shape, 22, 8)}"/></g></svg>'
            f"<span>{_escape(line.label)}</span></li>"
        )
    yield "</ul></figcaption></figure>"


def _heat_map(line: _Line) -> Iterator[str]:
    evaluated = [index for index, row in enumerate(line.matrix) if any(value is not None for value in row)]
    if not evaluated:
        yield f"<p>{_escape(line.label)}: no task was evaluated on its own.</p>"
        return
    rows = _evenly(evaluated, LARGEST_MATRIX)
    tasks = len(line.matrix[0])
    columns = _evenly(list(range(tasks)), LARGEST_MATRIX)
    shown = f", {len(rows)} of {len(evaluated)} evaluated rows" if len(rows) < len(evaluated) else ""
    shown += f", {len(columns)} of {tasks} tasks" if len(columns) < tasks else ""
    label = _escape(line.label)
    yield f'<div class="wide" role="region" aria-label="Accuracy: {label}" tabindex="0"><table class="heat">'
    yield f"<caption>{label} <small>(accuracy in %{shown})</small></caption>"
    heads = "".join(f'<th scope="col">{column + 1}</th>' for column in columns)
    yield f'<thead><tr><th scope="col">after \\ on</th>{heads}</tr></thead><tbody>'
    for row in rows:
        cells = []
        for column in columns:
            value = line.matrix[row][column]
            place = " d" if column == row else " u" if column > row else ""
            if value is None:
                cells.append(f'<td class="n{place}">–</td>')
            else:
                step = round(HEAT_STEPS * min(1.0, max(0.0, value)))
                cells.append(f'<td class="c{step}{place}">{100.0 * value:z.0f}</td>')
        yield f'<tr><th scope="row">{row + 1}</th>{"".join(cells)}</tr>'
    yield "</tbody></table></div>"


def _style() -> str:
    """The page's style sheet, in as few rules as it takes."""

    def theme(colours: Sequence[str], **names: str) -> str:
        given = {**{f"s{index}": colour for index, colour in enumerate(colours)}, **names}
        return ":root{" + ";".join(f"--{name}:{value}" for name, value in given.items()) + "}"

    light = theme(LIGHT, bg="#fff", ink="#1b2026", dim="#56606b", rule="#d5dae0", good="#00694d", bad="#a83200")
    dark = theme(DARK, bg="#14171b", ink="#e6e9ed", dim="#a3adb8", rule="#363d46", good="#2cc295", bad="#ff9c5b")
    series = "\n".join(f".s{index}{{--c:var(--s{index})}}" for index in range(len(LIGHT)))
    heat = []
    for step in range(HEAT_STEPS + 1):
        share = step / HEAT_STEPS
        rgb = [round(start + share * (end - start)) for start, end in ((238, 8), (243, 56), (248, 120))]
        # White becomes the more readable ink where the blue's relative luminance falls below 0.18.
        ink = "#fff" if step > 0.6 * HEAT_STEPS else "#111"
        heat.append(f".c{step}{{background:#{bytes(rgb).hex()};color:{ink}}}")
    return (
        f"{light}\n@media (prefers-color-scheme:dark){{{dark}}}\n{series}\n"
        + "".join(heat)
        + """
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
body{overflow-wrap:break-word}
main{max-width:64rem;margin:auto;padding:1rem}
h1{font-size:1.6rem;line-height:1.25;margin:.5rem 0}
h2{font-size:1.2rem;margin:2rem 0 .5rem}
p,small,dd,caption small{color:var(--dim)}
p{margin:.25rem 0 1rem}
.wide{overflow-x:auto;margin:0 0 1.5rem;max-width:100%}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
caption{text-align:left;padding:.25rem 0;font-weight:600}
.headline{width:100%}
.headline th,.headline td{padding:.45rem .6rem;text-align:left;vertical-align:top}
.headline th,.headline td{border-bottom:1px solid var(--rule)}
.headline th{font-weight:600}
.headline thead th{color:var(--dim);vertical-align:bottom}
.headline th:nth-child(n+3),.headline td:nth-child(n+3){text-align:right}
.headline b,.headline small{display:block}
.headline b{font-weight:600;white-space:nowrap}
.proved{color:var(--good)}
.refuted,.none{color:var(--bad)}
dl{font-size:.9rem}
dt,dd{display:inline;margin:0}
dt{font-weight:600}
dt::after{content:": "}
figure{margin:0}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--dim);font-size:15px}
.x{text-anchor:middle}
.y{text-anchor:end}
.grid{stroke:var(--rule)}
.line{fill:none;stroke:var(--c);stroke-width:2.2;stroke-linejoin:round}
.mark{fill:var(--c);stroke:var(--c);stroke-width:1.8}
.t1 .line{stroke-dasharray:10 4 2 4}
.t2 .line{stroke-dasharray:2 4}
.released .line{stroke-dasharray:8 5}
.released .mark{fill:var(--bg)}
.legend{list-style:none;margin:.5rem 0 0;padding:0}
.legend li{display:flex;gap:.6rem;align-items:baseline}
.legend span{min-width:0}
.key{flex:none;width:44px;height:16px;align-self:center}
.heat{font-size:.85rem}
.heat caption{width:max-content;max-width:min(60rem,100vw - 2rem)}
.heat th,.heat td{padding:.15rem .3rem;min-width:2.1rem;text-align:center;border:1px solid var(--bg)}
.heat th{color:var(--dim);font-weight:400}
.heat thead th:first-child{white-space:nowrap}
.heat .d{outline:2px solid var(--ink);outline-offset:-2px;font-weight:700}
.heat .u{font-style:italic}
@media (max-width:40rem){
svg text{font-size:26px}
figure>svg .line,figure>svg .mark{stroke-width:4}
.headline thead{position:absolute;clip-path:inset(50%);height:1px;overflow:hidden}
.headline,.headline tbody,.headline th,.headline td,.headline caption{display:block}
.headline tr{display:flex;flex-wrap:wrap;column-gap:.9rem;padding:.5rem 0;border-bottom:1px solid var(--rule)}
.headline th,.headline td:nth-child(2){flex:1 0 100%}
.headline th,.headline td,.headline td:nth-child(n+3){border:0;padding:.1rem 0;text-align:left}
.headline td:nth-child(n+3){font-size:.9rem}
.headline td:nth-child(3)::before{content:"average accuracy ";color:var(--dim)}
.headline td:nth-child(4)::before{content:"forgetting ";color:var(--dim)}
.headline td:nth-child(5)::before{content:"seconds ";color:var(--dim)}
}
"""
    )


def _classes(line: _Line) -> str:
    turn, colour = divmod(line.style, len(LIGHT))
    return f"s{colour} t{turn % 3}{' released' if line.released else ''}"


def _marker(shape: int, x: float, y: float) -> str:
    """The outline of one of `MARKERS` around a point, as SVG path data."""
    outlines = (
        "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
        "m-3.7-3.7h7.4v7.4h-7.4z",
        "m0-4.6l4.4 8h-8.8z",
        "m0-5l5 5l-5 5l-5-5z",
        "m0 4.6l4.4-8h-8.8z",
        "m-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
    )
    return f"M{x:.1f} {y:.1f}{outlines[shape]}"


def _task_range(lines: list[_Line]) -> tuple[float, float]:
    last = max((len(line.curve) for line in lines), default=1)
    room = 0.02 * (last - 1) or 0.5
    return 1 - room, last + room


def _ticks(first: float, last: float) -> list[int]:
    """At most ten whole numbers of tasks, in steps of 1, 2 or 5 times a power of ten."""
    step = next(
        scale * 10**power for power in range(12) for scale in (1, 2, 5) if last - first <= 10 * scale * 10**power
    )
    return [tasks for tasks in range(0, math.floor(last) + 1, step) if tasks >= 1]


def _evenly(indices: list[int], most: int) -> list[int]:
    if len(indices) <= most:
        return indices
    return [indices[round(place * (len(indices) - 1) / (most - 1))] for place in range(most)]


def _matrix(matrix: Sequence[Sequence[Any]]) -> list[list[float | None]]:
    rows = [_numbers(row) for row in matrix]
    if len({len(row) for row in rows}) > 1:
        raise ValueError("rows of different lengths")
    return rows


def _numbers(values: Sequence[Any]) -> list[float | None]:
    return [_number(value) for value in values]


def _number(value: Any) -> float | None:
    """Python's JSON reader lets NaN and infinities through; they are as good as not evaluated."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return float(value) if math.isfinite(value) else None


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100.0 * value:z.2f}%"


def _tasks(count: object) -> str:
    return "1 task" if count == 1 else f"{count} tasks"


def _clean(text: str) -> str:
    """Without terminal escapes, direction overrides and whatever else would act instead of being shown."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def _short(text: str, width: int) -> str:
    return _clean(text if len(text) <= width else f"{text[: width - 1]}…")


def _escape(text: str) -> str:
    return html.escape(_clean(text))
