"""A document as a PDF, by Matplotlib alone: tables as text, one chart a page, then the matrices."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from l2dp.report import paper, words
from l2dp.report.document import Chart, Document, Heat, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PORTRAIT = (8.27, 11.69)
LINES = 74
COLUMNS = 98
SIZE = 7.6
MOST_MATRICES = 24


def pages(document: Document) -> bytes:
    """The whole file. The same document makes the same bytes."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_pdf import PdfPages

    made = io.BytesIO()
    title = {"Title": words.clean(document.title), "CreationDate": None}
    with rc_context({"pdf.fonttype": 42}), paper.quiet(), PdfPages(made, metadata=title) as file:
        text = list(_text(document))
        for start in range(0, len(text), LINES):
            file.savefig(_text_page(text[start : start + LINES]))
        for section in document.sections:
            for part in section.parts:
                if isinstance(part, Chart):
                    file.savefig(paper.figure(part, f"{part.title}: {section.heading}"))
        matrices = [part for section in document.sections for part in section.parts if isinstance(part, Heat)]
        for part in [part for part in matrices if part.matrix.rows][:MOST_MATRICES]:
            file.savefig(_heat_page(part))
    return made.getvalue()


def _text(document: Document) -> Iterator[str]:
    """Titles, tables and notes in lines of one width."""
    yield from textwrap.wrap(words.clean(document.title), COLUMNS)
    yield from textwrap.wrap(words.clean(document.about), COLUMNS)
    for section in document.sections:
        texts = [part for part in section.parts if isinstance(part, Table | str)]
        if texts:
            yield from ("", *textwrap.wrap(words.clean(section.heading).upper(), COLUMNS))
        for part in texts:
            if isinstance(part, str):
                yield from ("", *textwrap.wrap(words.clean(part), COLUMNS))
            else:
                yield from ("", *textwrap.wrap(words.clean(part.caption), COLUMNS), *_table(part))
    if document.statuses:
        yield ""
    for status in document.statuses:
        yield from textwrap.wrap(f"{words.status_words(status)}: {words.STATUS_MEANS[status]}", COLUMNS)
    if document.notes:
        yield from ("", "NOTES")
        for note in document.notes:
            yield from textwrap.wrap(words.clean(note), COLUMNS, subsequent_indent="  ")


def _table(part: Table) -> Iterator[str]:
    """Columns as wide as they need to be; texts share what numbers leave, and wrap."""
    cells = [list(part.columns)] + [
        [words.clean(f"{cell.text}; {cell.small}" if cell.small else cell.text) for cell in row] for row in part.rows
    ]
    widest = [max(len(row[place]) for row in cells) for place in range(len(part.columns))]
    widths = [min(width, 16) if place >= part.numeric else width for place, width in enumerate(widest)]
    left = COLUMNS - sum(widths[part.numeric :]) - 2 * (len(widths) - 1)
    for place in range(part.numeric):
        widths[place] = min(widths[place], max(12, left // part.numeric))
    for index, row in enumerate(cells):
        wrapped = [textwrap.wrap(text, width) or [""] for text, width in zip(row, widths, strict=True)]
        for line in range(max(len(lines) for lines in wrapped)):
            texts = [lines[line] if line < len(lines) else "" for lines in wrapped]
            yield "  ".join(
                text.rjust(width) if place >= part.numeric else text.ljust(width)
                for place, (text, width) in enumerate(zip(texts, widths, strict=True))
            ).rstrip()
        if index == 0:
            yield "-" * min(COLUMNS, sum(widths) + 2 * (len(widths) - 1))


def _text_page(lines: list[str]) -> Figure:
    from matplotlib.figure import Figure

    made = Figure(figsize=PORTRAIT)
    for place, line in enumerate(lines):
        made.text(0.07, 0.95 - 0.9 * place / LINES, line, family="monospace", size=SIZE, parse_math=False, va="top")
    return made


def _heat_page(part: Heat) -> Figure:
    from matplotlib.figure import Figure

    made = Figure(figsize=(8.27, 6.5), layout="constrained")
    axes = made.add_subplot()
    values = [[float("nan") if value is None else 100.0 * value for value in row] for row in part.matrix.values]
    axes.imshow(values, vmin=0, vmax=100, cmap="Blues", aspect="auto")
    for row, found in enumerate(part.matrix.values):
        for column, value in enumerate(found):
            if value is not None:
                ink = "white" if value > 0.6 else "black"
                axes.text(column, row, f"{100.0 * value:z.0f}", ha="center", va="center", size=6, color=ink)
    axes.set_xticks(range(len(part.matrix.columns)), [str(column + 1) for column in part.matrix.columns], size=7)
    axes.set_yticks(range(len(part.matrix.rows)), [str(row + 1) for row in part.matrix.rows], size=7)
    axes.set_xlabel("tested on task")
    axes.set_ylabel("after learning task")
    title = textwrap.fill(f"Accuracy in %, task by task: {words.clean(part.label)}", 80)
    axes.set_title(title, fontsize=10, parse_math=False)
    return made
