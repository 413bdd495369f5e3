"""Noise from keys: who holds the key can repeat the draws, and nobody else can."""

from __future__ import annotations

import multiprocessing
import os

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from l2dp import noise
from l2dp.errors import BadInput
from l2dp.noise import KeyedNoise, SystemNoise

KEYS = st.binary(min_size=32, max_size=32)


@given(KEYS, st.lists(st.integers(0, 700), min_size=1, max_size=6))
def test_a_key_repeats_its_draws_however_they_are_portioned(key: bytes, portions: list[int]) -> None:
    source = KeyedNoise(key)
    apart = np.concatenate([source.words(count) for count in portions])
    np.testing.assert_array_equal(apart, KeyedNoise(key).words(sum(portions)))


@given(KEYS, st.integers(0, 255))
def test_every_bit_of_the_key_matters(key: bytes, bit: int) -> None:
    other = bytearray(key)
    other[bit // 8] ^= 1 << bit % 8
    assert not np.any(KeyedNoise(key).words(64) == KeyedNoise(bytes(other)).words(64))


@given(KEYS, st.text(max_size=20), st.text(max_size=20))
def test_forks_depend_on_their_purpose_and_on_nothing_drawn_before(key: bytes, one: str, two: str) -> None:
    source = KeyedNoise(key)
    first = source.fork(one).words(64)
    source.words(1000)
    np.testing.assert_array_equal(first, source.fork(one).words(64))
    assert np.array_equal(first, source.fork(two).words(64)) == (one == two)
    assert not np.any(first == KeyedNoise(key).words(64))


def test_forks_of_forks_are_not_forks_of_joined_names() -> None:
    source = KeyedNoise(bytes(32))
    assert not np.any(source.fork("a").fork("b").words(64) == source.fork("a b").words(64))
    assert not np.any(source.fork("").words(64) == source.words(64))


def test_the_words_are_the_ciphers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    key = bytes(range(32))
    monkeypatch.setattr(os, "urandom", lambda count: key[:count])
    counters = b"".join(i.to_bytes(16, "big") for i in range(512))
    blocks = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(counters)
    np.testing.assert_array_equal(SystemNoise().words(1024), np.frombuffer(blocks, dtype=np.uint64))


@pytest.mark.parametrize("count", [3, noise._DIRECTLY, noise._DIRECTLY + 1, 100_000])
def test_the_system_gives_fresh_words_every_time(count: int) -> None:
    first, second = SystemNoise().words(count), SystemNoise().words(count)
    assert len(first) == len(second) == count
    assert not np.any(first == second)


def _draw(_: int) -> bytes:
    return SystemNoise().words(2000).tobytes()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_does_not_repeat_its_parent() -> None:
    here = SystemNoise().words(2000).tobytes()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        there = pool.map(_draw, range(4))
    assert len({here, *there}) == 5


@pytest.mark.parametrize("size", [0, 16, 31, 33])
def test_a_short_key_is_refused(size: int) -> None:
    with pytest.raises(BadInput, match="32 bytes"):
        KeyedNoise(bytes(size))


def test_a_key_is_secure_and_does_not_show_itself() -> None:
    source = KeyedNoise(b"k" * 32)
    assert source.secure
    assert source.fork("task 0").secure
    assert "kkkk" not in repr(source) + str(source)
