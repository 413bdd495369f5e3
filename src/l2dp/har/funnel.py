"""The funnel: how much went into each step, how much came out, and why the rest did not.

A step that loses something without a reason is a bug, so `check` adds every step up.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from l2dp.errors import L2dpError


@dataclass
class Step:
    """One step: `dropped` holds reasons, `noted` what is worth knowing although nothing was lost by it."""

    name: str
    unit: str
    entered: int = 0
    left: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    noted: Counter[str] = field(default_factory=Counter)

    def count(self, entered: int, left: int, dropped: dict[str, int], noted: dict[str, int] | None = None) -> None:
        """One more piece has gone through."""
        self.entered += entered
        self.left += left
        self.dropped.update({reason: number for reason, number in dropped.items() if number})
        self.noted.update({what: number for what, number in (noted or {}).items() if number})

    def to_json(self) -> dict[str, Any]:
        return {
            "step": self.name,
            "unit": self.unit,
            "in": self.entered,
            "out": self.left,
            "dropped": dict(sorted(self.dropped.items())),
            "noted": dict(sorted(self.noted.items())),
        }


class Funnel:
    """All steps, in the order of their first use."""

    def __init__(self) -> None:
        self.steps: dict[str, Step] = {}

    def step(self, name: str, unit: str = "samples") -> Step:
        return self.steps.setdefault(name, Step(name, unit))

    def check(self) -> None:
        """Raises unless every step, and every pair of neighbours with the same unit, adds up."""
        before: Step | None = None
        for step in self.steps.values():
            if step.entered != step.left + step.dropped.total():
                raise L2dpError(f"the funnel does not add up at {step.name!r}: {step.to_json()}; please report this")
            if before is not None and before.unit == step.unit and before.left != step.entered:
                raise L2dpError(f"{before.left} {step.unit} left {before.name!r}, {step.entered} entered {step.name!r}")
            before = step

    def to_json(self) -> list[dict[str, Any]]:
        return [step.to_json() for step in self.steps.values()]
