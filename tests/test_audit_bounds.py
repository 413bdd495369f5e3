"""Bounds of the audit: against another implementation, against the law they promise, and with perfect mechanisms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from l2dp.audit import bounds
from l2dp.audit.decisions import Trials, best_rule, bound, highest, likelihood_ratio

# From jax_privacy 2.0.0 (Google DeepMind), its module `auditing`, and dp-accounting 0.6.0 for Gaussian DP.
ONE_RUN_P_VALUES = [
    ((1000, 100, 80, 1.0, 0.0), 0.07155624680483674),
    ((1000, 100, 80, 1.0, 1e-5), 0.07300911594917776),
    ((1000, 200, 150, 0.5, 1e-5), 0.0006212078358387147),
    ((5000, 500, 330, 0.5, 1e-6), 0.04549380082135901),
]
ONE_RUN_BOUNDS = [
    ((1000, 100, 80, 0.0, 0.05), 0.9583920335782794),
    ((1000, 100, 80, 1e-5, 0.05), 0.9553185001776855),
    ((1000, 1000, 1000, 1e-5, 0.05), 5.782283131572193),
    ((5000, 500, 330, 1e-6, 1e-6), 0.0),
    ((2000, 300, 290, 1e-4, 0.05), 2.7315636662605227),
]
UPPER_LIMITS = [
    ((0, 1000, 0.025), 0.003682083896865671),
    ((7, 500, 0.025), 0.028631616183336053),
    ((250, 500, 1e-7), 0.6156144721070096),
]
RATES = [
    ((0, 0, 2000, 2000, 0.0, 0.05), 6.294657356967075),
    ((3, 40, 1000, 900, 1e-5, 0.05), 4.67769394033467),
    ((100, 300, 1000, 1000, 1e-2, 0.05), 1.7031668012682886),
]
GAUSSIAN = [((0.15, 1e-5), 0.5299385862241086), ((1.0, 1e-5), 4.377178095681137), ((3.0, 1e-3), 13.088179164628258)]


@pytest.mark.parametrize(("given", "wanted"), ONE_RUN_P_VALUES)
def test_one_run_p_values_of_jax_privacy(given: tuple[int, int, int, float, float], wanted: float) -> None:
    assert bounds.one_run_p_value(*given) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize(("given", "wanted"), ONE_RUN_BOUNDS)
def test_one_run_bounds_of_jax_privacy(given: tuple[int, int, int, float, float], wanted: float) -> None:
    assert bounds.one_run_bound(*given) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(("given", "wanted"), UPPER_LIMITS)
def test_limits_of_jax_privacy(given: tuple[int, int, float], wanted: float) -> None:
    assert float(bounds.clopper_pearson_upper(*given)) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize(("given", "wanted"), RATES)
def test_bounds_from_two_rates_of_jax_privacy(given: tuple[int, int, int, int, float, float], wanted: float) -> None:
    assert bounds.rates_bound(*given) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize(("given", "wanted"), GAUSSIAN)
def test_gaussian_epsilon_of_dp_accounting(given: tuple[float, float], wanted: float) -> None:
    assert bounds.gaussian_epsilon(*given) == pytest.approx(wanted, rel=1e-6)


def test_pure_epsilon_has_no_gaussian_estimate() -> None:
    assert bounds.gaussian_epsilon(1.0, 0.0) is None


def test_jax_privacy_itself() -> None:
    auditing = pytest.importorskip("jax_privacy.auditing", reason="jax-privacy is not installed")
    generator = np.random.default_rng(0)
    for _ in range(50):
        canaries = int(generator.integers(10, 3000))
        guesses = int(generator.integers(1, canaries + 1))
        right = int(generator.integers(0, guesses + 1))
        epsilon, delta = float(generator.uniform(0, 4)), float(10 ** -generator.uniform(2, 8))
        theirs = auditing._one_run_p_value(canaries, guesses, right, epsilon, delta)
        assert bounds.one_run_p_value(canaries, guesses, right, epsilon, delta) == pytest.approx(theirs, rel=1e-9)


@given(st.integers(1, 5000), st.data())
def test_limits_are_scipy_s_exact_ones(trials: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, trials))
    ours = float(bounds.clopper_pearson_lower(hits, trials, 0.05))
    exact = stats.binomtest(hits, trials, alternative="greater").proportion_ci(0.95, "exact").low
    assert ours == pytest.approx(exact, abs=1e-9)


@given(st.integers(1, 2000), st.data(), st.sampled_from([0.0, 1e-6, 1e-2]))
def test_a_bound_never_falls_when_guesses_get_better(trials: int, data: st.DataObject, delta: float) -> None:
    decided = data.draw(st.integers(1, trials))
    right = data.draw(st.integers(0, decided - 1))
    less, more = (float(bounds.guesses_bound(r, decided, trials, 2, delta, 0.05)) for r in (right, right + 1))
    assert 0 <= less <= more
    assert more <= float(bounds.guesses_bound(trials, trials, trials, 2, 0.0, 0.05)) + 1e-9
    assert float(bounds.guesses_bound(right, decided, trials, 2, 0.0, 0.05)) >= less


def perfect(generator: np.random.Generator, epsilon: float, delta: float, runs: int) -> Trials:
    """The worst mechanism that is still (ε, δ)-private: it tells the coin with probability δ, else it lies by ε."""
    members = generator.integers(0, 2, runs).astype(bool)
    truthful = generator.random(runs) < 1 / (1 + math.exp(-epsilon))
    scores = np.where(members == truthful, 1.0, -1.0)
    told = generator.random(runs) < delta
    scores = np.where(told, np.where(members, 2.0, -2.0), scores)
    return Trials(scores + 1e-3 * generator.random(runs), members)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (2.0, 0.0), (1.0, 1e-2)])
def test_400_audits_of_a_perfect_mechanism(epsilon: float, delta: float) -> None:
    """95 % bounds exceed ε about as often as they may, and no audit calls it refuted."""
    generator = np.random.default_rng(int(1000 * epsilon + delta))
    above = 0
    for _ in range(400):
        trials = perfect(generator, epsilon, delta, 2000)
        above += bound(trials, delta, 0.05).epsilon > epsilon
        assert bound(trials, delta, 1e-6).epsilon <= epsilon
    assert stats.binomtest(above, 400, 0.05, alternative="greater").pvalue > 1e-4


def test_the_rate_of_false_alarms_is_that_of_the_error() -> None:
    """With thresholds in advance and δ = 0 nothing is wasted: the rate is 5 %, not much less."""
    generator = np.random.default_rng(5)
    above = 0
    for _ in range(400):
        trials = perfect(generator, 1.0, 0.0, 1500)
        above += bound(Trials(trials.seen, trials.members, (0.0, 0.0)), 0.0, 0.05).epsilon > 1.0
    assert stats.binomtest(above, 400, 0.05).pvalue > 1e-4


def test_a_mechanism_without_privacy_is_refuted_at_any_epsilon() -> None:
    generator = np.random.default_rng(1)
    trials = perfect(generator, 30.0, 0.0, 4000)
    assert bound(trials, 0.0, 1e-8).epsilon > 3
    assert bound(trials, 0.0, 0.05).epsilon <= highest(trials, 0.0, 0.05)


def test_delta_is_taken_into_account() -> None:
    """A mechanism that does nothing but tell with probability δ is (0, δ)-private; without δ it is refuted."""
    generator = np.random.default_rng(2)
    trials = perfect(generator, 1e-9, 0.05, 20_000)
    assert bound(trials, 0.05, 1e-6).epsilon < 0.05
    assert bound(trials, 0.0, 1e-6).epsilon > 2


def test_thresholds_come_from_the_first_half_alone() -> None:
    generator = np.random.default_rng(3)
    seen, members = generator.random(2000), generator.integers(0, 2, 2000).astype(bool)
    changed = members.copy()
    changed[1000:] ^= True
    rules = [bound(Trials(seen, coins), 0.0, 0.05).rule for coins in (members, changed)]
    assert rules[0] == rules[1]


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 300))
def test_chosen_thresholds_count_what_they_say(seed: int, count: int) -> None:
    generator = np.random.default_rng(seed)
    scores, members = generator.integers(0, 9, count).astype(float), generator.integers(0, 2, count).astype(bool)
    rule, found = best_rule(scores, members, 0.0, 0.05)
    right, decided = rule.counts(scores, members)
    assert found == pytest.approx(float(bounds.guesses_bound(right, decided, count, rule.sides, 0.0, 0.05)))


def test_the_likelihood_ratio_subtracts_noise_that_is_used_twice() -> None:
    generator = np.random.default_rng(4)
    members, noise = generator.integers(0, 2, 500).astype(bool), 100 * generator.standard_normal(500)
    seen = np.stack([members + noise, noise], axis=1)
    weights = likelihood_ratio(seen[:250], members[:250])
    assert weights[0] == pytest.approx(-weights[1], rel=1e-3)
    assert bound(Trials(seen, members), 0.0, 1e-6).epsilon > 2


def test_the_weakest_place_is_found() -> None:
    generator = np.random.default_rng(6)
    members = generator.integers(0, 2, 8000).astype(bool)
    places = np.tile(np.arange(8), 1000)
    seen = np.where(places == 5, members.astype(float), 3 * generator.standard_normal(8000))
    assert bound(Trials(seen, members), 0.0, 1e-6).epsilon < 1
    assert bound(Trials(seen, members, places=places), 0.0, 1e-6).epsilon > 3
