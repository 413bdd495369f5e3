"""How a boundary pays for one task out of the durable book: the ledger that `boundary/entry` sees.

It charges by reservation, so that a task that was interrupted finds what it has paid and pays no second time.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable

from l2dp.book.book import Book, Voucher, other_data
from l2dp.budget import Budget


class Payment:
    """The book as one task sees it.

    Guarantee
    ---------
    As the book's. A task that is run again after a crash charges, and leaves out, exactly whom it charged and left out
    before, whatever other tasks have done since.
    """

    def __init__(self, book: Book, voucher: Voucher) -> None:
        self.lifetime = book.lifetime
        self.book = book
        self.voucher = voucher
        self.reservation: int | None = None
        """The number of the reservation, once `charge` has returned."""

    def spent(self, unit: Hashable) -> Budget | None:
        return self.book.spent(unit)

    def exhausted(self, units: Collection[Hashable], cost: Budget) -> list[Hashable]:
        """The units that cannot pay this cost; once this task has paid, those it did not charge."""
        before = self.book.reservation(self.voucher.task)
        if before is None or not before.spends:
            return self.book.exhausted(units, cost)
        if before.content != self.voucher.content:
            raise other_data(self.voucher.task)
        return self.book.outside(units, before.id)

    def charge(self, units: Collection[Hashable], cost: Budget, what: str) -> None:
        """Charges every unit, or none of them, or finds that this very task has done so."""
        self.reservation = self.book.reserve(units, cost, self.voucher)
