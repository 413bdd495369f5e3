"""Fair timing on a busy machine: what is compared takes turns, step by step, and only ratios of neighbours count.

Both the clock on the wall and the processor time are kept: the first is what people wait for, the second does
not count what other programs took in between. Verdicts are about the first.
"""

from __future__ import annotations

import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l2dp.learners import Learner, Plan
from l2dp.models import Network
from l2dp.streams.dataset import Dataset
from l2dp.streams.records import Source, Space, Task

ALLOWED = 1.10
"""A step may cost this much more than two plain forward-backward passes."""

PLAUSIBLE = 0.95
"""A step that beats its limit by more shows that the limit computes something else, or the same more slowly."""

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


def shown(spread: Mapping[str, float], digits: int, scale: float = 1.0) -> str:
    """Median and quartiles of a `Spread` that has been through JSON."""
    middle, q1, q3 = (f"{spread[name] * scale:.{digits}f}" for name in ("median", "q1", "q3"))
    return f"{middle} ({q1}–{q3})"


def verdict(passed: bool, limit_holds: bool = True) -> str:
    if not limit_holds:
        return "[bold white on red] LIMIT IS NO LIMIT [/]"
    return "[green]met[/]" if passed else "[bold white on red] ABOVE LIMIT [/]"


class Turns:
    """A `tick` for `Learner.learn`: times the step that has just ended, then lets the limit have its turn."""

    def __init__(self, limit: Callable[[], None]) -> None:
        self._limit = limit
        self.forget()

    def forget(self) -> None:
        """Starts over, after a warm-up."""
        self.steps: list[_Moment] = []
        self.limits: list[_Moment] = []
        self.whole = 0.0
        """Seconds in all of `learn`, with opening and remembering of the task and without the limit's turns."""

    def start(self) -> None:
        self._since = _Moment.now()

    def __call__(self) -> None:
        ended = _Moment.now()
        self._limit()
        done = _Moment.now()
        self.steps.append(ended - self._since)
        self.limits.append(done - ended)
        self.whole += self.steps[-1].wall
        self._since = _Moment.now()

    def stop(self) -> None:
        self.whole += (_Moment.now() - self._since).wall

    def to_json(self) -> dict[str, Any]:
        ratio = Spread.of(self._ratios("wall"))
        return {
            "steps": len(self.steps),
            "step_seconds": vars(Spread.of([step.wall for step in self.steps])),
            "limit_seconds": vars(Spread.of([turn.wall for turn in self.limits])),
            "ratio": vars(ratio),
            "ratio_of_processor_time": vars(Spread.of(self._ratios("processor"))),
            "ratio_whole_task": self.whole / sum(turn.wall for turn in self.limits),
            "allowed": ALLOWED,
            "limit_holds": ratio.median >= PLAUSIBLE,
            "passed": PLAUSIBLE <= ratio.median <= ALLOWED,
        }

    def _ratios(self, clock: Literal["wall", "processor"]) -> list[float]:
        """Each step by the mean of the limit's turns before and after it: a drift of the machine cancels out."""
        steps, limits = ([getattr(moment, clock) for moment in some] for some in (self.steps, self.limits))
        return [2 * step / (before + after) for step, before, after in zip(steps[1:], limits, limits[1:], strict=False)]


class _Moment(NamedTuple):
    """What two clocks show, or the time between two such looks."""

    wall: float
    processor: float

    @staticmethod
    def now() -> _Moment:
        return _Moment(time.perf_counter(), time.process_time())

    def __sub__(self, earlier: _Moment) -> _Moment:
        return _Moment(self.wall - earlier.wall, self.processor - earlier.processor)


def learn_in_turns(learner: Learner, task: Task, plan: Plan, turns: Turns) -> None:
    turns.start()
    learner.learn(task, plan, turns)
    turns.stop()


def how_many(limit: Callable[[], None], budget: float, least: int, most: int = 2000) -> int:
    """Steps that fit into `budget` seconds, if each and the limit's turn together cost three times the limit."""
    limit()  # the first call is never typical
    start = time.perf_counter()
    limit()
    return max(least, min(most, int(budget / (3 * (time.perf_counter() - start)))))


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


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "torch_threads": torch.get_num_threads(),
        "openmp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "load_average": list(os.getloadavg()),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
