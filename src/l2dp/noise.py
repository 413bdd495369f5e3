"""Samplers of privacy noise. They must not import torch models and never see data.

`SystemNoise` reads the operating system's entropy for every draw. `InsecureNoise` repeats itself from a seed:
it exists for tests and reproductions, and whatever is trained with it has the guarantee `none`.
"""

from __future__ import annotations

import math
import os
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from l2dp.errors import BadInput


class Noise(Protocol):
    """A source of privacy noise; `secure` says whether a guarantee may rest on it."""

    secure: bool

    def laplace(self, scale: float, shape: tuple[int, ...]) -> NDArray[np.float64]: ...


def _laplace(words: NDArray[np.uint64], scale: float) -> NDArray[np.float64]:
    """Turns 64 random bits into one Laplace draw: a sign bit, and an exponential from 52 of the others.

    The uniform is centred in its cell, (k + ½)/2⁵², so that it is never 0 or 1 and the logarithm is finite.
    With a 53rd bit, k + ½ would not fit a float64 and would be rounded, at the end to 1.
    """
    if not (math.isfinite(scale) and scale > 0):
        raise BadInput(f"the scale of privacy noise must be positive and finite, not {scale}")
    sign = np.where(words & np.uint64(1), 1.0, -1.0)
    uniform = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return sign * (-scale * np.log(uniform))


class SystemNoise:
    """Privacy noise from the operating system's entropy, 64 fresh bits for every draw.

    Guarantee
    ---------
    Draws are independent and unpredictable. Their law is Laplace under *ideal real-valued sampling*: values
    are float64 through a logarithm, so the gaps between representable outputs are visible to an attacker
    who sees a noisy value to the last bit (Mironov 2012). Use it only where the guarantee says so.
    """

    secure = True

    def laplace(self, scale: float, shape: tuple[int, ...]) -> NDArray[np.float64]:
        count = int(np.prod(shape, dtype=np.int64))
        words = np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
        return _laplace(words, scale).reshape(shape)


class InsecureNoise:
    """Repeatable noise for tests and reproductions. Protects nobody; runs under it state `none`."""

    secure = False

    def __init__(self, seed: int) -> None:
        self._bits = np.random.Philox(seed)

    def laplace(self, scale: float, shape: tuple[int, ...]) -> NDArray[np.float64]:
        count = int(np.prod(shape, dtype=np.int64))
        words = np.asarray(self._bits.random_raw(count), dtype=np.uint64)
        return _laplace(words, scale).reshape(shape)
