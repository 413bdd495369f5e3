"""Label set: does the release tell that a label occurred, by its shape or by the labels it names?"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from l2dp.audit.attack import Attack, Level
from l2dp.audit.attacks.membership import RECORDS, STEPS, begun, clusters, neighbour
from l2dp.audit.decisions import Trials
from l2dp.audit.target import Target
from l2dp.learners import Plan

LABELS = 3


class LabelSet(Attack):
    """Three labels are declared; the target is the only record of the third, or is not there (or has another label).

    Names and shapes of the released tensors, and the whole numbers in them, must not depend on it: those are never
    noisy. The score counts them all.
    """

    NAME: ClassVar[str] = "label set"
    THREAT: ClassVar[str] = "names, shapes and whole numbers of a release; the target has a label of its own"
    RUNS: ClassVar[dict[Level, int]] = {"quick": 200, "thorough": 400}

    def refusal(self, target: Target) -> str | None:
        return None

    def trials(self, target: Target, runs: int, rng: np.random.Generator) -> dict[str, Trials]:
        coins = rng.integers(0, 2, runs).astype(bool)
        seen = []
        for member in coins:
            learner = begun(target, LABELS)
            learner.learn(neighbour(target, 0, clusters(rng), bool(member), LABELS), Plan(STEPS, RECORDS // 2))
            total = 0.0
            for name, tensor in learner.release().items():
                whole = 0.0 if tensor.is_floating_point() else float(tensor.sum())
                total += len(name) + tensor.numel() + whole
            seen.append(total)
        return {self.NAME: Trials(np.array(seen), coins)}
