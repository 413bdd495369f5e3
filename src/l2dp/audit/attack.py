"""What an attack is: it tosses coins, runs shipped code with the target in or out, and hands back what it saw.

An attack never looks inside: it calls boundaries and learners as anybody could, and knows their public configuration.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import numpy as np

from l2dp.audit.decisions import Trials
from l2dp.audit.target import Target
from l2dp.learners import L2dpMl, NaiveGaussian, PrivateReplay

Level = Literal["quick", "thorough"]


class Inapplicable(Exception):
    """An attack that finds, while it runs, that there is nothing for it to attack; the message says why."""


class Attack(ABC):
    """One way to break a guarantee. The docstring of a subclass explains it to a reader of the paper."""

    NAME: ClassVar[str]
    THREAT: ClassVar[str]
    """What the attacker sees and knows, in a line."""
    RUNS: ClassVar[dict[Level, int]]
    """Trials at each level."""
    JOBS: ClassVar[int] = 1
    """Into how many pieces of work the trials are cut."""
    NAMES: ClassVar[tuple[str, ...]] = ()
    """What it reports under, if it reads its trials in several ways."""

    ONE_RUN: ClassVar[bool] = False
    """Whether the second half of the trials are canaries of a single run, judged by the theorem for those."""

    @abstractmethod
    def refusal(self, target: Target) -> str | None:
        """Why the attack does not apply to a target; None: it does."""

    @abstractmethod
    def trials(self, target: Target, runs: int, rng: np.random.Generator) -> dict[str, Trials]:
        """So many trials, under each name that the attack reports."""

    def p_value(self, trials: Trials) -> float | None:
        """Of an attack that is a test of a premise; None: it bounds ε."""
        return None

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return cls.NAMES or (cls.NAME,)


def only_paper(target: Target) -> str | None:
    return None if issubclass(target.cls, L2dpMl) else "against the paper's perturbed objective only"


def only_replay(target: Target) -> str | None:
    if not issubclass(target.cls, PrivateReplay):
        return "against the statistics of private-replay only"
    return elsewhere(target)


def elsewhere(target: Target) -> str | None:
    return "made against the same boundary in another setting" if target.same_boundary else None


def only_naive(target: Target) -> str | None:
    return None if issubclass(target.cls, NaiveGaussian) else "against noisy gradients with replay only"
