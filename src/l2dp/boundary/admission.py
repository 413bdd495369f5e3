"""The door: a task is checked here before its records are used, and either accepted or refused.

Nothing about the records leaves but the fact of a refusal, its place and its reason, which no guarantee
covers (see the docs on what is not covered).
"""

from __future__ import annotations

import hashlib
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from l2dp import parallel
from l2dp.errors import BadInput
from l2dp.streams.records import Records, Source, Space, Task

CHUNK = 4096
_checked: WeakKeyDictionary[Source, Tensor | None] = WeakKeyDictionary()


def _bad_rows(source: Source) -> Tensor | None:
    """Marks rows with a value that is not a number in [−1, 1] (None: no such row); a shared source is checked once."""
    if source not in _checked:
        x = source.x.flatten(1)
        low, high = (-1.0, 1.0) if x.is_floating_point() else (source.low, source.high)
        bad = ~((x.amin(dim=1) >= low) & (x.amax(dim=1) <= high))  # a NaN compares false
        _checked[source] = bad if bool(bad.any()) else None
    return _checked[source]


def check(records: Records, space: Space, classes: tuple[int, ...], place: str) -> None:
    """Refuses records that do not fit the declared space and the labels of their task, naming the place."""
    if len(records) == 0:
        raise BadInput(f"{place} is empty; every task needs at least one record")
    shape = tuple(records.source.x.shape[1:])
    if shape != space.shape:
        raise BadInput(f"{place} has inputs of shape {shape}, the stream declares {space.shape}")
    bad = _bad_rows(records.source)
    if bad is not None:
        here = bad if records.rows is None else bad[records.rows]
        if bool(here.any()):
            row = int(here.nonzero()[0])
            raise BadInput(f"{place}, row {row}: a value is NaN or outside [-1, 1]; clean or scale the inputs")
    y = records.labels()
    if y.dtype is not torch.int64:
        raise BadInput(f"{place}: labels must be integers, not {y.dtype}")
    outside = (y < 0) | (y >= space.classes)
    if bool(outside.any()):
        row = int(outside.nonzero()[0])
        raise BadInput(f"{place}, row {row}: label {int(y[row])} is not one of the {space.classes} declared labels")
    outside = ~torch.isin(y, torch.tensor(classes, dtype=torch.int64))
    if bool(outside.any()):
        row = int(outside.nonzero()[0])
        raise BadInput(f"{place}, row {row}: label {int(y[row])} is not one of those that the task declares")


def same_everywhere(task: Task, records: Records) -> None:
    """Refuses a task of which another process of a parallel run has other records, or in another order.

    Guarantee
    ---------
    Past this call every process holds the same rows in the same places, so that dividing them by place counts each
    record once. All processes must call it, in the same order, and all refuse. They are told a digest of 63 bits and
    nothing else.
    """
    if parallel.size() == 1:
        return
    digest = hashlib.sha256()
    for x, y in records.chunks(CHUNK):
        digest.update(x.contiguous().numpy().tobytes())
        digest.update(y.contiguous().numpy().tobytes())
    units = records.units()
    if units is not None:
        digest.update(units.contiguous().numpy().tobytes())
    parallel.check_same(digest.digest(), f"task {task.name!r}")


def admit(task: Task, space: Space) -> Records:
    """Opens the training records of a task that fits the space; refuses any other.

    Guarantee
    ---------
    None by itself: the caller is a boundary and answers for what it does with the records.
    """
    records = task.train.unseal()
    check(records, space, task.classes, f"task {task.name!r}, training part")
    return records


def check_task(task: Task, space: Space) -> None:
    """Checks both parts of a task, so that a stream can be refused before anything is learned."""
    admit(task, space)
    check(task.test, space, task.classes, f"task {task.name!r}, test part")
    label_mask(task, space)


def label_mask(task: Task, space: Space) -> Tensor:
    """The labels a task declares, as one row of booleans over the space."""
    unknown = [label for label in task.classes if not 0 <= label < space.classes]
    if unknown:
        raise BadInput(f"task {task.name!r} declares label {unknown[0]}, the stream only 0 to {space.classes - 1}")
    mask = torch.zeros(space.classes, dtype=torch.bool)
    mask[list(task.classes)] = True
    return mask
