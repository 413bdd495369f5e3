"""The status of a home for people: a table of tasks, a bar for what blocks have spent. Every ε has its status."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH = 20
LAST = 12
"""Tasks that are shown; the JSON has all."""


def bar(part: float) -> str:
    full = round(min(1.0, part) * WIDTH)
    return "█" * full + "░" * (WIDTH - full)


def _plain(text: str) -> Text:
    return Text(text, overflow="fold")


def show(found: dict[str, Any], console: Console) -> None:
    lifetime = found["lifetime"]
    promise = (
        "no privacy (status: none)"
        if lifetime["status"] == "none"
        else f"ε={lifetime['epsilon']:g}, δ={lifetime['delta']:g} {lifetime['status']}"
    )
    unit = found["guarantee"]["unit"]
    console.print(
        _plain(f"{found['home']}: {promise} for every {unit}; {found['learner']}, {len(found['labels'])} labels")
    )
    tasks = found["tasks"]
    table = Table(box=None, pad_edge=False)
    for column in ("task", "state", "declared size", f"charged to each {found['budget']['block']}", "accuracy"):
        table.add_column(column)
    for task in tasks[-LAST:]:
        charged = task["charged"]
        accuracy = "–" if task["accuracy"] is None else f"{task['accuracy']:.1%}"
        cost = f"ε={charged['epsilon']:g}, δ={charged['delta']:g} {charged['status']}"
        table.add_row(_plain(task["task"]), task["state"], str(task["declared_size"]), cost, accuracy)
    if tasks:
        console.print(table)
    if len(tasks) > LAST:
        console.print(f"… and {len(tasks) - LAST} tasks before; --json has all", highlight=False)
    if not tasks:
        console.print("no task learned yet")
    budget = found["budget"]
    for level in budget["levels"]:
        spent = f"ε={level['epsilon']:g}, δ={level['delta']:g} {level['status']}"
        noun = budget["block"] + ("" if level["blocks"] == 1 else "s")
        console.print(
            _plain(f"{bar(level['of_lifetime'])} {level['of_lifetime']:6.1%}  {level['blocks']} {noun} spent {spent}")
        )
    for made in found["releases"][-3:]:
        console.print(
            _plain(f"release after {made['task']}: {made['out']} (ledger entry {made['ledger_head']['sequence']})")
        )
    if found["unfinished"] is not None:
        console.print(_plain(f"unfinished: {found['unfinished']}; give `l2dp learn` again with the same data"))
