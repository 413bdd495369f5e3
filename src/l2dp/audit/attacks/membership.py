"""Membership inference on releases: is the loss of the target lower than it would be without it?"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F

from l2dp.audit.attack import Attack, Level
from l2dp.audit.canaries import rows_each
from l2dp.audit.decisions import Trials
from l2dp.audit.target import Target
from l2dp.learners import Learner, Plan, PrivateReplay, Setting
from l2dp.streams.records import Space, Task

SHAPE, RECORDS, TASKS, STEPS = (2, 4), 24, 2, 6
LOSS, RATIO = "membership by loss", "membership by likelihood ratio"


class Membership(Attack):
    """Two small tasks, learned as always; the target is a mislabelled outlier in the first, or is not there (or another
    record is there instead, where the guarantee is about replacing one).

    The adversary is the paper's: it holds all versions θ¹ … θᵐ together and computes the target's loss under each. One
    reading adds the losses up (Yeom et al. 2018), the other weighs them by a likelihood ratio fitted on the first
    half of the runs (Carlini et al. 2022). The attack works on any learner, and is the weakest one here.
    """

    NAME: ClassVar[str] = "membership"
    NAMES: ClassVar[tuple[str, ...]] = (LOSS, RATIO)
    THREAT: ClassVar[str] = "scores of the target under all versions θ¹ … θᵐ"
    RUNS: ClassVar[dict[Level, int]] = {"quick": 150, "thorough": 400}
    JOBS: ClassVar[int] = 2

    def refusal(self, target: Target) -> str | None:
        return None

    def trials(self, target: Target, runs: int, rng: np.random.Generator) -> dict[str, Trials]:
        coins = rng.integers(0, 2, runs).astype(bool)
        losses = np.stack([self._losses(target, bool(member), rng) for member in coins])
        return {LOSS: Trials(-losses.sum(axis=1), coins), RATIO: Trials(-losses, coins)}

    def _losses(self, target: Target, member: bool, rng: np.random.Generator) -> np.ndarray:
        learner = begun(target)
        outlier, label = torch.ones(1, *SHAPE), torch.tensor([0])
        found = []
        for index in range(TASKS):
            task = neighbour(target, index, clusters(rng), member if index == 0 else None)
            learner.learn(task, Plan(STEPS, RECORDS // 2))
            learner.settle()
            losses = F.cross_entropy(learner.released_scores(outlier).double(), label)
            found.append(float(losses))
        return np.array(found)


def clusters(rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Two classes around opposite corners; the outlier lies in the corner of the class that it is not."""
    y = rng.integers(0, 2, RECORDS)
    x = np.clip(0.5 * (2 * y - 1)[:, None, None] + 0.1 * rng.standard_normal((RECORDS, *SHAPE)), -1, 1)
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y)


@functools.cache
def replaces(target: Target) -> bool:
    """Whether the guarantee is about replacing a unit, and not about adding or removing one."""
    return begun(target).guarantee.adjacency == "replace"


def neighbour(
    target: Target, index: int, data: tuple[torch.Tensor, torch.Tensor], member: bool | None, labels: int = 2
) -> Task:
    """A task of these records with the target in it or out, as neighbours of the stated guarantee differ.

    None: a task that is the same in both worlds. The target lies in the corner of class 1 with label 0, or with the
    last label if there are more than two. Where a unit is replaced, an ordinary record takes its place.
    """
    x, y = data
    _, brought = rows_each(target)
    extra = brought if member or (member is False and replaces(target)) else 0
    place, label = (1.0, 0 if labels == 2 else labels - 1) if member else (-0.5, 0)
    train = torch.cat([x, torch.full((extra, *SHAPE), place)]), torch.cat([y, torch.full((extra,), label)])
    users = torch.arange(len(train[0])).clamp(max=RECORDS) + index * (RECORDS + 1)
    return Task.from_tensors(f"task {index}", train, data, users, tuple(range(labels)), declared_size=RECORDS)


def small(target: Target) -> Learner:
    """The learner on a scale on which it can be run thousands of times; noise is calibrated to its few steps."""
    extra: dict[str, Any] = {}
    if target.has("model"):
        extra["model"] = "mlp-8"
    if issubclass(target.cls, PrivateReplay):
        extra |= {"features": "pixels", "project": None, "steps": 4}
        extra |= {"width": 16, "replay_steps": 8, "replay_batch": 32}
    return target.make(**extra)


def begun(target: Target, labels: int = 2) -> Learner:
    """The small learner, ready for its first task; it states its guarantee from here on."""
    learner = small(target)
    learner.begin(Setting(Space(SHAPE, tuple(map(str, range(labels)))), RECORDS // 2, seed=0))
    return learner
