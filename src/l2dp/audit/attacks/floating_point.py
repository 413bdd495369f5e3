"""Floating point: the low bits of a noisy number may tell what was added to the noise (Mironov 2012)."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from l2dp.audit.attack import Attack, Level, only_replay
from l2dp.audit.attacks.worst_case import whole_budget
from l2dp.audit.bounds import Floats
from l2dp.audit.canaries import class_sums
from l2dp.audit.decisions import Trials
from l2dp.audit.target import Target

AT_ONCE = 20_000


def lowest_bit(values: Floats) -> Floats:
    """The exponent of the lowest bit that is set in a float64; of zero, that of the largest."""
    fraction, exponent = np.frexp(values)
    mantissa = np.abs(fraction * 2.0**53).astype(np.int64)
    zeros = np.log2(np.maximum(mantissa & -mantissa, 1).astype(np.float64))
    return np.where(mantissa == 0, 1024.0, exponent - 53 + zeros)


class FloatingPoint(Attack):
    """Class sums again, looked at through their lowest bit alone.

    A float that is drawn near zero has bits far below those of one. If the sum of a class is 0 the noisy sum keeps
    them; if it is 1 they are rounded away. Laplace noise in floating point is porous for this reason. Noise that is
    added to whole numbers and rounded has the same lattice whatever the data.
    """

    NAME: ClassVar[str] = "floating point"
    THREAT: ClassVar[str] = "the lowest bit of released class sums"
    RUNS: ClassVar[dict[Level, int]] = {"quick": 100_000, "thorough": 200_000}

    def refusal(self, target: Target) -> str | None:
        return only_replay(target)

    def trials(self, target: Target, runs: int, rng: np.random.Generator) -> dict[str, Trials]:
        count = min(AT_ONCE, runs)
        seen, coins = [], []
        for members, found in class_sums(whole_budget(target), count, math.ceil(runs / count), rng):
            seen.append(lowest_bit(found.sums[:, 0].double().numpy()))
            coins.append(members)
        return {self.NAME: Trials(np.concatenate(seen), np.concatenate(coins))}
