"""No sequence of reservations, commits, cancellations, reopenings and writers takes any block above its lifetime."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from l2dp.book import Voucher, open_book
from l2dp.budget import Budget
from l2dp.errors import Refused

LIFETIME = Budget(1.0, 1e-5)
UNITS: list[str | int | bytes] = ["t", 7, b"u", b"v"]
TASKS = "abcd"

units = st.lists(st.sampled_from(UNITS), min_size=1, unique=True)
prices = st.sampled_from(
    [Budget(0.1), Budget(0.3, 1e-6), Budget(0.5, 9e-6), Budget(0.7), Budget(1.0, 1e-5), Budget(2.0)]
)


def machine(new_place: Callable[[], str]) -> type[RuleBasedStateMachine]:
    class Machine(RuleBasedStateMachine):
        """Two handles on one book, as two processes have them, against plain dictionaries."""

        made = Bundle("made")

        @initialize()
        def begin(self) -> None:
            self.place = new_place()
            self.books = [open_book(self.place, LIFETIME), open_book(self.place)]
            self.live: dict[int, tuple[str, str, list[str | int | bytes], Budget]] = {}
            self.settled: dict[int, str] = {}
            self.charged: list[tuple[list[str | int | bytes], Budget]] = []

        def spent(self, unit: str | int | bytes) -> tuple[Fraction, Fraction]:
            costs = [cost for who, cost in self.charged if unit in who]
            costs += [cost for _, _, who, cost in self.live.values() if unit in who]
            parts = [[Fraction(repr(cost.epsilon)) for cost in costs], [Fraction(repr(cost.delta)) for cost in costs]]
            return sum(parts[0], Fraction(0)), sum(parts[1], Fraction(0))

        def fits(self, who: list[str | int | bytes], cost: Budget) -> bool:
            return all(
                self.spent(unit)[0] + Fraction(repr(cost.epsilon)) <= 1
                and self.spent(unit)[1] + Fraction(repr(cost.delta)) <= Fraction("1e-05")
                for unit in who
            )

        @rule(
            target=made,
            who=units,
            cost=prices,
            task=st.sampled_from(TASKS),
            content=st.sampled_from("xy"),
            by=st.integers(0, 1),
        )
        def reserve(self, who: list[str | int | bytes], cost: Budget, task: str, content: str, by: int) -> int:
            before = [number for number, (name, *_) in self.live.items() if name == task]
            head, levels = self.books[by].head(), self.books[by].levels()
            try:
                number = self.books[by].reserve(who, cost, Voucher(task, content, "it", 1.0))
            except Refused:
                assert (self.books[by].head(), self.books[by].levels()) == (head, levels), "a refusal changes nothing"
                if before:
                    _, mine, whom, price = self.live[before[0]]
                    assert (mine, set(whom), price) != (content, set(who), cost)
                else:
                    assert not self.fits(who, cost)
                return -1
            if before:
                _, mine, whom, price = self.live[before[0]]
                assert number == before[0]
                assert (mine, set(whom), price) == (content, set(who), cost)
                assert self.books[by].head() == head
            else:
                assert self.fits(who, cost)
                self.live[number] = (task, content, who, cost)
            return number

        @rule(who=units, cost=prices, by=st.integers(0, 1))
        def charge(self, who: list[str | int | bytes], cost: Budget, by: int) -> None:
            try:
                self.books[by].charge(who, cost, "it")
            except Refused:
                assert not self.fits(who, cost)
            else:
                assert self.fits(who, cost)
                self.charged.append((who, cost))

        @rule(number=made, by=st.integers(0, 1))
        def commit(self, number: int, by: int) -> None:
            if number < 0:
                return
            if self.settled.get(number) == "cancel":
                with pytest.raises(Refused):
                    self.books[by].commit(number)
                return
            self.books[by].commit(number)
            self.settled[number] = "commit"

        @rule(number=made, by=st.integers(0, 1))
        def cancel(self, number: int, by: int) -> None:
            if number < 0:
                return
            if self.settled.get(number) == "commit":
                with pytest.raises(Refused):
                    self.books[by].cancel(number)
                return
            self.books[by].cancel(number)
            self.settled[number] = "cancel"
            self.live.pop(number, None)

        @rule(by=st.integers(0, 1))
        def reopen(self, by: int) -> None:
            self.books[by].close()
            self.books[by] = open_book(self.place)

        @invariant()
        def every_block_has_spent_what_it_was_charged(self) -> None:
            for turn, unit in enumerate(UNITS):
                expected = self.spent(unit)
                assert expected[0] <= 1
                found = self.books[turn % 2].spent(unit)
                assert (found is None) == (expected == (0, 0))
                if found is not None:
                    assert (found.epsilon, found.delta) == (float(expected[0]), float(expected[1]))
            assert self.books[0].levels().blocks == sum(self.spent(unit) != (0, 0) for unit in UNITS)

        def teardown(self) -> None:
            assert self.books[0].verify() == []
            for book in self.books:
                book.close()

    return Machine


def test_nobody_ever_exceeds(new_place: Callable[[], str]) -> None:
    run_state_machine_as_test(
        machine(new_place),
        settings=settings(
            max_examples=12, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


WRITER = """
import sys
from l2dp.book import Voucher, open_book
from l2dp.budget import Budget
from l2dp.errors import Refused
place, name = sys.argv[1:]
mine = 0
with open_book(place) as book:
    print("ready", flush=True)
    sys.stdin.readline()
    for turn in range(200):
        try:
            number = book.reserve(["everybody", name], Budget(0.02), Voucher(f"{name}-{turn}", "data", "it", 1.0))
        except Refused:
            break
        if turn % 5 == 4:
            book.cancel(number)
        else:
            mine += 1
            if turn % 2:
                book.commit(number)
print(mine)
"""


def test_eight_writers_on_one_block_never_overspend_together(place: str) -> None:
    with open_book(place, Budget(1.0)) as book:
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, place, f"w{number}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(8)
        ]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:  # all at once
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
        counts = [int(writer.communicate(timeout=300)[0]) for writer in writers]
        assert [writer.returncode for writer in writers] == [0] * 8
        # 0.02 goes fifty times into 1. A writer stops when it is refused, at times because of what another one was
        # about to give back; so a little may be left, and never is there more.
        assert 40 <= sum(counts) <= 50
        spent = book.spent("everybody")
        assert spent is not None
        assert spent.epsilon == pytest.approx(0.02 * sum(counts), rel=1e-12)
        for number, count in enumerate(counts):
            mine = book.spent(f"w{number}")
            assert (0 if mine is None else mine.epsilon) == pytest.approx(0.02 * count, rel=1e-12)
        assert book.verify() == []
