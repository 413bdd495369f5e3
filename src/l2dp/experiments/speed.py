"""How fast every learner learns: short runs, one learner after the other and the whole round again, one thread."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

import torch
from rich.console import Console

from l2dp import learners, sweeps
from l2dp.budget import Guarantee
from l2dp.experiments.functions import Ask, Table
from l2dp.learners.options import has_budget

FULL = sweeps.Request("permuted-mnist", "agem", tasks=2, per_task=10_000, evaluate_every=2, test_records=1000)
QUICK = sweeps.Request("permuted-digits", "agem", tasks=2, evaluate_every=2)
EPSILON = 4.0
ROUNDS = 3


def measure(ask: Ask) -> Table:
    """Examples per second and seconds of a run, the median of some rounds and their range."""
    base = QUICK if ask.quick else FULL
    rounds = 1 if ask.quick else ROUNDS
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in learners.LEARNERS}
    try:
        for index in range(rounds):
            for name, cls in learners.LEARNERS.items():
                request = replace(base, learner=name, epsilon=EPSILON if has_budget(cls) else None)
                folder = ask.folder / "runs" / f"{name}-{index}"
                found[name].append(sweeps.run_one(request, index, folder, Console(quiet=True)).to_json())
                ask.console.print(f"{name}: round {index + 1} done", highlight=False, markup=False)
    finally:
        torch.set_num_threads(threads)
    rows = [
        [
            name,
            some[0]["config"]["learner"].get("model") or "linear heads over fixed features",
            str(Guarantee(**some[0]["guarantee"])),
            _middle([one["examples_per_second"] for one in some]),
            _middle([one["seconds"] for one in some]),
        ]
        for name, some in found.items()
    ]
    columns = ["method", "network", "guarantee", "examples a second", "seconds a run"]
    several = f"median (least to most) of {rounds} rounds" if rounds > 1 else "one round"
    note = f"{base.benchmark}, 2 tasks, {base.per_task or 'all'} records a task; {several}"
    return Table(columns, rows, [note, "The machine's other work shows in the range."])


def _middle(values: list[float]) -> str:
    return f"{statistics.median(values):,.1f} ({min(values):,.1f} to {max(values):,.1f})"
