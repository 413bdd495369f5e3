"""Homes that share a ledger on a server: users pay from one budget, and what could not be compared is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from homes import home, table, user_home
from l2dp.errors import Refused


def key_of(folder: Path) -> Path:
    return folder / "secrets" / "fingerprints"


@pytest.mark.parametrize("new_place", ["postgres"], indirect=True)
def test_users_of_two_homes_pay_from_one_budget(tmp_path: Path, new_place: Callable[[], str]) -> None:
    place = new_place()
    first = user_home(tmp_path, "first", ledger=place)
    second = user_home(tmp_path, "second", ledger=place, fingerprint_key=key_of(first.path))
    for turn, made in enumerate([first, second, first, second]):  # four times 1 is the lifetime
        made.learn(table(tmp_path, turn, users=30), task=f"task {turn}")
    for made in (first, second):
        with pytest.raises(Refused, match="30 of 30 units would exceed their lifetime budget"):
            made.learn(table(tmp_path, 9, users=30), task="one more")
        assert made.verify() == []
        with made.book() as book:
            ((spent, users),) = book.levels().counts
            assert (spent.epsilon, users) == (4.0, 30)
        made.close()


@pytest.mark.parametrize("new_place", ["postgres"], indirect=True)
def test_homes_that_do_not_know_each_others_units_are_refused(tmp_path: Path, new_place: Callable[[], str]) -> None:
    place = new_place()
    user_home(tmp_path, "first", ledger=place)
    with pytest.raises(Refused, match="another fingerprint key"):
        user_home(tmp_path, "second", ledger=place)
    with pytest.raises(Refused, match="records of two homes"):
        home(tmp_path, "third", ledger=place)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first"], "nothing is left of a home that was refused"
    place = new_place()
    record = home(tmp_path, "fourth", ledger=place)
    with pytest.raises(Refused, match="records of two homes"):
        home(tmp_path, "fifth", ledger=place, fingerprint_key=key_of(record.path))
    record.learn(table(tmp_path, 1), task="one")
    assert record.verify() == []
    record.close()
