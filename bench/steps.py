"""Cost of one shipped step of A-GEM and L2DP-ML against two plain forward-backward passes of the same model.

The shipped step is `learn` itself, with its boundary, reading of records, noise, memory, projection and optimiser.
The limit is the same network and the same objectives on batches of the same sizes that are already tensors.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

from bench.timing import (
    Labelled,
    Turns,
    cross_entropy_passes,
    finite,
    how_many,
    learn_in_turns,
    shown,
    synthetic_mnist,
    verdict,
)
from l2dp.boundary import PerturbedObjective, Unprotected
from l2dp.learners import Agem, L2dpMl, Plan, Setting
from l2dp.models import Network
from l2dp.streams.permuted import permuted
from l2dp.streams.records import Task

PAST_TASKS = 2
DISTINCT = 4
"""Batches that the limit goes round: more than one, so that it does not live in the cache."""


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    learner: str
    model: str
    batch: int
    reference: int


CASES = (
    Case("agem", "mnist-conv", 64, 64),
    Case("agem", "mnist-conv", 256, 256),
    Case("agem", "mlp-256-256", 10, 256),
    Case("l2dp-ml", "mnist-conv", 256, 256),
    Case("l2dp-ml", "mnist-conv", 2500, 2500),
)
QUICK = (CASES[0], CASES[2], Case("l2dp-ml", "mnist-conv", 64, 64))


def tasks_for(batch: int) -> tuple[Setting, tuple[Task, ...]]:
    """Three permuted tasks, whole batches each: two to fill the memory and one to be timed."""
    data = synthetic_mnist(batch * max(DISTINCT, 5000 // batch))
    stream = permuted(data, tasks=PAST_TASKS + 1, seed=0)
    return Setting(stream.space, batch), stream.tasks


def agem_ready(case: Case) -> tuple[Agem, Task, Callable[[], None]]:
    """A-GEM with two tasks in its memory, a third to learn, and its limit on a copy of the network."""
    setting, (*past, task) = tasks_for(case.batch)
    learner = Agem(model=case.model, lr=0.05, memory_per_task=256, reference_batch=case.reference)
    learner.begin(setting)
    for earlier in past:
        learner.learn(earlier, Plan(2, case.batch))
    generator = torch.Generator().manual_seed(1)
    own = Unprotected(setting.space, setting.device).batches(task, case.batch, DISTINCT, generator)
    batches = [
        ((batch.x, batch.y), (reference.x, reference.y))
        for batch in own
        for reference in [learner.boundary.memory.sample(case.reference, generator)]
    ]
    return learner, task, cross_entropy_passes(copy.deepcopy(learner.network), batches)


def _perturbed_passes(network: Network, batches: Sequence[tuple[Labelled, Labelled]]) -> Callable[[], None]:
    """Forward and backward of auto-encoder and classifier (their series, without any noise) on two batches."""
    parameters = [*network.encoder.parameters(), *network.hidden.parameters(), *network.classifier.parameters()]
    turn = cycle(batches)

    def objective(x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            into_hidden = network.encoder(x)
        h = network.hidden(into_hidden)
        reconstruction = network.inner_with_decoded(0.5 - x, h.detach())
        z: Tensor = network.classifier(h)
        series = (math.log(2) + (0.5 - F.one_hot(y, z.shape[1]).to(z.dtype)) * z + z * z / 8).sum()
        return (reconstruction + series) / len(y)

    def limit() -> None:
        for x, y in next(turn):
            torch.autograd.grad(objective(x, y), parameters)

    return limit


def l2dp_ml_ready(case: Case) -> tuple[L2dpMl, Task, Callable[[], None]]:
    """L2DP-ML with two batches in its memory, a third task to learn, and its limit on a copy of the network."""
    setting, (*past, task) = tasks_for(case.batch)
    learner = L2dpMl(model=case.model, lr=0.003, momentum=0.9)
    learner.begin(setting)
    for earlier in past:
        learner.learn(earlier, Plan(1, case.batch))
    boundary: PerturbedObjective = learner.boundary
    generator = torch.Generator().manual_seed(1)
    opened = boundary.open(task, case.batch, generator)
    batches = [
        ((batch.x, batch.y), (reference.x, reference.y))
        for batch in (boundary.batch(opened, index) for index in range(DISTINCT))
        for reference in [boundary.recall(generator)]
    ]
    return learner, task, _perturbed_passes(copy.deepcopy(learner.network), batches)


def measure(case: Case, budget: float, least: int) -> dict[str, Any]:
    """Times one case, the step and its limit taking turns, for about `budget` seconds."""
    learner, task, limit = agem_ready(case) if case.learner == "agem" else l2dp_ml_ready(case)
    count = how_many(limit, budget, least)
    turns = Turns(limit)
    learn_in_turns(learner, task, Plan(3, case.batch), turns)
    turns.forget()
    learn_in_turns(learner, task, Plan(count, case.batch), turns)
    return {**vars(case), **turns.to_json(), "finite": finite(learner.network)}


def table(title: str) -> Table:
    made = Table(title=title, caption="medians, quartiles in brackets; limit: two plain forward-backward passes")
    for heading in ("", "model", "batch", "steps", "step ms", "limit ms", "ratio", "processor", "task", "≤ 1.10"):
        made.add_column(heading, justify="left" if heading in ("", "model", "≤ 1.10") else "right")
    return made


def cells(row: dict[str, Any]) -> list[str]:
    return [
        row["learner"],
        row["model"],
        f"{row['batch']}+{row['reference']}",
        str(row["steps"]),
        shown(row["step_seconds"], 2, 1e3),
        shown(row["limit_seconds"], 2, 1e3),
        shown(row["ratio"], 3),
        shown(row["ratio_of_processor_time"], 3),
        f"{row['ratio_whole_task']:.3f}",
    ]


def run(console: Console, quick: bool) -> dict[str, Any]:
    """All cases; in quick form small ones with few repetitions."""
    out = table("One step")
    rows = []
    for case in QUICK if quick else CASES:
        row = measure(case, 1.0 if quick else 30.0, 6 if quick else 25)
        rows.append(row)
        out.add_row(*cells(row), verdict(row["passed"], row["limit_holds"]))
    console.print(out)
    return {"rows": rows, "passed": all(row["passed"] for row in rows)}
