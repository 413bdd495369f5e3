"""What a person sees of an ingest: a bar while it runs, the funnel and the numbers of windows in the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table

from l2dp.har.ingest import Progress


@contextmanager
def bar(console: Console) -> Iterator[Progress]:
    """A live bar on a terminal, nothing elsewhere."""
    if not console.is_terminal:
        yield lambda what, done, total: None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed:,.0f} samples"),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=console, transient=True) as bars:
        task = bars.add_task("", total=None)
        yield lambda what, done, total: bars.update(task, description=what, completed=done, total=total or None)


def show(described: dict[str, Any], console: Console) -> None:
    """The funnel, and windows by rate and label."""
    table = Table(title="funnel", title_justify="left", show_edge=False)
    for name in ("step", "in", "out", "why dropped, and what else was seen"):
        table.add_column(name, justify="right" if name in ("in", "out") else "left", overflow="fold")
    for step in described["funnel"]:
        reasons = [f"{number:,} {reason}" for reason, number in step["dropped"].items()]
        seen = [f"{number:,} {what}" for what, number in step["noted"].items()]
        text = "; ".join(reasons) + (" | " if reasons and seen else "") + ", ".join(seen)
        table.add_row(step["step"], f"{step['in']:,} {step['unit']}", f"{step['out']:,}", text)
    console.print(table)
    console.print()
    counts = Table(title="windows", title_justify="left", show_edge=False)
    for name in ("rate", "part", *described["labels"], "all", "users"):
        counts.add_column(name, justify="right")
    people = {(row["part"], row["rate"]): row["users"] for row in described["users"]}
    found = {(row["part"], row["rate"], row["label"]): row["windows"] for row in described["windows"]}
    for rate in described["rates"]:
        for part in ("train", "test"):
            row = [found.get((part, rate, label), 0) for label in described["labels"]]
            cells = (f"{number:,}" for number in (*row, sum(row), people.get((part, rate), 0)))
            counts.add_row(f"{rate:g} Hz", part, *cells)
    console.print(counts)
