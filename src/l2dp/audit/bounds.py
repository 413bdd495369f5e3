"""Lower bounds on ε from what an attacker got right. Pure arithmetic; nothing here knows a mechanism.

A *trial* tosses a fair coin, runs the mechanism with the target in or out by it, and the attacker says "in", "out" or
nothing. *Right* of *decided* guesses is all that a bound needs. One trial is one independent run, or one of many
canaries of a single run.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special, stats

Floats = NDArray[np.float64]

FOR_DECIDED = 0.05
"""The part of the error that a bound with δ > 0 spends on how often a guess is made at all."""


def clopper_pearson_lower(hits: ArrayLike, trials: ArrayLike, error: float) -> Floats:
    """The least probability that is consistent with so many hits, except with probability `error`; 0 of none."""
    k, n = np.asarray(hits, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    found = special.betaincinv(np.maximum(k, 1.0), np.maximum(n - k + 1, 1.0), error)
    return np.asarray(np.where(k > 0, found, 0.0), dtype=np.float64)


def clopper_pearson_upper(hits: ArrayLike, trials: ArrayLike, error: float) -> Floats:
    """The largest probability that is consistent with so many hits."""
    k, n = np.asarray(hits, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    return np.asarray(1.0 - clopper_pearson_lower(n - k, n, error), dtype=np.float64)


def guesses_bound(
    right: ArrayLike, decided: ArrayLike, trials: int, sides: ArrayLike, delta: float, error: float
) -> Floats:
    """The ε that `right` of `decided` guesses in `trials` independent trials refute, except with probability `error`.

    Let the attacker say "in" on outputs S1 and "out" on S0. Under (ε, δ), P1(S1) ≤ e^ε·P0(S1) + δ and P0(S0) ≤
    e^ε·P1(S0) + δ. Added up: of all guesses a part q is right with q ≤ e^ε·(1 − q) + sides·δ/T, where T/2 is the
    probability of a guess and `sides` is 1 or 2, as one or both kinds are made. Given that a guess is made, it is right
    with probability q on its own, so q has a Clopper–Pearson limit, and so has T. For δ = 0 that of q alone is needed.

    Guarantee
    ---------
    If the mechanism is (ε, δ)-private, the result exceeds ε with probability at most `error`. For δ = 0 this holds
    without independence, for any number of canaries in one run (Steinke, Nasr, Jagielski 2023).
    """
    right, decided = np.asarray(right, dtype=np.float64), np.asarray(decided, dtype=np.float64)
    if delta == 0:
        q = clopper_pearson_lower(right, decided, error)
        lost: Floats | float = 0.0
    else:
        q = clopper_pearson_lower(right, decided, error * (1 - FOR_DECIDED))
        often = 2 * clopper_pearson_lower(decided, trials, error * FOR_DECIDED)
        lost = np.asarray(sides) * delta / np.maximum(often, 1e-300)
    with np.errstate(divide="ignore"):
        found = np.log(np.maximum(q - lost, 0.0)) - np.log1p(-np.minimum(q, 1 - 1e-16))
    return np.asarray(np.maximum(found, 0.0), dtype=np.float64)


def rates_bound(false_positives: int, false_negatives: int, outs: int, ins: int, delta: float, error: float) -> float:
    """The classical bound from two error rates, best of both directions: ln((1 − δ − FNR⁺)/FPR⁺).

    For given numbers of runs without and with the target, half of the error for each rate. It is looser than
    `guesses_bound`, which it is kept beside for comparison with other work.
    """
    fpr = float(clopper_pearson_upper(false_positives, outs, error / 2))
    fnr = float(clopper_pearson_upper(false_negatives, ins, error / 2))
    found = [math.log((1 - delta - miss) / alarm) for miss, alarm in ((fnr, fpr), (fpr, fnr)) if 1 - delta > miss]
    return max(0.0, *found) if found else 0.0


def one_run_p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """The probability of so many right guesses about the canaries of one run, at most, if it is (ε, δ)-private.

    Steinke, Nasr, Jagielski 2023, with their bound for δ: the tail β(v) of a binomial of e^ε/(1 + e^ε), and
    2·canaries·δ times the steepest rise of the tail below v.
    """
    truthful = special.expit(epsilon)
    tail = stats.binom.sf(right - 1, guesses, truthful)
    if delta == 0:
        return float(tail)
    steps = np.arange(1, right + 1)
    rises = (stats.binom.sf(right - steps - 1, guesses, truthful) - tail) / steps
    return float(min(1.0, tail + 2 * canaries * delta * rises.max(initial=0.0)))


def one_run_bound(canaries: int, guesses: int, right: int, delta: float, error: float) -> float:
    """The largest ε that the guesses of one run refute at this error; 0: none."""

    def excess(epsilon: float) -> float:
        return one_run_p_value(canaries, guesses, right, epsilon, delta) - error

    if guesses == 0 or excess(0.0) > 0:
        return 0.0
    high = 1.0
    while excess(high) <= 0:
        high *= 2
    return float(optimize.brentq(excess, 0.0, high, xtol=1e-6))


def gaussian_epsilon(mu: float, delta: float) -> float | None:
    """The ε at δ of a mechanism that is exactly μ-Gaussian-DP (Dong, Roth, Su 2022); None: δ = 0, no ε is finite."""
    if delta == 0:
        return None

    def excess(epsilon: float) -> float:
        # In logarithms: e^ε alone overflows.
        second = math.exp(min(700.0, epsilon + float(special.log_ndtr(-epsilon / mu - mu / 2))))
        return float(special.ndtr(-epsilon / mu + mu / 2)) - second - delta

    if mu <= 0 or excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(optimize.brentq(excess, 0.0, high, xtol=1e-9))


def gaussian_mu(scores: Floats, members: NDArray[np.bool_]) -> float:
    """μ as an *estimate*: the distance of the scores' means over their common deviation, as if both were Gaussian."""
    ins, outs = scores[members], scores[~members]
    if len(ins) < 2 or len(outs) < 2:
        return 0.0
    spread = math.sqrt((ins.var(ddof=1) + outs.var(ddof=1)) / 2)
    apart = abs(float(ins.mean() - outs.mean()))
    return 0.0 if apart == 0 else apart / max(spread, apart * 1e-12)
