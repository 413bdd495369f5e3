"""Values in [−1, 1]: z-score, clipped to [−2, 2], halved. The constants are public, the paper's, or paid for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

GRAVITY = 9.80665
CLIP = 2.0

How = Literal["public", "paper", "private"]


@dataclass(frozen=True)
class Constants:
    """Mean and standard deviation of each axis, where they come from, and what that cost.

    Public: mean 0 and g for every axis, so that ±2 g, the usual range of a phone's sensor, becomes ±1.
    """

    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    deviation: tuple[float, float, float] = (GRAVITY, GRAVITY, GRAVITY)
    how: How = "public"

    def __call__(self, windows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Windows of window, axis, sample."""
        mean = np.array(self.mean, np.float32)[:, None]
        scale = np.array(self.deviation, np.float32)[:, None]
        scaled = windows - mean
        scaled /= scale
        np.clip(scaled, -CLIP, CLIP, out=scaled)
        scaled /= CLIP
        return scaled

    def to_json(self) -> dict[str, Any]:
        return {
            "how": self.how,
            "mean": list(self.mean),
            "deviation": list(self.deviation),
            "private": self.how != "paper",
        }


class Moments:
    """Mean and variance of training windows, gathered a piece at a time: the paper's constants. Not private."""

    def __init__(self) -> None:
        self.count = 0
        self.total = np.zeros(3)
        self.square = np.zeros(3)

    def add(self, windows: NDArray[np.float32]) -> None:
        self.count += windows.shape[0] * windows.shape[2]
        self.total += windows.sum(axis=(0, 2), dtype=np.float64)
        self.square += np.square(windows, dtype=np.float64).sum(axis=(0, 2))

    def constants(self) -> Constants:
        mean = self.total / max(1, self.count)
        variance = np.maximum(self.square / max(1, self.count) - mean**2, 1e-12)
        a, b, c = mean.tolist()
        p, q, r = np.sqrt(variance).tolist()
        return Constants((a, b, c), (p, q, r), "paper")
