"""What test_parallel.py starts two processes for: `torchrun two_processes.py FOLDER REQUESTS`.

Each process writes what it found to `rank-N.json`. Whatever is refused here is refused by both: they go on together.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import nn

import l2dp
from l2dp import parallel, sweeps
from l2dp.boundary.gradients import Sampled
from l2dp.boundary.scores import noisy_counts
from l2dp.budget import Budget
from l2dp.errors import BadInput
from l2dp.experiments.worker import request_from
from l2dp.learners import LEARNERS, Agem, Finetune, Joint, NaiveGaussian, PrivateReplay
from l2dp.learners.learner import Learner
from l2dp.models import Network
from l2dp.noise import SystemNoise
from l2dp.runs import Silent
from l2dp.streams import Space, Stream, Task

SCHEDULE = l2dp.Schedule(20)
BUDGET = Budget(8.0, 1e-5)
PURE = Budget(8.0)
"""Needs no search for a noise scale, which takes seconds."""


def users(tasks: int = 2, turned: int | None = None) -> Stream:
    """Forty users with three to seven records in each task; of the task `turned`, records are in another order."""
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(200) % 4
    x = torch.randn(4, 1, 4, 4, generator=draw)[y] + torch.randn(200, 1, 4, 4, generator=draw) / 2
    x, whose = x.clamp(-3, 3) / 3, torch.arange(200) * 7 % 43 % 40
    made = []
    for index in range(tasks):
        here = (part.roll(int(index == turned), 0) for part in (x.roll(index, 2), y, whose))
        train, labels, units = here
        made.append(Task.from_tensors(f"task-{index}", (train, labels), (x.roll(index, 2), y), units))
    return Stream("users", Space((1, 4, 4), tuple("abcd")), tuple(made))


def learn_users(out: Path) -> None:
    learner = PrivateReplay(budget=BUDGET, protects="user", per_user=4, per_task_epsilon=4.0)
    l2dp.run(users(), learner, schedule=SCHEDULE, out=out, insecure_noise_seed=3)


class Counting(SystemNoise):
    drawn = 0

    def words(self, count: int) -> NDArray[np.uint64]:
        Counting.drawn += 1
        return super().words(count)


class Alone(Finetune):
    NAME = "alone"


class Stop(Exception):
    """Stands for a kill after some tasks."""


class StopsAt(Silent):
    def __init__(self, index: int) -> None:
        self.index = index

    def task(self, index: int, name: str, steps: int) -> None:
        if index == self.index:
            raise Stop


def foreign(space: Space) -> Network:
    tail = nn.Sequential(nn.BatchNorm1d(9), nn.Linear(9, space.classes))
    return Network(nn.Sequential(nn.Flatten(), nn.Linear(64, 9)), tail)


def said(ask: Callable[..., object], *what: Any, **how: Any) -> str:
    """The refusal, or that there was none."""
    try:
        ask(*what, **how)
    except BadInput as error:
        return str(error)
    return "accepted"


@contextmanager
def stopped() -> Iterator[None]:
    try:
        yield
    except Stop:
        return
    raise AssertionError("it was not stopped")


def shared_noise() -> dict[str, Any]:
    noise = parallel.SharedNoise(Counting())
    forked = noise.fork("task 1")
    words = [noise.words(5).tolist(), forked.words(3).tolist(), noise.subset(50, 0.3).tolist()]
    return {"words": words, "drawn": Counting.drawn, "secure": noise.secure}


def impossible() -> list[str]:
    stream = l2dp.streams.permuted("digits", tasks=2, seed=0)
    asked = ((Alone(), 10), (Agem(), 1), (Agem(model=foreign), 10))
    return [said(l2dp.run, stream, learner, schedule=l2dp.Schedule(size)) for learner, size in asked]


def small(name: str) -> Learner:
    """A learner of that name, for `users`."""
    made: dict[str, Learner] = {
        "joint": Joint(model="mlp-8"),
        "naive-gaussian": NaiveGaussian(model="mlp-8", budget=BUDGET, memory_per_task=20, reference_batch=10),
        "private-replay": PrivateReplay(budget=PURE),
    }
    return made[name] if name in made else LEARNERS[name](model="mlp-8")  # type: ignore[call-arg]


def other_records() -> dict[str, str]:
    """One process has the records of a task in another order: some would be in two parts, some in none."""
    found = {}
    for name in LEARNERS:
        for turned in (None, parallel.rank() - 1):
            found[f"{name} {turned is not None}"] = said(l2dp.run, users(1, turned), small(name), schedule=SCHEDULE)
    return found


def other_past(out: Path) -> dict[str, str]:
    """The same of a task that was learned before a run was stopped."""
    owners = PrivateReplay(budget=PURE, protects="user", per_user=4, per_task_epsilon=2.0)
    found = {}
    for name, learner in (("joint", small("joint")), ("naive-gaussian", small("naive-gaussian")), ("users", owners)):
        for stream in (users(), users(2, parallel.rank() - 1)):
            try:
                l2dp.run(stream, learner, schedule=SCHEDULE, out=out / name, progress=StopsAt(1))
            except (Stop, BadInput) as error:
                found[name] = str(error)
    return found


def other_folder(out: Path) -> dict[str, Any]:
    """The second process sees a folder of its own: none, one that is a task behind, and no result."""
    here, old, none = out / "here", out / "old", out / "none"

    def run(folder: Path, stop: int = 9) -> l2dp.Result:
        seen = folder if parallel.rank() else here
        return l2dp.run(users(3), Agem(model="mlp-8"), schedule=SCHEDULE, out=seen, progress=StopsAt(stop))

    with stopped():
        run(here, 1)
    parallel.agreed(0)  # the first has written
    if parallel.rank():
        shutil.copytree(here, old)
    parallel.add(torch.zeros(1))  # the second has copied
    with stopped():
        run(here, 2)
    found: dict[str, Any] = {"none": said(run, none), "old": said(run, old)}
    found["continued"] = run(here).accuracy_matrix
    found["no result"] = said(run, none)
    found["again"] = run(here).accuracy_matrix
    return found


def unlike_scores() -> tuple[float, float]:
    """A network that answers otherwise in the second process, as one might where sums have other last bits."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 4))
    with torch.no_grad():
        network[1].weight.zero_()
        network[1].bias.copy_(torch.eye(4)[parallel.rank()])
    records = users(1)[0].test
    # An odd number of one label, so that labels 0 and 1 are not equally often right.
    held = Sampled(records, torch.arange(33))
    return noisy_counts(network, held, 0.01, parallel.SharedNoise(SystemNoise()), torch.device("cpu"))


def main(out: Path, asked: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    parallel.PATIENCE = timedelta(seconds=120)  # processes that part are a failure, not a wait of hours
    quiet = Console(quiet=True)
    with parallel.joined():
        found = shared_noise()
        for name, request in asked.items():
            sweeps.run_one(request_from(request), 0, out / name, quiet)
        learn_users(out / "users")
        found["refused"] = impossible()
        found["same"] = said(parallel.check_same, bytes([parallel.rank()]), "run")
        found["records"] = other_records()
        found["past"] = other_past(out / "past")
        found["folder"] = other_folder(out / "folder")
        found["scores"] = unlike_scores()
        # A finished run is returned, by every process, and not repeated.
        again = sweeps.run_one(request_from(asked["agem"]), 0, out / "agem", quiet)
        found["again"] = again.to_json()["average_accuracy"]
        rank = parallel.rank()
    (out / f"rank-{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
