"""A network of fixed size that learns for ever from samples of what is remembered: no record, no cost.

For every task the private memory is a small generative model (a Gaussian around each class mean) and a teacher (the
task's private head, or the class itself). The student sees samples of all tasks, so that it forgets none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l2dp.learners.learner import Tick
from l2dp.learners.projection import When, project
from l2dp.memory import Memory

Teacher = Callable[[int, Tensor, Tensor], Tensor]
"""Task, features and their classes' positions → the probability of every label."""

TASKS_AT_ONCE = 10
"""Tasks whose samples make one batch: drawn at random, so that a step costs the same at any length of the stream."""


@dataclass(frozen=True)
class Course:
    """How a student is trained after each task. Public configuration."""

    width: int = 512
    steps: int = 300
    batch: int = 500
    lr: float = 1e-3
    projection: When | None = None
    """A-GEM: a step on the new task's samples, projected against those of the others. None: all tasks in one batch."""


class Student:
    """784-512-512-10, say, on features; its size depends on nothing that happens later."""

    def __init__(self, inputs: int, classes: int, course: Course, seed: int, device: torch.device) -> None:
        self.course = course
        self.device = device
        self.generator = torch.Generator().manual_seed(seed)
        self.scale = math.sqrt(inputs) / 3
        """Features have norm 1; a network likes values near 1."""
        sizes = (inputs, course.width, course.width, classes)
        layers: list[nn.Module] = []
        for before, after in pairwise(sizes):
            layer = nn.utils.skip_init(nn.Linear, before, after)
            bound = 1 / math.sqrt(before)
            with torch.no_grad():
                for parameter in layer.parameters():
                    parameter.uniform_(-bound, bound, generator=self.generator)
            layers += [layer, nn.ReLU()]
        self.network = nn.Sequential(*layers[:-1]).to(device)
        self._parameters = list(self.network.parameters())

    def scores(self, features: Tensor) -> Tensor:
        scores: Tensor = self.network(features * self.scale)
        return scores

    def train(self, memory: Memory, teacher: Teacher, tick: Tick) -> None:
        """One course over everything remembered; the newest task is in every batch."""
        course = self.course
        moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in self._parameters]
        for step in range(course.steps):
            newest = len(memory.tasks) - 1
            past = torch.randperm(newest, generator=self.generator)[: TASKS_AT_ONCE - 1].tolist()
            if course.projection is None or not past:
                g = self._gradient(memory, [newest, *past], teacher)
            else:
                g = project(
                    self._gradient(memory, [newest], teacher),
                    self._gradient(memory, past, teacher),
                    course.projection,
                )
            self._adam(g, moments, step)
            tick()

    def _gradient(self, memory: Memory, tasks: list[int], teacher: Teacher) -> tuple[Tensor, ...]:
        drawn = [memory.sample(task, self.course.batch // len(tasks), self.generator) for task in tasks]
        features = torch.cat([rows for rows, _ in drawn]).to(self.device)
        labels = torch.cat(
            [teacher(task, rows.to(self.device), own) for task, (rows, own) in zip(tasks, drawn, strict=True)]
        )
        loss = F.cross_entropy(self.scores(features), labels)
        return torch.autograd.grad(loss, self._parameters)

    @torch.no_grad()
    def _adam(self, g: tuple[Tensor, ...], moments: list[tuple[Tensor, Tensor]], step: int) -> None:
        """Adam with a rate that falls to zero along a cosine, started anew for every task."""
        rate = self.course.lr * (1 + math.cos(math.pi * step / self.course.steps)) / 2
        for p, slope, (mean, square) in zip(self._parameters, g, moments, strict=True):
            mean.mul_(0.9).add_(slope, alpha=0.1)
            square.mul_(0.999).addcmul_(slope, slope, value=0.001)
            spread = (square / (1 - 0.999 ** (step + 1))).sqrt_().add_(1e-8)
            p.addcdiv_(mean, spread, value=-rate / (1 - 0.9 ** (step + 1)))

    def tensors(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.network.state_dict().items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.network.load_state_dict(tensors)

    def restore(self, tensors: dict[str, Tensor], generator: Tensor) -> None:
        self.load(tensors)
        self.generator.set_state(generator)
