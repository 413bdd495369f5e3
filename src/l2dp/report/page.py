"""A document as one self-contained page: style, pictures and script inside it, nothing from any network.

The page's own security policy allows its one script and its one style by their hashes and nothing else, so that
even a flaw in the escaping of a stranger's names could load and run nothing.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources

from l2dp.report import latex, palette, svg, words
from l2dp.report.document import Cell, Chart, Document, Heat, Section, Table

WRITTEN_OUT = 8
"""Matrices that are in the page from the start; the rest is written out by the script when it is opened."""
LONG_LIST = 12

FOREWORD = (
    "A row is the model after learning that task, a column a task it is tested on. Outlined: the task just learned. "
    "To its right, in italics: tasks still to come. Accuracies in %."
)


def html(document: Document) -> str:
    """The whole page."""
    body = [
        f'<header><h1>{words.escape(document.title)}</h1><button type="button" class="theme">light / dark</button>'
        f"</header>\n<p>{words.escape(document.about)}</p>",
        *_contents(document),
    ]
    written = 0
    for place, section in enumerate(document.sections, start=1):
        body += [f'<section id="part-{place}">', f"<h2>{words.escape(section.heading)}</h2>"]
        for part, first in _with_first_heat(section):
            if isinstance(part, str):
                body.append(f"<p>{words.escape(part)}</p>")
            elif isinstance(part, Table):
                body += table(part)
                body += _latex(part) if document.for_papers else []
            elif isinstance(part, Chart):
                body += [f"<h3>{words.escape(part.title)}</h3>", *svg.figure(part)]
            else:
                if first:
                    body.append(f"<h3>Accuracy, task by task</h3>\n<p>{FOREWORD}</p>")
                    body.append("<noscript><p>Closed matrices need a script to open.</p></noscript>")
                body += _heat(part, written < WRITTEN_OUT)
                written += 1
        if place == 1:
            body += _statuses(document)
        body.append("</section>")
    if document.notes:
        body += ["<section><h2>Notes</h2>\n<ul>", *(f"<li>{words.escape(note)}</li>" for note in document.notes)]
        body.append("</ul></section>")
    return whole(document.title, body)


def whole(title: str, body: Iterable[str], more_style: str = "") -> str:
    """A page around its body: head, policy, style and script."""
    style = f"{_colours()}{asset('page.css')}{more_style}"
    script = asset("page.js")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        # Or a browser would ask the server for one.
        '<link rel="icon" href="data:,">',
        f"<title>{words.escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n{_sprite()}\n<main>",
    ]
    return "\n".join([*head, *body, f"</main>\n<script>{script}</script>\n</body>\n</html>\n"])


def status_mark(status: str) -> str:
    """The shape of a status; its word stands beside it."""
    return f'<svg class="st {status}" viewBox="-8 -8 16 16" aria-hidden="true"><use href="#st-{status}"/></svg>'


def table(part: Table) -> Iterator[str]:
    """A sortable table."""
    # The roles restate what the tags mean, because browsers forget it where a phone's style stacks the cells.
    caption = words.escape(part.caption)
    yield f'<div class="wide" role="region" aria-label="{caption}" tabindex="0">'
    yield f'<table class="rows" role="table" id="{words.escape(part.name)}"><caption>{caption}</caption>'
    heads = "".join(
        f'<th scope="col" role="columnheader" aria-sort="none"{_right(part, place)}>'
        f'<button type="button">{words.escape(column)}</button></th>'
        for place, column in enumerate(part.columns)
    )
    yield f'<thead role="rowgroup"><tr role="row">{heads}</tr></thead><tbody role="rowgroup">'
    for row in part.rows:
        yield f'<tr role="row">{"".join(_cell(part, place, cell) for place, cell in enumerate(row))}</tr>'
    yield "</tbody></table></div>"


def _latex(part: Table) -> Iterator[str]:
    yield '<details class="source"><summary>LaTeX of this table</summary>'
    yield '<button type="button" class="copy">copy</button>'
    yield f'<pre tabindex="0">{words.escape_lines(latex.table(part))}</pre></details>'


def _with_first_heat(section: Section) -> Iterator[tuple[Table | Chart | Heat | str, bool]]:
    seen = False
    for part in section.parts:
        heat = isinstance(part, Heat)
        yield part, heat and not seen
        seen = seen or heat


def _contents(document: Document) -> Iterator[str]:
    if len(document.sections) < 2:
        return
    long = ' class="long" tabindex="0"' if len(document.sections) > LONG_LIST else ""
    yield f'<nav aria-label="Sections"{long}><ul>'
    for place, section in enumerate(document.sections, start=1):
        yield f'<li><a href="#part-{place}">{words.escape(section.heading)}</a></li>'
    yield "</ul></nav>"


def _statuses(document: Document) -> Iterator[str]:
    if document.statuses:
        yield "<dl>"
        for status in document.statuses:
            means = words.STATUS_MEANS[status]
            yield f"<div>{status_mark(status)}<dt>{words.status_words(status)}</dt><dd>{means}</dd></div>"
        yield "</dl>"


def _right(part: Table, place: int) -> str:
    return ' class="n"' if place >= part.numeric else ""


def _cell(part: Table, place: int, cell: Cell) -> str:
    text = words.escape(cell.text)
    if cell.link is not None:
        text = f'<a href="{words.escape(cell.link)}">{text}</a>'
    if cell.status is not None:
        text = f'<b class="{cell.status}">{status_mark(cell.status)}{text}</b>'
    if cell.small:
        text += f"<small>{words.escape(cell.small)}</small>"
    if cell.share is not None:
        text += (
            '<svg class="bar" viewBox="0 0 100 5" preserveAspectRatio="none" aria-hidden="true">'
            f'<rect class="back" width="100" height="5"/><rect width="{100 * cell.share:.1f}" height="5"/></svg>'
        )
    key = "" if cell.key is None else f' data-k="{"Infinity" if cell.key == float("inf") else repr(cell.key)}"'
    if place == 0:
        return f'<th scope="row" role="rowheader"{key}>{text}</th>'
    head = f' data-h="{words.escape(part.columns[place])}"' if place >= part.numeric else ""
    return f'<td role="cell"{_right(part, place)}{head}{key}>{text}</td>'


def _heat(part: Heat, written_out: bool) -> Iterator[str]:
    matrix = part.matrix
    label = words.escape(part.label)
    if not matrix.rows:
        yield f"<p>{label}: no task was evaluated on its own.</p>"
        return
    shown = f", {len(matrix.rows)} of {matrix.evaluated} evaluated rows" if len(matrix.rows) < matrix.evaluated else ""
    shown += f", {len(matrix.columns)} of {matrix.tasks} tasks" if len(matrix.columns) < matrix.tasks else ""
    caption = f"{label}{f' <small>({shown[2:]})</small>' if shown else ''}"
    rows = [str(row + 1) for row in matrix.rows]
    columns = [str(column + 1) for column in matrix.columns]
    cells = [[words.NOTHING if value is None else f"{100.0 * value:z.0f}" for value in row] for row in matrix.values]
    opened = " open" if written_out else ""
    region = f'class="wide" role="region" aria-label="Accuracy: {label}" tabindex="0"'
    yield f'<details class="matrix"{opened}><summary>{caption}</summary>'
    if not written_out:
        text = "|".join(" ".join(row) for row in cells)
        yield f'<div {region} data-rows="{" ".join(rows)}" data-columns="{" ".join(columns)}" data-cells="{text}">'
        yield "</div></details>"
        return
    heads = "".join(f'<th scope="col">{column}</th>' for column in columns)
    yield f'<div {region}><table class="heat"><caption>{caption}</caption>'
    yield f'<thead><tr><th scope="col">after \\ on</th>{heads}</tr></thead><tbody>'
    for row, texts, values in zip(matrix.rows, cells, matrix.values, strict=True):
        written = []
        for column, text, value in zip(matrix.columns, texts, values, strict=True):
            shade = [] if value is None else [f"c{round(palette.HEAT_STEPS * min(1.0, max(0.0, value)))}"]
            place = ["d"] if column == row else ["u"] if column > row else []
            named = " ".join(shade + place)
            written.append(f'<td class="{named}">{text}</td>' if named else f"<td>{text}</td>")
        yield f'<tr><th scope="row">{row + 1}</th>{"".join(written)}</tr>'
    yield "</tbody></table></div></details>"


def _sprite() -> str:
    shapes = "".join(
        f'<path id="st-{status}" d="M0 0{palette.OUTLINES[marker]}"/>'
        for status, marker in palette.STATUS_MARKERS.items()
    )
    return f'<svg class="sprite" aria-hidden="true"><defs>{shapes}</defs></svg>'


def _colours() -> str:
    """The two themes as variables; paper is always light."""

    def theme(series: tuple[str, ...], statuses: Mapping[str, str], **others: str) -> str:
        given = {**{f"s{index}": colour for index, colour in enumerate(series)}, **statuses, **others}
        return "".join(f"--{name}:{value};" for name, value in given.items())

    light = theme(
        palette.LIGHT, palette.STATUS_LIGHT, bg="#fff", ink="#1b2026", dim="#56606b", rule="#d5dae0", link="#005a8e"
    )
    dark = theme(
        palette.DARK, palette.STATUS_DARK, bg="#14171b", ink="#e6e9ed", dim="#a3adb8", rule="#363d46", link="#7cc4f2"
    )
    series = "".join(f".s{index}{{--c:var(--s{index})}}" for index in range(len(palette.LIGHT)))
    heat = "".join(
        f".c{step}{{background:{back};color:{ink}}}" for step, (back, ink) in enumerate(palette.heat_colours())
    )
    return (
        f":root{{color-scheme:light;{light}}}\n"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}\n"
        f":root[data-theme=dark]{{color-scheme:dark;{dark}}}\n"
        f"@media print{{:root:root,:root:root[data-theme]{{color-scheme:light;{light}}}}}\n{series}\n{heat}\n"
    )


def asset(name: str) -> str:
    """A style sheet or script that ships with the package."""
    return resources.files("l2dp.report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
