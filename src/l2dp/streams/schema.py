"""What is declared about tables before anything is read: columns, ranges, labels. Nothing is learned from data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from l2dp.errors import BadInput
from l2dp.streams.records import Space

MOST_LABELS = 1 << 16
MOST_VALUES = 1 << 24
LONGEST = 200
"""Characters of a label, a column or a task."""
_FORMULA = ("=", "+", "-", "@")


def check_name(name: str, what: str) -> str:
    """A name that can stand in any file: printable, short, and nothing that a spreadsheet would run."""
    shown = repr(name[:40])
    if not name or not name.isprintable() or name != name.strip() or len(name) > LONGEST:
        raise BadInput(f"{what} {shown}: use 1 to {LONGEST} printable characters without spaces around them")
    if name.startswith(_FORMULA) and not _is_number(name):
        raise BadInput(f"{what} {shown}: a spreadsheet would take it for a formula; begin with a letter or a digit")
    return name


def check_task_name(name: str) -> str:
    check_name(name, "task")
    if "/" in name or "\\" in name or name.startswith("."):
        raise BadInput(f"task {name[:40]!r}: a name is not a path; leave out slashes and a leading dot")
    return name


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class Schema:
    """The declared form of every table of a stream.

    `low` and `high` bound all values, or each column if they are as many as the columns; what lies outside is refused.
    `columns` None: any names, as many as the shape has values; those of the first table then hold for all.
    """

    shape: tuple[int, ...]
    labels: tuple[str, ...]
    low: tuple[float, ...] = (-1.0,)
    high: tuple[float, ...] = (1.0,)
    columns: tuple[str, ...] | None = None
    label_column: str = "label"
    unit_column: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.shape) <= 3 or min(self.shape) < 1 or math.prod(self.shape) > MOST_VALUES:
            raise BadInput(f"inputs of shape {self.shape} are not possible; declare 561, 28x28 or 3x32x32, say")
        _check_labels(self.labels)
        for column in (*(self.columns or ()), self.label_column, *([self.unit_column] if self.unit_column else [])):
            check_name(column, "column")
        if self.unit_column == self.label_column:
            raise BadInput(f"column {self.unit_column!r} cannot be both the label and the unit; name two columns")
        special = {self.label_column, self.unit_column}
        if self.columns is not None:
            if len(self.columns) != self.values or len(set(self.columns)) != self.values:
                raise BadInput(f"{len(self.columns)} columns are declared; name {self.values} different ones")
            if special & set(self.columns):
                raise BadInput("the columns of labels and units cannot be inputs as well; leave them out")
        if len(self.low) != len(self.high) or len(self.low) not in (1, self.values):
            raise BadInput("declare one range for all columns, or one for each")
        for low, high in zip(self.low, self.high, strict=True):
            if not (math.isfinite(low) and math.isfinite(high) and low < high and math.isfinite(high - low)):
                raise BadInput(f"the range {low:g} to {high:g} is not one; give two finite numbers, the lower first")

    @property
    def values(self) -> int:
        """Numbers in one input."""
        return math.prod(self.shape)

    @property
    def space(self) -> Space:
        return Space(self.shape, self.labels)

    def with_labels(self, more: Sequence[str]) -> Schema:
        """The same with labels added at the end: positions of the old ones never change."""
        return replace(self, labels=(*self.labels, *more))

    def place(self, value: int) -> str:
        """The name of one of the numbers of an input, for messages."""
        return f"value {value + 1}" if self.columns is None else f"column {self.columns[value]!r}"

    def bounds(self, value: int) -> tuple[float, float]:
        return (self.low[0], self.high[0]) if len(self.low) == 1 else (self.low[value], self.high[value])

    def to_json(self) -> dict[str, Any]:
        return {
            "shape": list(self.shape),
            "labels": list(self.labels),
            "low": list(self.low),
            "high": list(self.high),
            "columns": None if self.columns is None else list(self.columns),
            "label_column": self.label_column,
            "unit_column": self.unit_column,
        }

    @staticmethod
    def from_json(found: dict[str, Any]) -> Schema:
        try:
            return Schema(
                tuple(int(size) for size in found["shape"]),
                tuple(found["labels"]),
                tuple(float(number) for number in found["low"]),
                tuple(float(number) for number in found["high"]),
                None if found["columns"] is None else tuple(found["columns"]),
                found["label_column"],
                found["unit_column"],
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BadInput(f"a schema is not in the format expected ({error!r}); restore the file") from error


def _check_labels(labels: tuple[str, ...]) -> None:
    if not 1 <= len(labels) <= MOST_LABELS:
        raise BadInput(f"{len(labels)} labels are declared; declare 1 to {MOST_LABELS}")
    for label in labels:
        check_name(label, "label")
    if len(set(labels)) != len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise BadInput(f"label {twice!r} is declared twice")


def read_labels(path: Path) -> tuple[str, ...]:
    """Label names from a text file, one a line."""
    return tuple(line for line in _lines(path))


def read_columns(path: Path) -> tuple[tuple[str, ...], list[tuple[float, float] | None]]:
    """Columns from a text file, one a line: `name` or `name,low,high`."""
    names, bounds = [], []
    for line in _lines(path):
        name, *numbers = line.rsplit(",", 2) if line.count(",") >= 2 else [line]
        bound = None
        if numbers:
            try:
                bound = float(numbers[0]), float(numbers[1])
            except ValueError:
                raise BadInput(f"{path}: {line[:60]!r} is not `name` or `name,low,high`") from None
        names.append(name)
        bounds.append(bound)
    return tuple(names), bounds


def declared_columns(path: Path, low: Any, high: Any) -> tuple[tuple[str, ...], Any, Any]:
    """Columns from a text file with their ranges: one for each column, or the given one for all."""
    names, bounds = read_columns(path)
    known = [bound for bound in bounds if bound is not None]
    if not known:
        return names, low, high
    if low is not None or len(known) < len(bounds):
        raise BadInput(f"{path}: give a range for every column, or --range for all of them")
    return names, [bound[0] for bound in known], [bound[1] for bound in known]


def _lines(path: Path) -> list[str]:
    try:
        if path.stat().st_size > 1 << 26:
            raise BadInput(f"{path} is too large for a list of names")
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}; give a text file, one name a line") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text; give one name a line") from error
    return [line.strip() for line in text.splitlines() if line.strip()]
