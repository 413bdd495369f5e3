"""Who is in a task, as keyed fingerprints: what lets a home see that a record, a user or a whole task came back.

Reading happens before the charge and only accepts, refuses or leaves out. Fingerprints are HMAC-SHA-256 under the
home's secret key: without it they tell nothing, with it they are as private as the records.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from l2dp.boundary.admission import admit
from l2dp.errors import BadInput
from l2dp.streams.records import Records, Sealed, Space, Task
from l2dp.streams.schema import Schema

Fingerprints = NDArray[np.void]
"""32 bytes each."""
CHUNK = 4096


def examine(task: Task, schema: Schema) -> None:
    """Refuses a task that does not fit what was declared, naming row, column and range.

    Guarantee
    ---------
    None: that a task was refused, and why, is not covered. Nothing is kept or spent.
    """
    records = task.train.unseal()
    shape = tuple(records.source.x.shape[1:])
    if shape == schema.shape:
        for start in range(0, len(records), CHUNK):
            x, _ = records.batch(slice(start, min(start + CHUNK, len(records))))
            bad = ~x.flatten(1).abs().le(1.0)  # NaN compares false
            if bool(bad.any()):
                row, value = bad.nonzero()[0].tolist()
                low, high = schema.bounds(value)
                raise BadInput(
                    f"task {task.name!r}, row {start + row + 1}, {schema.place(value)}: the value is missing, not a "
                    f"number, or outside the declared range {low:g} to {high:g}; clean it or leave the row out"
                )
    y = records.labels()
    foreign = ~torch.isin(y, torch.tensor(task.classes)) & (y >= 0) & (y < len(schema.labels))
    if bool(foreign.any()):
        row = int(foreign.nonzero()[0])
        raise BadInput(
            f"task {task.name!r}, row {row + 1}: label {schema.labels[int(y[row])]!r} is not among the --classes that "
            "the task declares; name it there or leave the row out"
        )
    admit(task, schema.space)


def _rows(records: Records) -> Iterable[tuple[bytes, int]]:
    """Every record as bytes and label. Minus zero and zero are one number."""
    for x, y in records.chunks(CHUNK):
        plain = (x.flatten(1) + 0.0).contiguous().numpy()
        for row, label in zip(plain, y.tolist(), strict=True):
            yield row.tobytes(), label


def record_fingerprints(task: Task, key: bytes) -> Fingerprints:
    """One of each record's input, whatever its label: a record that was labelled anew is still the same."""
    records = task.train.unseal()
    out = bytearray(32 * len(records))
    for place, (row, _) in enumerate(_rows(records)):
        out[32 * place : 32 * place + 32] = hmac.digest(key, b"record " + row, "sha256")
    return np.frombuffer(bytes(out), dtype="V32")


def user_fingerprint(user: str, key: bytes) -> bytes:
    return hmac.digest(key, b"user " + user.encode("utf-8", "surrogatepass"), "sha256")


def first_of_each(found: Fingerprints) -> Tensor:
    """Marks the first row of every fingerprint: copies within a task count once, whoever else is in it."""
    _, first = np.unique(found, return_index=True)
    keep = torch.zeros(len(found), dtype=torch.bool)
    keep[torch.from_numpy(first)] = True
    return keep


def without(task: Task, keep: Tensor) -> Task:
    """The task with the marked rows only; its declared size stays."""
    if bool(keep.all()):
        return task
    records = task.train.unseal()
    rows = keep.nonzero().flatten() if records.rows is None else records.rows[keep]
    narrowed = Records(records.source, rows, records.permutation, records.relabel)
    return Task(task.name, Sealed(narrowed, task.train.declared_size, task.train.prepared), task.test, task.classes)


def by_name(task: Task) -> tuple[Task, tuple[str, ...] | None]:
    """A task whose users go by numbers, with the numbers as names; None: it has no users."""
    records = task.train.unseal()
    units = records.source.units
    if units is None:
        return task, None
    numbers, codes = torch.unique(units, return_inverse=True)
    view = Records(replace(records.source, units=codes), records.rows, records.permutation, records.relabel)
    sealed = Sealed(view, task.train.declared_size, task.train.prepared)
    return Task(task.name, sealed, task.test, task.classes), tuple(str(n) for n in numbers.tolist())


def rows_of(task: Task, users: Tensor) -> Tensor:
    """Marks the rows of the marked users."""
    units = task.train.unseal().units()
    if units is None:
        raise BadInput(f"task {task.name!r} names no users, and the unit is the user; give every record its user")
    return users[units]


def count(task: Task) -> int:
    """How many records a task has, for the one who holds them; never part of a release."""
    return len(task.train.unseal())


def content(task: Task, space: Space, users: Sequence[str] | None, key: bytes, facts: dict[str, Any]) -> str:
    """A keyed digest of the records in their order and of all that the answers depend on.

    The same digest: the same answers from the same noise key. Another one: other data, which must never meet that key.
    """
    records = task.train.unseal()
    total = hashlib.sha256()
    head = {"name": task.name, "size": task.train.declared_size, "classes": task.classes, "shape": space.shape, **facts}
    total.update(json.dumps(head, sort_keys=True).encode())
    for row, label in _rows(records):
        total.update(row)
        total.update(label.to_bytes(8, "little"))
    units = records.units()
    if units is not None:
        names = None if users is None else [user_fingerprint(user, key) for user in users]
        for unit in units.tolist():
            total.update(str(unit).encode() if names is None else names[unit])
    return hmac.digest(key, b"content " + total.digest(), "sha256").hex()
