"""Gaussian and K-norm noise, Poisson samples, rounded sums and forks have the laws they claim; others are caught."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from l2dp.errors import BadInput
from l2dp.noise import LARGEST, InsecureNoise, KeyedNoise, Noise, SystemNoise, rounded_sum

DRAWS = 100_000
SCALE = 3.7
ALARM = 1e-9
"""The false-alarm rate of each single test here; all of them together stay far below 1e-6."""

light = settings(deadline=None, max_examples=100)
Draws = NDArray[np.float64]
SOURCES = [SystemNoise(), KeyedNoise(bytes(range(32))), InsecureNoise(5).fork("task 3")]
sources = pytest.mark.parametrize("source", SOURCES, ids=["system", "keyed", "forked"])


def tails(law: stats.rv_continuous, value: float) -> float:
    """The two-sided p-value of one number."""
    return 2 * float(min(law.cdf(value), law.sf(value)))


def spread_p(draws: Draws, scale: float) -> float:
    """Two-sided exact test of the scale: squares of n normal numbers add up to a chi-square of n."""
    return tails(stats.chi2(draws.size), float(np.square(draws / scale).sum()))


def shape_p(draws: Draws, scale: float) -> float:
    return float(stats.kstest(draws.ravel(), stats.norm(scale=scale).cdf).pvalue)


def correlation_p(a: Draws, b: Draws) -> float:
    """Whether two sequences correlate, by the normal law of √n·r for independent ones."""
    r = float(np.corrcoef(a, b)[0, 1])
    return 2 * float(stats.norm.sf(abs(r) * math.sqrt(len(a))))


# --- Gaussian noise -------------------------------------------------------------------------------------


@sources
def test_gaussian_noise_has_the_law_and_the_scale(source: Noise) -> None:
    draws = source.gaussian(SCALE, (DRAWS,))
    assert shape_p(draws, SCALE) > ALARM
    assert spread_p(draws, SCALE) > ALARM
    for wrong in (SCALE * 1.1, SCALE / 1.1):
        assert shape_p(draws, wrong) < ALARM
        assert spread_p(draws, wrong) < ALARM


def test_the_gaussian_test_catches_other_laws_of_the_same_spread() -> None:
    laplace = SystemNoise().laplace(SCALE / math.sqrt(2), (DRAWS,))
    uniform = np.random.default_rng(0).uniform(-1, 1, DRAWS) * SCALE * math.sqrt(3)
    for draws in (laplace, uniform):
        assert np.std(draws) == pytest.approx(SCALE, rel=0.02)
        assert shape_p(draws, SCALE) < ALARM
    draws = SystemNoise().gaussian(SCALE, (DRAWS,))
    assert shape_p(np.abs(draws), SCALE) < ALARM
    assert shape_p(draws + SCALE / 20, SCALE) < ALARM


@sources
def test_the_two_numbers_of_a_pair_tell_nothing_about_each_other(source: Noise) -> None:
    """Cosine and sine share a radius and an angle, and must be independent all the same."""
    draws = source.gaussian(SCALE, (DRAWS,))
    half = DRAWS // 2
    first, second = draws[:half], draws[half:]
    for a, b in ((first, second), (draws[1:], draws[:-1])):
        assert correlation_p(a, b) > ALARM
        assert correlation_p(np.square(a), np.square(b)) > ALARM
        assert correlation_p(np.abs(a), b) > ALARM
    assert shape_p((first + second) / math.sqrt(2), SCALE) > ALARM
    assert shape_p((first - second) / math.sqrt(2), SCALE) > ALARM
    radius = np.hypot(first, first)
    assert correlation_p(np.square(radius), np.square(first)) < ALARM, "the test has no power"


@sources
def test_gaussian_calls_are_independent(source: Noise) -> None:
    first, second = (source.gaussian(1.0, (DRAWS,)) for _ in range(2))
    assert not np.any(first == second)
    assert correlation_p(first, second) > ALARM
    assert correlation_p(np.abs(first), np.abs(second)) > ALARM


def test_gaussian_shapes_and_extremes() -> None:
    for source in SOURCES:
        for shape in ((2, 3, 4), (), (0, 4), (1,), (7,), (3, 5)):
            drawn = source.gaussian(2.0, shape)
            assert drawn.shape == shape
            assert drawn.dtype == np.float64

    class Words(InsecureNoise):
        def words(self, count: int) -> NDArray[np.uint64]:
            return np.full(count, self.word, dtype=np.uint64)

        word = 0

    source = Words(0)
    for source.word in (0, 1, 2**63, 2**64 - 1):
        drawn = source.gaussian(1.0, (6,))
        assert np.isfinite(drawn).all()
        assert np.abs(drawn).max() < 8.6
        assert np.isfinite(source.k_norm(1.0, 2, 3)).all()


# --- K-norm noise ---------------------------------------------------------------------------------------

ROWS = 40_000


def lengths(draws: Draws) -> Draws:
    return np.asarray(np.linalg.norm(draws, axis=1))


def length_p(draws: Draws, scale: float) -> float:
    return float(stats.kstest(lengths(draws) / scale, stats.gamma(draws.shape[1]).cdf).pvalue)


def total_p(draws: Draws, scale: float) -> float:
    """Two-sided exact test of the scale: n lengths of Gamma(d) add up to Gamma(nd)."""
    return tails(stats.gamma(draws.size), float(lengths(draws).sum()) / scale)


def direction_p(draws: Draws, along: Draws) -> float:
    """One coordinate u of a uniform direction: (u + 1)/2 is Beta((d−1)/2, (d−1)/2)."""
    d = draws.shape[1]
    u = draws @ (along / np.linalg.norm(along)) / lengths(draws)
    return float(stats.kstest((u + 1) / 2, stats.beta((d - 1) / 2, (d - 1) / 2).cdf).pvalue)


@sources
@pytest.mark.parametrize("width", [2, 6, 17])
def test_k_norm_noise_has_the_law_and_the_scale(source: Noise, width: int) -> None:
    draws = source.k_norm(SCALE, ROWS, width)
    assert draws.shape == (ROWS, width)
    assert length_p(draws, SCALE) > ALARM
    assert total_p(draws, SCALE) > ALARM
    for wrong in (SCALE * 1.1, SCALE / 1.1):
        assert length_p(draws, wrong) < ALARM
        assert total_p(draws, wrong) < ALARM
    generator = np.random.default_rng(width)
    for along in (np.eye(width)[0], np.eye(width)[-1], np.ones(width), generator.normal(size=width)):
        assert direction_p(draws, along) > ALARM


@sources
def test_the_coordinates_of_k_norm_noise_have_the_moments_that_the_boundary_states(source: Noise) -> None:
    """Mean 0, variance scale²(d+1): the deviation that class sums publish rests on it."""
    d = 6
    draws = source.k_norm(SCALE, ROWS, d) / SCALE
    second, fourth = d + 1.0, 3.0 * (d + 1) * (d + 3)  # E r² = d(d+1), E r⁴ = d…(d+3); E u² = 1/d, E u⁴ = 3/(d(d+2))
    limit = float(stats.norm.isf(ALARM))
    for coordinate in draws.T:
        assert abs(coordinate.mean()) < limit * math.sqrt(second / ROWS)
        assert abs(np.square(coordinate).mean() - second) < limit * math.sqrt((fourth - second**2) / ROWS)
        assert abs(np.square(coordinate * 1.1).mean() - second) > limit * math.sqrt((fourth - second**2) / ROWS)
    for i in range(d):
        for j in range(i):
            assert correlation_p(draws[:, i], draws[:, j]) > ALARM


@sources
def test_k_norm_noise_in_one_dimension_is_laplace(source: Noise) -> None:
    draws = source.k_norm(SCALE, ROWS, 1).ravel()
    assert stats.kstest(draws, stats.laplace(scale=SCALE).cdf).pvalue > ALARM


@sources
def test_rows_lengths_and_directions_are_independent(source: Noise) -> None:
    draws = source.k_norm(1.0, ROWS, 4)
    r = lengths(draws)
    u = draws / r[:, None]
    assert correlation_p(r[1:], r[:-1]) > ALARM
    for column in range(4):
        assert correlation_p(r, u[:, column]) > ALARM
        assert correlation_p(r, np.abs(u[:, column])) > ALARM
        assert correlation_p(u[1:, column], u[:-1, column]) > ALARM
        assert correlation_p(r, np.abs(draws[:, column])) < ALARM, "the test has no power"


def test_the_k_norm_test_catches_a_gaussian_a_laplace_and_one_length_for_all() -> None:
    d = 6
    source = SystemNoise()
    gaussian = source.gaussian(math.sqrt(d + 1), (ROWS, d))  # of the same variance
    assert length_p(gaussian, 1.0) < ALARM
    laplace = source.laplace(math.sqrt((d + 1) / 2), (ROWS, d))
    assert direction_p(laplace, np.eye(d)[0]) < ALARM
    shared = source.k_norm(1.0, ROWS, d)
    shared *= d / lengths(shared)[:, None]
    assert length_p(shared, 1.0) < ALARM
    # A length of the wrong number of exponentials, one too few.
    short = source.k_norm(1.0, ROWS, d)
    short *= (np.random.default_rng(0).gamma(d - 1, size=ROWS) / lengths(short))[:, None]
    assert length_p(short, 1.0) < ALARM


# --- Poisson samples ------------------------------------------------------------------------------------

SIZE, TRIALS = 500, 2000
Sampler = Callable[[int, float], NDArray[np.int64]]


def included(sampler: Sampler, rate: float) -> Draws:
    """One row a trial, one column a position: 1 where it was in."""
    table = np.zeros((TRIALS, SIZE))
    for row in table:
        chosen = sampler(SIZE, rate)
        assert chosen.dtype == np.int64
        assert np.all(np.diff(chosen) > 0), "positions come in order, none twice"
        row[chosen] = 1
    return table


def sample_p(table: Draws, rate: float) -> float:
    """The least p-value of: the total, the spread of the counts, every position's own rate, neighbours, trials."""
    each = rate * (1 - rate)
    found = [
        float(stats.binomtest(int(table.sum()), table.size, rate).pvalue),
        tails(stats.chi2(TRIALS), float(np.square(table.sum(1) - SIZE * rate).sum()) / (SIZE * each)),
        tails(stats.chi2(SIZE), float(np.square(table.sum(0) - TRIALS * rate).sum()) / (TRIALS * each)),
        correlation_p(table[:, 1:].ravel(), table[:, :-1].ravel()),
        correlation_p(table[1:].ravel(), table[:-1].ravel()),
    ]
    return min(found)


@sources
@pytest.mark.parametrize("rate", [0.02, 0.3, 0.9])
def test_every_position_is_sampled_on_its_own(source: Noise, rate: float) -> None:
    table = included(source.subset, rate)
    assert sample_p(table, rate) > ALARM
    assert sample_p(table, min(0.99, rate * 1.2)) < ALARM
    assert sample_p(table, rate / 1.2) < ALARM


def test_the_sampling_test_catches_other_samplings() -> None:
    rng = np.random.default_rng(0)

    def fixed_size(size: int, rate: float) -> NDArray[np.int64]:
        return np.sort(rng.permutation(size)[: round(size * rate)])

    def blocks(size: int, rate: float) -> NDArray[np.int64]:
        return np.flatnonzero(np.repeat(rng.random(size // 2) < rate, 2))

    def shuffled_once(size: int, rate: float, turn: list[int] = [0]) -> NDArray[np.int64]:  # noqa: B006
        """Epochs over one shuffle instead of fresh samples."""
        turn[0] += 1
        return np.sort((np.arange(round(size * rate)) + turn[0] * 7) % size)

    for broken in (fixed_size, blocks, shuffled_once):
        assert sample_p(included(broken, 0.3), 0.3) < ALARM


def test_the_whole_is_a_sample_of_rate_one_and_other_rates_are_refused() -> None:
    for source in SOURCES:
        np.testing.assert_array_equal(source.subset(7, 1.0), np.arange(7))
        assert len(source.subset(0, 0.5)) == 0
        for rate in (0.0, -0.1, 1.1, math.nan, math.inf):
            with pytest.raises(BadInput, match="sampling rate"):
                source.subset(7, rate)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_a_scale_that_protects_nobody_is_refused(scale: float) -> None:
    for source in SOURCES:
        with pytest.raises(BadInput, match="scale of privacy noise"):
            source.gaussian(scale, (3,))
        with pytest.raises(BadInput, match="scale of privacy noise"):
            source.k_norm(scale, 3, 2)


# --- rounded sums ---------------------------------------------------------------------------------------

whole_numbers = st.integers(-(2**51), 2**51).map(float)
noises = st.floats(-(2.0**51), 2.0**51)


@light
@given(st.lists(st.tuples(whole_numbers, noises), min_size=1, max_size=8))
def test_a_rounded_sum_is_whole_and_the_exact_part_only_moves_it(pairs: list[tuple[float, float]]) -> None:
    exact, drawn = (np.array(part) for part in zip(*pairs, strict=True))
    noisy = rounded_sum(exact, drawn)
    assert np.all(noisy == np.rint(noisy))
    # The possible outputs are the whole numbers whatever the data: the fraction of the noise leaves no trace.
    np.testing.assert_array_equal(noisy - exact, rounded_sum(np.zeros_like(exact), drawn))
    assert np.all(np.abs(noisy - exact - drawn) <= 0.5)


def test_the_low_bits_of_a_rounded_sum_tell_nothing() -> None:
    """The outputs for 0 and for 1 are the same set of numbers; those of plain float addition are not."""
    drawn = InsecureNoise(3).gaussian(20.0, (50_000,))
    at = {exact: rounded_sum(np.full_like(drawn, exact), drawn) for exact in (0.0, 1.0)}
    middle = range(-20, 21)
    assert all(set(middle) <= set(noisy.tolist()) for noisy in at.values())
    plain = {exact: set((drawn + exact).tolist()) for exact in (0.0, 1.0)}
    assert not plain[0.0] & plain[1.0], "without rounding the sets differ, or this test has no power"


def test_a_rounded_sum_has_one_zero() -> None:
    """A zero with a sign would tell −0.0 from 0.0, and so a sum that was negative from one that was not."""
    for exact in (0.0, -0.0):
        for drawn in (0.2, -0.2):
            assert not np.signbit(rounded_sum(np.array([exact]), np.array([drawn])))[0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, LARGEST, -LARGEST, 1e300])
def test_a_sum_that_is_not_exact_is_refused(bad: float) -> None:
    for exact, drawn in (([1.0, bad], [0.1, -0.1]), ([1.0, 0.0], [0.1, bad])):
        with pytest.raises(BadInput, match="exceeds what float64 holds"):
            rounded_sum(np.array(exact), np.array(drawn))
    assert rounded_sum(np.array([LARGEST - 2]), np.array([0.4]))[0] == LARGEST - 2


def test_a_rounded_sum_leaves_its_arguments_alone() -> None:
    exact, drawn = np.array([3.0, -2.0]), np.array([0.6, 0.2])
    np.testing.assert_array_equal(rounded_sum(exact, drawn), [4.0, -2.0])
    np.testing.assert_array_equal(exact, [3.0, -2.0])
    np.testing.assert_array_equal(drawn, [0.6, 0.2])


# --- forks ----------------------------------------------------------------------------------------------


def test_a_fork_repeats_itself_however_much_was_drawn_before() -> None:
    source = InsecureNoise(9)
    first = source.fork("task 0").gaussian(1.0, (100,))
    source.gaussian(1.0, (1234,))
    np.testing.assert_array_equal(first, source.fork("task 0").gaussian(1.0, (100,)))
    np.testing.assert_array_equal(first, InsecureNoise(9).fork("task 0").gaussian(1.0, (100,)))
    assert not np.any(first == InsecureNoise(10).fork("task 0").gaussian(1.0, (100,)))


def test_forks_are_independent_of_each_other_and_of_their_source() -> None:
    source = InsecureNoise(9)
    origins = [source, source.fork("task 0"), source.fork("task 1"), source.fork("task 10"), source.fork("task 0")]
    *others, again = (origin.gaussian(1.0, (DRAWS,)) for origin in origins)
    for i, a in enumerate(others):
        assert shape_p(a, 1.0) > ALARM
        for b in others[:i]:
            assert not np.any(a == b)
            assert correlation_p(a, b) > ALARM
    assert correlation_p(others[1], again) < ALARM, "the test has no power"


def test_the_first_draws_of_many_forks_are_as_random_as_those_of_one() -> None:
    source = InsecureNoise(0)
    first = np.array([source.fork(f"task {index}").gaussian(1.0, (2,)) for index in range(5000)])
    assert shape_p(first, 1.0) > ALARM
    assert spread_p(first, 1.0) > ALARM
    assert correlation_p(first[1:, 0], first[:-1, 0]) > ALARM


def test_a_fork_is_as_secure_as_its_source() -> None:
    assert SystemNoise().fork("task 0").secure is True
    assert InsecureNoise(0).fork("task 0").secure is False
    system = SystemNoise()
    draws = [system.fork("task 0").gaussian(1.0, (20,)) for _ in range(2)]
    assert not np.any(draws[0] == draws[1]), "secure noise never repeats itself"
