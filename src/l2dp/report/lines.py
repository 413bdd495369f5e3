"""What a `result.json` says, read with suspicion: one `Line` for each way of testing one run.

A line keeps what is shown and no more: of a long stream's matrix only the rows and columns that fit a page, so
that a thousand tasks in hundreds of runs are read one after the other in little memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from l2dp.budget import Guarantee
from l2dp.errors import BadInput
from l2dp.metrics import average_forgetting
from l2dp.report import words

Result = dict[str, Any]
Numbers = list[float | None]

LARGEST_MATRIX = 25
NOISY = " (noisy test: needs the secret draws)"
RELEASED = " (released: θ alone)"


@dataclass(frozen=True)
class Row:
    """One line of the table. Accuracy and forgetting are fractions after the last task, or None."""

    method: str
    guarantee: str
    average_accuracy: float | None
    forgetting: float | None
    seconds: float | None

    def cells(self) -> tuple[str, str, str, str, str]:
        """The columns as printed, the same in the terminal and on the page."""
        return (
            self.method,
            self.guarantee,
            words.percent(self.average_accuracy),
            words.decimal(self.forgetting),
            words.decimal(self.seconds, 1),
        )


COLUMNS = ("method", "guarantee", "average accuracy", "forgetting", "seconds")


@dataclass(frozen=True)
class Matrix:
    """The part of an accuracy matrix that fits a page: which rows and columns, and of how many."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    values: list[Numbers]
    evaluated: int
    tasks: int


@dataclass(frozen=True)
class Line:
    """One way of testing one result; `released` is θ alone, not the authors' test with the secret draws."""

    learner: str
    way: str
    guarantee: Guarantee
    curve: Numbers
    forgetting: Numbers
    matrix: Matrix
    seconds: float | None
    examples_per_second: float | None
    peak_memory_mb: float | None
    setting: tuple[tuple[str, str], ...]
    """What makes two runs comparable: benchmark, tasks, protocol and how the stream was made."""
    options: tuple[tuple[str, str], ...]
    """How the learner was configured, flat."""
    seed: str

    @property
    def released(self) -> bool:
        return self.way == RELEASED


def table_rows(results: list[Result]) -> list[Row]:
    """One row per result, and for a result with `released` accuracies one more."""
    return [
        Row(
            method=f"{line.learner}{line.way}{_telling_apart(result, results)}",
            guarantee=str(line.guarantee),
            average_accuracy=line.curve[-1] if line.curve else None,
            forgetting=line.forgetting[-1] if line.forgetting else None,
            seconds=line.seconds,
        )
        for result, lines in zip(results, read(results), strict=True)
        for line in lines
    ]


def print_table(rows: Sequence[Row], console: Console) -> None:
    """Print the rows to a Rich console; narrow terminals wrap the text columns and never cut a guarantee."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    # The other columns usually take 59: on a terminal of 80 the method is what wraps, not the guarantee.
    table.add_column(COLUMNS[0], overflow="fold", max_width=max(10, console.width - 59))
    table.add_column(COLUMNS[1], overflow="fold")
    for name in COLUMNS[2:]:
        table.add_column(name.replace(" ", "\n"), justify="right", overflow="fold", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(words.clean(cell)) for cell in row.cells()))
    console.print(table)


def read(results: Sequence[Result]) -> list[list[Line]]:
    """The lines of every result; a clear refusal of the first that is not one."""
    if not results:
        raise BadInput("no results to report; name a run directory that holds a result.json")
    return [read_one(result, f"result {place}") for place, result in enumerate(results, start=1)]


def read_one(result: Result, place: str) -> list[Line]:
    """The one or two ways of testing of one result; `place` is what to call it in a refusal."""
    try:
        return list(_lines_of(result))
    except (AttributeError, KeyError, TypeError, ValueError, BadInput) as flaw:
        name = words.short(str(result.get("learner", "?")), 40) if isinstance(result, dict) else "?"
        raise BadInput(
            f"{place} (learner {name}) is not in the result.json format: "
            f"{words.short(repr(flaw), 80)}; run it again or leave it out"
        ) from None


def _lines_of(result: Result) -> Iterator[Line]:
    learner = words.short(str(result["learner"]), 60)
    guarantee = read_guarantee(result["guarantee"])
    released = result.get("released")
    config = result.get("config") or {}
    stream = config.get("stream") or {}
    shared: dict[str, Any] = {
        "learner": learner,
        "guarantee": guarantee,
        "seconds": words.number(result.get("seconds")),
        "examples_per_second": words.number(result.get("examples_per_second")),
        "peak_memory_mb": words.number(result.get("peak_memory_mb")),
        "setting": (
            *((key, _word(result.get(key))) for key in ("benchmark", "tasks", "protocol")),
            *(
                (_word(key), _word(value))
                for key, value in sorted(stream.items())
                if key not in ("name", "tasks") and value not in (None, False)
            ),
        ),
        "options": (
            *_flat({key: value for key, value in config.items() if key != "stream"}),
            ("version", _word(result.get("version"))),
        ),
        "seed": _word(result.get("seed")),
    }
    yield Line(
        way=NOISY if released else "",
        curve=_numbers(result["average_accuracy"]),
        forgetting=_numbers(result["average_forgetting"]),
        matrix=_fitting(result["accuracy_matrix"]),
        **shared,
    )
    if released:
        matrix = released["accuracy_matrix"]
        stated = released.get("average_forgetting")
        yield Line(
            way=RELEASED,
            curve=_numbers(released["average_accuracy"]),
            forgetting=average_forgetting(matrix) if stated is None else _numbers(stated),
            matrix=_fitting(matrix),
            **shared,
        )


def read_guarantee(stated: dict[str, Any]) -> Guarantee:
    said = {key: stated[key] for key in ("status", "unit", "adjacency") if key in stated}
    numbers: dict[str, Any] = {
        key: words.number(stated.get(key)) for key in ("epsilon", "delta", "source_epsilon", "source_delta")
    }
    if said["status"] not in words.STATUS_MEANS:
        raise ValueError(f"unknown status {said['status']!r}")
    return Guarantee(**said, **numbers, source_overlap=int(words.number(stated.get("source_overlap")) or 1))


def _telling_apart(result: Result, results: list[Result]) -> str:
    """What of the setting differs between the results, so that no two rows look the same by accident."""
    differing = [
        f"{key} {result.get(key)}"
        for key in ("benchmark", "protocol", "tasks", "seed")
        if len({str(other.get(key)) for other in results}) > 1
    ]
    return words.clean("".join(f", {part}" for part in differing))


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Nested configuration as pairs of a dotted name and a text, in order."""
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from _flat(value[key], f"{path}.{key}" if path else str(key))
    else:
        yield words.short(path, 60), _word(value)


def _word(value: Any) -> str:
    return words.short(str(value), 60)


def _fitting(matrix: Sequence[Sequence[Any]]) -> Matrix:
    """What fits a page; a thousand tasks have a million entries, most of them null, and each is looked at once."""
    if len({len(row) for row in matrix}) > 1:
        raise ValueError("rows of different lengths")
    found = {index: _numbers(row) for index, row in enumerate(matrix) if row.count(None) < len(row)}
    rows = words.evenly(list(found), LARGEST_MATRIX)
    tasks = len(matrix[0]) if matrix else 0
    columns = words.evenly(list(range(tasks)), LARGEST_MATRIX)
    values = [[found[row][column] for column in columns] for row in rows]
    return Matrix(tuple(rows), tuple(columns), values, len(found), tasks)


def _numbers(values: Sequence[Any]) -> Numbers:
    kept = list(values)
    # Whole rows of finite floats, which is what most are, are taken as they are.
    if set(map(type, kept)) == {float} and math.isfinite(sum(kept)):
        return kept
    return [words.number(value) for value in kept]
