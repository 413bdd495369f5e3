"""Noise is never less than the budget asks for, by accountants that have nothing in common with the search."""

from __future__ import annotations

import math
import warnings
from typing import Any

import dp_accounting
import mpmath
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from l2dp import accounting
from l2dp.accounting import ORDERS, RenyiFilter, Shares, calibrate, epsilon, gaussian, sampled_gaussian, task_event
from l2dp.budget import Budget
from l2dp.errors import BadInput, Refused

Steps = list[tuple[float, float, int]]
"""Noise multiplier, sampling rate and number of steps, as Opacus writes a history."""


def exact_delta(multiplier: float, target: float) -> float:
    """The δ of one Gaussian mechanism at an ε, in closed form (Balle and Wang 2018), with fifty digits."""
    with mpmath.workdps(50):
        s, e = mpmath.mpf(multiplier), mpmath.mpf(target)
        a, b = 1 / (2 * s) - e * s, -1 / (2 * s) - e * s
        return float(mpmath.ncdf(a) - mpmath.exp(e) * mpmath.ncdf(b))


def opacus_epsilon(kind: str, history: Steps, delta: float) -> float:
    """Opacus's figure; its import and its logarithms of zero warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.accountants import PRVAccountant, RDPAccountant

        accountant: Any = {"prv": PRVAccountant, "rdp": RDPAccountant}[kind]()
        accountant.history = list(history)
        return float(accountant.get_epsilon(delta=delta))


# --- the search for the least noise ---------------------------------------------------------------------

targets = st.builds(
    lambda e, d: Budget(10**e, 10**d), st.floats(-1.0, 1.0, allow_nan=False), st.floats(-10.0, -2.0, allow_nan=False)
)


@settings(deadline=None, max_examples=200, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(targets)
def test_one_gaussian_release_never_costs_more_than_the_target(budget: Budget) -> None:
    """On a coarse grid of losses, to try hundreds of targets: rounding must be pessimistic on any grid."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accounting, "FINEST", 0.05)
        found = calibrate.__wrapped__(budget, Shares(1.0))
    assert exact_delta(found.sums, budget.epsilon) <= budget.delta
    assert exact_delta(found.sums, found.spent.epsilon) <= budget.delta
    assert found.spent.epsilon <= budget.epsilon
    assert found.spent.delta == budget.delta
    assert (found.scatter, found.head) == (None, None)


@pytest.mark.parametrize(
    "budget",
    [Budget(0.1, 1e-6), Budget(1.0, 1e-5), Budget(4.0, 1e-8), Budget(30.0, 1e-3)],
    ids=lambda budget: f"{budget.epsilon:g}",
)
def test_the_noise_is_enough_and_hardly_more_than_enough(budget: Budget) -> None:
    found = calibrate(budget, Shares(1.0)).sums
    assert exact_delta(found, budget.epsilon) <= budget.delta
    assert exact_delta(found * 0.995, budget.epsilon) > budget.delta, "the budget is not used"
    assert exact_delta(found / 2, budget.epsilon) > budget.delta, "or else the check above could not fail"


MIXED = [
    (Budget(1.0, 1e-5), Shares(0.1, 0.0, 0.9), 0.1, 50),
    (Budget(0.5, 1e-5), Shares(0.3, 0.3, 0.4), 0.25, 60),
    (Budget(2.0, 1e-6), Shares(0.5, 0.5, 0.0), 1.0, 1),
    (Budget(4.0, 1e-5), Shares(0.2, 0.3, 0.5), 0.02, 200),
    (Budget(8.0, 1e-4), Shares(0.05, 0.05, 0.9), 0.5, 10),
    (Budget(0.2, 1e-7), Shares(0.6, 0.0, 0.4), 1.0, 5),
    (Budget(20.0, 1e-3), Shares(0.4, 0.1, 0.5), 0.8, 20),
    (Budget(0.7, 1e-6), Shares(0.9, 0.05, 0.05), 0.2, 3),
]


@pytest.mark.parametrize(("budget", "shares", "rate", "steps"), MIXED)
def test_a_mixture_of_releases_never_costs_more_than_the_target(
    budget: Budget, shares: Shares, rate: float, steps: int
) -> None:
    """Every multiplier is composed again, outside the module, and by Opacus's two accountants."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accounting, "FINEST", 0.01)  # checked below on a finer grid, which is less pessimistic
        found = calibrate.__wrapped__(budget, shares, rate, steps)
    assert found.spent.epsilon <= budget.epsilon
    assert found.spent.epsilon > 0.99 * budget.epsilon
    history: Steps = [(found.sums, 1.0, 1)]
    history += [(found.scatter, 1.0, 1)] if found.scatter is not None else []
    history += [(found.head, rate, steps)] if found.head is not None else []
    assert (found.scatter is None, found.head is None) == (shares.scatter == 0, shares.head == 0)
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=2e-3)
    for multiplier, q, count in history:
        event = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(multiplier))
        accountant.compose(event, count)
    assert accountant.get_epsilon(budget.delta) <= budget.epsilon
    # Opacus's numerical accountant states an upper bound at most 0.02 above the truth; its Rényi one is never below.
    assert opacus_epsilon("prv", history, budget.delta) - 0.021 <= budget.epsilon
    assert opacus_epsilon("rdp", history, budget.delta) >= found.spent.epsilon * 0.999
    halved = [(multiplier / 2, q, count) for multiplier, q, count in history]
    assert opacus_epsilon("prv", halved, budget.delta) - 0.021 > budget.epsilon, "or else the check could not fail"


def test_a_larger_share_gets_less_noise() -> None:
    budget = Budget(1.0, 1e-5)
    found = calibrate(budget, Shares(0.2, 0.8))
    assert found.scatter is not None
    assert found.sums == pytest.approx(2 * found.scatter, rel=1e-12)
    # μ² adds up: two Gaussians with parts of the budget cost what one with all of it does.
    alone = calibrate(budget, Shares(1.0)).sums
    assert found.sums**-2 + found.scatter**-2 == pytest.approx(alone**-2, rel=1e-3)


@pytest.mark.parametrize("parts", [(0.5, 0.4), (0.5, 0.6), (1.2, -0.2), (0.0, 1.0), (math.nan, 1.0), (math.inf, 0.0)])
def test_shares_that_do_not_divide_the_budget_are_refused(parts: tuple[float, float]) -> None:
    with pytest.raises(BadInput, match="share"):
        Shares(*parts)


def test_what_rounding_leaves_is_no_share() -> None:
    with pytest.raises(BadInput, match="class sums"):
        Shares(1 - 0.7 - 0.3, 0.7, 0.3)


def test_what_cannot_be_calibrated_is_refused() -> None:
    with pytest.raises(BadInput, match="delta above 0"):
        calibrate(Budget(1.0), Shares(1.0))
    for rate, steps in ((0.0, 1), (1.1, 1), (math.nan, 1), (0.1, 0)):
        with pytest.raises(BadInput, match="sampling rate"):
            calibrate(Budget(1.0, 1e-5), Shares(0.5, 0.0, 0.5), rate, steps)


# --- the cost of a plan ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("multiplier", "rate", "steps", "delta"),
    [(2.0, 1.0, 1, 1e-5), (2.0, 0.1, 50, 1e-5), (4.0, 0.25, 60, 1e-5), (0.7, 0.02, 5, 1e-7)],
)
def test_the_cost_of_sampled_steps_is_that_of_opacus(multiplier: float, rate: float, steps: int, delta: float) -> None:
    ours = epsilon(sampled_gaussian(rate, multiplier, steps), delta)
    upper = opacus_epsilon("prv", [(multiplier, rate, steps)], delta)
    assert upper - 0.021 <= ours <= upper + 1e-3
    assert ours <= opacus_epsilon("rdp", [(multiplier, rate, steps)], delta)


@pytest.mark.parametrize(("multiplier", "delta"), [(0.5, 1e-5), (1.0, 1e-3), (3.73, 1e-5), (20.0, 1e-6)])
def test_the_cost_of_one_gaussian_is_the_closed_form(multiplier: float, delta: float) -> None:
    found = epsilon(gaussian(multiplier), delta)
    assert exact_delta(multiplier, found) <= delta
    assert exact_delta(multiplier, found - 2e-4) > delta
    # Two of them are one with the noise over √2.
    twice = epsilon(sampled_gaussian(1.0, multiplier, 2), delta)
    assert exact_delta(multiplier / math.sqrt(2), twice) <= delta
    assert exact_delta(multiplier / math.sqrt(2), twice - 4e-4) > delta


def test_a_task_costs_what_its_parts_cost_together() -> None:
    shares, scale, rate, steps = Shares(0.25, 0.25, 0.5), 4.0, 0.5, 8
    together = epsilon(task_event(scale, shares, rate, steps), 1e-5)
    history: Steps = [(8.0, 1.0, 1), (8.0, 1.0, 1), (scale * rate * math.sqrt(steps / 0.5), rate, steps)]
    upper = opacus_epsilon("prv", history, 1e-5)
    assert upper - 0.021 <= together <= upper + 1e-3


# --- the filter -----------------------------------------------------------------------------------------

BUDGET = Budget(1.0, 1e-5)


def fill(spending: RenyiFilter, event: Any) -> int:
    count = 0
    while spending.allows(event):
        spending.charge(event)
        count += 1
    return count


@pytest.mark.parametrize("budget", [BUDGET, Budget(0.3, 1e-6), Budget(3.0, 1e-3)])
@pytest.mark.parametrize(("multiplier", "rate"), [(20.0, 1.0), (2.0, 0.05)])
def test_a_full_filter_holds_its_budget(budget: Budget, multiplier: float, rate: float) -> None:
    spending = RenyiFilter(budget)
    count = fill(spending, sampled_gaussian(rate, multiplier))
    assert spending.spent <= spending.allowance
    if count:
        history = [(multiplier, rate, count)]
        assert opacus_epsilon("prv", history, budget.delta) - 0.021 <= budget.epsilon
        # The order was fixed in advance, so that Opacus, which takes the best of many, finds no more.
        assert opacus_epsilon("rdp", history, budget.delta) <= budget.epsilon * 1.01
    # And it gets somewhere: one more would not be affordable by any Rényi accountant at its order.
    accountant = dp_accounting.rdp.RdpAccountant(orders=[spending.order])
    accountant.compose(sampled_gaussian(rate, multiplier), count + 1)
    assert accountant.get_epsilon(budget.delta) > budget.epsilon


def test_a_refused_charge_books_nothing_and_smaller_ones_still_fit() -> None:
    spending = RenyiFilter(BUDGET)
    large = gaussian(1 / math.sqrt(2 * spending.allowance / spending.order * 0.6))
    assert spending.cost(large) == pytest.approx(0.6 * spending.allowance)
    spending.charge(large)
    before = spending.spent
    for _ in range(3):
        assert not spending.allows(large)
        with pytest.raises(Refused, match="nothing was read"):
            spending.charge(large)
        assert spending.spent == before
    small = gaussian(1 / math.sqrt(2 * spending.allowance / spending.order * 0.3))
    spending.charge(small)
    assert before < spending.spent <= spending.allowance


@pytest.mark.parametrize(
    "event", [dp_accounting.NonPrivateDpEvent(), gaussian(0.0), gaussian(1e-3)], ids=["open", "silent", "loud"]
)
def test_what_protects_nobody_is_refused(event: Any) -> None:
    spending = RenyiFilter(BUDGET)
    assert not spending.allows(event)
    with pytest.raises(Refused):
        spending.charge(event)
    assert spending.spent == 0


def test_adaptive_spending_stays_within_the_budget() -> None:
    """Each choice depends on what is left: the sum of Rényi divergences at the one order is what counts."""
    spending = RenyiFilter(BUDGET)
    order, booked = spending.order, []
    multiplier = 8.0
    for _ in range(200):
        event = gaussian(multiplier)
        if spending.allows(event):
            spending.charge(event)
            booked.append(multiplier)
        else:
            multiplier *= 1.3
    assert spending.order == order
    assert order in ORDERS
    # By hand: the divergence of a Gaussian at order α is α/2σ².
    total = sum(order / (2 * m * m) for m in booked)
    assert spending.spent == pytest.approx(total, rel=1e-9)
    assert 0.99 * spending.allowance < total <= spending.allowance * (1 + 1e-9)
    # Mironov's conversion, the loosest there is, at most a little above the budget; the true cost is below.
    assert total + math.log(1 / BUDGET.delta) / (order - 1) < BUDGET.epsilon * 1.3
    alone = 1 / math.sqrt(sum(m**-2 for m in booked))
    assert exact_delta(alone, BUDGET.epsilon) <= BUDGET.delta


def test_the_order_depends_on_the_budget_alone() -> None:
    first, second = RenyiFilter(BUDGET), RenyiFilter(BUDGET)
    second.charge(gaussian(30.0))
    assert (first.order, first.allowance) == (second.order, second.allowance)
    assert RenyiFilter(Budget(10.0, 1e-5)).order < first.order


def test_a_filter_with_nothing_to_spend_is_refused() -> None:
    with pytest.raises(BadInput, match="delta above 0"):
        RenyiFilter(Budget(1.0))
    with pytest.raises(BadInput, match="nothing to spend"):
        RenyiFilter(Budget(1e-4, 1e-200))
    poor = RenyiFilter(Budget(1e-4, 1e-9))  # a total variation of δ is always allowed, so there is a little
    assert not poor.allows(gaussian(1e6))
