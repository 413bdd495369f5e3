"""Types of privacy budgets and guarantees. No arithmetic of composition lives here beyond adding up.

An ε never travels without the status that says what it is worth: see `Guarantee`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

from l2dp.errors import BadInput

Status = Literal["proved", "claimed", "refuted", "none"]
Unit = Literal["record", "user"]
Adjacency = Literal["add-remove", "replace"]


@dataclass(frozen=True)
class Budget:
    """ε and δ for the lifetime of one unit.

    >>> Budget(epsilon=1.0, delta=1e-5)
    Budget(epsilon=1.0, delta=1e-05)
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise BadInput(f"epsilon must be a positive finite number, not {self.epsilon}")
        if not 0 <= self.delta < 1:
            raise BadInput(f"delta must be at least 0 and below 1, not {self.delta}")


@dataclass(frozen=True)
class Guarantee:
    """What is promised, to whom, and with which status.

    `source_overlap` counts the tasks in which one source record appears (1 for disjoint streams);
    `source_epsilon` and `source_delta` are what that makes of ε and δ for the source record; None: not known.
    """

    status: Status
    epsilon: float | None = None
    delta: float | None = None
    unit: Unit = "record"
    adjacency: Adjacency = "add-remove"
    source_overlap: int = 1
    source_epsilon: float | None = None
    source_delta: float | None = None

    def __post_init__(self) -> None:
        if (self.epsilon is None) != (self.status == "none"):
            raise ValueError(f"status {self.status!r} does not go with epsilon {self.epsilon}")

    def over(self, overlap: int) -> Guarantee:
        """The same guarantee on a stream that shows each source record in `overlap` tasks: basic composition.

        For learners that read each task by mechanisms of its own. One that reads records of several tasks together
        has to count the copies together (`Learner.over_source`).

        >>> Guarantee("proved", 0.5, 1e-5).over(20).source_epsilon
        10.0
        """
        if self.epsilon is None or self.delta is None:
            return replace(self, source_overlap=overlap)
        return replace(
            self,
            source_overlap=overlap,
            source_epsilon=self.epsilon * overlap,
            source_delta=min(1.0, self.delta * overlap),
        )

    def after(self, epsilon: float, delta: float) -> Guarantee:
        """The same guarantee where ε and δ were spent on the data before: basic composition adds them up.

        >>> str(Guarantee("proved", 0.5, 1e-5).after(0.25, 0.0))
        'ε=0.75, δ=1e-05 proved'
        """
        if self.epsilon is None or self.delta is None:
            return self
        more = replace(self, epsilon=self.epsilon + epsilon, delta=min(1.0, self.delta + delta))
        if self.source_epsilon is None or self.source_delta is None:
            return more
        copies = self.source_overlap
        return replace(
            more,
            source_epsilon=self.source_epsilon + copies * epsilon,
            source_delta=min(1.0, self.source_delta + copies * delta),
        )

    def times(self, releases: int) -> Guarantee:
        """What holds for several releases about the same data, each with this guarantee: basic composition.

        >>> str(Guarantee("proved", 0.5, 1e-5).times(3))
        'ε=1.5, δ=3e-05 proved'
        """
        if self.epsilon is None or self.delta is None:
            return self
        return replace(
            self,
            epsilon=self.epsilon * releases,
            delta=min(1.0, self.delta * releases),
            source_epsilon=None if self.source_epsilon is None else self.source_epsilon * releases,
            source_delta=None if self.source_delta is None else min(1.0, self.source_delta * releases),
        )

    def unproved(self) -> Guarantee:
        """The same promise about data whose preparation no proof covers: it is only claimed."""
        return replace(self, status="claimed") if self.status == "proved" else self

    def about_the_source(self) -> str | None:
        """What the guarantee means for a source record that appears in several tasks; None: in one only.

        >>> Guarantee("proved", 0.5, 1e-5).over(20).about_the_source()
        'each source record appears in 20 tasks: ε=10, δ=0.0002 proved for the source'
        """
        if self.source_overlap == 1:
            return None
        shown = f"each source record appears in {self.source_overlap} tasks"
        if self.source_epsilon is None or self.source_delta is None:
            return shown
        whole = replace(self, epsilon=self.source_epsilon, delta=self.source_delta)
        return f"{shown}: {whole} for the source"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        """One phrase for tables and logs; never a bare ε.

        >>> str(Guarantee("refuted", 0.5, 0.0))
        'ε=0.5 claimed, refuted'
        """
        if self.epsilon is None:
            return "none (no privacy)"
        delta = f", δ={self.delta:g}" if self.delta else ""
        word = "claimed, refuted" if self.status == "refuted" else self.status
        return f"ε={self.epsilon:g}{delta} {word}"


class Charges(Protocol):
    """What a boundary asks of a ledger, in memory or durable: who cannot pay, and a charge before the read."""

    def exhausted(self, units: Collection[Hashable], cost: Budget) -> list[Hashable]: ...
    def charge(self, units: Collection[Hashable], cost: Budget, what: str) -> None: ...


NO_PRIVACY = Guarantee("none")
