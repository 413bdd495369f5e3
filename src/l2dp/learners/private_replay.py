"""private-replay: each task passes the boundary once; what leaves is private, and everything after is free.

Of every task the learner gets noisy class sums, and by configuration a noisy scatter matrix and noisy gradients for a
linear head. From these it finds the task of a new input by itself (no task id at test), and its class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from l2dp.boundary.entry import Protection
from l2dp.boundary.private import PrivateTasks, Releases, Session
from l2dp.budget import Budget, Guarantee, Unit
from l2dp.errors import BadInput
from l2dp.features import Encoder, Projected, RandomLift, build
from l2dp.features.maps import unit
from l2dp.learners.learner import Learner, Plan, Setting, State, Tick
from l2dp.memory import Memory, Metric, Remembered
from l2dp.streams.records import Task

LIFT_FROM = 1000.0
"""Signal over noise of a task from which random features pay: below, their many weights are mostly noise."""
FAR = 1000.0
"""Log-probability by which labels of other tasks than the one found stay behind."""


@dataclass
class PrivateReplay(Learner):
    """Private class sums and heads of every task, found and replayed for ever at no further cost."""

    NAME: ClassVar[str] = "private-replay"
    DELTA: ClassVar[float] = 1e-5
    """Taken when only ε is given; δ = 0 asks for pure ε."""

    budget: Budget = field(default_factory=lambda: Budget(1.0, 1e-5))
    features: str = "pixels"
    """The fixed public feature map; see `l2dp.features`."""
    project: int | None = None
    """Dimensions of a random projection of the features; None: all of them."""
    scatter_share: float = 0.0
    """Parts of a task's budget: the class sums get what scatter and head leave. With δ = 0 they get all."""
    head_share: float = 0.9
    count_weight: float = 0.3
    residual_clip: float = 0.5
    ridge: float = 0.25
    """How far the noise raises the eigenvalues of the pooled scatter."""
    lift: int | None = 2000
    """Random features of a head, where the task is large enough for its budget; None: never."""
    steps: int = 50
    sampling_rate: float = 0.1
    gradient_clip: float = 0.5
    momentum: float = 0.8
    rate: float = 0.36
    """The learning rate of a head is this times the root of the task's signal over noise."""
    protects: Unit = "record"
    per_user: int = 1
    per_task_epsilon: float | None = None
    """What one task costs a user who may come back; None: the whole lifetime budget."""
    exhausted: Literal["refuse", "drop"] = "refuse"

    def begin(self, setting: Setting) -> None:
        self.setting = setting
        pure = self.budget.delta == 0
        scatter, head = (0.0, 0.0) if pure else (self.scatter_share, self.head_share)
        per_task = None
        if self.per_task_epsilon is not None:
            part = self.per_task_epsilon / self.budget.epsilon
            if not 0 < part <= 1:
                raise BadInput(f"per_task_epsilon {self.per_task_epsilon} exceeds the budget's {self.budget.epsilon}")
            per_task = Budget(self.per_task_epsilon, self.budget.delta * part)
        feature_map = build(self.features, setting.space.shape)
        self.encoder = Encoder(Projected(feature_map, self.project) if self.project else feature_map)
        self.boundary = PrivateTasks(
            setting.space,
            Protection(self.budget, self.protects, per_task, self.per_user, self.exhausted),
            Releases(
                scatter,
                head,
                self.count_weight,
                self.residual_clip,
                self.gradient_clip,
                self.sampling_rate,
                self.steps,
            ),
            setting.seed,
            setting.noise,
            setting.device,
        )
        self._has_head, self._has_scatter = head > 0, scatter > 0
        self.memory = Memory(self.encoder.width, Metric(self.encoder.width, self.ridge) if self._has_scatter else None)
        self._lift: RandomLift | None = None

    def learn(self, task: Task, plan: Plan, tick: Tick = lambda: None) -> None:
        session = self.boundary.open(task, len(self.memory.tasks))
        released = session.class_sums(self.encoder, self.encoder.width)
        known = Remembered(
            torch.tensor(task.classes),
            released.sums,
            released.counts,
            released.deviation,
            released.count_deviation,
            session.declared_size,
        )
        if self.memory.metric is not None:
            scatter = session.scatter(self.encoder, known.means())
            self.memory.metric.add(scatter.matrix, scatter.deviation, session.declared_size)
        if self._has_head:
            known = replace(known, head=self._fit(session, known.centre(), tick))
        self.memory.add(known)
        for _ in range(plan.steps - (self.steps if self._has_head else 0)):
            tick()

    def _head_features(self, features: Tensor, centre: Tensor, lifted: bool) -> Tensor:
        """Features around their task's centre at norm 1, lifted to random ones if asked for."""
        rows = features - centre.to(features.device)
        if not lifted or self.lift is None:
            return unit(rows)
        if self._lift is None:
            self._lift = RandomLift(self.encoder.width, self.lift)
        return self._lift(rows)

    def _fit(self, session: Session, centre: Tensor, tick: Tick) -> Tensor:
        """Gradient descent on noisy gradients with momentum; the average of the second half of the iterates."""
        lifted = self.lift is not None and session.strength >= LIFT_FROM
        gradient = session.head(lambda x: self._head_features(self.encoder(x), centre, lifted))
        width = self.lift if lifted and self.lift is not None else self.encoder.width
        weight = torch.zeros(width, len(session.classes), device=self.setting.device)
        speed, total = torch.zeros_like(weight), torch.zeros_like(weight)
        step = self.rate * math.sqrt(session.strength)
        for index in range(self.steps):
            speed = self.momentum * speed + gradient(weight)
            weight = weight - step * speed
            if index >= self.steps // 2:
                total += weight
            tick()
        return (total / (self.steps - self.steps // 2)).cpu()

    @torch.no_grad()
    def scores(self, x: Tensor) -> Tensor:
        """Scores of all labels: the head of the task found, and far below them the nearness of each label's sums."""
        features = self.encoder(x)
        owners, near = self.memory.nearest(features, self.setting.space.classes)
        if not self._has_head:
            return near
        # A label outside the task that was found stays behind all labels inside it, in the order of nearness.
        scores = torch.log_softmax(near, dim=1) - FAR
        for index in owners.unique().tolist():
            task = self.memory.tasks[index]
            rows = (owners == index).nonzero().flatten()
            assert task.head is not None
            lifted = len(task.head) != self.encoder.width
            inside = self._head_features(features[rows], self.memory.centres[index], lifted) @ task.head.to(x.device)
            scores[rows.unsqueeze(1), task.classes.to(x.device)] = torch.log_softmax(inside, dim=1)
        return scores

    @property
    def guarantee(self) -> Guarantee:
        return self.boundary.guarantee

    def facts(self) -> dict[str, Any]:
        return {"privacy": self.boundary.description()}

    # --- state ----------------------------------------------------------------------------------------

    def release(self) -> dict[str, Tensor]:
        kept = {
            f"task-{index}.{name}": tensor.clone()
            for index, task in enumerate(self.memory.tasks)
            for name, tensor in task.tensors().items()
        }
        metric = self.memory.metric
        return kept if metric is None or metric.total == 0 else {**kept, "precision": metric.precision().clone()}

    def state(self) -> State:
        metric = self.memory.metric
        if metric is None:
            return State({}, {"tasks": len(self.memory.tasks)})
        return State(
            {"scatter": metric.scatter.clone()},
            {"tasks": len(self.memory.tasks), "total": metric.total, "variance": metric.variance},
        )

    def episode(self, index: int) -> dict[str, Tensor]:
        return self.memory.tasks[index].tensors()

    def restore(self, state: State, episodes: Sequence[dict[str, Tensor]], past: Sequence[Task]) -> None:
        for kept in episodes:
            self.memory.add(Remembered.from_tensors(kept))
        for task in past:
            self.boundary.recharge(task)
        metric = self.memory.metric
        if metric is not None:
            metric.scatter = state.tensors["scatter"].clone()
            metric.total, metric.variance = state.meta["total"], state.meta["variance"]
