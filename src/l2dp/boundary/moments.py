"""Mean and deviation of accelerations, with noise: the constants of `--normalise private`.

Every person gives one vector of norm at most 1, whatever they recorded and for how long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from l2dp.boundary.statistics import GRID_BITS, bounded, whole
from l2dp.budget import Budget
from l2dp.errors import BadInput
from l2dp.har.normalise import Constants
from l2dp.noise import Noise, rounded_sum

RANGE = 40.0
"""m/s² to which values are cut before they are averaged."""
LEAST, MOST = 2.0, 20.0
"""Between these a deviation is believed."""
COUNT_WEIGHT = 0.5

Portions = Iterator[tuple[str, NDArray[np.float32]]]
Axes = tuple[float, float, float]


def private_moments(portions: Portions, budget: Budget, noise: Noise) -> tuple[Axes, Axes]:
    """Mean and standard deviation of the three axes of training windows (window, axis, sample; m/s²).

    Guarantee
    ---------
    ε-private (δ = 0) for adding or removing one person, in real arithmetic: their means of x and of x², cut and
    scaled, and a constant that counts them, form a row of norm at most 1; the sum of all rows gets one draw of the
    K-norm mechanism with scale 1/ε. What follows is post-processing.
    """
    if budget.delta != 0:
        raise BadInput("private constants are released with pure epsilon; give no delta")
    exact = torch.zeros(1, 7, dtype=torch.float64)
    for row in _rows(portions):
        exact += whole(bounded(row, 1.0), GRID_BITS)
    drawn = noise.k_norm(2.0**GRID_BITS / budget.epsilon, 1, 7)
    noisy = rounded_sum(exact.numpy(), drawn)[0] * 2.0**-GRID_BITS
    count = max(1.0, noisy[6] / COUNT_WEIGHT)
    sums = noisy[:6] / (_share() * count)
    mean = np.clip(sums[:3] * RANGE, -RANGE, RANGE)
    square = np.clip(sums[3:] * RANGE**2, 0.0, RANGE**2)
    deviation = np.clip(np.sqrt(np.maximum(square - mean**2, 0.0)), LEAST, MOST)
    a, b, c = mean.tolist()
    p, q, r = deviation.tolist()
    return (a, b, c), (p, q, r)


def paid_constants(budget: Budget, noise: Noise) -> Callable[[Portions], tuple[Constants, dict[str, Any]]]:
    """How an ingest finds its private constants, with the price that is written beside them.

    Guarantee
    ---------
    As `private_moments`, once: an ingest that is made again draws again and spends again, and only its own folder
    knows. Who keeps two folders of the same people adds their prices up.
    """

    def found(portions: Portions) -> tuple[Constants, dict[str, Any]]:
        mean, deviation = private_moments(portions, budget, noise)
        price = {"epsilon": budget.epsilon, "delta": budget.delta, "unit": "user"}
        return Constants(mean, deviation, "private"), {"status": "proved" if noise.secure else "none", **price}

    return found


def _share() -> float:
    """Six values of at most 1 and the count together have norm at most 1."""
    return float(np.sqrt((1 - COUNT_WEIGHT**2) / 6))


def _rows(portions: Portions) -> Iterator[torch.Tensor]:
    """One row for each person: their means of x/R and x²/R², and the weight of a count."""
    totals: dict[str, NDArray[np.float64]] = {}
    for name, windows in portions:
        values = np.nan_to_num(np.clip(windows.astype(np.float64) / RANGE, -1, 1))
        means = np.concatenate([values.mean(axis=2), np.square(values).mean(axis=2)], axis=1)
        sums = np.append(means.sum(axis=0), len(means))
        totals[name] = totals[name] + sums if name in totals else sums
    for found in totals.values():
        yield torch.from_numpy(np.append(found[:6] / found[6] * _share(), COUNT_WEIGHT))[None]
