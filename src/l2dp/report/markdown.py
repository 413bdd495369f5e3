"""A document as Markdown, with its figures as SVG files beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from l2dp.report import words
from l2dp.report.document import Chart, Document, Heat, Table

ACTIVE = re.compile(r"([\\`*_{}\[\]()#+!|<>&~$-])")


def escape(text: str) -> str:
    """Text that stays text: nothing in it is markup, HTML or a link."""
    return ACTIVE.sub(r"\\\1", words.clean(text))


def text(document: Document, figures: str) -> str:
    """The document; `figures` is the folder, beside it, of its SVG files."""
    lines = [f"# {escape(document.title)}", escape(document.about)]
    for place, section in enumerate(document.sections):
        lines.append(f"## {escape(section.heading)}")
        for part in section.parts:
            if isinstance(part, str):
                lines.append(escape(part))
            elif isinstance(part, Table):
                lines += [f"**{escape(part.caption)}**", "\n".join(_table(part))]
            elif isinstance(part, Chart):
                lines += [f"### {escape(part.title)}", f"![{escape(part.title)}]({figures}/{part.name}.svg)"]
                lines += [escape(part.about)] if part.about else []
            else:
                lines += [f"**Accuracy in %, task by task: {escape(part.label)}**", "\n".join(_heat(part))]
        if place == 0:
            lines += [
                f"- **{words.status_words(status)}**: {words.STATUS_MEANS[status]}" for status in document.statuses
            ]
    if document.notes:
        lines += ["## Notes", "\n".join(f"- {escape(note)}" for note in document.notes)]
    return "\n\n".join(line for line in lines if line) + "\n"


def _table(part: Table) -> Iterator[str]:
    yield f"| {' | '.join(escape(column) for column in part.columns)} |"
    yield f"|{'---|' * part.numeric}{'---:|' * (len(part.columns) - part.numeric)}"
    for row in part.rows:
        cells = [escape(f"{cell.text} ({cell.small})" if cell.small else cell.text) for cell in row]
        yield f"| {' | '.join(cells)} |"


def _heat(part: Heat) -> Iterator[str]:
    yield f"| after / on | {' | '.join(str(column + 1) for column in part.matrix.columns)} |"
    yield f"|---|{'---:|' * len(part.matrix.columns)}"
    for row, values in zip(part.matrix.rows, part.matrix.values, strict=True):
        cells = [words.NOTHING if value is None else f"{100.0 * value:z.0f}" for value in values]
        yield f"| {row + 1} | {' | '.join(cells)} |"
