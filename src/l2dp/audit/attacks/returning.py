"""Returning user: somebody who comes back in task after task must not be heard beyond the lifetime budget."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch

from l2dp.audit.attack import Attack, Level, only_replay
from l2dp.audit.attacks.worst_case import optimal, whole_budget
from l2dp.audit.canaries import boundary, longer, rows_each
from l2dp.audit.decisions import Trials
from l2dp.audit.target import Target
from l2dp.streams.records import Space, Task

AT_ONCE = 2_000
PAID, VISITS = 2, 24
"""Tasks that the lifetime budget pays for, and tasks in which every canary appears."""


class ReturningUser(Attack):
    """A task may spend half of a user's lifetime budget, and the target is in two dozen tasks or in none.

    Two visits are paid for; in the others the boundary has to leave the user out, and says nothing of it. The class
    sums of all tasks are weighed by a likelihood ratio fitted on the first half, so that both a ledger that forgets
    and two visits that cost more than their halves are found out. Somebody else is in every task, who pays for himself.
    """

    NAME: ClassVar[str] = "returning user"
    THREAT: ClassVar[str] = "the released class sums of two dozen tasks; everything but the presence of one user"
    RUNS: ClassVar[dict[Level, int]] = {"quick": 60_000, "thorough": 200_000}

    def refusal(self, target: Target) -> str | None:
        if only_replay(target) is not None:
            return only_replay(target)
        return None if target.option("protects") == "user" else "a record is in one task only"

    def trials(self, target: Target, runs: int, rng: np.random.Generator) -> dict[str, Trials]:
        each = target.option("budget").epsilon / PAID
        target = whole_budget(target).having(target.variant, per_task_epsilon=each, exhausted="drop")
        allowed, brought = rows_each(target)
        count = min(AT_ONCE, runs)
        space = Space((1,), tuple(map(str, range(count + 1))))  # the last class is the bystander's
        seen, coins = [], []
        for _ in range(math.ceil(runs / count)):
            door = boundary(target, space)
            members = rng.integers(0, 2, count).astype(bool)
            y = torch.from_numpy(np.flatnonzero(members)).repeat_interleave(brought)
            columns = []
            for visit in range(VISITS):
                labels = torch.cat([y, torch.tensor([count])])
                users = torch.cat([y, torch.tensor([count + visit])])
                records = torch.ones(len(labels), 1), labels
                classes = tuple(range(count + 1))
                given = Task.from_tensors(f"{visit}", records, records, users, classes, declared_size=count * allowed)
                columns.append(optimal(target, door.open(given, visit).class_sums(longer, 1))[:-1])
            seen.append(np.stack(columns, axis=1))
            coins.append(members)
        return {self.NAME: Trials(np.concatenate(seen), np.concatenate(coins))}
