"""Experiments that are no sweep of runs: a Python function that measures something and returns a table."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from l2dp.durable import read_json
from l2dp.errors import BadInput
from l2dp.experiments.declared import Experiment


@dataclass(frozen=True)
class Ask:
    """What a function is given: which form, a folder of its own to work in, finished results, where to say things."""

    quick: bool
    folder: Path
    known: Sequence[Path]
    console: Console


@dataclass
class Table:
    """What a function returns. An ε in a cell stands beside its status, as everywhere."""

    columns: list[str]
    rows: list[list[Any]]
    notes: list[str] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)
    """Names of PNG files that it wrote into its folder."""


KEYS: dict[str, type] = {
    **dict.fromkeys(("title", "about", "place"), str),
    **dict.fromkeys(("columns", "rows", "notes", "figures"), list),
    "quick": bool,
}


def stored(path: Path) -> dict[str, Any]:
    """What a function found before, from its file."""
    found: dict[str, Any] = read_json(path)
    wrong = [key for key, kind in KEYS.items() if not isinstance(found, dict) or not isinstance(found.get(key), kind)]
    if wrong or any(not isinstance(row, list) or len(row) != len(found["columns"]) for row in found["rows"]):
        what = f"it lacks {', '.join(wrong)}" if wrong else "its rows do not fit its columns"
        raise BadInput(f"{path} is not what an experiment found ({what}); remove it to do the experiment again")
    return found


def finished(experiment: Experiment, folder: Path, known: Sequence[Path]) -> Path | None:
    """Where there is what a function found before: in its own folder, or (its full form) in a folder of results."""
    places = [folder / "outcome.json"]
    if not experiment.quick:
        places += [results / "experiments" / f"{experiment.name}.json" for results in known]
    return next((place for place in places if place.is_file()), None)


def call(experiment: Experiment, ask: Ask) -> dict[str, Any]:
    """The outcome of an experiment that is a function, in the form of a JSON file."""
    place, _, name = (experiment.function or "").partition(":")
    try:
        function: Callable[[Ask], Table] = getattr(importlib.import_module(place), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(f"experiment {experiment.name}: no function {experiment.function!r} ({error})") from error
    table = function(ask)
    return {
        "experiment": experiment.name,
        "title": experiment.title,
        "about": experiment.about,
        "place": experiment.place,
        "quick": experiment.quick,
        "columns": table.columns,
        "rows": table.rows,
        "notes": [*experiment.notes, *table.notes],
        "figures": table.figures,
        "version": version("l2dp"),
    }
