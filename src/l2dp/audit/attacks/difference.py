"""Difference: one draw for all records, so the difference of two perturbed records is that of the records."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from torch import nn

from l2dp.audit.attack import Attack, Level, only_paper
from l2dp.audit.attacks.rank import EITHER
from l2dp.audit.decisions import Trials
from l2dp.audit.paper import Lifetime, dense, judged, live
from l2dp.audit.target import Target

INPUTS, HIDDEN, RECORDS = 5, 4, 10


class Difference(Attack):
    """The paper calls D̄, the perturbed records that fill the episodic memory, private. Here somebody sees them.

    x̄_r − x̄_s = x_r − x_s exactly. Whoever knows one record x_s of the memory knows all others; the attacker shifts
    the perturbed target by the one shift that explains the known record, and looks which candidate it is. Records are
    told apart by their labels and values; here the attacker tries all rows and takes the one nearest to a candidate.
    """

    NAME: ClassVar[str] = "difference"
    THREAT: ClassVar[str] = "the perturbed records D̄ of the episodic memory, which the paper calls private"
    RUNS: ClassVar[dict[Level, int]] = {"quick": 400, "thorough": 1000}

    def refusal(self, target: Target) -> str | None:
        return only_paper(target)

    def trials(self, target: Target, runs: int, rng: np.random.Generator) -> dict[str, Trials]:
        network = dense(INPUTS, HIDDEN, nn.Hardtanh)
        lives = (live(target, rng, (INPUTS,), RECORDS, model=network, normalisation="none") for _ in range(runs))
        return {self.NAME: judged(lives, self._score, EITHER)}

    def _score(self, life: Lifetime) -> float:
        perturbed = life.learner.episode(0)["x"].double().numpy()
        without, having = (x[0] for x in life.candidates)
        known = life.candidates[0][1]
        apart = perturbed[:, None, :] - perturbed[None, :, :]  # the unknown order: all pairs are tried
        nearest = [float(np.linalg.norm(apart - (x - known), axis=2).min()) for x in (without, having)]
        return nearest[0] - nearest[1]
