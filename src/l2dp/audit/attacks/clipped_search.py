"""Clipped search: clipping hides the covariance only in units that saturate; the others are searched one by one."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
from torch import nn

from l2dp.audit.attack import Attack, Level, only_paper
from l2dp.audit.bounds import Floats
from l2dp.audit.decisions import Trials
from l2dp.audit.paper import Lifetime, dense, judged, live
from l2dp.audit.target import Target

INPUTS, HIDDEN, RECORDS, RATE = 20, 30, 100, 3e-4
SURE = 1.0
"""A candidate is named if the other fits e times worse: fixed in advance."""
POINTS, ZOOMS = 81, 6


class ClippedSearch(Attack):
    """Algorithm 1, one step, hidden layer clipped to [−1, 1] as the paper's sensitivities assume.

    A unit whose shift u = θᵀa + b is large gives h̄ = ±1 for every record, and its gradient is ±p with p = Σ(½ − x_r)
    − n·a: one noisy sum, and private. But a unit with |u| near 1 or below has h̄_r = clip(θᵀx_r + u), a function of one
    unknown number. The attacker takes a from p under each candidate and searches u: only the right candidate
    explains the d numbers of that unit's gradient. Where no unit is open the attack says nothing.
    """

    NAME: ClassVar[str] = "clipped search"
    THREAT: ClassVar[str] = "as rank, with the hidden layer clipped to [−1, 1]"
    RUNS: ClassVar[dict[Level, int]] = {"quick": 400, "thorough": 1500}
    JOBS: ClassVar[int] = 2

    def refusal(self, target: Target) -> str | None:
        return only_paper(target)

    def trials(self, target: Target, runs: int, rng: np.random.Generator) -> dict[str, Trials]:
        network = dense(INPUTS, HIDDEN, nn.Hardtanh)
        lives = (
            live(target, rng, (INPUTS,), RECORDS, model=network, normalisation="none", encoder_lr=RATE)
            for _ in range(runs)
        )
        return {self.NAME: judged(lives, self._score, (-SURE, SURE))}

    def _score(self, life: Lifetime) -> float:
        (gradient,), free = life.gradients(RATE)
        # Saturated units repeat one vector up to its sign; what float32 weights round off is about this much.
        rounding = 1e-7 / RATE * life.batch_size
        same = np.minimum(
            np.abs(gradient[:, :, None] - gradient[:, None, :]).max(axis=0),
            np.abs(gradient[:, :, None] + gradient[:, None, :]).max(axis=0),
        )
        alike = same < rounding
        if alike.size == 0 or alike.sum(axis=0).max() < 2:
            return 0.0
        common = int(alike.sum(axis=0).argmax())
        still = ~alike[common]
        if not still.any():
            return 0.0
        theta = life.theta(0)[:, free][:, still]
        without, having = (_misfit(x, theta, gradient[:, common], gradient[:, still]) for x in life.candidates)
        return 0.5 * math.log(without / having)


def _misfit(x: Floats, theta: Floats, saturated: Floats, gradient: Floats) -> float:
    """What is left of the open units' gradients under a candidate, at the best shift of each."""
    products, half = x @ theta, 0.5 - x
    units = np.arange(theta.shape[1])
    best = math.inf
    for sign in (1, -1):
        rows = half - (half.sum(axis=0) - sign * saturated) / len(x)
        low, high = -1 - products.max(axis=0), 1 - products.min(axis=0)
        for _ in range(ZOOMS):
            shifts = low + (high - low) * np.linspace(0, 1, POINTS)[:, None]
            hidden = np.clip(products + shifts[:, None, :], -1, 1)
            left = np.square(np.einsum("nd,unh->udh", rows, hidden) - gradient).sum(axis=1)
            found = left.argmin(axis=0)
            step = (high - low) / (POINTS - 1)
            low, high = shifts[found, units] - 2 * step, shifts[found, units] + 2 * step
        best = min(best, float(left.min(axis=0).sum()))
    return best
