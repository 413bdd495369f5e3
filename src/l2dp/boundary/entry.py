"""The way in to the private boundaries: a task is checked, bounded, charged, and only then opened.

A *unit* is whose presence is protected: one record, or one user with all their records. The boundary counts
sensitivities per unit: a record contributes one row, a user at most `per_user` rows of a task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from l2dp.boundary.admission import admit, same_everywhere
from l2dp.budget import Budget, Charges, Unit
from l2dp.errors import BadInput, Refused
from l2dp.ledger import Ledger
from l2dp.streams.records import Records, Space, Task


@dataclass(frozen=True)
class Protection:
    """Whose presence is protected and what a task may cost them. Public configuration."""

    lifetime: Budget
    unit: Unit = "record"
    per_task: Budget | None = None
    """What one task costs a unit; None: the whole lifetime budget, once."""
    per_user: int = 1
    """The most records of one user that count in one task; more are left out."""
    exhausted: Literal["refuse", "drop"] = "refuse"
    """A task with a user who cannot pay is refused, or learned without that user."""

    def __post_init__(self) -> None:
        if self.per_user < 1:
            raise BadInput(f"per_user must be at least 1, not {self.per_user}")
        if self.unit == "record" and self.per_task not in (None, self.lifetime):
            raise BadInput("a record is in one task only, so a task costs it the lifetime budget; leave per_task out")

    @property
    def cost(self) -> Budget:
        return self.lifetime if self.per_task is None else self.per_task

    @property
    def rows_per_unit(self) -> int:
        return 1 if self.unit == "record" else self.per_user


class Opened:
    """The records of one admitted and paid-for task, for the code of this room only.

    `rows` are those that count; `groups` says which unit (from 0 on) each of them belongs to.
    """

    def __init__(self, records: Records, rows: Tensor, groups: Tensor, declared_size: int) -> None:
        self.records = records
        self.rows = rows
        self.groups = groups
        self.declared_size = declared_size

    def __len__(self) -> int:
        return len(self.rows)


class Entry:
    """Admits tasks and charges their units before anything is read for learning.

    Guarantee
    ---------
    A task that does not fit the declared space, whose name was charged before (record unit), or whose users cannot
    pay (user unit) is refused and nothing is charged. No unit contributes more rows than `rows_per_unit`.
    """

    def __init__(self, space: Space, protection: Protection, ledger: Charges | None = None) -> None:
        """`ledger` None: one in memory, which forgets with the process."""
        self._space = space
        self.protection = protection
        self.ledger = Ledger(protection.lifetime) if ledger is None else ledger

    def open(self, task: Task) -> Opened:
        """Checks, bounds, charges, opens: in this order."""
        records = admit(task, self._space)
        same_everywhere(task, records)
        rows = torch.arange(len(records))
        if self.protection.unit == "record":
            self._charge_record_block(task)
            return Opened(records, rows, rows, task.train.declared_size)
        units = self._units(task, records)
        users, groups = torch.unique(units, return_inverse=True)
        poor = self.ledger.exhausted(users.tolist(), self.protection.cost)
        if poor and self.protection.exhausted == "drop":
            keep = ~torch.isin(units, torch.tensor(poor))
            if not bool(keep.any()):
                raise Refused(f"task {task.name!r}: every user has used up their lifetime budget; nothing was read")
            rows = rows[keep]
            users, groups = torch.unique(units[keep], return_inverse=True)
        kept = self._first_rows(groups)
        self.ledger.charge(users.tolist(), self.protection.cost, f"task {task.name!r}")
        return Opened(records, rows[kept], groups[kept], task.train.declared_size)

    def recharge(self, task: Task) -> None:
        """Books a task of a saved state again, without reading for learning."""
        if self.protection.unit == "record":
            self._charge_record_block(task)
            return
        records = task.train.unseal()
        same_everywhere(task, records)
        users = set(self._units(task, records).tolist())
        users -= set(self.ledger.exhausted(users, self.protection.cost))
        self.ledger.charge(users, self.protection.cost, f"task {task.name!r}")

    def _charge_record_block(self, task: Task) -> None:
        # All records of a task pay the same, so they are booked as one block.
        try:
            self.ledger.charge([task.name], self.protection.cost, f"task {task.name!r}")
        except Refused:
            if not isinstance(self.ledger, Ledger):  # a durable one knows more, and says it
                raise
            raise Refused(
                f"task {task.name!r} was learned before and its records have paid their lifetime budget; "
                "give new records a new task name"
            ) from None

    def _units(self, task: Task, records: Records) -> Tensor:
        units = records.units()
        if units is None:
            raise BadInput(f"task {task.name!r} has no unit ids, and the unit is the user; give every record its user")
        return units

    def _first_rows(self, groups: Tensor) -> Tensor:
        """The first `per_user` rows of every user, in the order given: which they are depends on nobody else."""
        order = torch.argsort(groups, stable=True)
        counts = torch.bincount(groups)
        starts = counts.cumsum(0) - counts
        rank = torch.arange(len(order)) - starts[groups[order]]
        return order[rank < self.protection.per_user].sort().values
