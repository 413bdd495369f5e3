"""Rank: in Algorithm 1 all of the noise lives in one matrix of rank one, and the rest is the exact covariance."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
from torch import nn

from l2dp.audit.attack import Attack, Level, only_paper
from l2dp.audit.decisions import Trials
from l2dp.audit.paper import Lifetime, centred_square, dense, judged, live
from l2dp.audit.target import Target

INPUTS, HIDDEN, RECORDS, RATE = 20, 10, 50, 1e-5
EITHER = (-1e-9, 1e-9)
"""Thresholds fixed in advance: say whichever candidate fits better."""


class Rank(Attack):
    """Algorithm 1, one step on the whole task, hidden layer not clipped.

    With x̄_r = x_r + a and h̄_r = θᵀx̄_r + b, a and b the same for all records, the gradient of the encoder expands to
    Σ_r (½ − x̄_r)h̄_rᵀ = −n·Σ̂·θ + p·qᵀ, where Σ̂ is the exact covariance of the batch. For the right candidate
    G + n·Σ̂·θ has rank one, for a wrong one almost surely more. The score compares the two candidates' second singular
    values, relative to the first; noise of any scale drops out, until float32 rounds the rest away.
    """

    NAME: ClassVar[str] = "rank"
    THREAT: ClassVar[str] = "θ before and after one step; all other records and two candidates (Algorithm 1)"
    RUNS: ClassVar[dict[Level, int]] = {"quick": 600, "thorough": 2000}
    JOBS: ClassVar[int] = 2

    def refusal(self, target: Target) -> str | None:
        return only_paper(target)

    def trials(self, target: Target, runs: int, rng: np.random.Generator) -> dict[str, Trials]:
        network = dense(INPUTS, HIDDEN, nn.Identity)
        # The gradient grows with the square of the noise; a step must not take every column to its bound.
        rate = RATE * min(1.0, target.option("budget").epsilon / 0.5) ** 2
        lives = (
            live(target, rng, (INPUTS,), RECORDS, model=network, normalisation="none", encoder_lr=rate)
            for _ in range(runs)
        )
        return {self.NAME: judged(lives, lambda life: self._score(life, rate), EITHER)}

    def _score(self, life: Lifetime, rate: float) -> float:
        (gradient,), free = life.gradients(rate)
        if free.sum() < 2:
            return 0.0
        theta = life.theta(0)[:, free]
        misfits = []
        for x in life.candidates:
            values = np.linalg.svd(gradient + centred_square(x) @ theta, compute_uv=False)
            misfits.append(float(values[1] / values[0]))
        return math.log(misfits[0] / misfits[1])
