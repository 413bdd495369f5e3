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
from l2dp.learners.student import Course, Student
from l2dp.memory import Memory, Metric, Remembered, main_directions
from l2dp.streams.records import Task

LIFT_FROM = 2000.0
"""Signal over noise of a task from which random features pay: below, their many weights are mostly noise."""
SHARES = {"experts": (0.0, 0.9), "fixed": (0.3, 0.6)}
FAR = 1000.0
"""Log-probability by which labels of other tasks than the one found stay behind."""


@dataclass
class PrivateReplay(Learner):
    """Private class sums and heads of every task, found and replayed for ever at no further cost."""

    NAME: ClassVar[str] = "private-replay"
    PARALLEL: ClassVar[bool] = True
    KEEPS_RECORDS: ClassVar[bool] = False
    DELTA: ClassVar[float] = 1e-5
    """Taken when only ε is given; δ = 0 asks for pure ε."""

    budget: Budget = field(default_factory=lambda: Budget(1.0, 1e-5))
    features: str = "pixels"
    """The fixed public feature map; see `l2dp.features`."""
    project: int | None = None
    """Dimensions of a random projection of the features; None: all of them."""
    head: Literal["experts", "fixed"] = "experts"
    """One small head a task with routing between them, or one network whose size never grows."""
    scatter_share: float | None = None
    """Parts of a task's budget: the class sums get what scatter and head leave. With δ = 0 they get all.

    None: 0 and 0.9 for experts, which need the sums only to find the task; 0.3 and 0.6 for a network of fixed
    size, which also needs samples that look like the task."""
    head_share: float | None = None
    count_weight: float = Releases.count_weight
    residual_clip: float = Releases.residual_clip
    ridge: float = 0.25
    """How far the noise raises the eigenvalues of the pooled scatter."""
    lift: int | None = 2000
    """Random features of a head, where the task is large enough for its budget; None: never."""
    steps: int = Releases.steps
    sample_size: int = Releases.sample_size
    """Records that one noisy gradient is expected to sample; a task declared smaller is sampled whole."""
    gradient_clip: float = Releases.gradient_clip
    momentum: float = 0.8
    rate: float = 0.3
    """The learning rate of a head is this times √s, with s the task's signal over noise: the less noise, the faster.
    Twice that for random features, which vary less."""
    width: int = Course.width
    """Of the two hidden layers of a network of fixed size."""
    replay_steps: int = Course.steps
    """Of the network of fixed size, after every task, on samples of all tasks."""
    replay_batch: int = Course.batch
    replay_lr: float = Course.lr
    projection: Literal["none", "conflict", "always"] = "none"
    """Whether a step of the network of fixed size is projected as in A-GEM."""
    protects: Unit = "record"
    per_user: int = 1
    per_task_epsilon: float | None = None
    """What one task costs a user who may come back; None: the whole lifetime budget."""
    exhausted: Literal["refuse", "drop"] = "refuse"

    def begin(self, setting: Setting) -> None:
        self._prepare(setting)
        if setting.learns:
            self.boundary = self._boundary(setting)

    def _boundary(self, setting: Setting) -> PrivateTasks:
        per_task = None
        if self.per_task_epsilon is not None:
            part = self.per_task_epsilon / self.budget.epsilon
            if not 0 < part <= 1:
                raise BadInput(f"per_task_epsilon {self.per_task_epsilon} exceeds the budget's {self.budget.epsilon}")
            per_task = Budget(self.per_task_epsilon, self.budget.delta * part)
        scatter, head = self._shares()
        return PrivateTasks(
            setting.space,
            Protection(self.budget, self.protects, per_task, self.per_user, self.exhausted),
            Releases(
                scatter,
                head,
                self.count_weight,
                self.residual_clip,
                self.gradient_clip,
                self.sample_size,
                self.steps,
            ),
            setting.noise,
            setting.device,
            setting.ledger,
        )

    def _shares(self) -> tuple[float, float]:
        """Of scatter and head."""
        if self.budget.delta == 0:
            return 0.0, 0.0
        scatter, head = SHARES[self.head]
        return (
            scatter if self.scatter_share is None else self.scatter_share,
            head if self.head_share is None else self.head_share,
        )

    def _prepare(self, setting: Setting) -> None:
        """All that prediction needs: no boundary."""
        self.setting = setting
        scatter, head = self._shares()
        feature_map = build(self.features, setting.space.shape)
        self.encoder = Encoder(Projected(feature_map, self.project) if self.project else feature_map)
        self._has_head, self._has_scatter = head > 0, scatter > 0
        pooled = self._has_scatter and self.head == "experts"
        self.memory = Memory(self.encoder.width, Metric(self.encoder.width, self.ridge) if pooled else None)
        self.student: Student | None = None
        if self.head == "fixed":
            course = Course(
                self.width,
                self.replay_steps,
                self.replay_batch,
                self.replay_lr,
                None if self.projection == "none" else self.projection,
            )
            self.student = Student(self.encoder.width, setting.space.classes, course, setting.seed, setting.device)
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
        if self._has_scatter:
            scatter = session.scatter(self.encoder, known.means())
            if self.memory.metric is not None:
                self.memory.metric.add(scatter.matrix, scatter.deviation, session.declared_size)
            else:
                spread = main_directions(scatter.matrix, scatter.deviation, session.declared_size)
                known = replace(known, spread=spread)
        if self._has_head:
            lifted = self.lift is not None and session.strength >= LIFT_FROM
            known = replace(known, head=self._fit(session, known.centre(), lifted, tick), lifted=lifted)
        self.memory.add(known)
        if self.student is not None:
            self.student.train(self.memory, self._teach, tick)

    def effort(self, task: Task, plan: Plan) -> tuple[int, int]:
        """Steps of its own, whatever the schedule says; every record is learned from once."""
        steps = (self.steps if self._has_head else 0) + (self.replay_steps if self.student is not None else 0)
        return steps, task.train.declared_size

    def _head_features(self, features: Tensor, centre: Tensor, lifted: bool) -> Tensor:
        """Features around their task's centre at norm 1, lifted to random ones if asked for."""
        rows = features - centre.to(features.device)
        if not lifted or self.lift is None:
            return unit(rows)
        if self._lift is None:
            self._lift = RandomLift(self.encoder.width, self.lift)
        return self._lift(rows)

    def _inside(self, task: int, features: Tensor) -> Tensor:
        """What the head of a task says of features, for the task's own classes."""
        known = self.memory.tasks[task]
        assert known.head is not None
        rows = self._head_features(features, self.memory.centres[task], known.lifted)
        return rows @ known.head.to(rows.device)

    def _fit(self, session: Session, centre: Tensor, lifted: bool, tick: Tick) -> Tensor:
        """Gradient descent on noisy gradients with momentum; the average of the second half of the iterates."""
        gradient = session.head(lambda x: self._head_features(self.encoder(x), centre, lifted))
        width = self.lift if lifted and self.lift is not None else self.encoder.width
        weight = torch.zeros(width, len(session.classes), device=self.setting.device)
        speed, total = torch.zeros_like(weight), torch.zeros_like(weight)
        step = self.rate * math.sqrt(session.strength) * (2 if lifted else 1)
        for index in range(self.steps):
            speed = self.momentum * speed + gradient(weight)
            weight = weight - step * speed
            if index >= self.steps // 2:
                total += weight
            tick()
        return (total / (self.steps - self.steps // 2)).cpu()

    @torch.no_grad()
    def _teach(self, task: int, features: Tensor, own: Tensor) -> Tensor:
        """The probabilities of all labels for samples of a task: its own head's, or the class they were drawn from."""
        known = self.memory.tasks[task]
        taught = torch.zeros(len(features), self.setting.space.classes, device=features.device)
        if known.head is None:
            inside = torch.nn.functional.one_hot(own, len(known.classes)).to(taught)
        else:
            inside = torch.softmax(self._inside(task, features), dim=1)
        taught[:, known.classes.to(features.device)] = inside.to(features.device)
        return taught

    @torch.no_grad()
    def scores(self, x: Tensor) -> Tensor:
        """Scores of all labels: the head of the task found, and far below them the nearness of each label's sums."""
        features = self.encoder(x)
        if self.student is not None:
            return self.student.scores(features)
        owners, near = self.memory.nearest(features, self.setting.space.classes)
        if not self._has_head:
            return near
        # A label outside the task that was found stays behind all labels inside it, in the order of nearness.
        scores = torch.log_softmax(near, dim=1) - FAR
        for index in owners.unique().tolist():
            rows = (owners == index).nonzero().flatten()
            classes = self.memory.tasks[index].classes.to(x.device)
            scores[rows.unsqueeze(1), classes] = torch.log_softmax(self._inside(index, features[rows]), dim=1)
        return scores

    @property
    def guarantee(self) -> Guarantee:
        return self.boundary.guarantee

    def facts(self) -> dict[str, Any]:
        return {"privacy": self.boundary.description()}

    # --- state ----------------------------------------------------------------------------------------

    def release(self) -> dict[str, Tensor]:
        if self.student is not None:
            return self.student.tensors()
        kept = {
            f"task-{index}.{name}": tensor.clone()
            for index, task in enumerate(self.memory.tasks)
            for name, tensor in task.tensors().items()
        }
        metric = self.memory.metric
        return kept if metric is None or metric.total == 0 else {**kept, "precision": metric.precision().clone()}

    def load(self, setting: Setting, released: dict[str, Tensor]) -> None:
        self._prepare(setting)
        if self.student is not None:
            self.student.load(released)
            return
        parts: dict[int, dict[str, Tensor]] = {}
        for name, tensor in released.items():
            if name != "precision":
                task, _, part = name.removeprefix("task-").partition(".")
                parts.setdefault(int(task), {})[part] = tensor
        for index in sorted(parts):
            self.memory.add(Remembered.from_tensors(parts[index]))
        if self.memory.metric is not None and "precision" in released:
            self.memory.metric.load(released["precision"])

    def state(self) -> State:
        if self.student is not None:
            tensors = {f"student.{name}": tensor for name, tensor in self.student.tensors().items()}
            tensors["generator"] = self.student.generator.get_state()
            return State(tensors)
        metric = self.memory.metric
        if metric is None:
            return State({})
        return State(
            {"scatter": metric.scatter.clone()},
            {"total": metric.total, "variance": metric.variance},
        )

    def episode(self, index: int) -> dict[str, Tensor]:
        return self.memory.tasks[index].tensors()

    def restore(self, state: State, episodes: Sequence[dict[str, Tensor]], past: Sequence[Task]) -> None:
        for kept in episodes:
            self.memory.add(Remembered.from_tensors(kept))
        for task in past:
            self.boundary.recharge(task)
        if self.student is not None:
            saved = {name.removeprefix("student."): t for name, t in state.tensors.items() if name != "generator"}
            self.student.restore(saved, state.tensors["generator"])
        metric = self.memory.metric
        if metric is not None:
            metric.scatter = state.tensors["scatter"].clone()
            metric.total, metric.variance = state.meta["total"], state.meta["variance"]
