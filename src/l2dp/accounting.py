"""From a budget to noise: all composition is dp-accounting's, and what is returned never exceeds the budget.

A task is described by up to three mechanisms on the same records: noisy class sums, a noisy scatter matrix, and noisy
gradients. They compose within the task; different tasks hold different records and compose in parallel.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import dp_accounting
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from l2dp.budget import Budget
from l2dp.errors import BadInput, Refused

Event = Any
"""A `dp_accounting.DpEvent`; the library has no types."""


LEAST_SHARE = 1e-3


@dataclass(frozen=True)
class Shares:
    """How a task's budget is divided, as parts of 1 (of μ², the square of signal over noise, which adds up)."""

    sums: float
    scatter: float = 0.0
    head: float = 0.0

    def __post_init__(self) -> None:
        parts = (self.sums, self.scatter, self.head)
        if not all(0 <= part <= 1 for part in parts) or not math.isclose(sum(parts), 1.0, abs_tol=1e-9):
            raise BadInput(f"the shares of sums, scatter and head must add up to 1, not {parts}")
        if self.sums < LEAST_SHARE:
            raise BadInput(f"the share of the class sums must be at least {LEAST_SHARE}: they find the task")


@dataclass(frozen=True)
class Multipliers:
    """Noise standard deviations for a sensitivity of 1; None: not released. `spent` is what they cost together."""

    sums: float
    scatter: float | None
    head: float | None
    spent: Budget


def gaussian(multiplier: float) -> Event:
    return dp_accounting.GaussianDpEvent(multiplier)


def sampled_gaussian(rate: float, multiplier: float, steps: int = 1) -> Event:
    """`steps` noisy sums, each over a Poisson sample of the records."""
    one = gaussian(multiplier)
    if rate < 1:
        one = dp_accounting.PoissonSampledDpEvent(rate, one)
    return dp_accounting.SelfComposedDpEvent(one, steps)


FINEST = 1e-4
"""The grid of privacy losses; coarser for large ε, where it would be long. Rounding is pessimistic on any grid."""


def epsilon(event: Event, delta: float, interval: float = FINEST) -> float:
    """The ε of a plan fixed in advance, at one δ, by privacy loss distributions; add/remove of one record."""
    accountant = PLDAccountant(value_discretization_interval=interval)
    accountant.compose(event)
    return float(accountant.get_epsilon(delta))


def task_event(scale: float, shares: Shares, rate: float, steps: int) -> Event:
    """What one task releases, at a common scale of noise.

    A part with share s gets the multiplier scale/√s; the head's steps, each over a sample, share theirs evenly: for
    large noise a step at rate q costs what a full one with 1/q times the noise would.
    """
    parts = [gaussian(scale / math.sqrt(share)) for share in (shares.sums, shares.scatter) if share > 0]
    if shares.head > 0:
        parts.append(sampled_gaussian(rate, _head_multiplier(scale, shares.head, rate, steps), steps))
    return dp_accounting.ComposedDpEvent(parts)


def _head_multiplier(scale: float, share: float, rate: float, steps: int) -> float:
    return scale * rate * math.sqrt(steps / share)


@lru_cache(maxsize=256)
def calibrate(budget: Budget, shares: Shares, rate: float = 1.0, steps: int = 1) -> Multipliers:
    """The least noise with which one task's releases stay within the budget.

    Guarantee
    ---------
    ε of the composed releases at the budget's δ, by dp-accounting's (pessimistic) privacy loss distributions,
    is at most the budget's ε: checked after the search, not assumed from it.
    """
    if budget.delta == 0:
        raise BadInput("Gaussian noise needs a delta above 0; for pure epsilon release class sums alone")
    if not 0 < rate <= 1 or steps < 1:
        raise BadInput(f"a head needs a sampling rate in (0, 1] and at least one step, not {rate} and {steps}")

    def cost(scale: float) -> float:
        return epsilon(task_event(scale, shares, rate, steps), budget.delta, max(FINEST, budget.epsilon * 2e-4))

    # The classical figure where it holds; for large ε the noise falls like 1/√(2ε) only.
    low = high = max(math.sqrt(2 * math.log(1.25 / budget.delta)) / budget.epsilon, 1 / math.sqrt(2 * budget.epsilon))
    while cost(high) > budget.epsilon:
        low, high = high, 2 * high
    while cost(low) <= budget.epsilon and low > 1e-3:
        low, high = low / 2, low
    for _ in range(40):
        if high / low < 1 + 1e-4:
            break
        middle = math.sqrt(low * high)
        low, high = (low, middle) if cost(middle) <= budget.epsilon else (middle, high)
    spent = cost(high)
    if not spent <= budget.epsilon:  # NaN compares false
        raise BadInput(f"no noise was found that meets epsilon {budget.epsilon}; choose a larger one")
    return Multipliers(
        high / math.sqrt(shares.sums),
        high / math.sqrt(shares.scatter) if shares.scatter > 0 else None,
        _head_multiplier(high, shares.head, rate, steps) if shares.head > 0 else None,
        Budget(spent, budget.delta),
    )


def signal(budget: Budget) -> float:
    """μ, the signal over noise of one Gaussian release at this budget; for pure ε its like, from the same scale."""
    return 1 / calibrate(budget, Shares(1.0)).sums if budget.delta > 0 else budget.epsilon


LARGEST_NOISE = 1e9

ORDERS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
"""Whole numbers: between them the divergence of a sampled Gaussian is a series that need not converge."""


LEAST = 2.0**-40
"""What one mechanism costs at least: below, dp-accounting's logarithms of numbers near 1 are rounding errors."""


@lru_cache(maxsize=65536)
def renyi(event: Event, order: float) -> float:
    """The Rényi divergence of one mechanism at one order; add/remove of one record."""
    accountant = RdpAccountant(orders=[order])
    accountant.compose(event)
    return max(float(accountant._rdp[0]), LEAST)


@lru_cache(maxsize=256)
def allowances(budget: Budget) -> dict[float, float]:
    """For each order, the largest Rényi divergence that dp-accounting turns into at most ε at δ, where there is one."""
    if budget.delta == 0:
        raise BadInput("a Rényi filter needs a delta above 0")

    def allowance(order: float) -> float:
        low, high = 0.0, budget.epsilon
        for _ in range(60):
            middle = (low + high) / 2
            found, _ = dp_accounting.rdp.compute_epsilon([order], [middle], budget.delta)
            low, high = (middle, high) if found <= budget.epsilon else (low, middle)
        return low

    found: dict[float, float] = {order: allowed for order in ORDERS if (allowed := allowance(order)) > 0}
    if not found:
        raise BadInput(f"a Rényi filter has nothing to spend at {budget}; choose a larger epsilon or delta")
    return found


@lru_cache(maxsize=4096)
def order_for(budget: Budget, event: Event | None = None) -> float:
    """The order at which a mechanism can be charged most often; None: Gaussian noise, whose cost at α is ∝ α."""
    allowed = allowances(budget)
    cost = {order: order if event is None else renyi(event, order) for order in allowed}
    return max(allowed, key=lambda order: allowed[order] / cost[order])


@lru_cache(maxsize=4096)
def order_and_noise(budget: Budget, rate: float, steps: int, part: Fraction) -> tuple[float, float]:
    """The order, and the least noise there, with which steps fit a part of the budget: the best of all orders."""
    found = []
    for order, allowed in allowances(budget).items():
        with suppress(BadInput):
            found.append((least_noise(rate, steps, order, part * Fraction(allowed)), order))
    if not found:
        raise BadInput(f"{steps} steps do not fit the budget at any noise; use fewer steps or a larger epsilon")
    noise, order = min(found)
    return order, noise


class RenyiFilter:
    """Spending decided step by step, up to a budget fixed in advance.

    Guarantee
    ---------
    The mechanisms that were accepted are together (ε, δ)-private, although each may depend on the answers of the
    earlier ones and on when one stops: a Rényi filter at one order fixed in advance (Feldman and Zrnic 2021). A
    privacy-loss-distribution figure would not be valid here. Charges add up exactly, as fractions, so a thousand at
    once and a thousand one by one are the same.
    """

    def __init__(self, budget: Budget, order: float | None = None) -> None:
        """`order` must come from public numbers, and be one of `ORDERS`; None: the one best for Gaussian noise."""
        self.budget = budget
        self.order = order_for(budget) if order is None else order
        self.allowance = allowances(budget)[self.order]
        self.spent = Fraction(0)

    def cost(self, event: Event) -> float:
        return renyi(event, self.order)

    def affordable(self, event: Event, part: Fraction = Fraction(1)) -> int:
        """How many times a mechanism can still be charged before this part of the allowance is used up."""
        cost = self.cost(event)
        left = part * Fraction(self.allowance) - self.spent
        return 0 if left <= 0 or not math.isfinite(cost) else left // Fraction(cost)

    def allows(self, event: Event) -> bool:
        return self.affordable(event) >= 1

    def charge(self, event: Event, times: int = 1) -> None:
        """Books mechanisms before they read; refuses what would exceed the budget, and books nothing then."""
        if times > self.affordable(event):
            raise Refused(f"the budget of {self.budget} is used up; nothing was read")
        self.spent += times * Fraction(self.cost(event))

    def epsilon(self) -> float:
        """The ε, at the budget's δ, of what was charged so far, if the charges were fixed in advance."""
        found, _ = dp_accounting.rdp.compute_epsilon([self.order], [float(self.spent)], self.budget.delta)
        return float(found)


def least_noise(rate: float, steps: int, order: float, allowed: Fraction) -> float:
    """The least noise multiplier with which `steps` noisy sums cost at most `allowed` at a Rényi order.

    Guarantee
    ---------
    steps · cost ≤ allowed holds for what is returned, in exact arithmetic: it is checked, not assumed.
    """
    if allowed <= 0 or steps < 1:
        raise BadInput("noise cannot be found for a budget of nothing or for no steps")

    def fits(multiplier: float) -> bool:
        cost = renyi(sampled_gaussian(rate, multiplier), order)
        return math.isfinite(cost) and steps * Fraction(cost) <= allowed

    low, high = 0.05, 1.0
    while not fits(high):
        low, high = high, 2 * high
        if high > LARGEST_NOISE:
            raise BadInput(f"{steps} steps do not fit the budget at any noise; use fewer steps or a larger epsilon")
    while high / low > 1 + 1e-5:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
