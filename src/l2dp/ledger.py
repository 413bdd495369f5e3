"""The book of what every unit has been charged. A charge comes before the read it pays for."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from fractions import Fraction

from l2dp.budget import Budget
from l2dp.errors import Refused


def exact(number: float) -> Fraction:
    """A number as it is written, so that ten times 0.1 is 1."""
    return Fraction(repr(float(number)))


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
        self._spent: dict[Hashable, tuple[Fraction, Fraction]] = {}

    def spent(self, unit: Hashable) -> Budget | None:
        """What a unit has been charged; None: nothing yet."""
        found = self._spent.get(unit)
        return None if found is None else Budget(float(found[0]), float(found[1]))

    def exhausted(self, units: Collection[Hashable], cost: Budget) -> list[Hashable]:
        """The units that cannot pay this cost any more."""
        limit = exact(self.lifetime.epsilon), exact(self.lifetime.delta)
        price = exact(cost.epsilon), exact(cost.delta)
        zero = Fraction(0), Fraction(0)
        return [
            unit
            for unit in units
            if any(had + more > most for had, more, most in zip(self._spent.get(unit, zero), price, limit, strict=True))
        ]

    def charge(self, units: Collection[Hashable], cost: Budget, what: str) -> None:
        """Charges every unit, or none of them."""
        over = self.exhausted(units, cost)
        if over:
            raise Refused(
                f"{what}: {len(over)} of {len(units)} units would exceed their lifetime budget of "
                f"epsilon {self.lifetime.epsilon:g}, delta {self.lifetime.delta:g}; nothing was read or charged"
            )
        for unit in units:
            epsilon, delta = self._spent.get(unit, (Fraction(0), Fraction(0)))
            self._spent[unit] = epsilon + exact(cost.epsilon), delta + exact(cost.delta)
