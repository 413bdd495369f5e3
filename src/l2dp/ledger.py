"""The book of what every unit has been charged. A charge comes before the read it pays for."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from fractions import Fraction

from l2dp.budget import Budget
from l2dp.errors import Refused


def exact(number: float) -> Fraction:
    """A number as it is written, so that ten times 0.1 is 1."""
    return Fraction(repr(float(number)))


Spent = tuple[Fraction, Fraction]
NOTHING: Spent = Fraction(0), Fraction(0)


class Ledger:
    """What units have spent, held in memory.

    Guarantee
    ---------
    Basic composition: a unit's charges add up, exactly (as fractions), and none is accepted that would take any
    unit above its lifetime budget. That is valid also when later tasks depend on earlier releases. A refused charge
    changes nothing.
    """

    def __init__(self, lifetime: Budget) -> None:
        self.lifetime = lifetime
        self._spent: dict[Hashable, Spent] = {}

    def spent(self, unit: Hashable) -> Budget | None:
        """What a unit has been charged; None: nothing yet."""
        found = self._spent.get(unit)
        return None if found is None else Budget(float(found[0]), float(found[1]))

    def exhausted(self, units: Collection[Hashable], cost: Budget) -> list[Hashable]:
        """The units that cannot pay this cost any more."""
        return self._after(units, cost)[1]

    def charge(self, units: Collection[Hashable], cost: Budget, what: str) -> None:
        """Charges every unit, or none of them."""
        after, over = self._after(units, cost)
        if over:
            raise Refused(
                f"{what}: {len(over)} of {len(units)} units would exceed their lifetime budget of "
                f"epsilon {self.lifetime.epsilon:g}, delta {self.lifetime.delta:g}; nothing was read or charged; "
                "leave their rows out"
            )
        self._spent |= after

    def _after(self, units: Collection[Hashable], cost: Budget) -> tuple[dict[Hashable, Spent], list[Hashable]]:
        """What units will have spent, and those for which that is too much.

        Units that came together have spent the same, and hold one pair of fractions: it is added to once.
        """
        most = exact(self.lifetime.epsilon), exact(self.lifetime.delta)
        price = exact(cost.epsilon), exact(cost.delta)
        sums: dict[int, tuple[Spent, bool]] = {}
        after: dict[Hashable, Spent] = {}
        over: list[Hashable] = []
        for unit in units:
            had = self._spent.get(unit, NOTHING)
            known = sums.get(id(had))
            if known is None:
                total = had[0] + price[0], had[1] + price[1]
                known = sums[id(had)] = total, total[0] > most[0] or total[1] > most[1]
            after[unit] = known[0]
            if known[1]:
                over.append(unit)
        if len(after) != len(units):
            raise ValueError("a unit is named twice, and would be charged once")
        return after, over
