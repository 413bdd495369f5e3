"""How well a network does on held-out records of a task, with noise: two noisy counts, of right and wrong answers."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from l2dp import parallel
from l2dp.boundary.gradients import PART, Sampled
from l2dp.noise import Noise, rounded_sum


@torch.no_grad()
def noisy_counts(
    network: nn.Module, held: Sampled, multiplier: float, noise: Noise, device: torch.device
) -> tuple[float, float]:
    """The number of right and of wrong answers, each a whole number with Gaussian noise.

    Guarantee
    ---------
    A record is counted once, in one of the two, so that adding or removing it moves the pair by 1: one Gaussian
    mechanism of that multiplier, over exact whole numbers. The number of records is not given out. Processes that share
    a run all get the first one's pair, for a pair that differs would part them.
    """
    records, rows, mask = held
    network.eval()
    right = 0
    for some in rows.split(PART) if len(rows) else ():
        x, y = records.batch(some)
        scores = network(x.to(device))
        if mask is not None:
            scores = scores.masked_fill(~mask.to(device), float("-inf"))
        right += int((scores.argmax(1) == y.to(device)).sum())
    network.train()
    exact = np.array([right, len(rows) - right], dtype=np.float64)
    noisy = parallel.first(torch.from_numpy(rounded_sum(exact, noise.gaussian(multiplier, (2,)))))
    return float(noisy[0]), float(noisy[1])
