"""Amounts of budget as exact pairs (ε, δ): prices count as they are written, and nothing is rounded."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from l2dp.budget import Budget
from l2dp.ledger import exact

Amounts = tuple[Fraction, Fraction]
ZERO: Amounts = (Fraction(0), Fraction(0))


def amounts(cost: Budget) -> Amounts:
    return exact(cost.epsilon), exact(cost.delta)


def as_budget(spent: Amounts) -> Budget:
    return Budget(float(spent[0]), float(spent[1]))


def written(budget: Budget) -> dict[str, str]:
    """As an entry holds it."""
    return {"epsilon": repr(float(budget.epsilon)), "delta": repr(float(budget.delta))}


def read(body: Mapping[str, Any], name: str) -> Amounts | None:
    """The amounts that stand in an entry under a name; None: none that can be read."""
    try:
        found = Fraction(body[name]["epsilon"]), Fraction(body[name]["delta"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    return found if min(found) >= 0 else None
