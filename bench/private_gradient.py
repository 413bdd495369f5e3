"""One private gradient of naive-gaussian against one of Opacus with ghost clipping, at the same expected batch.

Ours is all that a step on a task costs: the charge, the Poisson sample, reading it, clipping, noise. Opacus clips and
adds its noise to a batch that is already there.
"""

from __future__ import annotations

import importlib.util
import statistics
import warnings
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from bench.dpsgd import BATCH, _network, _opacus, _take_turns
from l2dp.boundary.private_memory import PrivateMemory, Replay
from l2dp.budget import Budget
from l2dp.noise import SystemNoise
from l2dp.policies import Uniform
from l2dp.streams.records import Records, Sealed, Source, Space, Task

GOAL = 2.0
"""Times the speed of Opacus."""
RECORDS = 10_000


def _ours(x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    records = Records(Source(x, y, "bench"))
    space = Space((1, 28, 28), tuple("0123456789"))
    network = _network()
    memory = PrivateMemory(
        space, network, Replay(1.0, 10, 10), Budget(8.0, 1e-5), Uniform(2), SystemNoise(), torch.device("cpu")
    )
    course = memory.open(Task("bench", Sealed(records), records, tuple(range(10))), 1000, BATCH)

    def step() -> None:
        slopes = course.gradient()
        with torch.no_grad():
            for parameter, slope in zip(network.parameters(), slopes, strict=True):
                parameter.add_(slope, alpha=-0.1)

    return step


def run(console: Console, quick: bool) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(RECORDS, 1, 28, 28, generator=generator) * 2 - 1
    y = torch.randint(10, (RECORDS,), generator=generator)
    contestants = {"naive-gaussian": _ours(x, y)}
    if importlib.util.find_spec("opacus") is not None:
        contestants["Opacus, ghost"] = _opacus(x[:BATCH], y[:BATCH], True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rounds = _take_turns(contestants, 3 if quick else 11)
    table = Table(title=f"One private gradient, MNIST conv net with group normalisation, expected batch {BATCH}")
    for column in ("who", "ms", "examples/s"):
        table.add_column(column, justify="left" if column == "who" else "right")
    found: dict[str, Any] = {}
    for name, taken in rounds.items():
        median = statistics.median(taken)
        found[name] = {"seconds": median, "examples_per_second": BATCH / median}
        table.add_row(name, f"{1000 * median:.0f}", f"{BATCH / median:.0f}")
    console.print(table)
    if len(rounds) < 2:
        return {"contestants": found, "goal": GOAL}
    ours, theirs = rounds["naive-gaussian"], rounds["Opacus, ghost"]
    ratio = statistics.median(other / own for own, other in zip(ours, theirs, strict=True))
    console.print(f"{ratio:.1f} times as fast as Opacus", highlight=False)
    return {"contestants": found, "ratio": ratio, "goal": GOAL, "passed": ratio >= GOAL}
