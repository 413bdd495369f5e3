"""What a lifetime of noisy gradients costs: a book that refuses, and the ways in which people count.

Training on a task reads its own records, and replays kept records of earlier tasks. The records of a task therefore
form blocks that pay differently: those kept in memory, those held out for scores, and the rest. `Book` charges blocks
before they are read;
`figures` counts what was charged the way the paper's authors do, and the way that is true. No record comes near here.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import dp_accounting
import numpy as np
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from numpy.typing import NDArray
from scipy.stats import binom

from l2dp.accounting import (
    ORDERS,
    Event,
    RenyiFilter,
    gaussian,
    least_noise,
    order_and_noise,
    order_for,
    sampled_gaussian,
)
from l2dp.budget import Budget
from l2dp.errors import BadInput, Refused
from l2dp.policies import Policy

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reading:
    """`steps` noisy sums, each over a Poisson sample of the records."""

    rate: float
    multiplier: float
    steps: int
    order: float | None = None
    """Of the filters of the records' blocks, if the reading is the first of their lifetime; None: the usual one."""

    @property
    def one(self) -> Event:
        return sampled_gaussian(self.rate, self.multiplier)


@dataclass(frozen=True)
class Phase:
    """The training of one task: its own records, and what was replayed meanwhile.

    `replay` is how the memory was read, None: not at all; `replayed[t]` is for how many steps the kept records of the
    earlier task t took part. `again` holds further attempts at the task, `scores` the noise of each score.
    """

    own: Reading
    replay: Reading | None
    replayed: tuple[int, ...]
    again: tuple[Reading, ...] = ()
    scores: tuple[float, ...] = ()

    @property
    def attempts(self) -> tuple[Reading, ...]:
        """All readings of the task's own records."""
        return (self.own, *self.again)

    @property
    def steps(self) -> int:
        return sum(reading.steps for reading in self.attempts)


@dataclass
class Block:
    """The records of one task: those kept in memory, those held out for scores, and the rest; each with a filter."""

    kept: RenyiFilter
    rest: RenyiFilter
    held: RenyiFilter
    retired_in: int | None = None
    """The task during which its kept records could not pay any more; None: they are still in memory."""


class Book:
    """The charges of a lifetime, block by block.

    Guarantee
    ---------
    A charge comes before the read that it pays for, and none is accepted that would take a block above the lifetime
    budget, or above the part of it that the policy allows by then. So whatever the tasks, their replays and their
    stops, everything that reads a record is together (ε, δ)-private for it: each block has a Rényi filter, whose
    order was fixed in advance. A refused charge changes nothing.
    """

    def __init__(self, budget: Budget, policy: Policy) -> None:
        self.budget, self.policy = budget, policy
        self.blocks: list[Block] = []
        self.phases: list[Phase] = []
        self._own: Event = None
        self._replay: Event = None
        self._aloud = True
        RenyiFilter(budget)  # refuses a budget with nothing to spend

    # --- before a task --------------------------------------------------------------------------------

    def active(self) -> list[int]:
        """The tasks whose kept records are in memory, for the task in training or else for the next one."""
        now = len(self.blocks) - (self._own is not None)
        return [
            index
            for index, block in enumerate(self.blocks)
            if block.retired_in is None and self.policy.fresh(now - index) > 0
        ]

    def own_reading(self, rate: float, steps: int, noise: float | None = None) -> Reading:
        """How a new task will first be read: with this noise, as many of the steps as its share pays for; without, with
        the least noise that pays for all. The order of its filters is the one that suits all attempts best."""
        attempts, share = self.policy.most_attempts, self.policy.cap_of_attempt(0)
        if noise is None:
            order, least = order_and_noise(self.budget, rate, attempts * steps, self.policy.cap(0))
            if attempts > 1:
                least = least_noise(rate, steps, order, share * Fraction(RenyiFilter(self.budget, order).allowance))
            return Reading(rate, least, steps, order)
        event = sampled_gaussian(rate, noise)
        order = order_for(self.budget, event)
        return Reading(rate, noise, min(steps, RenyiFilter(self.budget, order).affordable(event, share)), order)

    def next_reading(self, steps: int, noise: float | None = None) -> Reading | None:
        """How the task in training will be read if it is tried again; None: there is no attempt left."""
        attempt = len(self._attempts)
        if attempt >= self.policy.most_attempts:
            return None
        filter_, cap, rate = self.blocks[-1].kept, self.policy.cap_of_attempt(attempt), self._attempts[0].rate
        if noise is None:
            least = least_noise(rate, steps, filter_.order, cap * Fraction(filter_.allowance) - filter_.spent)
            return Reading(rate, least, steps, filter_.order)
        steps = min(steps * 2**attempt, filter_.affordable(sampled_gaussian(rate, noise), cap))
        return Reading(rate, noise, steps, filter_.order) if steps else None

    def score_noise(self) -> float:
        """The least noise with which held-out records can pay for a score after every attempt; a count moves by 1."""
        filter_ = RenyiFilter(self.budget)
        return max(1.0, least_noise(1.0, self.policy.most_attempts, filter_.order, Fraction(filter_.allowance)))

    def replay_noise(self, rate: float, steps: int) -> float | None:
        """The least noise with which the newest block in memory can pay for all steps; None: no block has a share.

        Blocks with a smaller share take part until it is used up.
        """
        for index in reversed(self.active()):
            block, age = self.blocks[index].kept, len(self.blocks) - index
            allowance = Fraction(block.allowance)
            share = min(self.policy.fresh(age) * allowance, self.policy.cap(age) * allowance - block.spent)
            if share > 0:
                return least_noise(rate, steps, block.order, share)
        return None

    # --- during a task --------------------------------------------------------------------------------

    def begin(self, own: Reading, replay: Reading | None) -> None:
        """Opens the blocks of a new task. Steps are charged one by one, or by `repeat` all at once."""
        if self._own is not None:
            raise BadInput("the task before has not ended")
        self._replay = None if replay is None else replay.one
        self._replaying, self._replays, self._replayed = replay, 0, [0] * len(self.blocks)
        self._attempts: list[Reading] = []
        self._steps: list[int] = []
        self._scores: list[float] = []
        self.blocks.append(
            Block(RenyiFilter(self.budget, own.order), RenyiFilter(self.budget, own.order), RenyiFilter(self.budget))
        )
        self.attempt(own)
        staying = self.active()
        for index, block in enumerate(self.blocks):
            if block.retired_in is None and index not in staying:
                self._retire(index, "the policy has no share left for it")

    def attempt(self, own: Reading) -> None:
        """The task in training is read this way from now on: its first attempt, or one more."""
        if len(self._attempts) >= self.policy.most_attempts:
            raise Refused("the policy allows no further attempt at the task; nothing was read")
        self._attempts.append(own)
        self._steps.append(0)
        self._own = own.one

    def charge_own(self, times: int = 1) -> None:
        """Books steps on the records of the task in training; refuses when the share of its own task is used up."""
        block, cap = self.blocks[-1], self.policy.cap_of_attempt(len(self._attempts) - 1)
        if times > block.kept.affordable(self._own, cap) or times > block.rest.affordable(self._own):
            raise Refused("the share of the task is used up; nothing was read")
        block.kept.charge(self._own, times)
        block.rest.charge(self._own, times)
        self._steps[-1] += times

    def charge_score(self, multiplier: float) -> None:
        """Books one noisy pair of counts on the held-out records of the task in training."""
        self.blocks[-1].held.charge(gaussian(multiplier))
        self._scores.append(multiplier)

    def charge_replay(self, times: int = 1) -> list[int]:
        """Books steps on the memory; returns the tasks whose kept records have paid for all of them and may be read.

        A block that used up its share sits out the rest of the task; one that used up its lifetime is retired.
        """
        if self._replay is None:
            return []
        self._replays += times
        paid = []
        current = len(self.blocks) - 1
        for index in self.active()[:-1]:
            block = self.blocks[index]
            steps = min(times, block.kept.affordable(self._replay, self.policy.cap(current - index)))
            block.kept.charge(self._replay, steps)
            self._replayed[index] += steps
            if steps == times:
                paid.append(index)
            elif not block.kept.allows(self._replay):
                self._retire(index, "its lifetime budget is used up")
        return paid

    def _retire(self, index: int, why: str) -> None:
        self.blocks[index].retired_in = len(self.blocks) - 1
        if self._aloud:
            log.warning("task %d is retired from the memory: %s", index + 1, why)

    def end(self) -> None:
        """Closes a task."""
        replay = self._replaying
        first, *more = (
            Reading(reading.rate, reading.multiplier, steps, reading.order)
            for reading, steps in zip(self._attempts, self._steps, strict=True)
        )
        self.phases.append(
            Phase(
                first,
                replay and Reading(replay.rate, replay.multiplier, self._replays),
                tuple(self._replayed),
                tuple(more),
                tuple(self._scores),
            )
        )
        self._own = self._replay = None

    def repeat(
        self,
        own: Reading,
        replay: Reading | None,
        again: Sequence[Reading] = (),
        scores: Sequence[float] = (),
    ) -> None:
        """Books a whole task at once, as its steps one by one would: for saved tasks, and for plans."""
        self._aloud = False  # who is retired was logged when it happened, or never happens
        self.begin(own, replay)
        self.charge_own(own.steps)
        for reading in again:
            self.attempt(reading)
            self.charge_own(reading.steps)
        for multiplier in scores:
            self.charge_score(multiplier)
        if replay is not None and replay.steps > 0:
            self.charge_replay(replay.steps)
        self.end()
        self._aloud = True

    # --- after ----------------------------------------------------------------------------------------

    def epsilon(self) -> float:
        """The ε of the record that has paid most, at the budget's δ, by the filters' own order."""
        return max((block.kept.epsilon() for block in self.blocks if block.kept.spent > 0), default=0.0)


# --- the ways in which people count -------------------------------------------------------------------------------


MANY = (*range(2, 64), *(order for order in ORDERS if order >= 64))


@lru_cache(maxsize=4096)
def renyi_curve(rate: float, multiplier: float) -> NDArray[np.float64]:
    """The Rényi divergence of one step at `MANY` orders."""
    accountant = RdpAccountant(orders=MANY)
    accountant.compose(sampled_gaussian(rate, multiplier))
    return np.asarray(accountant._rdp, dtype=np.float64)


def curve_epsilon(curve: NDArray[np.float64], delta: float) -> float:
    """The ε of Rényi divergences at `MANY` orders."""
    found, _ = dp_accounting.rdp.compute_epsilon(MANY, curve, delta)
    return float(found)


def reading_curve(readings: Sequence[Reading]) -> NDArray[np.float64]:
    """The Rényi divergence, at `MANY` orders, of readings of the same records, fixed in advance."""
    total = np.zeros(len(MANY))
    for reading in readings:
        if reading.steps:
            total = total + reading.steps * renyi_curve(reading.rate, reading.multiplier)
    return total


def renyi_epsilon(readings: Sequence[Reading], delta: float) -> float:
    """The ε of readings of the same records, fixed in advance, by Rényi accounting (the moments accountant's heir)."""
    return curve_epsilon(reading_curve(readings), delta) if any(reading.steps for reading in readings) else 0.0


@lru_cache(maxsize=1024)
def _group(rate: float, multiplier: float, changed: int, steps: int) -> Event:
    """`steps` noisy sums in which `changed` records take part, each with its own coin: their number is binomial."""
    if changed == 1:
        return sampled_gaussian(rate, multiplier, steps)
    if rate == 1:
        return dp_accounting.SelfComposedDpEvent(gaussian(multiplier / changed), steps)
    counts = np.arange(changed + 1)
    one = dp_accounting.dp_event.MixtureOfGaussiansDpEvent(
        multiplier, tuple(counts.tolist()), tuple(np.asarray(binom.pmf(counts, changed, rate)).tolist())
    )
    return dp_accounting.SelfComposedDpEvent(one, steps)


def group_epsilon(phases: Sequence[Phase], delta: float) -> float:
    """The ε for one record more in every task at once, all of them kept, by privacy loss distributions."""
    return group_epsilons(phases, [len(phases)], delta)[0]


def group_epsilons(phases: Sequence[Phase], marks: Sequence[int], delta: float) -> list[float]:
    """The same after so many phases as the marks say, in rising order.

    Guarantee
    ---------
    Each step on the memory is the mixture of Gaussians that several sampled records make (Ganesh 2024); the plan must
    have been fixed in advance. All changes go the same way: one lifetime has the records, the other has none of them.
    """
    accountant = PLDAccountant(value_discretization_interval=COARSE)
    found = [] if marks[0] else [0.0]
    for number, phase in enumerate(phases, 1):
        for own in phase.attempts:
            if own.steps:
                accountant.compose(sampled_gaussian(own.rate, own.multiplier, own.steps))
        if phase.replay is not None:
            # Blocks that stopped early leave fewer changed records in the steps after.
            ends = sorted(steps for steps in phase.replayed if steps)
            for place, end in enumerate(ends):
                steps = end - (ends[place - 1] if place else 0)
                if steps:
                    accountant.compose(_group(phase.replay.rate, phase.replay.multiplier, len(ends) - place, steps))
        if number in marks:
            found.append(float(accountant.get_epsilon(delta)))
    return found


COARSE = 1e-2
"""The grid of privacy losses for groups, whose ε are large."""
GROUP_TASKS = 20
"""Longer streams are not counted for the adjacency of one record in every task: it takes seconds for each task."""

ONE = "one-record"
EVERY = "one-record-per-task"
MEANING = {
    ONE: "one lifetime has one record more, in one of its tasks",
    EVERY: "one lifetime has one record more in every task, and those may all be in memory (Definition 2)",
}


def figures(
    phases: Sequence[Phase], delta: float, secure: bool = True, adaptive: Budget | None = None
) -> dict[str, Any]:
    """ε of a lifetime counted as `max` over tasks, `sum` over tasks and `per-record`, for both adjacencies.

    Every figure says whether it bounds what a reader of all releases can learn, and why. Phases must have been fixed
    in advance, as those of a uniform or geometric policy are; if private scores decided how much to spend, `adaptive`
    is the budget of the filters, which alone is a bound then. Without secure noise there is no figure.
    """
    if not secure:
        return {"status": "none", "why": "the noise repeats itself and protects nobody"}
    own = [renyi_epsilon(phase.attempts, delta) for phase in phases]
    memory = [
        renyi_epsilon([Reading(phase.replay.rate, phase.replay.multiplier, max(phase.replayed, default=0))], delta)
        if phase.replay is not None
        else 0.0
        for phase in phases
    ]
    each = [one + two for one, two in zip(own, memory, strict=True)]
    terms = [(phase.steps > 0) + any(phase.replayed) for phase in phases]
    largest = {"epsilon": max(each, default=0.0), "delta": min(1.0, delta * max(terms, default=0))}
    total = {"epsilon": sum(each), "delta": min(1.0, delta * sum(terms))}
    if adaptive is None:
        found_one = _one_record(phases, delta, largest, total)
    else:
        found_one = {
            "max": largest | _judged(largest["epsilon"] >= adaptive.epsilon, MAX_ONE),
            "sum": total | _judged(total["epsilon"] >= adaptive.epsilon, ADAPTIVE),
            "per-record": {"epsilon": adaptive.epsilon, "delta": delta} | PROVED | {"why": FILTERED},
        }
    return {
        ONE: {"meaning": MEANING[ONE], "modes": found_one},
        EVERY: {"meaning": MEANING[EVERY], "modes": _every_record(phases, delta, largest, total, adaptive)},
    }


PROVED = {"valid": True, "status": "proved"}


def kept_readings(phases: Sequence[Phase]) -> list[list[Reading]]:
    """For every task, all that reads the records kept of it: its own training, and every replay."""
    readings = [[*phase.attempts] for phase in phases]
    for phase in phases:
        if phase.replay is not None:
            for task, steps in enumerate(phase.replayed):
                if steps:
                    readings[task].append(Reading(phase.replay.rate, phase.replay.multiplier, steps))
    return readings


def _one_record(
    phases: Sequence[Phase], delta: float, largest: dict[str, float], total: dict[str, float]
) -> dict[str, Any]:
    paid = max((renyi_epsilon(one, delta) for one in kept_readings(phases)), default=0.0)
    return {
        "max": largest | _judged(largest["epsilon"] >= paid, MAX_ONE),
        "sum": total | PROVED | {"why": SUM_ONE},
        "per-record": {"epsilon": paid, "delta": delta}
        | PROVED
        | {"why": "a record's own task and every replay of it, composed"},
    }


def _every_record(
    phases: Sequence[Phase],
    delta: float,
    largest: dict[str, float],
    total: dict[str, float],
    adaptive: Budget | None,
) -> dict[str, Any]:
    why = None
    if len(phases) > GROUP_TASKS:
        why = f"not computed for more than {GROUP_TASKS} tasks; it grows without bound with their number"
    elif adaptive is not None:
        why = "private scores decided how much to spend, and no filter is kept for this adjacency"
    if why is not None:
        return {
            "max": largest | _judged(False, MAX_EVERY),
            "sum": total | _judged(False, SUM_EVERY),
            "per-record": {"epsilon": None, "delta": delta, "valid": False, "status": "none", "why": why},
        }
    group = group_epsilon(phases, delta)
    return {
        "max": largest | _judged(largest["epsilon"] >= group, MAX_EVERY),
        "sum": total | _judged(total["epsilon"] >= group, SUM_EVERY),
        "per-record": {"epsilon": group, "delta": delta}
        | PROVED
        | {"why": "all steps of all tasks, with every changed record in memory, composed"},
    }


MAX_ONE = (
    "it counts one task only, as if tasks shared no records, but a record in memory is read again in every later task"
)
SUM_ONE = "a record's own task and all its replays are among the terms, and ε and δ add up (basic composition)"
MAX_EVERY = "every task holds a changed record, so their costs add up; parallel composition does not apply"
ADAPTIVE = "private scores decided how much to spend, and figures read off the charges are no bound then"
FILTERED = "the bound of the Rényi filters, which holds however the spending was decided"
SUM_EVERY = "its terms for the memory are for one changed record, but the memory holds one of every earlier task"


def _judged(holds: bool, reason: str) -> dict[str, Any]:
    """Whether a figure is a bound: one whose reasoning is wrong can still be above the proved figure."""
    if holds:
        return {
            "valid": True,
            "status": "proved",
            "why": f"not below the per-record figure here, or else it would fail: {reason}",
        }
    return {"valid": False, "status": "claimed", "why": reason}
