"""Quiet layers: below the last layer the classifier's gradients carry no noise of their own."""

from __future__ import annotations

import copy
import math
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from l2dp.audit.attack import Attack, Level, only_paper
from l2dp.audit.attacks.batch_statistics import LABELS, RECORDS, SHAPE
from l2dp.audit.attacks.rank import EITHER
from l2dp.audit.bounds import Floats
from l2dp.audit.decisions import Trials
from l2dp.audit.paper import Lifetime, judged, live
from l2dp.audit.target import Target

RATE = 0.03
LOOKED_AT = ("classifier.2.weight", "classifier.5.weight")
"""The last convolution and the dense layer after it."""


class QuietLayers(Attack):
    """The convolutional net of the benchmarks with their normalisation, one step, weights alone.

    χ1 and χ2 shift the first hidden layer: a unit is dead for all records, or normalisation takes the shift away. Which
    units live can be seen, for the normalisation's scale of a dead unit does not move. χ3 enters the last layer only.
    So the gradients of the layers between are, up to a few units that are half alive, functions of the data; the
    attacker computes them for each candidate and looks to which of the two the released step is nearer.
    """

    NAME: ClassVar[str] = "quiet layers"
    THREAT: ClassVar[str] = "θ⁰ and θ¹ of the benchmarks' convolutional net; all other records and two candidates"
    RUNS: ClassVar[dict[Level, int]] = {"quick": 100, "thorough": 400}
    JOBS: ClassVar[int] = 2

    def refusal(self, target: Target) -> str | None:
        return only_paper(target)

    def trials(self, target: Target, runs: int, rng: np.random.Generator) -> dict[str, Trials]:
        chosen: dict[str, Any] = {"model": "mnist-conv", "normalisation": "neuron", "encoder_lr": 1e-7, "lr": RATE}
        lives = (live(target, rng, SHAPE, RECORDS, classes=LABELS, **chosen) for _ in range(runs))
        return {self.NAME: judged(lives, self._score, EITHER)}

    def _score(self, life: Lifetime) -> float:
        before, after = life.versions
        alive = before["hidden.1.weight"] != after["hidden.1.weight"]
        seen = torch.cat([(before[name] - after[name]).flatten() for name in LOOKED_AT]).double() / RATE
        without, having = (_gradient(life, x, alive) for x in life.candidates)
        return float((seen - (without + having) / 2) @ (having - without) / (having - without).norm() ** 2)


def _gradient(life: Lifetime, x: Floats, alive: Tensor) -> Tensor:
    """What the step would be for a candidate, if every unit were dead or wholly alive."""
    network: Any = copy.deepcopy(life.learner.network)  # type: ignore[attr-defined]
    network.load_state_dict(life.versions[0])
    network.train()
    z = F.conv2d(torch.from_numpy(x).float(), life.versions[0]["encoder.weight"], stride=2, padding=2)
    units = z.permute(0, 2, 3, 1)
    flat = units.flatten(1)
    h = ((flat - flat.mean(0)) / torch.sqrt(flat.var(0, unbiased=False) + 1e-5)).clamp(-1, 1) * alive
    scores = network.classifier(h.view(units.shape).permute(0, 3, 1, 2))
    y = F.one_hot(torch.from_numpy(life.labels[0]), LABELS)
    loss = (math.log(2) + (0.5 - y) * scores + scores.square() / 8).sum() / life.batch_size
    parameters = dict(network.named_parameters())
    found = torch.autograd.grad(loss, [parameters[name] for name in LOOKED_AT])
    return torch.cat([part.flatten() for part in found]).double()
