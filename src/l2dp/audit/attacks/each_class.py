"""Each class: is there one whose sum is less protected than those of the others?"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from l2dp.audit.attack import Attack, Level, only_replay
from l2dp.audit.attacks.worst_case import optimal, whole_budget
from l2dp.audit.canaries import class_sums
from l2dp.audit.decisions import Trials
from l2dp.audit.target import Target

CLASSES = 8


class EachClass(Attack):
    """Tasks of eight classes, one canary in each; the first half of the trials picks the class that tells most.

    An average over classes would hide one that was forgotten. The score is the projection on the record's direction.
    """

    NAME: ClassVar[str] = "each class"
    THREAT: ClassVar[str] = "the released class sums of small tasks; the weakest class"
    RUNS: ClassVar[dict[Level, int]] = {"quick": 8_000, "thorough": 16_000}

    def refusal(self, target: Target) -> str | None:
        return only_replay(target)

    def trials(self, target: Target, runs: int, rng: np.random.Generator) -> dict[str, Trials]:
        target = whole_budget(target)
        calls = max(1, runs // CLASSES)
        seen, coins = np.empty((calls, CLASSES)), np.empty((calls, CLASSES), dtype=bool)
        for call, (members, found) in enumerate(class_sums(target, CLASSES, calls, rng)):
            seen[call] = optimal(target, found)
            coins[call] = members
        places = np.tile(np.arange(CLASSES), calls)
        return {self.NAME: Trials(seen.ravel(), coins.ravel(), places=places)}
