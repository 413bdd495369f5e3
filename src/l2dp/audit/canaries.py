"""Canaries: units whose presence is decided by coins, each visible in a place of its own.

Many canaries in one call of a boundary are many trials, for the noise of different places is independent. They are as
bad as units get: features far too long, predictions confidently wrong, users with more records than may count.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from l2dp.audit.target import Target
from l2dp.learners import Setting
from l2dp.streams.records import Space, Task

LONG = 1000.0
"""Features are this much longer than allowed: a boundary has to cut them."""
BEYOND = 5
"""Records of a user beyond those that may count."""


def boundary(target: Target, space: Space, **extra: Any) -> Any:
    """The boundary that the configured learner itself would use."""
    learner: Any = target.make(**extra)
    learner.begin(Setting(space, 1))
    return learner.boundary


def longer(x: Tensor) -> Tensor:
    return x * LONG


def rows_each(target: Target) -> tuple[int, int]:
    """How many records a unit may count with, and how many a canary brings."""
    if target.has("protects") and target.option("protects") == "user":
        allowed = int(target.option("per_user"))
        return allowed, allowed + BEYOND
    return 1, 1


def task(name: str, x: Tensor, y: Tensor, units: Tensor, classes: int, declared_size: int, first_user: int = 0) -> Task:
    """A task of the canaries that are in. A task cannot be empty, so an empty one holds a silent bystander.

    `first_user` makes users of different tasks different people.
    """
    if len(x) == 0:
        x, y, units = torch.zeros((1, *x.shape[1:])), torch.zeros(1, dtype=torch.int64), torch.tensor([-1])
    unseen = torch.zeros((1, *x.shape[1:])), torch.zeros(1, dtype=torch.int64)
    return Task.from_tensors(
        name, (x, y), unseen, units + 1 + first_user, classes=tuple(range(classes)), declared_size=declared_size
    )


def class_sums(target: Target, classes: int, calls: int, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, Any]]:
    """The released class sums of tasks with a canary or none in every class, each after the coins of its canaries."""
    allowed, brought = rows_each(target)
    door = boundary(target, Space((1,), tuple(map(str, range(classes)))))
    for call in range(calls):
        members, ids = tossed(rng, classes)
        y = ids.repeat_interleave(brought)
        # Users are numbered from 1, and a silent bystander stands before the first.
        given = task(f"{call}", torch.ones(len(y), 1), y, y, classes, classes * allowed, call * (classes + 1))
        yield members, door.open(given, call).class_sums(longer, 1)


def tossed(rng: np.random.Generator, count: int) -> tuple[np.ndarray, Tensor]:
    """A coin for each canary, and the numbers of those that are in."""
    members = rng.integers(0, 2, count).astype(bool)
    return members, torch.from_numpy(np.flatnonzero(members))
