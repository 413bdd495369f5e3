"""What is audited: a configured learner and the guarantee that it states. Made anew from words in every process."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from l2dp.budget import Guarantee
from l2dp.learners import Learner, find
from l2dp.learners.options import configure

Options = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Target:
    """A learner by name with options in words. `variant` says which of its settings this is, for the table."""

    learner: str
    epsilon: float | None = None
    delta: float | None = None
    options: Options = ()
    variant: str = ""
    same_boundary: bool = False
    """Whether another target of the audit passes the same boundary; attacks on the boundary are then made there."""

    @property
    def cls(self) -> type[Learner]:
        return find(self.learner)

    def make(self, **extra: Any) -> Learner:
        """A fresh learner; `extra` sets fields that have no word, such as a network for an attack."""
        made = configure(self.cls, {}, dict(self.options), self.epsilon, self.delta)
        return replace(made, **extra) if extra else made

    def having(self, variant: str = "", delta: float | None = None, **options: object) -> Target:
        """The same learner with some options changed."""
        changed = dict(self.options) | {name: word(value) for name, value in options.items()}
        kept = tuple(sorted(changed.items()))
        return replace(self, options=kept, variant=variant, delta=self.delta if delta is None else delta)

    def option(self, name: str) -> Any:
        """The value of one option, given or by default."""
        return getattr(self.make(), name)

    def to_json(self) -> dict[str, Any]:
        """What was audited: enough to tell two audits apart."""
        budget = self.option("budget") if self.has("budget") else None
        return {
            "learner": self.learner,
            "variant": self.variant,
            "epsilon": None if budget is None else budget.epsilon,
            "delta": None if budget is None else budget.delta,
            "options": dict(self.options),
        }

    def has(self, name: str) -> bool:
        return any(field.name == name for field in fields(self.cls))


def word(value: object) -> str:
    """A value as it is written on the command line."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return repr(value) if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Stated:
    """The guarantee that is attacked: numbers, whose, and what it is worth so far."""

    epsilon: float
    delta: float
    guarantee: Guarantee

    @staticmethod
    def of(guarantee: Guarantee) -> Stated | None:
        """None: nothing is promised, so there is nothing to attack."""
        if guarantee.epsilon is None:
            return None
        return Stated(guarantee.epsilon, guarantee.delta or 0.0, guarantee)
