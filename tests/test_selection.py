"""What a choice costs: dp-accounting's own figure for one setting, more than one run and less than all of them."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l2dp.errors import BadInput
from l2dp.lifetime import MANY, Reading, curve_epsilon, reading_curve
from l2dp.selection import LAWS, select

ONE = Reading(0.05, 2.0, 100)


@pytest.mark.parametrize("tries", [1.5, 15.0, 45.0])
def test_one_setting_costs_what_dp_accounting_says(tries: float) -> None:
    event = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(ONE.rate, dp_accounting.GaussianDpEvent(ONE.multiplier)), ONE.steps
    )
    theirs = {}
    for law, shape in LAWS.items():
        accountant = dp_accounting.rdp.RdpAccountant(orders=MANY)
        accountant.compose(dp_accounting.dp_event.RepeatAndSelectDpEvent(event, tries, shape))
        theirs[law] = accountant.get_epsilon(1e-5)
    found = select([reading_curve([ONE])], 1e-5, tries)
    assert found.epsilon == pytest.approx(min(theirs.values()), rel=1e-9)
    assert theirs[found.law] == min(theirs.values())


@given(st.lists(st.floats(1.0, 8.0), min_size=1, max_size=4), st.floats(2.0, 60.0))
@settings(max_examples=15, deadline=None)
def test_a_choice_costs_more_than_its_dearest_setting_and_more_with_more_tries(
    noises: list[float], tries: float
) -> None:
    curves = [reading_curve([Reading(0.05, round(noise, 1), 100)]) for noise in noises]
    found = select(curves, 1e-5, tries)
    assert found.epsilon > max(curve_epsilon(curve, 1e-5) for curve in curves)
    assert found.epsilon <= select(curves, 1e-5, 2 * tries).epsilon
    assert select(curves[:1], 1e-5, tries).epsilon <= found.epsilon


def test_a_choice_among_many_costs_far_less_than_all_of_them() -> None:
    curve = reading_curve([ONE])
    found = select([curve] * 45, 1e-5, 45)
    assert found.epsilon < 4 * curve_epsilon(curve, 1e-5)
    assert found.epsilon < curve_epsilon(45 * curve, 1e-5)


def test_nothing_to_choose_from_is_refused() -> None:
    for curves, tries in (([], 3.0), ([np.zeros(len(MANY))], 0.5), ([np.zeros(len(MANY))], math.nan)):
        with pytest.raises(BadInput):
            select(curves, 1e-5, tries)
