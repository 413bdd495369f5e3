"""Outcomes as tables: cells for the terminal and for Markdown, the same in both."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from l2dp.experiments.outcome import Json

COLUMNS = (
    *("method", "guarantee", "accuracy %", "paper", "diff.", "forgetting", "paper", "diff.", "seeds", "verdict"),
    "run on",
)
EFFECTS = (
    *("effect", "mean over tasks", "after the last", "p, paired (ours)", "p, over seeds (ours)", "p, the paper's test"),
    *("paper's p", "seeds", "verdict"),
)

LEAST_FIRST, GAP = 30, 3
"""Columns that the first cell of a row gets at least in a table, and those between two cells."""


def cells(row: Json, quick: bool) -> list[str]:
    """One row; a quick form shows nothing of the paper."""
    theirs = {} if quick or row["paper"] is None else row["paper"]
    accuracy, forgetting = row.get("accuracy"), row.get("forgetting")
    shown = [row["label"], row["guarantee"]]
    shown += _beside(accuracy, row.get("accuracy_sd"), theirs.get("accuracy"), 100, 1, len(row["seeds"]))
    shown += _beside(forgetting, row.get("forgetting_sd"), theirs.get("forgetting"), 1, 3, len(row["seeds"]))
    if "forgetting_sd" in theirs:
        shown[6] += f" ± {theirs['forgetting_sd']:g}"
    missing = ",".join(map(str, row.get("seeds_missing", [])))
    shown.append((",".join(map(str, row["seeds"])) or "–") + (f" ({missing} not run)" if missing else ""))
    shown.append("quick form" if quick and row["state"] != "not possible" else word(row))
    return [*shown, row["on"]]


def narrow(found: Json) -> tuple[list[str], list[list[str]]]:
    """The same for a terminal: the paper's numbers in brackets, what it was run on below the label."""
    rows = []
    for row in found["rows"]:
        label, guarantee, *numbers, seeds, judged, on = cells(row, found["quick"])
        both = [
            ours if printed == "–" else f"{ours} (paper {printed}, {apart})"
            for ours, printed, apart in (numbers[:3], numbers[3:])
        ]
        rows.append([f"{label}\n  {on}", guarantee, *both, seeds, *([] if found["quick"] else [judged])])
    columns = ["method, run on", "guarantee", "accuracy %", "forgetting", "seeds"]
    return (columns if found["quick"] else [*columns, "verdict"]), rows


def word(row: Json) -> str:
    """The verdict in words: reproduced, better, worse (why), sub-sampled, not run, not possible (why)."""
    if row["state"] == "run on other data":
        return "–" if row["paper"] is None else f"not possible: {row['stands_in']}; other data stand in"
    if row["state"] in ("not run", "not possible", "run on a sub-sample"):
        shown = "sub-sampled" if row["state"] == "run on a sub-sample" else row["state"]
    elif not row["verdict"]:
        shown = "–" if row["paper"] is None else "no number to compare"
    else:
        judged = dict(row["verdict"])
        judged |= {
            key: "not measured" for key in ("accuracy", "forgetting") if key in row["paper"] and key not in judged
        }
        alike = len(set(judged.values())) == 1
        shown = next(iter(judged.values())) if alike else ", ".join(f"{key} {said}" for key, said in judged.items())
        shown += " (one seed)" if len(row["seeds"]) == 1 else ""
    reasons = []
    if "improvement" in row:
        gain, theirs = (100 * row["improvement"][whose] for whose in ("ours", "paper"))
        reasons.append(f"{gain:+.1f} points over {row['improvement']['over']}, the paper prints {theirs:+.2f}")
    if row["state"] in ("not run", "not possible") or "worse" in shown:
        reasons.append(row["unrun"] if row["state"] == "not run" else row["why"])
    if "best" in row and row["verdict"]["forgetting"] == "worse":
        ours, theirs = (100 * row["best"][whose] for whose in ("ours", "paper"))
        reasons.append(f"at their best tasks had {ours:.1f} % on average, in the paper {theirs:.1f}")
    return ": ".join([shown, *filter(None, ["; ".join(filter(None, reasons))])])


def _beside(
    ours: float | None, sd: float | None, theirs: float | None, scale: float, digits: int, seeds: int
) -> list[str]:
    mine = "–" if ours is None else f"{scale * ours:.{digits}f}"
    if ours is not None and sd is not None and seeds > 1:
        mine += f" ± {scale * sd:.{digits}f}"
    printed = "–" if theirs is None else _as_printed(scale * theirs, 2 if scale == 100 else 3)
    both = ours is not None and theirs is not None
    return [mine, printed, f"{scale * (ours - theirs):+.{digits}f}" if both else "–"]  # type: ignore[operator]


def _as_printed(value: float, least: int) -> str:
    """A number of the paper with all the decimals that it has there, four at most.

    >>> _as_printed(0.1016, 3), _as_printed(0.077, 3), _as_printed(47.73, 2), _as_printed(66.4, 2)
    ('0.1016', '0.077', '47.73', '66.40')
    """
    whole, _, decimals = f"{value:.4f}".partition(".")
    return f"{whole}.{decimals.rstrip('0').ljust(least, '0')}"


def effects(found: Json) -> tuple[Sequence[str], list[list[str]]]:
    """The effects; a quick form says nothing of the paper and judges nothing."""
    shown = [effect_cells(one) for one in found["effects"]]
    if not found["quick"]:
        return EFFECTS, shown
    return [*EFFECTS[:6], "seeds"], [[*cells[:6], cells[7]] for cells in shown]


def effect_cells(effect: Json) -> list[str]:
    unit = 100 if effect["measure"] == "accuracy" else 1
    difference = effect.get("mean_difference")
    says = effect["says"] if effect["tasks"] is None else f"{effect['says']} (first {effect['tasks']} tasks)"
    shown = "–" if difference is None else f"{unit * difference:+.3g}"
    last = "–" if difference is None else f"{unit * effect['difference']:+.3g}"
    if "first_gap" in effect:
        shown = f"from {unit * effect['first_gap']:+.3g}"
        ours, theirs = effect["p"], None  # of a trend, which the paper does not test
    else:
        ours, theirs = effect.get("p_paired"), effect.get("p")
    return [
        says,
        shown,
        last,
        *(_p(value) for value in (ours, effect.get("p_seeds"), theirs)),
        "–" if effect["paper_p"] is None else f"< {effect['paper_p']:g}",
        str(effect.get("seeds", "–")),
        effect["verdict"],
    ]


def _p(value: float | None) -> str:
    return "–" if value is None else f"{value:.2g}"


def markdown(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table; what would break a row of it is escaped."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def show(columns: Sequence[str], rows: Sequence[Sequence[Any]], console: Console) -> None:
    """A table where it fits, else a paragraph for each row: nothing is ever cut off."""
    longest = [_longest_word(column) for column in zip(columns, *rows, strict=True)]
    if max(longest[0], LEAST_FIRST) + sum(longest[1:]) + GAP * len(longest) > console.width:
        for row in rows:
            for line in paragraph(columns, row, console.width):
                console.print(Text(line), soft_wrap=True)
        return
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name, width in zip(columns, longest, strict=True):
        table.add_column(name, overflow="fold", min_width=width)
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    console.print(table)


def paragraph(columns: Sequence[str], row: Sequence[Any], width: int) -> list[str]:
    """One row in words: what it is, and below that every cell behind the name of its column."""
    first = " — ".join(part.strip() for part in str(row[0]).splitlines())
    rest = [" ".join(str(cell).split()) for cell in row[1:]]
    said = "; ".join(f"{name}: {cell}" for name, cell in zip(columns[1:], rest, strict=True) if cell != "–")
    lines = textwrap.wrap(said, max(width - 4, 20), break_long_words=False, break_on_hyphens=False)
    return [first, *(f"    {line}" for line in lines)]


def _longest_word(column: Sequence[Any]) -> int:
    return max((len(word) for cell in column for word in str(cell).split()), default=1)
