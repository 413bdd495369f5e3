"""Which windows train and which test: by user, or (the paper's way) window by window.

Both are decided by a keyed hash of the user, or of user and time, alone: whether somebody else is in the data changes
nothing for them, which is what a guarantee for adding or removing one person needs.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

SHUFFLE = 20_23
"""The public seed by which the windows of a task are put in no particular order."""


def user_tests(user: str, share: float, seed: int) -> bool:
    """Whether a user tests; the share holds on average over users."""
    return _fraction(f"{seed} {user}") < share


def window_keys(user: str, starts: NDArray[np.int64], seed: int) -> NDArray[np.uint64]:
    """A number for each window of a user that looks random and depends on the user, its first instant and the seed."""
    key = np.uint64(int.from_bytes(_digest(f"{seed} {user}"), "big"))
    mixed = starts.astype(np.uint64) ^ key
    with np.errstate(over="ignore"):  # splitmix64, which is arithmetic modulo 2^64
        mixed = mixed + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def shuffled(users: list[str], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """An order in which the first rows of a user are any of theirs, not the earliest; it depends on nobody else."""
    keys = np.empty(len(starts), np.uint64)
    whose = np.array(users)
    for name in set(users):
        rows = whose == name
        keys[rows] = window_keys(name, starts[rows], SHUFFLE)
    return np.argsort(keys, kind="stable")


def windows_test(user: str, starts: NDArray[np.int64], share: float, seed: int) -> NDArray[np.bool_]:
    """Which windows of a user test.

    Guarantee
    ---------
    None: neighbours of a test window share most of its samples and are in the training part.
    """
    return window_keys(user, starts, seed) < np.uint64(share * 2**64)


def _fraction(text: str) -> float:
    return int.from_bytes(_digest(text), "big") / 2**64


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
