"""The floor: trains on each task as it comes, keeps nothing, protects nobody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from l2dp.boundary import Unprotected
from l2dp.budget import Guarantee
from l2dp.learners.gradient import GradientLearner
from l2dp.learners.learner import Plan, Setting, Tick
from l2dp.streams.records import Task


@dataclass
class Finetune(GradientLearner):
    """Plain training, one task after the other."""

    NAME: ClassVar[str] = "finetune"
    PARALLEL: ClassVar[bool] = True

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        self.boundary = Unprotected(setting.space, setting.device, setting.masked)

    def learn(self, task: Task, plan: Plan, tick: Tick = lambda: None) -> None:
        for batch in self.boundary.batches(task, plan.batch_size, plan.steps, self.generator):
            self.descend(self.gradient(batch))
            tick()

    @property
    def guarantee(self) -> Guarantee:
        return self.boundary.guarantee
