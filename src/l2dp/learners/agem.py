"""A-GEM (Chaudhry et al., ICLR 2019), noiseless: the paper's upper bound. Protects nobody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from l2dp.learners.finetune import Finetune
from l2dp.learners.learner import Plan, State, Tick
from l2dp.learners.projection import When, project
from l2dp.streams.records import Task


@dataclass
class Agem(Finetune):
    """Gradients that would raise the loss on a mixed batch of the episodic memory are projected."""

    NAME: ClassVar[str] = "agem"
    PARALLEL: ClassVar[bool] = True

    memory_per_task: int = 250
    """Records kept of each task, spread over its classes (A-GEM's own paper: 25 of each of 10)."""
    reference_batch: int = 256
    """Records of the mixed batch behind g_ref, drawn from all past tasks together."""
    projection: When = "conflict"

    def learn(self, task: Task, plan: Plan, tick: Tick = lambda: None) -> None:
        memory = self.boundary.memory
        for batch in self.boundary.batches(task, plan.batch_size, plan.steps, self.generator):
            g = self.gradient(batch)
            if len(memory) > 0:
                g_ref = self.gradient(memory.sample(self.reference_batch, self.generator))
                g = project(g, g_ref, self.projection)
            self.descend(g)
            tick()
        self.boundary.remember(task, self.memory_per_task, self.generator)

    def episode(self, index: int) -> dict[str, Tensor]:
        return self.boundary.memory.episode(index)

    def restore(self, state: State, episodes: Sequence[dict[str, Tensor]], past: Sequence[Task]) -> None:
        super().restore(state, episodes, past)
        for kept in episodes:
            self.boundary.memory.add(**kept)
