"""Worst-case neighbour: the exact optimal test against one-shot statistics, on the data where it has most power."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from l2dp.audit.attack import Attack, Level, only_replay
from l2dp.audit.bounds import Floats
from l2dp.audit.canaries import class_sums, rows_each
from l2dp.audit.decisions import Trials
from l2dp.audit.target import Target

AT_ONCE = 50_000


def whole_budget(target: Target) -> Target:
    """The same learner with all of a task's budget in its class sums: what they are worth at the stated ε."""
    if target.option("budget").delta == 0:
        return target
    return target.having(target.variant, scatter_share=0.0, head_share=0.0)


def directions(target: Target) -> tuple[Floats, float]:
    """How one record of the longest features moves its class sum (with its count), and the weight of counts."""
    weight = float(target.option("count_weight"))
    return np.array([math.sqrt(1 - weight**2), weight]), weight


def optimal(target: Target, found: Any) -> Floats:
    """For every class, how much likelier its released sum and count are with a unit of the longest records in it.

    Up to a rising function: the projection on what the unit adds for Gaussian noise; for K-norm noise, whose density
    falls like e^{−‖z‖/b}, it is ‖s‖ − ‖s − v‖.
    """
    direction, weight = directions(target)
    sums = np.stack([found.sums[:, 0].numpy() * direction[0], found.counts.numpy() * weight], axis=1)
    if target.option("budget").delta > 0:
        return np.asarray(sums @ direction, dtype=np.float64)
    moved = rows_each(target)[0] * direction
    return np.asarray(np.linalg.norm(sums, axis=1) - np.linalg.norm(sums - moved, axis=1), dtype=np.float64)


class WorstCase(Attack):
    """Class sums in two dimensions (one feature and the count), every class with one record or none.

    Noise of classes is independent, so one call with thousands of classes is as many trials. The optimal test knows the
    law of the noise. A user brings more records than may count, and features are a thousand times too long, so a
    boundary that forgets to cut is found out.
    """

    NAME: ClassVar[str] = "worst-case neighbour"
    THREAT: ClassVar[str] = "the released class sums; everything but the presence of one unit"
    RUNS: ClassVar[dict[Level, int]] = {"quick": 1_000_000, "thorough": 2_000_000}
    JOBS: ClassVar[int] = 2

    def refusal(self, target: Target) -> str | None:
        return only_replay(target)

    def trials(self, target: Target, runs: int, rng: np.random.Generator) -> dict[str, Trials]:
        target = whole_budget(target)
        if rows_each(target)[1] > 1:
            runs = max(40, runs // 4)  # the ledger books every user of every task, which takes its time
        count = min(AT_ONCE, runs)
        seen, coins = [], []
        for members, found in class_sums(target, count, math.ceil(runs / count), rng):
            seen.append(optimal(target, found))
            coins.append(members)
        return {self.NAME: Trials(np.concatenate(seen), np.concatenate(coins))}
