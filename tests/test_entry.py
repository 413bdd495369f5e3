"""A task is checked, bounded and charged before it is read; what is refused costs nobody anything."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from l2dp.boundary.entry import Entry, Opened, Protection
from l2dp.boundary.private import PrivateTasks, Releases
from l2dp.budget import Budget
from l2dp.errors import BadInput, L2dpError, Refused
from l2dp.ledger import Ledger
from l2dp.noise import SystemNoise
from l2dp.streams import Records, Sealed, Source, Space, Task

light = settings(deadline=None, max_examples=100)
SPACE = Space((3,), ("a", "b", "c"))
LIFETIME = Budget(1.0, 1e-5)
HALF = Budget(0.5, 0.5e-5)


class Watched(Records):
    """Records that write down every read of an input."""

    reads = 0

    def batch(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        self.reads += 1
        return super().batch(index)


def watched(
    name: str,
    users: Sequence[int] | None = None,
    labels: Sequence[int] | None = None,
    classes: tuple[int, ...] = (0, 1, 2),
    value: float = 0.5,
) -> tuple[Task, Watched]:
    count = len(users) if users is not None else len(labels) if labels is not None else 6
    x = torch.rand(count, 3, generator=torch.Generator().manual_seed(count)) - 0.5
    x[-1, -1] = value
    y = torch.tensor(labels if labels is not None else [row % 3 for row in range(count)])
    records = Watched(Source(x, y, name, units=None if users is None else torch.tensor(users)))
    return Task(name, Sealed(records), records, classes), records


def entry(**how: Any) -> Entry:
    return Entry(SPACE, Protection(LIFETIME, **how))


def by_user(**how: Any) -> Entry:
    return entry(unit="user", per_task=HALF, **how)


def booked(entry: Entry, units: Sequence[Any]) -> list[float | None]:
    spent = [entry.ledger.spent(unit) for unit in units]
    return [None if budget is None else budget.epsilon for budget in spent]


# --- records as units -----------------------------------------------------------------------------------


def test_a_task_of_records_costs_its_block_the_lifetime_and_is_not_read_yet() -> None:
    door = entry()
    task, records = watched("one")
    opened = door.open(task)
    assert door.ledger.spent("one") == LIFETIME
    assert records.reads == 0
    assert opened.rows.tolist() == opened.groups.tolist() == list(range(6))
    assert (len(opened), opened.declared_size) == (6, 6)
    assert door.ledger.spent("two") is None


def test_the_same_name_twice_is_refused_and_books_nothing() -> None:
    door = entry()
    door.open(watched("one")[0])
    again, records = watched("one")
    for _ in range(2):
        with pytest.raises(Refused, match="'one' was learned before"):
            door.open(again)
    assert records.reads == 0
    assert door.ledger.spent("one") == LIFETIME
    door.open(watched("two")[0])
    assert door.ledger.spent("two") == LIFETIME


BAD = {
    "a label outside the space": {"labels": [0, 1, 7], "classes": (0, 1, 7)},
    "a negative label": {"labels": [0, 1, -1]},
    "a label that the task does not declare": {"labels": [0, 1, 2], "classes": (0, 1)},
    "a value that is not a number": {"value": math.nan},
    "an infinite value": {"value": math.inf},
    "a huge value": {"value": 1e30},
}


@pytest.mark.parametrize("flaw", BAD)
@pytest.mark.parametrize("unit", ["record", "user"])
def test_a_bad_task_is_refused_and_nobody_pays(flaw: str, unit: str) -> None:
    how = dict(BAD[flaw])
    if unit == "user":
        how["users"] = [4, 4, 5]
        how.setdefault("labels", [0, 1, 2])
    door = entry() if unit == "record" else by_user()
    task, records = watched("one", **how)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="one"):
        door.open(task)
    assert booked(door, ["one", 4, 5]) == [None] * 3
    assert records.reads == 0
    good = watched("one", [4, 4, 5] if unit == "user" else None)[0]
    door.open(good)  # the name and the users are as they were
    assert any(found is not None for found in booked(door, ["one", 4]))


def test_an_empty_task_is_refused_and_nobody_pays() -> None:
    x, y = torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)
    records = Records(Source(x, y, "empty", units=torch.zeros(0, dtype=torch.int64)))
    for door in (entry(), by_user()):
        with pytest.raises(BadInput, match="is empty"):
            door.open(Task("empty", Sealed(records), records, (0, 1)))
        assert booked(door, ["empty"]) == [None]


def test_labels_declared_outside_the_space_are_refused_before_anything_is_charged() -> None:
    tasks = PrivateTasks(SPACE, Protection(Budget(1.0)), Releases(), SystemNoise(), torch.device("cpu"))
    task, records = watched("one", classes=(0, 1, 2, 3))
    with pytest.raises(BadInput, match="declares label 3"):
        tasks.open(task, 0)
    assert tasks._entry.ledger.spent("one") is None
    assert records.reads == 0


# --- users as units -------------------------------------------------------------------------------------


def test_a_user_in_several_tasks_is_charged_in_each_and_refused_in_the_end() -> None:
    door = by_user()
    door.open(watched("one", [7, 7, 8])[0])
    assert booked(door, [7, 8, 9]) == [0.5, 0.5, None]
    door.open(watched("two", [7, 9])[0])
    assert booked(door, [7, 8, 9]) == [1.0, 0.5, 0.5]
    task, records = watched("three", [8, 7, 9])
    with pytest.raises(Refused, match="1 of 3 units would exceed"):
        door.open(task)
    assert booked(door, [7, 8, 9]) == [1.0, 0.5, 0.5], "nobody pays for a task that is refused"
    assert records.reads == 0
    door.open(watched("three", [8, 9])[0])
    assert booked(door, [7, 8, 9]) == [1.0, 1.0, 1.0]
    assert door.ledger.spent(7) == LIFETIME


def test_without_a_price_per_task_a_user_comes_once() -> None:
    door = entry(unit="user")
    door.open(watched("one", [7, 8])[0])
    with pytest.raises(Refused):
        door.open(watched("two", [7, 9])[0])
    assert booked(door, [7, 8, 9]) == [1.0, 1.0, None]


def test_a_delta_can_run_out_before_epsilon() -> None:
    door = Entry(SPACE, Protection(LIFETIME, "user", Budget(0.1, 0.6e-5)))
    door.open(watched("one", [7])[0])
    with pytest.raises(Refused):
        door.open(watched("two", [7])[0])
    assert door.ledger.spent(7) == Budget(0.1, 0.6e-5)


def test_a_task_may_be_learned_without_those_who_cannot_pay() -> None:
    door = by_user(exhausted="drop", per_user=2)
    for name in ("one", "two"):
        door.open(watched(name, [7, 7, 8])[0])
    opened = door.open(watched("three", [7, 9, 8, 9, 7, 5])[0])
    assert opened.rows.tolist() == [1, 3, 5]
    assert opened.groups[0] == opened.groups[1] != opened.groups[2]
    assert sorted(set(opened.groups.tolist())) == [0, 1]
    assert booked(door, [5, 7, 8, 9]) == [0.5, 1.0, 1.0, 0.5]
    task, records = watched("four", [7, 8, 8])
    with pytest.raises(Refused, match="every user has used up"):
        door.open(task)
    assert records.reads == 0
    assert booked(door, [5, 7, 8, 9]) == [0.5, 1.0, 1.0, 0.5]


def test_users_without_ids_are_refused_and_nobody_pays() -> None:
    door = by_user()
    task, records = watched("one")
    with pytest.raises(BadInput, match="'one' has no unit ids"):
        door.open(task)
    assert records.reads == 0
    assert door.ledger._spent == {}
    entry().open(task)  # records need none


def test_a_task_of_one_user_with_one_record() -> None:
    opened = by_user(per_user=4).open(watched("one", [-3], classes=(0,))[0])
    assert (opened.rows.tolist(), opened.groups.tolist()) == ([0], [0])


@pytest.mark.parametrize("drop", ["refuse", "drop"])
def test_a_saved_task_is_booked_again_as_it_was(drop: str) -> None:
    first, second = (by_user(exhausted=drop) for _ in range(2))
    streams = [("one", [7, 7, 8]), ("two", [7, 9]), ("three", [5, 9] if drop == "refuse" else [5, 7, 9])]
    for name, users in streams:
        task, records = watched(name, users)
        first.open(task)
        second.recharge(task)
        assert records.reads == 0
        assert first.ledger._spent == second.ledger._spent
    for door in (first, second):
        with pytest.raises(Refused):
            door.open(watched("four", [7])[0])
    door = entry()
    door.recharge(watched("one")[0])
    with pytest.raises(Refused, match="learned before"):
        door.open(watched("one")[0])


# --- the contribution bound -----------------------------------------------------------------------------


def kept(opened: Opened, users: Sequence[int]) -> dict[int, list[int]]:
    """For every user which of their own records count, by their place among their own."""
    own = {row: sum(1 for other in users[:row] if other == user) for row, user in enumerate(users)}
    rows: dict[int, list[int]] = {}
    for row in opened.rows.tolist():
        rows.setdefault(users[row], []).append(own[row])
    return rows


crowds = st.lists(st.integers(0, 5), min_size=1, max_size=30)


@light
@given(crowds, st.integers(1, 4))
def test_nobody_counts_more_often_than_allowed_and_nobody_is_left_out(users: list[int], most: int) -> None:
    opened = entry(unit="user", per_user=most).open(watched("t", users)[0])
    counts = Counter(users[row] for row in opened.rows.tolist())
    assert counts == {user: min(most, count) for user, count in Counter(users).items()}
    assert opened.rows.tolist() == sorted(set(opened.rows.tolist()))
    pairs = {(users[row], group) for row, group in zip(opened.rows.tolist(), opened.groups.tolist(), strict=True)}
    assert len(pairs) == len(counts) == len({group for _, group in pairs}), "a group is a user"


@light
@given(crowds.filter(lambda users: len(set(users)) > 1), st.integers(1, 4))
def test_which_records_of_a_user_count_depends_on_nobody_else(users: list[int], most: int) -> None:
    """Or else one user who comes or goes moves the records of all others, and no sensitivity holds."""
    everybody = kept(entry(unit="user", per_user=most).open(watched("t", users)[0]), users)
    for gone in set(users):
        rest = [user for user in users if user != gone]
        without = kept(entry(unit="user", per_user=most).open(watched("t", rest)[0]), rest)
        assert without == {user: rows for user, rows in everybody.items() if user != gone}


# --- the ledger -----------------------------------------------------------------------------------------

prices = st.floats(1e-3, 0.7, allow_nan=False)


@light
@given(st.lists(st.tuples(st.sets(st.integers(0, 3), min_size=1), prices), max_size=20))
def test_no_unit_ever_exceeds_its_lifetime_and_refusals_book_nothing(charges: list[tuple[set[int], float]]) -> None:
    ledger, truth = Ledger(Budget(1.0)), dict.fromkeys(range(4), Fraction(0))
    for units, price in charges:
        cost = Budget(price)
        fits = all(truth[unit] + Fraction(price) <= 1 for unit in units)
        try:
            ledger.charge(units, cost, "it")
        except Refused:
            assert not fits
        else:
            assert fits
            truth |= {unit: truth[unit] + Fraction(price) for unit in units}
        for unit, total in truth.items():
            spent = ledger.spent(unit)
            assert (spent is None) == (total == 0)
            assert spent is None or spent.epsilon == pytest.approx(float(total), rel=1e-15)
            assert total <= 1


def test_charges_add_up_without_rounding() -> None:
    """Prices count as they are written; those too small to change a float near 1 count all the same."""
    ledger = Ledger(Budget(1.0))
    for _ in range(9):
        ledger.charge(["u", "v"], Budget(0.1), "a tenth")
    ledger.charge(["v"], Budget(0.1), "the last tenth")
    ledger.charge(["u"], Budget(0.0999999999999999), "nearly a tenth")
    price = 2e-17
    for _ in range(5):
        ledger.charge(["u"], Budget(price), "a little")
    for unit in ("u", "v"):
        with pytest.raises(Refused):
            ledger.charge([unit], Budget(price), "a little")


def test_the_units_that_cannot_pay_are_named_and_the_others_are_not() -> None:
    ledger = Ledger(LIFETIME)
    ledger.charge(["a", "b"], HALF, "one")
    ledger.charge(["b"], HALF, "two")
    assert ledger.exhausted(["a", "b", "c"], HALF) == ["b"]
    assert ledger.exhausted(["a", "b", "c"], LIFETIME) == ["a", "b"]
    assert ledger.exhausted(["c"], Budget(1.5)) == ["c"]


def test_protection_that_makes_no_sense_is_refused() -> None:
    for how in ({"per_user": 0}, {"per_task": HALF}):
        with pytest.raises(BadInput):
            Protection(LIFETIME, **how)  # type: ignore[arg-type]
    assert Protection(LIFETIME, per_task=LIFETIME).cost == LIFETIME
    assert Protection(LIFETIME, "user", HALF, 3).rows_per_unit == 3
    assert Protection(LIFETIME, "record", per_user=3).rows_per_unit == 1
    assert issubclass(Refused, L2dpError)
    assert not issubclass(Refused, BadInput)
