"""The ceiling: waits for all tasks and trains on all of them at once, protects nobody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from l2dp.learners.finetune import Finetune
from l2dp.learners.learner import Plan, Setting, State, Tick
from l2dp.streams.records import Task


@dataclass
class Joint(Finetune):
    """Collects tasks; `settle` trains a fresh network on their union, for as many steps as they add up to."""

    NAME: ClassVar[str] = "joint"
    PARALLEL: ClassVar[bool] = True
    EVERY_TASK: ClassVar[bool] = False

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        self.tasks: list[Task] = []
        self.steps, self.batch_size = 0, 0
        self.settled = True

    def learn(self, task: Task, plan: Plan, tick: Tick = lambda: None) -> None:
        self.boundary.check(task)
        self.tasks.append(task)
        self.steps += plan.steps
        self.batch_size = plan.batch_size
        self.settled = False

    def settle(self, tick: Tick = lambda: None) -> None:
        if self.settled:
            return
        super().begin(self.setting)
        for batch in self.boundary.mixed_batches(self.tasks, self.batch_size, self.steps, self.generator):
            self.descend(self.gradient(batch))
            tick()
        self.settled = True

    def state(self) -> State:
        state = super().state()
        state.meta |= {"steps": self.steps, "batch_size": self.batch_size, "settled": self.settled}
        return state

    def restore(self, state: State, episodes: Sequence[dict[str, Tensor]], past: Sequence[Task]) -> None:
        super().restore(state, episodes, past)
        for task in past:
            self.boundary.check(task)
        self.tasks = list(past)
        self.steps, self.batch_size = state.meta["steps"], state.meta["batch_size"]
        self.settled = state.meta["settled"]
