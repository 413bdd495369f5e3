"""What lies in the folders that a report is made of: runs, audits, outcomes of experiments, unfinished runs.

Files are known by what they hold, not by their names. A file that should be a result and is damaged stops the
report; other JSON is passed over.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from l2dp.errors import BadInput
from l2dp.report import audits, outcomes, words
from l2dp.report.lines import Line, read_one


@dataclass
class Found:
    """All that a report shows, read."""

    lines: list[list[Line]] = field(default_factory=list)
    audits: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    outcomes: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def find(places: Sequence[Path]) -> Found:
    """Reads every JSON file below the places, each once, whole and one after the other."""
    found = Found()
    seen: set[Path] = set()
    for place in places:
        if not place.exists():
            raise BadInput(f"{place} does not exist; name folders of runs, or result files")
        for path in _files(place):
            if path.resolve() in seen:
                continue
            seen.add(path.resolve())
            _sort_in(path, found)
        found.notes += [
            f"Unfinished, and left out: {words.clean(str(folder))}"
            for folder in sorted(_unfinished(place))
            if folder.resolve() not in seen
        ]
    if not (found.lines or found.audits or found.outcomes):
        where = words.short(", ".join(str(place) for place in places), 200)
        raise BadInput(f"nothing to report in {where}; name a folder that holds a result.json")
    return found


def _files(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
        return
    for folder, below, names in os.walk(place):
        # Hidden folders are somebody else's, and state/ is private to a run.
        below[:] = sorted(name for name in below if not name.startswith(".") and name != "state")
        if "home.json" in names:  # a home has a dashboard of its own (`l2dp status --html`)
            below.clear()
            continue
        for name in sorted(names):
            if name.endswith(".json") and not name.startswith("."):
                yield Path(folder) / name


def _unfinished(place: Path) -> Iterator[Path]:
    if place.is_dir():
        for asked in place.rglob("run.json"):
            if not (asked.parent / "result.json").exists():
                yield asked.parent


def _sort_in(path: Path, found: Found) -> None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as flaw:
        reason = words.short(str(flaw), 80)
        raise BadInput(f"{path} cannot be read as JSON ({reason}); mend it or leave it out") from None
    if not isinstance(content, dict):
        return
    if path.name == "result.json" or {"learner", "guarantee", "accuracy_matrix"} <= content.keys():
        found.lines.append(read_one(content, str(path)))
    elif audits.is_audit(content):
        found.audits.append((str(path), content))
    elif outcomes.is_outcome(content):
        found.outcomes.append((str(path), content))
