"""Outcomes of experiments as sections: tables beside the paper's numbers, effects with p values, budget growth.

An outcome (`outcome.json`) is either a sweep, with one row per method, or the table of a function. Rows of a quick form
and rows that were not run say so.
"""

from __future__ import annotations

import math
import re
from typing import Any

from l2dp.errors import BadInput
from l2dp.report import words
from l2dp.report.document import Cell, Chart, Heat, Point, Section, Series, Table

LIFETIME = re.compile(r"(\d+) tasks?")
STATUS = re.compile(r"\b(proved|claimed|refuted|none)\b")

Part = Table | Chart | Heat | str


def is_outcome(content: dict[str, Any]) -> bool:
    return {"experiment", "title", "rows", "quick"} <= content.keys()


def section(place: str, outcome: dict[str, Any]) -> Section:
    """One experiment."""
    try:
        name = re.sub(r"[^a-z0-9]+", "-", str(outcome["experiment"]).lower()).strip("-")[:60]
        parts: list[Part] = [words.short(str(outcome.get("about") or ""), 600)]
        if outcome["quick"]:
            parts.append("A quick form: a first look, on less data than the paper's.")
        parts += _function(name, outcome) if "columns" in outcome else _sweep(name, outcome)
        parts += [words.short(str(note), 600) for note in outcome.get("notes", [])]
        heading = f"Experiment: {words.short(str(outcome['title']), 120)}"
        return Section(heading, [part for part in parts if part])
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as flaw:
        raise BadInput(
            f"{place} is not the outcome of an experiment: {words.short(repr(flaw), 80)}; run it again or leave it out"
        ) from None


def _function(name: str, outcome: dict[str, Any]) -> list[Part]:
    columns = tuple(words.short(str(column), 120) for column in outcome["columns"])
    rows = [tuple(_cell(value) for value in row) for row in outcome["rows"]]
    if any(len(row) != len(columns) for row in rows):
        raise ValueError("rows of different lengths")
    table = Table(f"experiment-{name}", words.short(str(outcome["title"]), 120), columns, rows, 1)
    return [*_growth(name, outcome), table]


def _growth(name: str, outcome: dict[str, Any]) -> list[Part]:
    """ε against the number of tasks, where a table has rows named after that and columns that tell their status."""
    lives = [
        (int(found.group(1)), row) for row in outcome["rows"] if (found := LIFETIME.fullmatch(str(row[0]))) is not None
    ]
    ways = [
        (place, words.short(str(column), 120), told.group(1))
        for place, column in enumerate(outcome["columns"])
        if (told := STATUS.search(str(column))) is not None
    ]
    series = []
    for style, (place, label, status) in enumerate(ways):
        points = []
        for tasks, row in sorted(lives, key=lambda life: life[0]):
            epsilon = _cell(row[place]).key
            if epsilon is not None and epsilon > 0:
                text = f"ε={words.short(str(row[place]), 20)} {words.status_words(status)}"
                points.append(Point(tasks, epsilon, f"after {words.tasks(tasks)}", text, status=status))
        if points:
            series.append(Series(label, points, style))
    if len(lives) < 2 or not series:
        return []
    return [
        Chart(
            f"growth-{name}",
            "ε of a lifetime against its number of tasks",
            "number of tasks (logarithmic)",
            "ε",
            series,
            "log",
            "Each way of counting beside what its figure is worth.",
            x_log=True,
        )
    ]


def _sweep(name: str, outcome: dict[str, Any]) -> list[Part]:
    texts = ("method", "guarantee", "run on", "outcome")
    numbers = ("accuracy", "paper's", "forgetting", "paper's forgetting", "seeds")
    rows = []
    for row in outcome["rows"]:
        theirs = row.get("paper") or {}
        accuracy, forgetting = words.number(row.get("accuracy")), words.number(row.get("forgetting"))
        paper, paper_forgetting = words.number(theirs.get("accuracy")), words.number(theirs.get("forgetting"))
        seeds = len(row.get("seeds") or [])
        status = row.get("status")
        rows.append(
            (
                Cell(words.short(str(row["label"]), 120)),
                Cell(
                    words.short(str(row["guarantee"]), 120),
                    words.number(row.get("epsilon")) or math.inf,
                    status if status in words.STATUS_MEANS else None,
                ),
                Cell(words.short(str(row["on"]), 160)),
                Cell(_told(row)),
                Cell(_spread(accuracy, row.get("accuracy_sd"), seeds, words.percent), accuracy),
                Cell(words.percent(paper), paper),
                Cell(_spread(forgetting, row.get("forgetting_sd"), seeds, words.decimal), forgetting),
                Cell(words.decimal(paper_forgetting), paper_forgetting),
                Cell(str(seeds), float(seeds)),
            )
        )
    parts: list[Part] = [
        Table(f"experiment-{name}", words.short(str(outcome["title"]), 120), (*texts, *numbers), rows, 4)
    ]
    effects = [
        (
            Cell(words.short(str(effect["says"]), 200)),
            Cell(words.short(str(effect["verdict"]), 60)),
            Cell(words.decimal(words.number(effect.get("difference"))), words.number(effect.get("difference"))),
            Cell(words.p_value(_p_of(effect)), _p_of(effect)),
        )
        for effect in outcome.get("effects", [])
    ]
    if effects:
        heads = ("said", "here", "difference at the end", "p value, paired by tasks")
        parts.append(Table(f"effects-{name}", "Directions that the paper states, or we", heads, effects, 2))
    return parts


def _p_of(effect: dict[str, Any]) -> float | None:
    """The p value that an effect was judged by."""
    return words.number(effect.get("p_paired", effect.get("p")))


def _told(row: dict[str, Any]) -> str:
    verdicts = row.get("verdict") or {}
    told = ", ".join(f"{measure} {judged}" for measure, judged in verdicts.items()) or str(row["state"])
    why = row.get("why")
    return words.short(f"{told}: {why}" if why else told, 200)


def _spread(value: float | None, deviation: Any, seeds: int, text: Any) -> str:
    known = words.number(deviation) if seeds > 1 else None
    return words.spread(text(value), None if known is None else text(known))


def _cell(value: Any) -> Cell:
    """A cell as the experiment wrote it, sorted as a number where it is one."""
    text = words.NOTHING if value is None else words.short(str(value), 200)
    try:
        key = float(text)
    except ValueError:
        return Cell(text)
    return Cell(text, key if math.isfinite(key) else None)
