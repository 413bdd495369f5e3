"""Cancellation: what two tasks, or two classes, have in common in their noise can be subtracted."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch

from l2dp.audit.attack import Attack, Level, only_replay
from l2dp.audit.attacks.worst_case import whole_budget
from l2dp.audit.canaries import boundary, longer, rows_each, task
from l2dp.audit.decisions import Trials
from l2dp.audit.target import Target
from l2dp.streams.records import Space


class Cancellation(Attack):
    """Two tasks of two classes; the target may be in one class of the first, everything else is known.

    This is the question that *two batches* asks of the paper, put to class sums. All released numbers together make the
    score, weighted by a likelihood ratio that is fitted on the first half: noise that is used twice shows as a
    perfect correlation, and the ratio subtracts it.
    """

    NAME: ClassVar[str] = "cancellation"
    THREAT: ClassVar[str] = "the class sums of two tasks together; everything but one unit of the first"
    RUNS: ClassVar[dict[Level, int]] = {"quick": 1_000, "thorough": 2_000}

    def refusal(self, target: Target) -> str | None:
        return only_replay(target)

    def trials(self, target: Target, runs: int, rng: np.random.Generator) -> dict[str, Trials]:
        target = whole_budget(target)
        allowed, brought = rows_each(target)
        door = boundary(target, Space((1,), ("0", "1")))
        seen, coins = [], rng.integers(0, 2, runs).astype(bool)
        for run, member in enumerate(coins):
            shown = []
            for part in range(2):
                there = brought if member and part == 0 else 0
                x, y, who = torch.ones(there, 1), torch.zeros(there, dtype=torch.int64), torch.zeros(there).long()
                index = 2 * run + part
                found = door.open(task(f"{index}", x, y, who, 2, 2 * allowed, 2 * index), index).class_sums(longer, 1)
                shown += [found.sums.flatten(), found.counts]
            seen.append(torch.cat(shown).double().numpy())
        return {self.NAME: Trials(np.stack(seen), coins)}
