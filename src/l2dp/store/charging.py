"""How a home pays for a task and where its noise comes from: the two things a boundary is given from outside.

The order is what counts: the noise key is durable before the charge, the charge before the fingerprints, all of them
before the first read for learning.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from l2dp.book import Book, Payment, Voucher
from l2dp.budget import Budget
from l2dp.errors import L2dpError
from l2dp.noise import KeyedNoise, Noise


class Till:
    """The ledger that a boundary sees: charges go to the durable book as reservations of one task at a time.

    Guarantee
    ---------
    `charge` returns only when the task's noise key, its reservation and its fingerprints are durable, in this order.
    A task that is run again after a crash finds its reservation and pays nothing more.
    """

    def __init__(self) -> None:
        self._payment: Payment | None = None

    def expect(
        self,
        book: Book,
        voucher: Callable[[], Voucher],
        blocks: Sequence[Hashable] | None,
        before: Callable[[], None],
        after: Callable[[], None],
    ) -> None:
        """Prepares for the charge of one task; `blocks` names the units that the boundary knows by number."""
        self._book, self._voucher, self._blocks = book, voucher, blocks
        self._before, self._after = before, after
        self._payment = None

    @property
    def reservation(self) -> int:
        if self._payment is None or self._payment.reservation is None:
            raise L2dpError("the learner did not charge its task; it cannot be used in a home")
        return self._payment.reservation

    def _named(self, units: Collection[Hashable]) -> dict[Hashable, Hashable]:
        if self._blocks is None:
            return {unit: unit for unit in units}
        named: dict[Hashable, Hashable] = {self._blocks[unit]: unit for unit in units if isinstance(unit, int)}
        if len(named) != len(units):
            raise L2dpError("two units of a task are known under one name, and would be charged as one")
        return named

    def exhausted(self, units: Collection[Hashable], cost: Budget) -> list[Hashable]:
        named = self._named(units)
        poor = Payment(self._book, self._voucher()).exhausted(list(named), cost)
        return [named[block] for block in poor]

    def charge(self, units: Collection[Hashable], cost: Budget, what: str) -> None:
        self._before()
        payment = Payment(self._book, self._voucher())
        payment.charge(list(self._named(units)), cost, what)
        self._payment = payment
        self._after()


class TaskNoise(Noise):
    """Privacy noise of one task at a time, all of it from that task's durable key."""

    secure = True

    def __init__(self) -> None:
        self._key: bytes | None = None

    def use(self, key: bytes | None) -> None:
        """Sets the key of the task that is learned; None: between tasks, when nothing may be drawn."""
        self._key = key

    def words(self, count: int) -> NDArray[np.uint64]:
        raise L2dpError("noise of a home is drawn for a task, from its own key")

    def fork(self, purpose: str) -> Noise:
        if self._key is None:
            raise L2dpError("noise of a home is drawn for a task, from its own key")
        return KeyedNoise(self._key).fork(purpose)
