"""Gradient canaries: examples whose gradients point in directions of their own, in everything that a task releases."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from l2dp.audit.attack import Attack, Level, only_naive, only_replay
from l2dp.audit.canaries import boundary, longer, rows_each, task, tossed
from l2dp.audit.decisions import Trials
from l2dp.audit.target import Target
from l2dp.learners import PrivateReplay
from l2dp.models import Flat, Network
from l2dp.streams.records import Space

CANARIES = 400
"""In one task. A user's gradient is held whole, so more in a task cost more each; fewer cost more tasks."""
WRONG = 40.0
"""Scores by which a canary is predicted to be of the other class: its gradient is as long as gradients get."""


class GradientCanaries(Attack):
    """All answers about one task of private-replay: class sums, the scatter where there is one, and noisy gradients.

    Canary i has feature i alone, and at the weights that the attacker asks for it is predicted wrongly for sure. Its
    gradient lies in row i of every noisy gradient, its square in entry (i, i) of the scatter. The score weighs all of
    them together by a likelihood ratio that is fitted on the first half: it tests the composition and not its parts.
    """

    NAME: ClassVar[str] = "gradient canaries"
    THREAT: ClassVar[str] = "everything that a task releases; its noisy gradients at weights of the attacker's choice"
    RUNS: ClassVar[dict[Level, int]] = {"quick": 50_000, "thorough": 60_000}

    def refusal(self, target: Target) -> str | None:
        if not issubclass(target.cls, PrivateReplay):
            return only_replay(target)  # of heads of all kinds: their shares of the budget differ
        budget, head = target.option("budget"), target.option("head_share")
        return "this setting releases no gradients" if budget.delta == 0 or head == 0 else None

    def trials(self, target: Target, runs: int, rng: np.random.Generator) -> dict[str, Trials]:
        allowed, brought = rows_each(target)
        steps = int(target.option("steps"))
        count = min(CANARIES, runs)
        door = boundary(target, Space((count,), ("0", "1")))
        scatters = door.noise_for(count * allowed)[0].scatter is not None
        weight = torch.tensor([-WRONG, WRONG]).expand(count, 2).contiguous()
        seen, coins = [], []
        for call in range(math.ceil(runs / count)):
            members, ids = tossed(rng, count)
            who = ids.repeat_interleave(brought)
            x, y = torch.eye(count)[who], torch.zeros(len(who), dtype=torch.int64)
            session = door.open(task(f"{call}", x, y, who, 2, count * allowed, call * (count + 1)), call)
            columns = [session.class_sums(longer, count).sums[0]]
            if scatters:
                columns.append(session.scatter(longer, torch.zeros(2, count)).matrix.diagonal())
            gradient = session.head(longer)
            total = torch.zeros(count, 2)
            for _ in range(steps):
                total += gradient(weight)
            columns.append(total[:, 1] - total[:, 0])
            seen.append(torch.stack(columns, dim=1).double().numpy())
            coins.append(members)
        return {self.NAME: Trials(np.concatenate(seen), np.concatenate(coins))}


BLOCK = 4
STEPS, LATER = 10, 2


def blocks(count: int) -> Any:
    """A linear network over blocks of inputs, one block a canary, that predicts class 1 for everybody."""

    def build(space: Space) -> Network:
        layer = Flat(count * BLOCK, space.classes, bias=False)
        with torch.no_grad():
            layer.weight.copy_(torch.tensor([-WRONG, WRONG]).unsqueeze(1).expand(-1, count * BLOCK))
        return Network(layer, nn.Identity(), nn.Identity())

    return build


def block_inputs(ids: Tensor, count: int) -> Tensor:
    return torch.eye(count)[ids].repeat_interleave(BLOCK, dim=1)


class ReplayedCanaries(Attack):
    """All noisy gradients of naive-gaussian about its first task: in that task, and in two later ones that replay it.

    Canary i has a block of inputs of its own and is predicted wrongly for sure. Canaries that are kept in the memory
    are read again for g_ref; the later tasks hold nothing else. A likelihood ratio weighs both.
    """

    NAME: ClassVar[str] = "replayed canaries"
    THREAT: ClassVar[str] = "every noisy gradient g and g_ref of three tasks, at weights of the attacker's choice"
    RUNS: ClassVar[dict[Level, int]] = {"quick": 40_000, "thorough": 120_000}
    JOBS: ClassVar[int] = 2

    def refusal(self, target: Target) -> str | None:
        return only_naive(target)

    def trials(self, target: Target, runs: int, rng: np.random.Generator) -> dict[str, Trials]:
        count = min(CANARIES, runs)
        space = Space((count * BLOCK,), ("0", "1"))
        seen, coins = [], []
        for _ in range(math.ceil(runs / count)):
            door = boundary(target, space, model=blocks(count))
            members, ids = tossed(rng, count)
            x, y = block_inputs(ids, count), torch.zeros(len(ids), dtype=torch.int64)
            own, again = torch.zeros(count), torch.zeros(count)
            for index in range(1 + LATER):
                given = (
                    task("first", x, y, ids, 2, count) if index == 0 else task(f"{index}", x[:0], y[:0], ids[:0], 2, 1)
                )
                course = door.open(given, STEPS, count if index == 0 else 1)
                for _ in range(course.steps):
                    own += read(course.gradient(), count) if index == 0 else 0
                    if index > 0:
                        reference = course.reference()
                        again += 0 if reference is None else read(reference, count)
                course.end()
            seen.append(torch.stack([own, again], dim=1).double().numpy())
            coins.append(members)
        return {self.NAME: Trials(np.concatenate(seen), np.concatenate(coins))}


def read(gradient: list[Tensor], count: int) -> Tensor:
    """The part of a gradient along each canary."""
    moved = gradient[0][1] - gradient[0][0]
    return moved.view(count, BLOCK).sum(dim=1)
