"""Human activity: how many people it takes to protect people, by simulation; and the numbers of windows and people.

A simulated person borrows, for every activity, windows of one real training person, turned by a random small
rotation and scaled a little, so that no two are alike. Accuracies are on windows of real people who train nothing.
"""

from __future__ import annotations

import math
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor

from l2dp import durable
from l2dp.budget import Budget
from l2dp.experiments.figures import marked, save
from l2dp.experiments.functions import Ask, Table
from l2dp.experiments.paper import harw
from l2dp.learners import PrivateReplay
from l2dp.runs import run
from l2dp.streams.har import ACTIVITIES, PARTS, har_rates, labelled, recordings
from l2dp.streams.records import Stream, Task

PEOPLE = (10, 30, 100, 300, 1000, 3000)
BUDGETS = (1.0, 2.0, 8.0)
PER_CLASS = 2
TURN = 0.2
"""Radians (standard deviation) by which a simulated person carries the phone otherwise than the real one."""
STRETCH = 0.1
SEEDS = (0, 1, 2)


def table(ask: Ask) -> Table:
    """Accuracy for numbers of people and budgets, and a picture; what a call that was stopped had measured is kept."""
    people, seeds = (PEOPLE[:3], SEEDS[:1]) if ask.quick else (PEOPLE, SEEDS)
    path = ask.folder / "measured.json"
    measured: dict[str, dict[str, Any]] = durable.read_json(path) if path.is_file() else {}
    for seed in seeds:
        for count in people:
            if all(_key(seed, count, epsilon) in measured for epsilon in BUDGETS):
                continue
            stream = simulated(count, seed)
            for epsilon in BUDGETS:
                result = run(stream, _learner(epsilon), seed=seed)
                measured[_key(seed, count, epsilon)] = {
                    "accuracy": float(result.average_accuracy[-1] or 0.0),
                    "status": result.guarantee.status,
                }
            durable.write_json(path, measured)
            ask.console.print(f"{count:,} people, seed {seed}: done", highlight=False, markup=False)
    found = {
        (count, epsilon): [100 * measured[_key(seed, count, epsilon)]["accuracy"] for seed in seeds]
        for count in people
        for epsilon in BUDGETS
    }
    status = next(iter(measured.values()))["status"]
    rows = [[f"{count:,}", *(_cell(found[count, epsilon]) for epsilon in BUDGETS)] for count in people]
    _draw(ask, people, found, status)
    columns = ["people", *(f"ε={epsilon:g}, δ=1e-05 {status}, a person protected" for epsilon in BUDGETS)]
    many = f"{len(seeds)} seeds" if len(seeds) > 1 else "1 seed"
    notes = [f"{many}; {PER_CLASS} windows of each activity a person; chance is 20 to 28 %."]
    return Table(columns, rows, notes, ["people.png"])


def _key(seed: int, people: int, epsilon: float) -> str:
    return f"seed {seed}, {people} people, epsilon {epsilon:g}"


def _learner(epsilon: float) -> PrivateReplay:
    per_user = PER_CLASS * len(ACTIVITIES)
    return PrivateReplay(budget=Budget(epsilon, 1e-5), features="motion", lift=None, protects="user", per_user=per_user)


def _cell(percents: list[float]) -> str:
    shown = f"{fmean(percents):.1f}"
    return f"{shown} ± {stdev(percents):.1f}" if len(percents) > 1 else shown


def _draw(ask: Ask, people: tuple[int, ...], found: dict[tuple[int, float], list[float]], status: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.2), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for epsilon in BUDGETS:
        some = [found[count, epsilon] for count in people]
        bars = [stdev(one) for one in some] if len(some[0]) > 1 else None
        label = f"ε={epsilon:g}, δ=1e-05 {status}"
        axes.errorbar(people, [fmean(one) for one in some], yerr=bars, capsize=2, marker="o", label=label)
    axes.set_xscale("log")
    axes.set_ylim(0, 100)
    axes.set_xlabel("people in the task (simulated)")
    axes.set_ylabel("accuracy on real people (%)")
    axes.set_title(marked("A person protected: accuracy against the number of people", ask.quick), fontsize=11)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    save(figure, ask.folder / "people.png")


def simulated(people: int, seed: int) -> Stream:
    """50 Hz with so many simulated people for training, and the seed's real test people."""
    real = har_rates(seed, rate=50)
    part = next(part for part in PARTS if part.rate == 50)
    source = labelled(part, str(recordings(part.dataset)))
    test = set(real.config["rates"]["50 Hz"]["test_users"])  # type: ignore[index]
    training = [place for place, name in enumerate(source.users) if name not in test]
    generator = torch.Generator().manual_seed(seed)
    x, y, owner = [], [], []
    for person in range(people):
        turn = _rotation(TURN * torch.randn(3, generator=generator))
        scale = 1 + STRETCH * torch.randn(1, generator=generator)
        for activity in range(len(ACTIVITIES)):
            whose = training[int(torch.randint(len(training), (1,), generator=generator))]
            rows = ((source.owner == whose) & (source.y == activity)).nonzero().flatten()
            chosen = rows[torch.randint(len(rows), (PER_CLASS,), generator=generator)]
            x.append((scale * torch.einsum("ij,njt->nit", turn, source.x[chosen])).clamp(-1, 1))
            y += [activity] * PER_CLASS
            owner += [person] * PER_CLASS
    task = real[0]
    tested = task.test.batch(slice(0, len(task.test)))
    made = Task.from_tensors(
        "50 Hz", (torch.cat(x), torch.tensor(y)), tested, torch.tensor(owner), tuple(range(len(ACTIVITIES)))
    )
    return Stream("har-users", real.space, (made,))


def _rotation(vector: Tensor) -> Tensor:
    """The rotation around a vector by its length in radians (Rodrigues)."""
    angle = float(vector.norm())
    a, b, c = (vector / max(angle, 1e-9)).tolist()
    cross = torch.tensor([[0.0, -c, b], [c, 0.0, -a], [-b, a, 0.0]])
    return torch.eye(3) + math.sin(angle) * cross + (1 - math.cos(angle)) * cross @ cross


def statistics(ask: Ask) -> Table:
    """Windows of every rate and activity, as the paper's table of its dataset."""
    rows = []
    for task, facts in zip(har_rates(0), har_rates(0).config["rates"].values(), strict=True):  # type: ignore[attr-defined]
        counts = [int((task.test.source.y == label).sum()) for label in range(len(ACTIVITIES))]
        how = f"{facts['recordings']}, " + (
            f"resampled from {facts['recorded_at_hz']:g} Hz" if facts["resampled"] else "as recorded"
        )
        people = facts["training_users"] + len(facts["test_users"])
        rows.append([task.name, how, people, *counts, facts["training_windows"], facts["test_windows"]])
    theirs = harw()
    for rate, windows in theirs["training"].items():
        rows.append([f"HARW, {rate} Hz", "the paper's", *["–"] * (1 + len(ACTIVITIES)), windows, theirs["test"][rate]])
    notes = [
        f"HARW has {theirs['people']} people and other activities; its table of classes adds up to "
        f"{sum(theirs['training_by_class']):,} training and {sum(theirs['test_by_class']):,} test windows, its rates "
        f"to {sum(theirs['training'].values()):,} and {sum(theirs['test'].values()):,}."
    ]
    return Table(["task", "recordings", "people", *ACTIVITIES, "training windows", "test windows"], rows, notes)
