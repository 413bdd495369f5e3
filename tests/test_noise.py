"""Privacy noise has the law it claims, comes from the operating system alone, and a wrong scale is caught."""

from __future__ import annotations

import math
import os
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from l2dp.errors import BadInput
from l2dp.noise import InsecureNoise, Noise, SystemNoise

DRAWS = 200_000
SCALE = 3.7
ALARM = 1e-9
"""The false-alarm rate of each single test here; all of them together stay far below 1e-6."""

light = settings(deadline=None, max_examples=100)
Draws = NDArray[np.float64]


def shape_p(draws: Draws, scale: float) -> float:
    """Two-sided Kolmogorov–Smirnov test against the Laplace law."""
    return float(stats.kstest(draws, stats.laplace(scale=scale).cdf).pvalue)


def scale_p(draws: Draws, scale: float) -> float:
    """Two-sided exact test of the scale: |X|/b is exponential, so that n of them add up to a Gamma(n)."""
    total = float(np.abs(draws).sum()) / scale
    law = stats.gamma(len(draws))
    return 2 * float(min(law.cdf(total), law.sf(total)))


def uniforms(draws: Draws, scale: float) -> Draws:
    return np.asarray(stats.laplace(scale=scale).cdf(draws))


def correlated(a: Draws, b: Draws) -> bool:
    """Whether two sequences correlate, by the normal law of √n·r for independent ones."""
    r = float(np.corrcoef(a, b)[0, 1])
    return 2 * float(stats.norm.sf(abs(r) * math.sqrt(len(a)))) < ALARM


SOURCES: list[Noise] = [SystemNoise(), InsecureNoise(5)]


@pytest.mark.parametrize("source", SOURCES, ids=["system", "insecure"])
def test_the_law_is_laplace_of_the_right_scale(source: Noise) -> None:
    draws = source.laplace(SCALE, (DRAWS,))
    assert shape_p(draws, SCALE) > ALARM
    assert scale_p(draws, SCALE) > ALARM
    for wrong in (SCALE * 1.1, SCALE / 1.1):
        assert shape_p(draws, wrong) < ALARM
        assert scale_p(draws, wrong) < ALARM


@pytest.mark.parametrize("source", SOURCES, ids=["system", "insecure"])
def test_the_test_catches_other_laws_of_the_same_spread(source: Noise) -> None:
    draws = source.laplace(SCALE, (DRAWS,))
    gaussian = np.random.default_rng(0).normal(0, SCALE * math.sqrt(math.pi / 2), DRAWS)
    assert scale_p(gaussian, SCALE) > ALARM
    assert shape_p(gaussian, SCALE) < ALARM
    assert shape_p(np.abs(draws), SCALE) < ALARM
    assert shape_p(draws + SCALE / 20, SCALE) < ALARM


@pytest.mark.parametrize("source", SOURCES, ids=["system", "insecure"])
def test_the_sign_is_fair_and_tells_nothing_about_the_size(source: Noise) -> None:
    draws = source.laplace(SCALE, (DRAWS,))
    positive = draws > 0
    assert stats.binomtest(int(positive.sum()), DRAWS, 0.5).pvalue > ALARM
    exponential = stats.expon(scale=SCALE).cdf
    assert stats.kstest(draws[positive], exponential).pvalue > ALARM
    assert stats.kstest(-draws[~positive], exponential).pvalue > ALARM


@pytest.mark.parametrize("source", SOURCES, ids=["system", "insecure"])
def test_draws_are_independent_within_and_between_calls(source: Noise) -> None:
    first, second = (uniforms(source.laplace(SCALE, (DRAWS,)), SCALE) for _ in range(2))
    assert not np.array_equal(first, second)
    assert not correlated(first, second)
    assert not correlated(first[1:], first[:-1])
    size = [np.abs(u - 0.5) for u in (first, second)]
    assert not correlated(*size)
    assert correlated(first, first + second), "the test has no power"


def test_every_draw_takes_fresh_bytes_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    true = os.urandom

    def counting(size: int) -> bytes:
        asked.append(size)
        return true(size)

    monkeypatch.setattr(os, "urandom", counting)
    SystemNoise().laplace(1.0, (7, 3))
    SystemNoise().laplace(1.0, (4,))
    assert asked == [8 * 21, 8 * 4]


def test_all_randomness_is_that_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = os.urandom(8 * 50)
    monkeypatch.setattr(os, "urandom", lambda size: fixed[:size])
    first = SystemNoise().laplace(1.0, (50,))
    np.testing.assert_array_equal(first, SystemNoise().laplace(1.0, (50,)))


def test_global_generators_are_neither_used_nor_disturbed() -> None:
    drawn = []
    for _ in range(2):
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
        drawn.append(SystemNoise().laplace(1.0, (20,)))
        InsecureNoise(0).laplace(1.0, (20,))
        after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
        assert before[:2] == after[:2]
        assert torch.equal(before[2], after[2])
    assert not np.any(drawn[0] == drawn[1])


def test_insecure_noise_repeats_itself_and_says_so() -> None:
    a, b, c = InsecureNoise(1), InsecureNoise(1), InsecureNoise(2)
    for _ in range(2):
        draws = a.laplace(2.0, (3, 5))
        np.testing.assert_array_equal(draws, b.laplace(2.0, (3, 5)))
        assert not np.any(draws == c.laplace(2.0, (3, 5)))
    assert InsecureNoise.secure is False
    assert SystemNoise.secure is True


def given_bits(word: int, scale: float = 1.0) -> float:
    """What the system's noise makes of the given 64 bits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "urandom", lambda size: word.to_bytes(8, "little") * (size // 8))
        return float(SystemNoise().laplace(scale, (1,))[0])


@light
@given(st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**64 - 1, 2**64 - 2, 1 << 63, (1 << 63) - 1, 1 << 11]))
def test_every_pattern_of_bits_gives_a_finite_draw(word: int) -> None:
    draw = given_bits(word)
    # 52 bits: the uniform is at least 2⁻⁵³ and at most 1 − 2⁻⁵³, never 0 or 1.
    assert 2.0**-53 <= abs(draw) <= 53 * math.log(2) * (1 + 1e-15)


def test_the_extreme_patterns() -> None:
    assert abs(given_bits(0)) == pytest.approx(53 * math.log(2), rel=1e-14)
    assert abs(given_bits(2**64 - 1)) == pytest.approx(2.0**-53, rel=1e-9)
    assert given_bits(2**64 - 1) * given_bits(2**64 - 2) < 0, "one bit decides the sign"
    assert math.isfinite(given_bits(0, 1e300))


def test_shapes() -> None:
    for source in (SystemNoise(), InsecureNoise(0)):
        assert source.laplace(1.0, (2, 3, 4)).shape == (2, 3, 4)
        assert source.laplace(1.0, ()).shape == ()
        assert source.laplace(1.0, (0, 4)).shape == (0, 4)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_a_scale_that_protects_nobody_is_refused(scale: float) -> None:
    for source in (SystemNoise(), InsecureNoise(0)):
        with pytest.raises(BadInput, match="scale of privacy noise"):
            source.laplace(scale, (3,))
