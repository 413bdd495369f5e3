"""Fair timing on a busy machine: whatever is compared takes turns, step by step, and only ratios of neighbours count."""

from __future__ import annotations

import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l2dp.learners import Learner, Plan
from l2dp.models import Network
from l2dp.streams.dataset import Dataset
from l2dp.streams.records import Source, Space, Task

LIMIT_RATIO = 1.10
"""A step may cost this much more than two plain forward-backward passes."""

Labelled = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Spread:
    """The middle of some measurements and how far they scatter; `low` to `high` holds the median with 95 %."""

    median: float
    q1: float
    q3: float
    low: float
    high: float
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        ordered = sorted(values)
        n = len(ordered)
        q1, median, q3 = statistics.quantiles(ordered, n=4, method="inclusive") if n > 1 else ordered * 3
        reach = 0.98 * math.sqrt(n)  # order statistics: no assumption about the law of the noise
        low, high = ordered[max(0, math.floor(n / 2 - reach))], ordered[min(n - 1, math.ceil(n / 2 + reach))]
        return Spread(median, q1, q3, low, high, n)

    def show(self, digits: int = 2, scale: float = 1.0) -> str:
        return f"{self.median * scale:.{digits}f} ({self.q1 * scale:.{digits}f}–{self.q3 * scale:.{digits}f})"


class Turns:
    """A `tick` for `Learner.learn`: times the step that has just ended, then lets the limit have its turn."""

    def __init__(self, limit: Callable[[], None]) -> None:
        self._limit = limit
        self.steps: list[float] = []
        self.limits: list[float] = []
        self.total = 0.0
        """Seconds in the whole of `learn`, opening and remembering of the task included, without the limit's turns."""

    def start(self) -> None:
        self._since = time.perf_counter()

    def __call__(self) -> None:
        ended = time.perf_counter()
        self._limit()
        done = time.perf_counter()
        self.steps.append(ended - self._since)
        self.limits.append(done - ended)
        self.total += ended - self._since
        self._since = time.perf_counter()

    def stop(self) -> None:
        self.total += time.perf_counter() - self._since

    def forget(self) -> None:
        """Starts over, after a warm-up."""
        self.steps.clear()
        self.limits.clear()
        self.total = 0.0

    def ratios(self) -> Spread:
        """Each step by the mean of the limit's turns before and after it: a drift of the machine cancels out."""
        pairs = zip(self.steps[1:], self.limits, self.limits[1:], strict=False)
        return Spread.of([2 * step / (before + after) for step, before, after in pairs])

    def to_json(self) -> dict[str, Any]:
        return {
            "step_seconds": vars(Spread.of(self.steps)),
            "limit_seconds": vars(Spread.of(self.limits)),
            "ratio": vars(self.ratios()),
            "ratio_whole_task": self.total / sum(self.limits),
        }


def learn_in_turns(learner: Learner, task: Task, plan: Plan, turns: Turns) -> None:
    turns.start()
    learner.learn(task, plan, turns)
    turns.stop()


def seconds(action: Callable[[], None], repeats: int = 3) -> float:
    """A rough price, to choose how often to repeat."""
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        taken.append(time.perf_counter() - start)
    return min(taken)


def how_many(action: Callable[[], None], budget: float, least: int, most: int) -> int:
    """Repetitions that fit into `budget` seconds when each costs three times `action`."""
    return max(least, min(most, int(budget / (3 * seconds(action)))))


def cross_entropy_passes(network: Network, batches: Sequence[tuple[Labelled, Labelled]]) -> Callable[[], None]:
    """The least an A-GEM step can cost: forward and backward on a batch and on a reference batch, held in memory."""
    parameters = list(network.parameters())
    turn = cycle(batches)

    def limit() -> None:
        for x, y in next(turn):
            torch.autograd.grad(F.cross_entropy(network(x), y), parameters)

    return limit


def synthetic_mnist(records: int) -> Dataset:
    """Data of MNIST's shape and type with labels that can be learned; its values do not matter here."""
    generator = torch.Generator().manual_seed(0)
    space = Space((1, 28, 28), tuple(str(digit) for digit in range(10)))
    centres = torch.randint(0, 192, (10, 1, 28, 28), generator=generator)

    def part(count: int) -> Source:
        y = torch.arange(count) % 10
        x = (centres[y] + torch.randint(0, 64, (count, 1, 28, 28), generator=generator)).to(torch.uint8)
        return Source(x, y, "synthetic")

    return Dataset("synthetic", space, part(records), part(100))


def finite(network: nn.Module) -> bool:
    """Whether all parameters are numbers: times of a diverged model mean nothing."""
    return all(bool(parameter.isfinite().all()) for parameter in network.parameters())


def use_all_cores() -> None:
    torch.set_num_threads(len(os.sched_getaffinity(0)))


def machine() -> dict[str, Any]:
    return {
        "cores": len(os.sched_getaffinity(0)),
        "torch_threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "load_average": list(os.getloadavg()),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123
            return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "unknown")
    except OSError:
        return platform.processor() or "unknown"
