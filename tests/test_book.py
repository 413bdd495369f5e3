"""The durable book, on SQLite and on PostgreSQL: what it lets through, what it refuses, and what it finds again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from l2dp.book import Book, Head, Payment, Voucher, open_book
from l2dp.budget import Budget
from l2dp.errors import BadInput, Refused

LIFETIME = Budget(1.0, 1e-5)
HALF = Budget(0.5, 0.5e-5)
TENTH = Budget(0.1, 1e-6)


def voucher(task: str, content: str = "data") -> Voucher:
    return Voucher(task, content, "Gaussian class sums", 1.0, {"sums": 3.7, "steps": None})


@pytest.fixture
def book(place: str) -> Iterator[Book]:
    with open_book(place, LIFETIME) as book:
        yield book


def test_a_reservation_is_found_by_whoever_opens_the_book_next(place: str) -> None:
    with open_book(place, LIFETIME) as book:
        number = book.reserve(["2026-11"], LIFETIME, voucher("2026-11"))
        with open_book(place) as other:
            found = other.reservation("2026-11")
            assert found is not None
            assert (found.id, found.state, found.cost, found.blocks) == (number, "reserved", LIFETIME, 1)
            assert other.spent("2026-11") == LIFETIME
            assert other.lifetime == LIFETIME
            assert other.identity == book.identity


def test_an_entry_says_all_that_a_charge_rests_on(book: Book) -> None:
    book.reserve(["2026-11"], LIFETIME, voucher("2026-11"))
    opened, entry = book.entries()
    assert opened["lifetime"] == {"epsilon": "1.0", "delta": "1e-05"}
    assert entry["blocks"]["name"] == "2026-11"
    expected = {
        "mechanism": "Gaussian class sums",
        "sensitivity": 1.0,
        "noise": {"sums": 3.7, "steps": None},
        "adjacency": "add-remove",
        "unit": "record",
        "entropy": "operating system",
        "cost": {"epsilon": "1.0", "delta": "1e-05"},
    }
    assert {name: entry[name] for name in expected} == expected
    assert {"version", "time", "previous", "sequence"} <= entry.keys()


def test_the_same_task_pays_once_and_other_data_under_its_name_are_refused(book: Book) -> None:
    first = book.reserve(["a"], HALF, voucher("a"))
    assert book.reserve(["a"], HALF, voucher("a")) == first
    before = book.head(), book.levels()
    for units, cost, content in ((["a"], HALF, "other"), (["a"], TENTH, "data"), (["a", "b"], HALF, "data")):
        with pytest.raises(Refused, match="charged before for other data"):
            book.reserve(units, cost, voucher("a", content))
    book.commit(first)
    assert book.reserve(["a"], HALF, voucher("a")) == first
    assert book.spent("a") == HALF
    assert before[1] == book.levels()
    assert book.head().sequence == before[0].sequence + 1


def test_all_units_pay_or_none(book: Book) -> None:
    book.charge([1, 2], HALF, "one")
    book.charge([2], HALF, "two")
    before = book.head(), book.levels()
    with pytest.raises(Refused, match="task 'c': 1 of 3 units would exceed"):
        book.reserve([1, 2, 3], HALF, voucher("c"))
    with pytest.raises(Refused, match="x: 3 of 3 units would exceed"):
        book.charge([4, 5, 6], Budget(1.5), "x")
    assert before == (book.head(), book.levels())
    assert [book.spent(unit) for unit in (1, 2, 3)] == [HALF, LIFETIME, None]
    assert book.exhausted([1, 2, 3], HALF) == [2]
    assert sorted(book.exhausted([1, 2, 3], LIFETIME)) == [1, 2]
    assert book.exhausted([3], Budget(1.5)) == [3]
    assert book.verify() == []


def test_a_cancelled_reservation_gives_everything_back_and_a_committed_one_nothing(book: Book) -> None:
    first = book.reserve([b"u", b"v"], HALF, voucher("a"))
    second = book.reserve([b"v", b"w"], HALF, voucher("b"))
    book.cancel(first)
    book.cancel(first)
    assert [book.spent(unit) for unit in (b"u", b"v", b"w")] == [None, HALF, HALF]
    assert book.levels().counts == ((HALF, 2),)
    with pytest.raises(Refused, match="is cancelled"):
        book.commit(first)
    book.commit(second, "digest of the answers")
    book.commit(second, "another")
    with pytest.raises(Refused, match="is committed"):
        book.cancel(second)
    third = book.reserve([b"u", b"v"], HALF, voucher("a", "new data"))
    assert third not in (first, second)
    assert [item.state for item in book.reservations()] == ["cancelled", "committed", "reserved"]
    assert [item.answer for item in book.reservations()] == [None, "digest of the answers", None]
    assert [item.spends for item in book.reservations()] == [False, True, True]
    with pytest.raises(BadInput, match="no reservation 99"):
        book.commit(99)
    assert book.verify() == []


def test_blocks_move_from_level_to_level_without_being_counted_twice(book: Book) -> None:
    """Blocks at one tenth go to two, where others stand that go to three: nobody goes two steps."""
    for count in (1, 2, 3):
        book.charge(range(count), TENTH, "climb")
    book.charge(range(4), TENTH, "all")
    assert [spent.epsilon for spent, _ in book.levels().counts] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert [count for _, count in book.levels().counts] == [1] * 4
    assert [book.spent(unit) for unit in range(4)] == [
        Budget(0.4, 4e-6),
        Budget(0.3, 3e-6),
        Budget(0.2, 2e-6),
        TENTH,
    ]
    assert book.verify() == []


def test_charges_add_up_without_rounding(book: Book) -> None:
    for _ in range(9):
        book.charge(["u", "v"], TENTH, "a tenth")
    book.charge(["v"], TENTH, "the last tenth")
    book.charge(["u"], Budget(0.0999999999999999), "nearly a tenth")
    for _ in range(5):
        book.charge(["u"], Budget(2e-17), "a little")
    for unit in ("u", "v"):
        with pytest.raises(Refused):
            book.charge([unit], Budget(2e-17), "a little")
    assert book.verify() == []


def test_names_numbers_and_fingerprints_are_never_the_same_block(book: Book) -> None:
    for unit in ("7", 7, b"7", -7, "", b"", "ü 名", "n7", b"\x00\xff"):
        book.charge([unit], LIFETIME, "it")
        assert book.spent(unit) == LIFETIME
    assert book.levels().blocks == 9
    for unit in (None, 1.5, True, ("a",), "\ud800"):
        with pytest.raises(BadInput):
            book.charge([unit], TENTH, "it")
    assert book.verify() == []


def test_a_task_that_is_run_again_leaves_out_whom_it_left_out_before(book: Book) -> None:
    book.charge([1], LIFETIME, "earlier")
    other = book.reserve([5], LIFETIME, voucher("other"))
    first = Payment(book, voucher("a"))
    assert sorted(first.exhausted([1, 2, 5], LIFETIME)) == [1, 5]
    first.charge([2], LIFETIME, "task 'a'")
    book.cancel(other)  # 5 could pay by now
    again = Payment(book, voucher("a"))
    assert sorted(again.exhausted([1, 2, 5], LIFETIME)) == [1, 5]
    again.charge([2], LIFETIME, "task 'a'")
    assert first.reservation == again.reservation is not None
    assert again.spent(2) == again.lifetime == LIFETIME
    with pytest.raises(Refused, match="other data"):
        Payment(book, voucher("a", "other")).exhausted([2], LIFETIME)


def test_a_head_is_known_until_the_book_goes_back(new_place: Callable[[], str]) -> None:
    with open_book(new_place(), LIFETIME) as book, open_book(new_place(), LIFETIME) as other:
        heads = [book.head()]
        for task in "abc":
            book.reserve([task], LIFETIME, voucher(task))
            heads.append(book.head())
        assert [head.sequence for head in heads] == [0, 1, 2, 3]
        assert all(book.knows(head) for head in heads)
        assert not any(other.knows(head) for head in heads)
        assert not book.knows(Head(4, "0" * 64))
        assert not book.knows((3, heads[2].hash))


def test_a_clock_that_is_set_back_changes_no_order(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    now = time.time()
    for years, task in ((0, "a"), (-30, "b"), (-10, "c")):
        monkeypatch.setattr(time, "gmtime", lambda _=None, at=now + years * 3.15e7: time.localtime(at))
        book.reserve([task], HALF, voucher(task))
    assert [entry.task for entry in book.reservations()] == ["a", "b", "c"]
    times = [entry.body["time"] for entry in book.reservations()]
    assert times != sorted(times)
    assert book.verify() == []


def test_a_second_home_must_know_the_users_of_the_first(new_place: Callable[[], str]) -> None:
    with open_book(new_place(), LIFETIME) as book:
        for _ in range(2):
            book.join("one", "key", "user")
        book.join("two", "key", "user")
        before = book.head()
        with pytest.raises(Refused, match="with another fingerprint key"):
            book.join("three", "another key", "user")
        with pytest.raises(Refused, match="records of two homes cannot be compared"):
            book.join("three", "key", "record")
        assert book.head() == before
        assert [entry["home"] for entry in book.entries()[1:]] == ["one", "two"]
        assert book.verify() == []
    with open_book(new_place(), LIFETIME) as book:
        book.join("one", "key", "record")
        for unit in ("record", "user"):
            with pytest.raises(Refused, match="give this home a ledger of its own"):
                book.join("two", "key", unit)  # type: ignore[arg-type]
        assert book.verify() == []


def test_a_lifetime_is_fixed(place: str) -> None:
    with open_book(place, LIFETIME) as book:
        with open_book(place, LIFETIME) as again:
            assert again.head() == book.head()
        with pytest.raises(BadInput, match=r"was made for a lifetime of epsilon 1, .* not epsilon 2"):
            open_book(place, Budget(2.0, 1e-5))


def test_a_place_without_a_book_is_one_clear_line(place: str) -> None:
    with pytest.raises(BadInput):
        open_book(place)


def test_the_example_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Path(__file__).parent.parent / "docs" / "ledger.md"
    (example,) = re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(example, {})
    assert "Budget(epsilon=0.1, delta=1e-07) ((Budget(epsilon=0.1, delta=1e-07), 2),)" in capsys.readouterr().out
