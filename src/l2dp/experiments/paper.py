"""The numbers of the paper (`paper.toml`), and what a number of ours is beside one of them."""

from __future__ import annotations

import functools
import math
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from l2dp.errors import BadInput

POINTS = 0.02
"""Accuracies this near are called the same, forgetting as near as the next: seeds vary by about as much."""
FORGETTING = 0.03


@dataclass(frozen=True)
class Printed:
    """One row of the paper: accuracy as a fraction, forgetting with its deviation, and where it stands."""

    place: str
    accuracy: float | None = None
    forgetting: float | None = None
    forgetting_sd: float | None = None
    note: str | None = None
    over: str | None = None
    """The row that it is said to be so much better or worse than: the accuracy is that one's and the difference."""
    chance: float | None = None
    """What guessing gives, where the accuracy is not far from it."""


@functools.cache
def _numbers() -> dict[str, Any]:
    return tomllib.loads(files("l2dp.experiments").joinpath("paper.toml").read_text("utf-8"))


def printed(key: str) -> Printed:
    """The row at `section/name`.

    >>> printed("split-mnist/agem").accuracy
    0.7971
    """
    section, _, name = key.partition("/")
    try:
        found = _numbers()[section][name]
    except KeyError:
        raise BadInput(f"paper.toml has no {key!r}; add the number and its place") from None
    return Printed(**found | {key: round(found[key] / 100, 6) for key in ("accuracy", "chance") if key in found})


def harw() -> dict[str, Any]:
    """What the paper says of its own dataset: people, windows by rate and by class.

    >>> sum(harw()["training"].values())
    165088
    """
    found: dict[str, Any] = _numbers()["har-data"]
    return found


def verdict(measure: str, ours: float, theirs: float, near: float = math.inf) -> str:
    """`reproduced`, `better` or `worse`; `near` where less than the usual distance counts as the same.

    >>> verdict("accuracy", 0.55, 0.4773), verdict("forgetting", 0.30, 0.305)
    ('better', 'reproduced')
    """
    near = min(near, POINTS if measure == "accuracy" else FORGETTING)
    gain = ours - theirs if measure == "accuracy" else theirs - ours
    return "reproduced" if abs(gain) <= near else "better" if gain > 0 else "worse"
