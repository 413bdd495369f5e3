"""Numbers for a spreadsheet or a data frame: full precision, one row per method, its guarantee beside it."""

from __future__ import annotations

import csv
import io

from l2dp.report import words
from l2dp.report.document import Chart, Document, Table

FORMULA = ("=", "+", "-", "@", "\t", "\r")


def plain(text: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    cleaned = words.clean(text)
    return f"'{cleaned}" if cleaned.startswith(FORMULA) else cleaned


def rows(document: Document) -> str:
    """Every table of the document, one after the other, each below its own head."""
    return "\n".join(table(part) for part in document.tables())


def table(part: Table) -> str:
    """One table. A guarantee is its text and, in columns of their own, its status and ε."""
    heads: list[str] = []
    for column in part.columns:
        heads += [column, "status", "epsilon"] if column == "guarantee" else [column]
    written = []
    for row in part.rows:
        cells: list[str] = []
        for place, cell in enumerate(row):
            if part.columns[place] == "guarantee":
                epsilon = "" if cell.key is None or cell.key == float("inf") else repr(cell.key)
                cells += [plain(cell.text), cell.status or "", epsilon]
            elif place >= part.numeric:
                cells.append(
                    "" if cell.text == words.NOTHING else repr(cell.key) if cell.key is not None else plain(cell.text)
                )
            else:
                cells.append(plain(cell.text))
        written.append(cells)
    return _text([heads, *written])


def chart(part: Chart) -> str:
    """The points of a chart, one a row."""
    points = [
        [
            plain(series.label),
            plain(point.x_text),
            repr(point.x),
            repr(point.y),
            _or_empty(point.low),
            _or_empty(point.high),
        ]
        for series in part.series
        for point in series.points
    ]
    return _text([["method", "where", "x", "y", "low", "high"], *points])


def _or_empty(value: float | None) -> str:
    return "" if value is None else repr(value)


def _text(lines: list[list[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(lines)
    return out.getvalue()
