"""Policies: how the lifetime budget of a record is spread over its own task and the later tasks that replay it.

A policy knows nothing of records: it says which part of a record's allowance may be used up by the end of its own
task (age 0), of the next task (age 1), and so on. What is left over at one age can be spent at the next. An adaptive
policy also says when a task has been learned well enough to stop spending on it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist

from l2dp.errors import BadInput


class Policy(ABC):
    @abstractmethod
    def cap(self, age: int) -> Fraction:
        """The part of a record's lifetime allowance that may be used up at an age; never falls, never above 1."""

    def fresh(self, age: int) -> Fraction:
        """The part that an age adds."""
        return self.cap(age) - (self.cap(age - 1) if age > 0 else 0)

    @property
    def most_attempts(self) -> int:
        """How often a task may be trained; more than once only if what was learned is scored in between."""
        return 1

    def cap_of_attempt(self, attempt: int) -> Fraction:
        """The part of the allowance that a record may have used up by the end of one attempt at its own task."""
        return self.cap(0)


@dataclass(frozen=True)
class Uniform(Policy):
    """Even shares over a declared number of tasks, after which a record is not replayed any more.

    `own` is the share of a record's own task, None: as large as each of the others.

    >>> [str(Uniform(4).cap(age)) for age in range(5)], [str(Uniform(3, own=0.5).cap(age)) for age in range(4)]
    (['1/4', '1/2', '3/4', '1', '1'], ['1/2', '3/4', '1', '1'])
    """

    tasks: int
    own: float | None = None

    def __post_init__(self) -> None:
        if self.tasks < 1:
            raise BadInput(f"a uniform policy is for at least one task, not {self.tasks}")
        if self.own is not None and not 0 < self.own <= 1:
            raise BadInput(f"the share of a record's own task must lie above 0 and at most 1, not {self.own}")

    def cap(self, age: int) -> Fraction:
        if age >= self.tasks - 1:
            return Fraction(1)
        own = Fraction(1, self.tasks) if self.own is None else Fraction(self.own)
        return own + (1 - own) * Fraction(age, self.tasks - 1)


@dataclass(frozen=True)
class Geometric(Policy):
    """Shares that shrink by a ratio with every task, for streams whose length nobody knows: they never run out.

    >>> [str(Geometric(0.5).cap(age)) for age in range(4)]
    ['1/2', '3/4', '7/8', '15/16']
    """

    ratio: float

    def __post_init__(self) -> None:
        if not 0 < self.ratio < 1:
            raise BadInput(f"the ratio of a geometric policy must lie between 0 and 1, not {self.ratio}")

    def cap(self, age: int) -> Fraction:
        # Exact powers of a float would grow without end; a cap may be rounded, as long as it never falls or exceeds 1.
        return 1 - Fraction(float(self.ratio) ** (age + 1))


@dataclass(frozen=True)
class Adaptive(Geometric):
    """Starts small and doubles, in the manner of Sage (Lécuyer et al. 2019), until a target set in advance is met.

    Each attempt at a task has twice the budget of the one before, all of them together the share of the task's own
    records. After each, the accuracy on records that were held out is estimated with noise, and is paid for by them;
    training stops when it is above the target with the confidence asked for. What was not needed is left for replays.

    >>> [str(Adaptive(0.5, attempts=3).cap_of_attempt(attempt)) for attempt in range(3)]
    ['1/14', '3/14', '1/2']
    """

    target: float = 0.8
    """The accuracy at which a task counts as learned."""
    attempts: int = 4
    held_out: float = 0.1
    """The part of a task's records that are never trained on, only scored; each is held out by a coin of its own."""
    confidence: float = 0.95

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.target < 1:
            raise BadInput(f"the target of an adaptive policy must lie between 0 and 1, not {self.target}")
        if not 1 <= self.attempts <= 16:
            raise BadInput(f"an adaptive policy makes 1 to 16 attempts, not {self.attempts}")
        if not 0 < self.held_out < 1:
            raise BadInput(f"the part that is held out must lie between 0 and 1, not {self.held_out}")
        if not 0.5 <= self.confidence < 1:
            raise BadInput(f"the confidence of an adaptive policy must lie in [0.5, 1), not {self.confidence}")

    @property
    def most_attempts(self) -> int:
        return self.attempts

    def cap_of_attempt(self, attempt: int) -> Fraction:
        return self.cap(0) * Fraction(2 ** (attempt + 1) - 1, 2**self.attempts - 1)

    def met(self, right: float, wrong: float, noise: float) -> bool:
        """Whether the true accuracy is above the target, with confidence, given noisy counts of either kind.

        Half of the doubt is for the noise (too few right, too many wrong, too few wrong), half for the records that
        happened to be held out (Hoeffding's bound).
        """
        doubt = 1 - self.confidence
        reach = noise * NormalDist().inv_cdf(1 - doubt / 6)
        count = right + wrong - 2 * reach
        if count <= 0:
            return False
        return (right - reach) / (right + wrong) - math.sqrt(math.log(2 / doubt) / (2 * count)) >= self.target
