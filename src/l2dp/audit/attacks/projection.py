"""Projection: A-GEM subtracts the memory's gradient, and with it the noise; what is left has rank two."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from torch import nn

from l2dp.audit.attack import Attack, Level, only_paper
from l2dp.audit.attacks.rank import EITHER
from l2dp.audit.bounds import Floats
from l2dp.audit.decisions import Trials
from l2dp.audit.paper import Lifetime, centred_square, dense, judged, live
from l2dp.audit.target import Target

INPUTS, HIDDEN, RECORDS, RATE = 20, 10, 50, 1e-5
POINTS, ZOOMS = 161, 6


class Projection(Attack):
    """Task 2 of Algorithm 1 with the projection as printed (always), target in the episodic memory of task 1.

    The projected gradient is G₂ − c·G₁ with an unknown factor c. Both parts are a covariance and a matrix of rank one,
    so G̃ + n·Σ̂₂·θ − c·n·Σ̂₁·θ has rank two for the right candidate and the right c. The attacker searches c and
    compares third singular values. Only the step from θ¹ to θ² is used, although θ⁰ to θ¹ tells as much.
    """

    NAME: ClassVar[str] = "projection"
    THREAT: ClassVar[str] = "θ¹ and θ² around the projected step of task 2; target in task 1's memory"
    RUNS: ClassVar[dict[Level, int]] = {"quick": 200, "thorough": 800}
    JOBS: ClassVar[int] = 2

    def refusal(self, target: Target) -> str | None:
        return only_paper(target)

    def trials(self, target: Target, runs: int, rng: np.random.Generator) -> dict[str, Trials]:
        network = dense(INPUTS, HIDDEN, nn.Identity)
        chosen: dict[str, Any] = {"model": network, "normalisation": "none", "encoder_lr": RATE, "projection": "always"}
        lives = (live(target, rng, (INPUTS,), RECORDS, tasks=2, **chosen) for _ in range(runs))
        return {self.NAME: judged(lives, self._score, EITHER)}

    def _score(self, life: Lifetime) -> float:
        (_, gradient), free = life.gradients(RATE)
        if free.sum() < 3:
            return 0.0
        theta = life.theta(1)[:, free]
        known = gradient + centred_square(life.later[0]) @ theta
        without, having = (_misfit(known, centred_square(x) @ theta) for x in life.candidates)
        return math.log(without / having)


def _misfit(known: Floats, candidate: Floats) -> float:
    """The least third singular value of known − c·candidate."""
    low, high = -1.0, 3.0
    for _ in range(ZOOMS):
        factors = np.linspace(low, high, POINTS)
        third = np.linalg.svd(known - factors[:, None, None] * candidate, compute_uv=False)[:, 2]
        at, step = int(third.argmin()), factors[1] - factors[0]
        low, high = factors[at] - 2 * step, factors[at] + 2 * step
    return float(third.min())
