"""Samplers of privacy noise. They must not import torch models and never see data.

`SystemNoise` takes every draw from the operating system's entropy. `KeyedNoise` expands one secret key, so that who
keeps the key can repeat the draws after a crash. `InsecureNoise` repeats itself from a seed: it exists for tests and
reproductions, and whatever is trained with it has the guarantee `none`.

All laws are *ideal real-valued sampling*: float64 from 64-bit words. A boundary that releases sums therefore adds
them to whole numbers and rounds (`rounded_sum`): the lattice of possible outputs is then the same whatever the
data, which stops the attack on the low bits of floating-point noise (Mironov 2012).
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
from abc import ABC, abstractmethod

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from l2dp.errors import BadInput

Floats = NDArray[np.float64]

LARGEST = 2.0**53
"""Whole numbers up to here are exact in float64."""


def _uniform(words: NDArray[np.uint64]) -> Floats:
    """A uniform in (0, 1) from the upper 52 bits, centred in its cell, (k + ½)/2⁵²: never 0 or 1.

    Logarithms are therefore finite. With a 53rd bit, k + ½ would not fit a float64 and would be rounded, at the end
    to 1.
    """
    return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def _check(scale: float) -> None:
    if not (math.isfinite(scale) and scale > 0):
        raise BadInput(f"the scale of privacy noise must be positive and finite, not {scale}")


class Noise(ABC):
    """A source of privacy noise; `secure` says whether a guarantee may rest on it."""

    secure: bool

    @abstractmethod
    def words(self, count: int) -> NDArray[np.uint64]:
        """Independent uniform 64-bit words."""

    @abstractmethod
    def fork(self, purpose: str) -> Noise:
        """A source for one purpose, independent of those for other purposes.

        A repeatable source repeats itself for the same purpose, however much was drawn before: so a run that
        continues after a crash finds the noise that an uninterrupted one found.
        """

    def laplace(self, scale: float, shape: tuple[int, ...]) -> Floats:
        """Density ∝ exp(−|z|/scale): a sign bit, and an exponential from 52 of the others."""
        _check(scale)
        words = self.words(math.prod(shape))
        sign = np.where(words & np.uint64(1), 1.0, -1.0)
        return (sign * (-scale * np.log(_uniform(words)))).reshape(shape)

    def gaussian(self, scale: float, shape: tuple[int, ...]) -> Floats:
        """Density ∝ exp(−z²/2·scale²), by Box and Muller; no draw exceeds 8.6 times the scale."""
        _check(scale)
        count = math.prod(shape)
        pairs = (count + 1) // 2
        # Torch's logarithms and cosines use all cores; numpy's cost as much as a step of a small network.
        uniform = torch.from_numpy(_uniform(self.words(2 * pairs)))
        radius = uniform[:pairs].log_().mul_(-2.0 * scale**2).sqrt_()
        angle = uniform[pairs:].mul_(2.0 * math.pi)
        drawn = torch.cat([angle.cos().mul_(radius), angle.sin_().mul_(radius)])[:count]
        return np.asarray(drawn.numpy(), dtype=np.float64).reshape(shape)

    def k_norm(self, scale: float, rows: int, width: int) -> Floats:
        """`rows` independent vectors with density ∝ exp(−‖z‖₂/scale): the K-norm mechanism of the Euclidean ball.

        The direction is uniform; the length has the law Gamma(width), a sum of exponentials.
        """
        _check(scale)
        direction = self.gaussian(1.0, (rows, width))
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        length = -np.log(_uniform(self.words(rows * width))).reshape(rows, width).sum(axis=1, keepdims=True)
        return np.asarray(direction * (scale * length), dtype=np.float64)

    def subset(self, size: int, rate: float) -> NDArray[np.int64]:
        """Positions of a Poisson sample: each of `size` is in with probability `rate`, on its own.

        The sample is secret, for amplification rests on that: it is noise like any other.
        """
        if not 0 < rate <= 1:
            raise BadInput(f"a sampling rate must lie above 0 and at most 1, not {rate}")
        if rate == 1:
            return np.arange(size)
        return np.flatnonzero(_uniform(self.words(size)) < rate)


def rounded_sum(exact: Floats, drawn: Floats) -> Floats:
    """Whole numbers plus noise, rounded to whole numbers.

    Guarantee
    ---------
    round(v + z) is a function of v + z, so it is as private as the sum itself; and for whole v it equals
    v + round(z), whose possible values are all whole numbers, whatever v is. Refuses what float64 cannot hold.
    """
    noisy = np.rint(drawn)
    noisy += exact
    noisy += 0.0  # −0.0 becomes 0.0: the sign of a zero would tell on which side it came from
    if not np.all(np.abs(noisy) < LARGEST):  # NaN compares false
        raise BadInput("a noisy sum exceeds what float64 holds exactly; use fewer records a task or a larger epsilon")
    return noisy


KEY_BYTES = 32
_DIRECTLY = 512
"""Words that are read from the operating system as they are; for more, a key is cheaper."""


def _generator(key: bytes) -> CipherContext:
    """AES-256 in counter mode from zero: a key must never be given here twice, but to repeat itself."""
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()


class SystemNoise(Noise):
    """Privacy noise from the operating system's entropy, fresh for every draw.

    Long draws come through a cryptographic generator (AES-256 in counter mode) with a fresh 256-bit key from there,
    which is forgotten at once: many times faster, and a forked process cannot repeat its parent.

    Guarantee
    ---------
    Draws are independent and unpredictable to anybody who cannot break AES-256. Their laws hold under *ideal
    real-valued sampling*: values are float64 through logarithms and cosines, so the gaps between representable outputs
    are visible to an attacker who sees a noisy value to the last bit (Mironov 2012). Round it away (`rounded_sum`) or
    say so in the guarantee.
    """

    secure = True

    def words(self, count: int) -> NDArray[np.uint64]:
        if count <= _DIRECTLY:
            return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
        return np.frombuffer(_generator(os.urandom(KEY_BYTES)).update(bytes(8 * count)), dtype=np.uint64)

    def fork(self, purpose: str) -> SystemNoise:
        return self


class KeyedNoise(Noise):
    """Privacy noise from a cryptographic generator (AES-256 in counter mode) with a secret 256-bit key.

    Guarantee
    ---------
    As `SystemNoise`, as long as the key comes from the operating system's entropy, stays secret, and serves one set of
    data: the same key gives the same draws. So a key made durable before the first draw lets a learner that was killed
    find its own answers again instead of giving second ones; about other data it would cancel the noise.
    """

    secure = True

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise BadInput(f"a noise key has {KEY_BYTES} bytes, not {len(key)}; take os.urandom({KEY_BYTES})")
        self._key = key
        self._stream = _generator(_derived(key, "words", ""))

    def words(self, count: int) -> NDArray[np.uint64]:
        return np.frombuffer(self._stream.update(bytes(8 * count)), dtype=np.uint64)

    def fork(self, purpose: str) -> KeyedNoise:
        return KeyedNoise(_derived(self._key, "fork", purpose))


def _derived(key: bytes, use: str, purpose: str) -> bytes:
    # The stream and the forks have keys of their own: no key is both expanded and derived from.
    return hmac.digest(key, f"l2dp noise {use} {purpose}".encode(), "sha256")


class InsecureNoise(Noise):
    """Repeatable noise for tests and reproductions. Protects nobody; runs under it state `none`."""

    secure = False

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._bits = np.random.Philox(seed)

    def words(self, count: int) -> NDArray[np.uint64]:
        return np.asarray(self._bits.random_raw(count), dtype=np.uint64)

    def fork(self, purpose: str) -> Noise:
        digest = hashlib.blake2b(f"{self._seed} {purpose}".encode(), digest_size=16).digest()
        return InsecureNoise(int.from_bytes(digest, "little"))
