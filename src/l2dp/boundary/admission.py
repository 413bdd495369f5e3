"""The door: a task is checked here before its records are used, and either accepted or refused.

Nothing about the records leaves but the fact of a refusal, its place and its reason, which no guarantee
covers (see the docs on what is not covered).
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from l2dp.errors import BadInput
from l2dp.streams.records import Records, Source, Space, Task


@lru_cache(maxsize=64)
def _first_bad_row(source: Source) -> int | None:
    """The first row with a value that is not a number in [−1, 1]; shared sources are checked once."""
    if not source.x.is_floating_point():
        return None
    inside = source.x.flatten(1).abs().amax(dim=1) <= 1  # a NaN compares false
    return None if bool(inside.all()) else int((~inside).nonzero()[0])


def check(records: Records, space: Space, place: str) -> None:
    """Refuses records that do not fit the declared space, naming the place."""
    if len(records) == 0:
        raise BadInput(f"{place} is empty; every task needs at least one record")
    shape = tuple(records.source.x.shape[1:])
    if shape != space.shape:
        raise BadInput(f"{place} has inputs of shape {shape}, the stream declares {space.shape}")
    bad = _first_bad_row(records.source)
    if bad is not None and (records.rows is None or bool((records.rows == bad).any())):
        raise BadInput(f"{place}, row {bad}: a value is NaN or outside [-1, 1]; clean or scale the inputs")
    if bad is not None:
        x = records.source.x[records.rows].flatten(1)
        if not bool((x.abs() <= 1).all()):
            raise BadInput(f"{place}: a value is NaN or outside [-1, 1]; clean or scale the inputs")
    y = records.labels()
    if y.dtype is not torch.int64:
        raise BadInput(f"{place}: labels must be integers, not {y.dtype}")
    outside = (y < 0) | (y >= space.classes)
    if bool(outside.any()):
        row = int(outside.nonzero()[0])
        raise BadInput(f"{place}, row {row}: label {int(y[row])} is not one of the {space.classes} declared labels")


def admit(task: Task, space: Space) -> Records:
    """Opens the training records of a task that fits the space; refuses any other.

    Guarantee
    ---------
    None by itself: the caller is a boundary and answers for what it does with the records.
    """
    records = task.train.unseal()
    check(records, space, f"task {task.name!r}, training part")
    return records


def check_task(task: Task, space: Space) -> None:
    """Checks both parts of a task, so that a stream can be refused before anything is learned."""
    admit(task, space)
    check(task.test, space, f"task {task.name!r}, test part")


def label_mask(task: Task, space: Space) -> Tensor:
    """The labels a task declares, as one row of booleans over the space."""
    mask = torch.zeros(space.classes, dtype=torch.bool)
    mask[list(task.classes)] = True
    return mask
