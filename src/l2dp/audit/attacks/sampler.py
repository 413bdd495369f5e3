"""Sampler: is every unit in a sample by a coin of its own, as the accountant was told?"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch
from scipy import stats

from l2dp.audit.attack import Attack, Inapplicable, Level, only_naive, only_replay
from l2dp.audit.attacks.gradient_canaries import WRONG, blocks
from l2dp.audit.canaries import boundary, longer, task
from l2dp.audit.decisions import Trials
from l2dp.audit.target import Target
from l2dp.streams.records import Space

UNITS, RATE = 10_000, 0.3
FEWEST, MOST = 30, 0.9
"""Noisy gradients that are needed at least, and the largest sampling rate at which the law shows."""


class Sampler(Attack):
    """A test, not a bound: equal records, so a noisy gradient counts how many were sampled.

    Under Poisson sampling that number has the variance N·q·(1 − q), on top of the noise. Batches of a fixed size
    (shuffling) have none, and amplification by Poisson sampling does not hold for them; an attack on releases
    would need very many runs to show it. The variance of the released counts is tested on both sides.
    """

    NAME: ClassVar[str] = "sampler"
    THREAT: ClassVar[str] = "a test of the sampling law through released gradients of equal records"
    RUNS: ClassVar[dict[Level, int]] = {"quick": 150, "thorough": 300}

    def refusal(self, target: Target) -> str | None:
        if only_naive(target) is None:
            return "an adaptive policy holds records back" if target.option("policy") == "adaptive" else None
        if only_replay(target) is not None:
            return "the learner samples no records"
        budget, head = target.option("budget"), target.option("head_share")
        if target.option("protects") == "user":
            return "tested on records"
        return "this setting samples no records" if budget.delta == 0 or head == 0 else None

    def trials(self, target: Target, runs: int, rng: np.random.Generator) -> dict[str, Trials]:
        x, y = torch.ones(UNITS, 4), torch.zeros(UNITS, dtype=torch.int64)
        ids = torch.arange(UNITS)
        counts, noise, rate = (
            self._network(target, x, y, ids, runs)
            if only_naive(target) is None
            else self._head(target, x, y, ids, runs)
        )
        if len(counts) < FEWEST:
            raise Inapplicable(f"this setting pays for {len(counts)} noisy gradients, and a variance needs {FEWEST}")
        size = counts.mean() / (UNITS * rate)  # what one record adds
        expected = math.sqrt(UNITS * rate * (1 - rate) * size**2 + noise**2)
        seen = (counts - counts.mean()) / expected
        return {self.NAME: Trials(seen, np.zeros(len(seen), dtype=bool))}

    def _head(self, target: Target, x: Any, y: Any, ids: Any, runs: int) -> tuple[np.ndarray, float, float]:
        steps = int(target.option("steps"))
        target = target.having(target.variant, sample_size=int(UNITS * RATE))
        door = boundary(target, Space((4,), ("0", "1")))
        multipliers, rate = door.noise_for(UNITS)
        if rate > MOST:
            raise Inapplicable(f"this setting samples {rate:g} of all records: there is next to nothing to test")
        weight = torch.tensor([-WRONG, WRONG]).expand(4, 2).contiguous()
        direction = torch.tensor([-1.0, 1.0]) / math.sqrt(2)
        counts: list[float] = []
        for call in range(math.ceil(runs / steps)):
            gradient = door.open(task(f"{call}", x, y, ids, 2, UNITS), call).head(longer)
            for _ in range(steps):
                counts.append(float((gradient(weight) @ direction).sum()) / 2 * gradient.expected)
        return np.array(counts), multipliers.head * float(target.option("gradient_clip")), rate

    def _network(self, target: Target, x: Any, y: Any, ids: Any, runs: int) -> tuple[np.ndarray, float, float]:
        door = boundary(target, Space((4,), ("0", "1")), model=blocks(1))
        course = door.open(task("equal", x, y, ids, 2, UNITS), runs, int(UNITS * RATE))
        reading = door.own_reading(UNITS, runs, int(UNITS * RATE))
        counts = []
        for _ in range(course.steps):
            moved = course.gradient()[0]
            counts.append(float((moved[1] - moved[0]).sum()) / math.sqrt(8) * UNITS * reading.rate)
        return np.array(counts), reading.multiplier * float(target.option("clip")), reading.rate

    def p_value(self, trials: Trials) -> float:
        """Of the variance, two-sided; sums of thousands of coins are Gaussian for this purpose."""
        total, freedom = float(np.square(trials.seen).sum()), len(trials) - 1
        return float(2 * min(stats.chi2.sf(total, freedom), stats.chi2.cdf(total, freedom)))
