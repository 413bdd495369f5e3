"""Batch statistics: a shift does not change a variance, and the variances of the hidden units are published."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F

from l2dp.audit.attack import Attack, Level, only_paper
from l2dp.audit.attacks.rank import EITHER
from l2dp.audit.decisions import Trials
from l2dp.audit.paper import Lifetime, judged, live
from l2dp.audit.target import Target

SHAPE, RECORDS, LABELS = (1, 8, 8), 64, 10
MOMENTUM = 0.3
"""Of the running statistics; public, like the rest of the model."""


class BatchStatistics(Attack):
    """The convolutional encoder of the benchmarks with their normalisation, one step on the whole task.

    Every unit of the first hidden layer is θᵀx + u with one u for all records. A unit that lives for all of them has
    the variance of θᵀx, exactly, whatever u is; normalisation keeps a running variance for test time, and the release
    contains it. The score is the median over living units of how much better the target's data fit.
    """

    NAME: ClassVar[str] = "batch statistics"
    THREAT: ClassVar[str] = "one release of the benchmarks' convolutional net; all other records and two candidates"
    RUNS: ClassVar[dict[Level, int]] = {"quick": 150, "thorough": 600}
    JOBS: ClassVar[int] = 2

    def refusal(self, target: Target) -> str | None:
        return only_paper(target)

    def trials(self, target: Target, runs: int, rng: np.random.Generator) -> dict[str, Trials]:
        chosen: dict[str, Any] = {"model": "mnist-conv", "normalisation": "neuron", "encoder_lr": 1e-7}
        lives = (live(target, rng, SHAPE, RECORDS, classes=LABELS, **chosen) for _ in range(runs))
        return {self.NAME: judged(lives, self._score, EITHER)}

    def _score(self, life: Lifetime) -> float:
        before, after = (version["hidden.1.running_var"].double() for version in life.versions)
        seen = (after - (1 - MOMENTUM) * before) / MOMENTUM
        alive = seen > 1e-6
        if not bool(alive.any()):
            return 0.0
        weight = life.versions[0]["encoder.weight"].double()
        misfits = []
        for x in life.candidates:
            z = F.conv2d(torch.from_numpy(x), weight, stride=2, padding=2).permute(0, 2, 3, 1).flatten(1)
            misfits.append((z.var(dim=0) - seen).abs()[alive] + 1e-12)
        return float((misfits[0] / misfits[1]).log().median())
