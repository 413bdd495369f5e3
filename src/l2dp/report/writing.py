"""Reports on disk: from results or folders to a page, Markdown, a PDF or a table of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from l2dp import durable
from l2dp.errors import BadInput
from l2dp.report import audits, comparison, folders, lines, markdown, methods, outcomes, page, paper, pdf, spreadsheet
from l2dp.report.document import Document

Format = Literal["html", "md", "pdf", "csv"]


def html_page(results: list[lines.Result], path: Path, title: str, notes: list[str]) -> None:
    """Write one page over the results. It needs no network."""
    found = methods.settings(lines.read(results))
    document = comparison.document(title, _about(found), found, notes)
    durable.write_bytes(path, page.html(document).encode())


def write_report(
    places: Sequence[Path],
    out: Path,
    form: str | None = None,
    title: str = "l2dp report",
    baseline: str | None = None,
    figures: Path | None = None,
) -> Document:
    """Reads all that lies in the places and writes it; the format is the one named, or that of the file's name.

    With `figures`, every figure goes there as SVG and PDF and every table as LaTeX and CSV.
    """
    chosen = form_of(out, form)
    document = read_document(places, title, baseline)
    durable.make_folder(out.parent)
    if chosen == "html":
        durable.write_bytes(out, page.html(document).encode())
    elif chosen == "pdf":
        durable.write_bytes(out, pdf.pages(document))
    elif chosen == "csv":
        durable.write_bytes(out, spreadsheet.rows(document).encode())
    else:
        beside = out.parent / f"{out.stem}-figures"
        paper.write_figures(document, beside, ("svg",))
        durable.write_bytes(out, markdown.text(document, beside.name).encode())
    if figures is not None:
        paper.write_figures(document, figures, ("svg", "pdf"))
        paper.write_tables(document, figures)
    return document


def read_document(places: Sequence[Path], title: str, baseline: str | None = None) -> Document:
    """The report over whatever lies in the places."""
    found = folders.find(places)
    settings = methods.settings(found.lines)
    others = [outcomes.section(place, outcome) for place, outcome in found.outcomes]
    others += [audits.section(found.audits)] if found.audits else []
    return comparison.document(title, _about(settings), settings, found.notes, others, baseline)


def form_of(out: Path, form: str | None) -> Format:
    wanted = form or out.suffix.removeprefix(".").lower() or "html"
    wanted = {"markdown": "md", "htm": "html"}.get(wanted, wanted)
    for known in get_args(Format):
        if wanted == known:
            return known  # type: ignore[no-any-return]
    raise BadInput(f"cannot write a report as {wanted!r}; choose --format html, md, pdf or csv")


def _about(found: Sequence[methods.Setting]) -> str:
    """What a reader sees first: over what this reports."""
    runs = sum(method.runs for setting in found for method in setting.methods if not method.released)
    if not found:
        return ""
    counted = f"{runs} run{'' if runs == 1 else 's'}"
    return f"{found[0].title} · {counted}" if len(found) == 1 else f"{len(found)} settings · {counted}"
