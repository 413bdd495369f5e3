"""Output noise over two steps: χ3 is the same number in every step, so two steps cancel it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from l2dp.audit.attack import Attack, Level, only_paper
from l2dp.audit.attacks.rank import EITHER
from l2dp.audit.bounds import Floats
from l2dp.audit.decisions import Trials
from l2dp.audit.paper import CLASSES, Lifetime, judged, live
from l2dp.audit.target import Target

INPUTS, HIDDEN, RECORDS, RATE = 20, 16, 50, 1e-4
SLOW = 1e-7
"""Learning rate of everything but the last layer, so that the rest stays where it was."""
DEAD = 1e-2


class OutputNoise(Attack):
    """Two tasks of one step each, hidden layer normalised over the batch, as in the benchmarks.

    The gradient of the last layer is Σ_r h_r(½ − y_r + ¼z_r)ᵀ − χ3. Its difference between two steps has no χ3. What
    χ1 and χ2 do to a hidden unit is a shift: a unit is dead for all records, or normalisation takes the shift away.
    So the difference is an exact function of the data, and each candidate predicts it. Dead units are seen, for
    their difference is zero. The score is the median over living units.
    """

    NAME: ClassVar[str] = "output noise"
    THREAT: ClassVar[str] = "θ⁰, θ¹, θ² of two one-step tasks, normalised hidden layer; task 2 known"
    RUNS: ClassVar[dict[Level, int]] = {"quick": 200, "thorough": 800}
    JOBS: ClassVar[int] = 2

    def refusal(self, target: Target) -> str | None:
        return only_paper(target)

    def trials(self, target: Target, runs: int, rng: np.random.Generator) -> dict[str, Trials]:
        chosen: dict[str, Any] = {
            "model": f"mlp-{HIDDEN}",
            "normalisation": "neuron",
            "head_lr": RATE,
            "lr": SLOW,
            "encoder_lr": SLOW,
        }
        lives = (live(target, rng, (INPUTS,), RECORDS, 2, **chosen) for _ in range(runs))
        return {self.NAME: judged(lives, self._score, EITHER)}

    def _score(self, life: Lifetime) -> float:
        weights = [version["classifier.0.weight"].double().numpy() for version in life.versions]
        steps = [(before - after) / RATE * life.batch_size for before, after in pairwise(weights)]
        difference = steps[0] - steps[1]
        alive = np.abs(difference).max(axis=0) > DEAD
        if not alive.any():
            return 0.0

        def sums(x: Floats, y: np.ndarray, version: int) -> Floats:
            z = x @ life.theta(version)
            h = np.clip((z - z.mean(axis=0)) / np.sqrt(z.var(axis=0) + 1e-5), -1, 1) * alive
            errors = 0.5 - np.eye(CLASSES)[y] + h @ weights[version].T / 4
            return np.asarray(errors.T @ h)

        known = sums(life.later[0], life.labels[1], 1)
        misfits = [
            np.square(difference - (sums(x, life.labels[0], 0) - known)).sum(axis=0)[alive] for x in life.candidates
        ]
        return float(np.median(np.log(misfits[0] / misfits[1])))
