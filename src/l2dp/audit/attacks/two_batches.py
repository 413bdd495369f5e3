"""Two batches: the same draw in both, so their difference has no noise. Clipping helps the attacker."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from torch import nn

from l2dp.audit.attack import Attack, Level, only_paper
from l2dp.audit.attacks.rank import EITHER
from l2dp.audit.decisions import Trials
from l2dp.audit.paper import Lifetime, dense, judged, live
from l2dp.audit.target import Target

INPUTS, HIDDEN, RECORDS, BATCHES, RATE = 20, 30, 150, 3, 1e-4


class TwoBatches(Attack):
    """Algorithm 2: two tasks of three batches each, hidden layer clipped, versions after each task only.

    A saturated unit's gradient over one task is ±(Σ(½ − x_r) − n·a). The next task has the same a and the same sign:
    subtracted, ±(Σ₂x − Σ₁x) is left, without any noise. The paper adds up batches and tasks as if their noise were
    independent (parallel composition); it is one draw. The score is the median over units of how much better the
    target fits than the other candidate.
    """

    NAME: ClassVar[str] = "two batches"
    THREAT: ClassVar[str] = "θ⁰, θ¹, θ² of Algorithm 2 (two tasks of three batches, clipped); task 2 known"
    RUNS: ClassVar[dict[Level, int]] = {"quick": 200, "thorough": 800}
    JOBS: ClassVar[int] = 2

    def refusal(self, target: Target) -> str | None:
        return only_paper(target)

    def trials(self, target: Target, runs: int, rng: np.random.Generator) -> dict[str, Trials]:
        chosen: dict[str, Any] = {
            "model": dense(INPUTS, HIDDEN, nn.Hardtanh),
            "normalisation": "none",
            "encoder_lr": RATE,
        }
        lives = (live(target, rng, (INPUTS,), RECORDS, 2, BATCHES, **chosen) for _ in range(runs))
        return {self.NAME: judged(lives, self._score, EITHER)}

    def _score(self, life: Lifetime) -> float:
        (first, second), free = life.gradients(RATE)
        if not free.any():
            return 0.0
        misfits = []
        for x in life.candidates:
            left = (life.later[0].sum(axis=0) - x.sum(axis=0))[:, None]
            signs = (np.square(first - second - sign * left).sum(axis=0) for sign in (1, -1))
            misfits.append(np.minimum(*signs))
        return float(np.median(np.log(misfits[0] / misfits[1])))
