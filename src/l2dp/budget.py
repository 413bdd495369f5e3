"""Types of privacy budgets and guarantees. No arithmetic of composition lives here beyond adding up.

An ε never travels without the status that says what it is worth: see `Guarantee`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

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
    `source_epsilon` and `source_delta` are what basic composition makes of ε and δ for that source record.
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
        """The same guarantee on a stream that shows each source record in `overlap` tasks.

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


NO_PRIVACY = Guarantee("none")
