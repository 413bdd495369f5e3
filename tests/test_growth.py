"""Growth of ε: what the ways of counting say, and that what should stay flat does."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l2dp.budget import Budget
from l2dp.growth import (
    CLAIM,
    EVERY_TASK,
    FILTER,
    FLAT,
    GROUP,
    MAX,
    RECORD,
    SUM,
    WAYS,
    Habits,
    grow,
    orders,
    phases,
    unequal,
)
from l2dp.lifetime import EVERY, ONE, figures

HABITS = Habits(usual_size=2000, batch=100, memory_per_task=100, reference_batch=10, horizon=4)
EQUAL = [2000] * 30
MARKS = [1, 2, 3, 5, 10, 30]


def known(values: list[float | None]) -> list[float]:
    assert None not in values
    return [value for value in values if value is not None]


def test_a_task_of_the_usual_size_costs_the_budget() -> None:
    after_one = grow(EQUAL, [1], HABITS)
    for way in (MAX, SUM, RECORD, EVERY_TASK):
        (found,) = known(after_one[way])
        assert 0.99 * HABITS.budget.epsilon < found <= HABITS.budget.epsilon


def test_the_sum_grows_the_maximum_does_not_and_a_record_lies_between() -> None:
    grown = grow(EQUAL, MARKS, HABITS, group_tasks=3)
    assert set(grown) == set(WAYS)
    sums, largest = known(grown[SUM]), known(grown[MAX])
    record, same_rate = known(grown[RECORD]), known(grown[EVERY_TASK])
    assert all(a < b for a, b in pairwise(sums))
    assert sums[-1] > 10 * sums[0]
    assert len(set(largest[1:])) == 1
    for values in (record, same_rate):
        assert all(a < b for a, b in pairwise(values))
    assert all(one <= two <= three for one, two, three in zip(record, same_rate, sums, strict=True))
    # What the maximum claims is less than what a record has paid.
    assert largest[-1] < same_rate[-1]
    assert grown[GROUP][3:] == [None, None, None]
    assert known(grown[GROUP][:3])[2] > record[2]


def test_what_is_promised_to_be_flat_is_flat() -> None:
    grown = grow(EQUAL, MARKS, HABITS, group_tasks=0)
    budget = HABITS.budget.epsilon
    for way in (FLAT, CLAIM):
        assert len(set(grown[way])) == 1
        assert known(grown[way])[0] == pytest.approx(budget, rel=1e-3)
    kept = known(grown[FILTER])
    assert all(a <= b for a, b in pairwise(kept))
    assert 0.99 * budget < kept[-1] <= budget
    assert (FLAT.status, FILTER.status, CLAIM.status, MAX.status) == ("proved", "proved", "refuted", "claimed")
    assert all(way.status in way.label for way in WAYS)


def test_the_figures_are_those_that_a_result_states() -> None:
    sizes = [2000, 500, 3000]
    grown = grow(sizes, [3], HABITS)
    counted = figures(phases(sizes, HABITS), HABITS.budget.delta)
    one, every = counted[ONE]["modes"], counted[EVERY]["modes"]
    for way, figure in (
        (MAX, one["max"]),
        (SUM, one["sum"]),
        (RECORD, one["per-record"]),
        (GROUP, every["per-record"]),
    ):
        assert known(grown[way])[0] == pytest.approx(figure["epsilon"], rel=1e-9)


def test_a_plan_retires_nobody_aloud(caplog: pytest.LogCaptureFixture) -> None:
    grow(EQUAL[:8], [8], HABITS, group_tasks=0)
    assert not caplog.records


@given(st.lists(st.sampled_from([80, 500, 2000, 5000]), min_size=1, max_size=5), st.sampled_from([0.5, 2.0]))
@settings(max_examples=10, deadline=None)
def test_whatever_the_sizes_the_book_keeps_the_budget_and_the_sum_bounds_a_record(
    sizes: list[int], epsilon: float
) -> None:
    habits = Habits(Budget(epsilon, 1e-5), 2000, 100, 100, 10, horizon=3)
    grown = grow(sizes, [len(sizes)], habits, group_tasks=0)
    assert known(grown[FILTER])[0] <= epsilon
    assert known(grown[RECORD])[0] <= known(grown[SUM])[0] * (1 + 1e-9)


@pytest.mark.parametrize("spread", [1.0, 3.0, 100.0])
def test_unequal_sizes_have_the_spread_and_the_total(spread: float) -> None:
    sizes = unequal(100_000, 10, spread)
    assert sum(sizes) == pytest.approx(100_000, rel=0.001)
    assert sizes[-1] / sizes[0] == pytest.approx(spread, rel=0.02)


def test_the_order_of_tasks_changes_what_is_paid() -> None:
    found = orders([200, 1000, 4000], HABITS)
    assert len(found) == 6
    sums = {round(known([one[SUM]])[0], 9) for one in found.values()}
    assert len(sums) > 1
    assert len({one[FLAT] for one in found.values()}) == 1
