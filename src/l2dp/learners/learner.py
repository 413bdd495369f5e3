"""What every learner is: old state + new task → new state.

A learner is a dataclass whose fields are its public configuration. It never opens sealed records, never draws
privacy noise and never does accounting: its boundary does. docs/add-a-learner.md walks through a whole one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from l2dp.budget import Charges, Guarantee
from l2dp.errors import BadInput
from l2dp.noise import Noise, SystemNoise
from l2dp.streams.records import Space, Task


@dataclass(frozen=True)
class Setting:
    """What is declared before the first task. `batch_size` is the largest that any task will be given."""

    space: Space
    batch_size: int
    seed: int = 0
    masked: bool = False
    """Whether scores are restricted to each task's own labels (the `task` protocol)."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    noise: Noise = field(default_factory=SystemNoise)
    ledger: Charges | None = None
    """Who books the charges; None: the boundary, in memory."""
    learns: bool = True
    """False: the learner is asked for scores and releases only, and needs no boundary."""


@dataclass(frozen=True)
class Plan:
    """How long one task is trained, and in which portions."""

    steps: int
    batch_size: int


@dataclass
class State:
    """A learner between two tasks: tensors, and JSON for the rest."""

    tensors: dict[str, Tensor]
    meta: dict[str, Any] = field(default_factory=dict)


Tick = Callable[[], None]


@dataclass
class Learner(ABC):
    """The contract; `l2dp.conformance.check_learner` tests it on any learner.

    Methods are called in this order: `begin` once, then `learn` for each task, `settle` before anybody looks
    at the scores. `state` and `episode` after a task, given to `restore` of a fresh learner that has begun
    with the same setting, must continue exactly as if nothing had happened.
    """

    NAME: ClassVar[str]
    EVERY_TASK: ClassVar[bool] = True
    """Whether scores after each task mean something; a learner of all tasks at once is tested at the end."""

    PARALLEL: ClassVar[bool] = False
    """Whether several processes may share one run (`l2dp.parallel`); each class says so for itself."""

    KEEPS_RECORDS: ClassVar[bool] = True
    """Whether records of past tasks are read again. A home holds no records: it takes learners that need none."""

    @abstractmethod
    def begin(self, setting: Setting) -> None:
        """Prepares for a stream of tasks in the declared space."""

    @abstractmethod
    def learn(self, task: Task, plan: Plan, tick: Tick = lambda: None) -> None:
        """Learns one more task; calls `tick` after every step."""

    def effort(self, task: Task, plan: Plan) -> tuple[int, int]:
        """How many times `learn` will tick for a task, and how many examples it will have learned from."""
        return plan.steps, plan.steps * plan.batch_size

    @abstractmethod
    def scores(self, x: Tensor) -> Tensor:
        """Class scores, the way the method is tested."""

    def released_scores(self, x: Tensor) -> Tensor:
        """Class scores from the release alone. Differs from `scores` only where testing needs secrets."""
        return self.scores(x)

    def settle(self, tick: Tick = lambda: None) -> None:  # noqa: B027 (nothing to do is the common case)
        """Finishes what learning left open, calling `tick` after every step. Most learners have nothing to do."""

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """What is promised for one record of one task, with its status."""

    def over_source(self, overlap: int) -> Guarantee:
        """The guarantee, and what it means for a source record that is in so many tasks.

        Guarantee
        ---------
        Basic composition over tasks, which is right where each task is read by mechanisms of its own.
        """
        return self.guarantee.over(overlap)

    @abstractmethod
    def release(self) -> dict[str, Tensor]:
        """The parameters that are published. Never a record, a noise draw or raw memory."""

    def load(self, setting: Setting, released: dict[str, Tensor]) -> None:
        """Takes up what `release` gave, in place of `begin`: from then on `scores` answers, and nothing is learned."""
        raise BadInput(f"{self.NAME} cannot predict from a release alone; choose another learner")

    @abstractmethod
    def state(self) -> State:
        """Everything but the memory; its size must not grow with the number of tasks."""

    def episode(self, index: int) -> dict[str, Tensor]:
        """What is kept of the task at `index`, written once and never changed. Empty: nothing."""
        return {}

    @abstractmethod
    def restore(self, state: State, episodes: Sequence[dict[str, Tensor]], past: Sequence[Task]) -> None:
        """Continues from a saved state, its episodes, and the (sealed) tasks already learned."""

    def config(self) -> dict[str, Any]:
        """The configuration as JSON."""
        return {f.name: plain(getattr(self, f.name)) for f in fields(self) if f.init}

    def facts(self) -> dict[str, Any]:
        """What a reader of the result should know beyond the configuration."""
        return {}


def plain(value: Any) -> Any:
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    return getattr(value, "__qualname__", repr(value))
