"""What a report consists of, whatever it is written as: sections of tables, charts and heat maps.

Every number is already a text here, made once; the writers (page, Markdown, PDF, CSV, LaTeX) only set it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from l2dp.report.lines import Matrix


@dataclass(frozen=True)
class Cell:
    """One cell: its text, what to sort it by if not that, and small print below it."""

    text: str
    key: float | None = None
    status: str | None = None
    small: str = ""
    share: float | None = None
    """Between 0 and 1: the length of a bar beside the number."""
    link: str | None = None
    """A page beside this one."""


@dataclass(frozen=True)
class Table:
    """Columns from `numeric` on are numbers: set to the right, and sorted by their keys."""

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]
    numeric: int


@dataclass(frozen=True)
class Point:
    """Where something is drawn, and the two texts that say what it is."""

    x: float
    y: float
    x_text: str
    y_text: str
    low: float | None = None
    high: float | None = None
    status: str | None = None


@dataclass(frozen=True)
class Series:
    label: str
    points: list[Point]
    style: int
    released: bool = False
    shown: bool = True
    """Whether the page starts with it; the legend turns it on and off."""


@dataclass(frozen=True)
class Chart:
    """A picture with one line or row of points per series."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: list[Series]
    y_form: Literal["percent", "decimal", "log", "count"]
    about: str = ""
    x_log: bool = False
    marks: Literal["style", "status"] = "style"
    """Whether shape and colour tell the method or the status."""
    joined: bool = True
    apart: str = ""
    """The word below points without a place on the x axis (their x is infinite), at its right end."""
    line_at: float | None = None
    """A horizontal line, such as a level of significance."""


@dataclass(frozen=True)
class Heat:
    """An accuracy matrix, as a table of coloured cells."""

    name: str
    label: str
    matrix: Matrix


@dataclass(frozen=True)
class Section:
    heading: str
    parts: list[Table | Chart | Heat | str]
    """In order; a string is a paragraph."""


@dataclass(frozen=True)
class Document:
    title: str
    about: str
    sections: list[Section]
    notes: list[str] = field(default_factory=list)
    statuses: tuple[str, ...] = ()
    """Those that occur, for the legend."""
    for_papers: bool = True
    """Whether the page has the LaTeX of its tables."""

    def tables(self) -> list[Table]:
        return [part for section in self.sections for part in section.parts if isinstance(part, Table)]

    def charts(self) -> list[Chart]:
        return [part for section in self.sections for part in section.parts if isinstance(part, Chart)]
