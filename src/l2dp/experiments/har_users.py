"""Human activity: how many people it takes to protect people, by simulation; and the numbers of windows and people.

A simulated person borrows, for every activity, windows of one real training person, turned by a random small
rotation and scaled a little, so that no two are alike. Accuracies are on windows of real people who train nothing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from l2dp import durable
from l2dp.budget import Budget
from l2dp.experiments.functions import Ask, Table
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
SEEDS = (0,)


def table(ask: Ask) -> Table:
    """Accuracy for numbers of people and budgets, and a picture."""
    people, seeds = (PEOPLE[:3], SEEDS[:1]) if ask.quick else (PEOPLE, SEEDS)
    found: dict[tuple[int, float], list[float]] = {}
    status = ""
    for seed in seeds:
        for count in people:
            stream = simulated(count, seed)
            for epsilon in BUDGETS:
                learner = PrivateReplay(
                    budget=Budget(epsilon, 1e-5),
                    features="motion",
                    lift=None,
                    protects="user",
                    per_user=PER_CLASS * len(ACTIVITIES),
                )
                result = run(stream, learner, seed=seed)
                status = result.guarantee.status
                found.setdefault((count, epsilon), []).append(float(result.average_accuracy[-1] or 0.0))
    rows = [
        [f"{count:,}", *(f"{100 * sum(some) / len(some):.1f} %" for some in (found[count, e] for e in BUDGETS))]
        for count in people
    ]
    _draw(ask, people, found, status)
    columns = ["people", *(f"ε={epsilon:g}, δ=1e-05 {status}, a person protected" for epsilon in BUDGETS)]
    notes = [f"Seeds {seeds}; {PER_CLASS} windows of each activity a person; chance is 20 to 28 %."]
    return Table(columns, rows, notes, ["people.png"])


def _draw(ask: Ask, people: tuple[int, ...], found: dict[tuple[int, float], list[float]], status: str) -> None:
    import io

    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.2), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for epsilon in BUDGETS:
        means = [100 * sum(some) / len(some) for some in (found[count, epsilon] for count in people)]
        axes.plot(people, means, marker="o", label=f"ε={epsilon:g}, δ=1e-05 {status}")
    axes.set_xscale("log")
    axes.set_ylim(0, 100)
    axes.set_xlabel("people in the task (simulated)")
    axes.set_ylabel("accuracy on real people (%)")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    png = io.BytesIO()
    figure.savefig(png, format="png", metadata={"Software": None})
    durable.write_bytes(ask.folder / "people.png", png.getvalue())


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
    return Table(["task", "recordings", "people", *ACTIVITIES, "training windows", "test windows"], rows)
