"""How ε grows with the number of tasks, with unequal tasks and with their order: what the paper's Theorem 1 is about.

Pure accounting: no record, no training. A stream is its task sizes; a `Way` is one of the ways of counting that
`lifetime` knows, a book that retires, or a learner that promises a flat line, rightly or not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from l2dp.accounting import Shares, calibrate, order_and_noise
from l2dp.boundary.perturbed import reconstruction_sensitivity, solve
from l2dp.budget import Budget, Status
from l2dp.lifetime import Book, Phase, Reading, curve_epsilon, group_epsilons, renyi_curve
from l2dp.policies import Uniform


@dataclass(frozen=True)
class Way:
    """One way of counting: what it is called, and what its figure is worth."""

    name: str
    status: Status
    remark: str

    @property
    def label(self) -> str:
        return f"{self.name} — {self.status}{f', {self.remark}' if self.remark else ''}"


MAX = Way("max over tasks", "claimed", "no bound")
SUM = Way("sum over tasks", "proved", "δ adds up too")
RECORD = Way("per record, a batch of the whole memory", "proved", "")
EVERY_TASK = Way("per record, each old task at the same rate", "proved", "")
GROUP = Way("one record in every task (Definition 2)", "proved", "")
FILTER = Way("per record, filter with retirement", "proved", "")
FLAT = Way("private-replay", "proved", "")
CLAIM = Way("L2DP-ML", "refuted", "claimed by the paper")
WAYS = (MAX, SUM, RECORD, EVERY_TASK, GROUP, FILTER, FLAT, CLAIM)


@dataclass(frozen=True)
class Habits:
    """How tasks are read: the same for all of them, fixed before the first."""

    budget: Budget = field(default_factory=lambda: Budget(0.5, 1e-5))
    """Of one task where each is counted on its own; of a lifetime for the learners that keep one."""
    usual_size: int = 60000
    batch: int = 1000
    memory_per_task: int = 1000
    reference_batch: int = 100
    epochs: int = 1
    horizon: int = 20
    own_share: float = 0.5

    @property
    def noise(self) -> float:
        """The least with which training on a task of the usual size costs the budget, replays not counted."""
        return order_and_noise(self.budget, self._rate(self.usual_size), self._steps(self.usual_size), Fraction(1))[1]

    def _rate(self, size: int) -> float:
        return min(1.0, self.batch / size)

    def _steps(self, size: int) -> int:
        return self.epochs * math.ceil(size / self.batch)

    def own(self, size: int) -> Reading:
        return Reading(self._rate(size), self.noise, self._steps(size))

    def rate(self, kept: float) -> float:
        """At which a memory with so many records is sampled."""
        return min(1.0, self.reference_batch / kept)


Curve = dict[Way, list[float | None]]
"""ε after each number of tasks that was asked for; None: not computed."""


def phases(sizes: Sequence[int], habits: Habits) -> list[Phase]:
    """A stream without any budget: every task is read, and all earlier ones are replayed in each of its steps."""
    found, kept = [], 0.0
    for number, size in enumerate(sizes):
        own = habits.own(size)
        replay = Reading(habits.rate(kept), habits.noise, own.steps) if number else None
        found.append(Phase(own, replay, (own.steps,) * number))
        kept += min(habits.memory_per_task, size)
    return found


def grow(sizes: Sequence[int], marks: Sequence[int], habits: Habits, group_tasks: int = 10) -> Curve:
    """ε after `marks` tasks of a stream, in rising order, by every way of counting.

    Definition 2 is counted for the first `group_tasks` only: it takes seconds for each.
    """
    lived = phases(sizes, habits)
    delta = habits.budget.delta
    own = [_cost(phase.own) for phase in lived]
    memory = [_cost(phase.replay) if phase.replay else np.zeros_like(own[0]) for phase in lived]
    each = [
        curve_epsilon(one, delta) + (curve_epsilon(two, delta) if phase.replay else 0.0)
        for one, two, phase in zip(own, memory, lived, strict=True)
    ]
    return {
        MAX: [max(each[:mark]) for mark in marks],
        SUM: [sum(each[:mark]) for mark in marks],
        RECORD: [_dearest(own, memory, mark, delta) for mark in marks],
        EVERY_TASK: [_dearest(own, _same_rate(lived, habits), mark, delta) for mark in marks],
        GROUP: _of_groups(lived, marks, delta, group_tasks),
        FILTER: retiring(sizes, marks, habits),
        FLAT: [_flat(habits.budget)] * len(marks),
        CLAIM: [_claim(habits.budget)] * len(marks),
    }


def _of_groups(lived: Sequence[Phase], marks: Sequence[int], delta: float, most: int) -> list[float | None]:
    few = [mark for mark in marks if mark <= most]
    found = group_epsilons(lived[: few[-1]], few, delta) if few else []
    return [*found, *([None] * (len(marks) - len(few)))]


def _cost(reading: Reading) -> NDArray[np.float64]:
    return reading.steps * renyi_curve(reading.rate, reading.multiplier)


def _same_rate(lived: Sequence[Phase], habits: Habits) -> list[NDArray[np.float64]]:
    """Replays in which every old task is sampled at the rate of a memory of one task."""
    one = renyi_curve(habits.rate(habits.memory_per_task), habits.noise)
    return [phase.own.steps * one for phase in lived]


def _dearest(
    own: Sequence[NDArray[np.float64]], memory: Sequence[NDArray[np.float64]], mark: int, delta: float
) -> float:
    """ε of the record that has paid most: its own task, and every replay since."""
    later = np.zeros_like(own[0])
    found = 0.0
    for number in reversed(range(mark)):
        found = max(found, curve_epsilon(own[number] + later, delta))
        later = later + memory[number]
    return found


def retiring(sizes: Sequence[int], marks: Sequence[int], habits: Habits) -> list[float | None]:
    """ε of the record that has paid most when a book keeps the budget, as that of naive-gaussian does; only planned."""
    book = Book(habits.budget, Uniform(habits.horizon, habits.own_share))
    kept = [float(min(habits.memory_per_task, size)) for size in sizes]
    found: dict[int, float] = {}
    for number, size in enumerate(sizes, 1):
        asked = habits.own(size)
        own = book.own_reading(asked.rate, asked.steps)
        held = sum(kept[index] for index in book.active())
        noise = book.replay_noise(habits.rate(held), own.steps) if held else None
        book.repeat(own, None if noise is None else Reading(habits.rate(held), noise, own.steps))
        if number in marks:
            found[number] = book.epsilon()
    return [found[mark] for mark in marks]


def _flat(budget: Budget) -> float:
    """Each task is read once and tasks share no records: the dearest task is the lifetime."""
    return calibrate(budget, Shares(1.0)).spent.epsilon


def _claim(budget: Budget) -> float:
    """ε₁ + ε₁/γx + ε₁/γ + ε₂ of the paper's Theorem 2, in which the number of tasks does not occur."""
    terms = solve(Budget(budget.epsilon), 0.5, reconstruction_sensitivity(25, 14 * 14), 2500, 1.0)
    return terms.total


def unequal(total: int, count: int, spread: float) -> list[int]:
    """Sizes that grow geometrically to `spread` times the first, and add up to about `total`."""
    steps = [spread ** (number / max(1, count - 1)) for number in range(count)]
    return [max(1, round(total * step / sum(steps))) for step in steps]


def orders(
    sizes: Sequence[int], habits: Habits, group_tasks: int = 10
) -> dict[tuple[int, ...], dict[Way, float | None]]:
    """For every order of some tasks (by their positions), ε after the last."""
    found = {}
    for order in itertools.permutations(range(len(sizes))):
        arranged = [sizes[place] for place in order]
        curve = grow(arranged, [len(sizes)], habits, group_tasks)
        found[order] = {way: values[0] for way, values in curve.items()}
    return found
