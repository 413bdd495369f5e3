"""NaiveGaussian, the paper's private baseline, done honestly: DP-SGD on g and on g_ref, projected as in A-GEM.

The paper's words: g is the gradient on the current task, g_ref that on the *episodic memory*, C the clipping bound, z
the noise scale. What each record pays, in its own task and in every replay, is the boundary's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from torch import Tensor

from l2dp.boundary.private_memory import PrivateMemory, Replay
from l2dp.budget import Budget, Guarantee
from l2dp.errors import BadInput
from l2dp.learners.gradient import GradientLearner
from l2dp.learners.learner import Plan, Setting, State, Tick
from l2dp.learners.projection import When, project
from l2dp.models import Normalisation
from l2dp.policies import Adaptive, Geometric, Policy, Uniform
from l2dp.streams.records import Task


@dataclass
class NaiveGaussian(GradientLearner):
    """Noisy gradients all along: every step on a task and every replay of its records spends their budget."""

    NAME: ClassVar[str] = "naive-gaussian"
    PARALLEL: ClassVar[bool] = True
    DELTA: ClassVar[float] = 1e-5

    normalisation: Normalisation = "group"
    budget: Budget = field(default_factory=lambda: Budget(1.0, 1e-5))
    """For the lifetime of a record: its own task and all replays of it."""
    clip: float = 1.0
    noise_scale: float | None = None
    """z; None: the least noise with which the planned steps and replays fit the budget."""
    steps: int | None = None
    """Of each attempt at a task; None: as many as the epochs and the batch size make."""
    policy: Literal["uniform", "geometric", "adaptive"] = "uniform"
    """How a record's budget is spread: evenly over `horizon` tasks; ever less with each task; or the latter, and on its
    own task no more than it takes to reach `target`."""
    horizon: int = 20
    """Tasks over which a uniform policy spreads a record's budget; later it is retired from the memory."""
    own_share: float = 0.5
    """Of a record's budget, for its own task; replays get the rest."""
    target: float = 0.8
    """Of an adaptive policy: the accuracy on held-out records at which a task counts as learned."""
    attempts: int = 4
    """Of an adaptive policy: how often a task is trained at most, each time with twice the budget."""
    held_out: float = 0.1
    """Of an adaptive policy: the part of a task's records that is only scored."""
    memory_per_task: int = 250
    """Records that are expected to be kept of each task; each is kept by a coin of its own."""
    reference_batch: int = 256
    """Records of the memory that g_ref is expected to sample."""
    projection: When = "conflict"

    def begin(self, setting: Setting) -> None:
        if self.normalisation in ("channel", "neuron"):
            raise BadInput(
                "naive-gaussian clips every example's gradient, which batch normalisation would mix; "
                "use -o normalisation=group"
            )
        super().begin(setting)
        self.boundary = PrivateMemory(
            setting.space,
            self.network,
            Replay(self.clip, self.memory_per_task, self.reference_batch, self.noise_scale),
            self.budget,
            self._policy(),
            setting.noise,
            setting.device,
            setting.masked,
        )

    def _policy(self) -> Policy:
        if self.policy == "uniform":
            return Uniform(self.horizon, self.own_share)
        if self.policy == "geometric":
            return Geometric(1 - self.own_share)
        return Adaptive(1 - self.own_share, self.target, self.attempts, self.held_out)

    def learn(self, task: Task, plan: Plan, tick: Tick = lambda: None) -> None:
        planned = self._planned(plan)
        course = self.boundary.open(task, planned, plan.batch_size)
        before, left = self.state(), self.effort(task, plan)[0]
        while True:
            for _ in range(course.steps):
                g: Sequence[Tensor] = course.gradient()
                g_ref = course.reference()
                if g_ref is not None:
                    g = project(g, g_ref, self.projection)
                self.descend(g)
                tick()
            left -= course.steps
            if not course.again():
                break
            super().restore(before, (), ())
        course.end()
        for _ in range(left):  # attempts that were not needed
            tick()

    def _planned(self, plan: Plan) -> int:
        return plan.steps if self.steps is None else self.steps

    def effort(self, task: Task, plan: Plan) -> tuple[int, int]:
        """The steps that the task's share pays for, of all attempts that it may take."""
        steps = self.boundary.most_steps(task.train.declared_size, self._planned(plan), plan.batch_size)
        taken = self.boundary.steps_of(task.name)
        return steps, (steps if taken is None else taken) * plan.batch_size

    @property
    def guarantee(self) -> Guarantee:
        return self.boundary.guarantee

    def over_source(self, overlap: int) -> Guarantee:
        """The guarantee; copies of a source in several tasks are counted together, as they are read together."""
        stated = self.guarantee.over(overlap)
        if overlap == 1 or stated.epsilon is None:
            return stated
        found = self.boundary.for_source(overlap)
        if found is None:
            return replace(stated, source_epsilon=None, source_delta=None)
        return replace(stated, source_epsilon=found.epsilon, source_delta=found.delta)

    def episode(self, index: int) -> dict[str, Tensor]:
        return self.boundary.episode(index)

    def restore(self, state: State, episodes: Sequence[dict[str, Tensor]], past: Sequence[Task]) -> None:
        super().restore(state, episodes, past)
        self.boundary.restore(episodes, past)

    def config(self) -> dict[str, Any]:
        return {**super().config(), "budget": {"epsilon": self.budget.epsilon, "delta": self.budget.delta}}

    def facts(self) -> dict[str, Any]:
        return {"accounting": self.boundary.description()}
