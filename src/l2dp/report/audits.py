"""What audits found, as a section of a report: attack by attack, the bound beside the guarantee that it was tried on.

A bound is evidence against a guarantee, never for one; the words say so wherever it is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from l2dp.errors import BadInput
from l2dp.report import words
from l2dp.report.comparison import guarantee_cell
from l2dp.report.document import Cell, Section, Table
from l2dp.report.lines import read_guarantee

MEANS = (
    "Lower bounds on ε at 95 % for each attack: an honest mechanism's lies above its stated ε in at most one of 20. "
    "The verdict “refuted” needs a chance of error below one in a million over all attacks of an audit. "
    "“Holds so far” proves nothing."
)


def is_audit(content: dict[str, Any]) -> bool:
    return {"learner", "verdict", "findings", "level"} <= content.keys()


def section(audits: Sequence[tuple[str, dict[str, Any]]]) -> Section:
    """One table over all audits; what they could not try is named below it."""
    several = len(audits) > 1
    columns = ("learner", "attack", "guarantee", "threat model", "verdict", "ε at least", "could show", "trials")
    rows: list[tuple[Cell, ...]] = []
    left_out: list[str] = []
    for place, audit in audits:
        try:
            tried, skipped = _rows(audit)
        except (AttributeError, KeyError, TypeError, ValueError) as flaw:
            raise BadInput(
                f"{place} is not in the audit.json format: {words.short(repr(flaw), 80)}; audit again or leave it out"
            ) from None
        rows += [(*row[:1], Cell(words.short(place, 80)), *row[1:]) if several else row for row in tried]
        if skipped:
            left_out.append(f"Not applicable to {words.short(str(audit['learner']), 60)}: {', '.join(skipped)}.")
    table = Table(
        "audit",
        "Attacks on stated guarantees",
        (columns[0], "audit", *columns[1:]) if several else columns,
        rows,
        6 if several else 5,
    )
    return Section("Audit", [table, MEANS, *left_out])


def _rows(audit: dict[str, Any]) -> tuple[list[tuple[Cell, ...]], list[str]]:
    tried: list[tuple[Cell, ...]] = []
    skipped: list[str] = []
    for finding in audit["findings"]:
        attack = words.short(str(finding["attack"]), 60)
        if finding["verdict"] == "not applicable":
            skipped.append(attack)
            continue
        bound = words.number(finding.get("lower_bound"))
        ceiling = words.number(finding.get("ceiling"))
        p_value = words.number(finding.get("p_value"))
        trials = words.number(finding.get("trials"))
        shown = f"p = {words.p_value(p_value)}" if p_value is not None else words.decimal(bound)
        stated = finding.get("stated")
        tried.append(
            (
                Cell(words.short(str(audit["learner"]), 60), small=f"{words.short(str(audit['level']), 20)} level"),
                Cell(attack, small=words.short(str(finding.get("variant") or ""), 80)),
                Cell("–") if stated is None else guarantee_cell(read_guarantee(stated)),
                Cell(words.short(str(finding["threat_model"]), 200)),
                Cell(words.short(str(finding["verdict"]), 40), status=_mark(finding["verdict"])),
                Cell(shown, bound),
                Cell(words.decimal(ceiling), ceiling),
                Cell(words.NOTHING if trials is None else f"{trials:.0f}", trials),
            )
        )
    return tried, sorted(set(skipped) - {cells[1].text for cells in tried})


def _mark(verdict: str) -> str:
    # An unbeaten guarantee is not thereby proved: it gets the shape of a claim.
    return "refuted" if verdict == "refuted" else "claimed"


def summary(audit: dict[str, Any]) -> str:
    """One sentence for a statement: what was tried, and what came of it."""
    tried = [finding for finding in audit["findings"] if finding["verdict"] != "not applicable"]
    bounds = [(words.number(finding.get("lower_bound")), finding) for finding in tried]
    best = max(((bound, finding) for bound, finding in bounds if bound is not None), key=lambda b: b[0], default=None)
    text = f"{len(tried)} attacks at the {audit['level']} level on {audit['learner']}: {audit['verdict']}."
    if best is not None:
        bound, finding = best
        stated = finding.get("stated")
        beside = "" if stated is None else f", against a stated {read_guarantee(stated)}"
        text += f" The highest lower bound on ε was {words.decimal(bound)} at 95 % ({finding['attack']}){beside}."
    return words.clean(text)
