"""Lifetimes of `l2dp-ml` as its adversary sees them: all versions of θ, and neighbours that differ in one record.

The adversary knows every record but one, two candidates for that one, the public configuration (learning rates, seeds,
batch size λ) and the versions θ⁰, θ¹ … θᵐ. Symbols: x̄ = x + a with a = χ1/λ, h̄ = hidden(θᵀx̄ + b) with b = 2χ2/λ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from l2dp.audit.bounds import Floats
from l2dp.audit.decisions import Trials
from l2dp.audit.target import Target
from l2dp.learners import Learner, Plan, Setting
from l2dp.models import Flat, Network
from l2dp.streams.records import Space, Task

CLASSES = 2


@dataclass(frozen=True)
class Lifetime:
    """What the adversary holds in the end, and the coin."""

    learner: Learner
    versions: list[dict[str, Tensor]]
    candidates: tuple[Floats, Floats]
    """The first task without and with the target, which takes another record's place."""
    later: list[Floats]
    """The tasks after it, all known."""
    labels: list[np.ndarray]
    member: bool
    batch_size: int

    def theta(self, version: int) -> Floats:
        """The encoder's matrix, inputs × hidden units."""
        return np.asarray(self.versions[version]["encoder.weight"].flatten(1).double().numpy().T)

    def gradients(self, rate: float) -> tuple[list[Floats], np.ndarray]:
        """λ times the encoder's gradient between versions, and the columns that were not scaled back to their norm.

        A column that ends below the norm that γ assumes was not rescaled, as anybody can see.
        """
        thetas = [self.theta(index) for index in range(len(self.versions))]
        norm = np.abs(thetas[0]).sum(axis=0).max() * (1 - 1e-6)
        free = np.all([np.abs(theta).sum(axis=0) < norm for theta in thetas[1:]], axis=0)
        return [(before - after)[:, free] / rate * self.batch_size for before, after in pairwise(thetas)], free


def dense(inputs: int, hidden: int, bound: Callable[[], nn.Module]) -> Callable[[Space], Network]:
    """One dense encoder, one hidden layer, one last layer."""
    return lambda space: Network(
        Flat(inputs, hidden, bias=False), nn.Linear(hidden, space.classes, bias=False), bound()
    )


def live(
    target: Target,
    rng: np.random.Generator,
    shape: tuple[int, ...],
    records: int,
    tasks: int = 1,
    batches: int = 1,
    classes: int = CLASSES,
    **extra: Any,
) -> Lifetime:
    """One lifetime of the shipped learner on fresh random data, one pass over each task."""
    learner = target.make(**extra)
    space = Space(shape, tuple(map(str, range(classes))))
    lot = records // batches
    learner.begin(Setting(space, lot, seed=int(rng.integers(2**31))))
    member = bool(rng.integers(2))
    versions, later, labels = [learner.release()], [], []
    candidates: tuple[Floats, Floats] | None = None
    for index in range(tasks):
        x, y = rng.uniform(-1, 1, (records, *shape)).astype(np.float32), rng.integers(0, classes, records)
        used = x
        if candidates is None:
            other = x.copy()
            other[0] = rng.uniform(-1, 1, shape)
            candidates = other.astype(np.float64), x.astype(np.float64)
            used = x if member else other
        else:
            later.append(x.astype(np.float64))
        labels.append(y)
        train = torch.from_numpy(used), torch.from_numpy(y)
        unseen = torch.zeros((1, *shape)), torch.zeros(1, dtype=torch.int64)
        task = Task.from_tensors(f"task {index}", train, unseen, classes=tuple(range(classes)), declared_size=records)
        learner.learn(task, Plan(batches, lot))
        versions.append(learner.release())
    assert candidates is not None
    return Lifetime(learner, versions, candidates, later, labels, member, lot)


def judged(lives: Iterable[Lifetime], score: Callable[[Lifetime], float], thresholds: tuple[float, float]) -> Trials:
    """Lifetimes as trials with thresholds fixed in advance. Each is scored and let go: a learner is much to hold."""
    found = [(score(life), life.member) for life in lives]
    return Trials(np.array([one for one, _ in found]), np.array([member for _, member in found]), thresholds)


def centred_square(x: Floats) -> Floats:
    """n times the covariance of a batch."""
    centred = x - x.mean(axis=0)
    return np.asarray(centred.T @ centred)
