"""From trials to a bound: scores and thresholds are chosen on one half of the trials, the bound comes from the other.

A trial is what an attacker saw and a coin that says whether the target was in. How the coins fell in the second half
plays no part in any choice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from l2dp.audit.bounds import Floats, gaussian_epsilon, gaussian_mu, guesses_bound, one_run_bound

Coins = NDArray[np.bool_]

CUTS = 48
"""Thresholds that are tried on each side."""
LUCK = 1e-4
"""The error at which thresholds are compared: at a larger one the best of many is a small tail that was lucky."""


@dataclass(frozen=True)
class Trials:
    """What an attacker saw: one row a trial, and whether the target was in.

    `thresholds` fixed in advance ("in" from the second on, "out" up to the first) spare the choice, and all trials
    bound. With several columns the score is the likelihood ratio of two Gaussians of equal covariance, fitted on the
    first half. `places` names groups of trials (say, of one class), of which the first half chooses the worst.
    """

    seen: Floats
    members: Coins
    thresholds: tuple[float, float] | None = None
    places: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.members)

    @staticmethod
    def joined(parts: Iterable[Trials]) -> Trials:
        """Trials of one attack that were made apart."""
        parts = list(parts)
        places = [part.places for part in parts if part.places is not None]
        return Trials(
            np.concatenate([part.seen for part in parts]),
            np.concatenate([part.members for part in parts]),
            parts[0].thresholds,
            np.concatenate(places) if places else None,
        )


@dataclass(frozen=True)
class Rule:
    """Say "in" for scores of at least `high`, "out" for those of at most `low`, and nothing between."""

    low: float
    high: float

    @property
    def sides(self) -> int:
        return int(np.isfinite(self.low)) + int(np.isfinite(self.high))

    def counts(self, scores: Floats, members: Coins) -> tuple[int, int]:
        """How many guesses are right, and how many there are."""
        ins, outs = scores >= self.high, scores <= self.low
        return int((ins & members).sum() + (outs & ~members).sum()), int(ins.sum() + outs.sum())


@dataclass(frozen=True)
class Bound:
    """A lower bound on ε with its error, and what it rests on."""

    epsilon: float
    error: float
    trials: int
    """Those that the bound was computed on."""
    decided: int
    right: int
    rule: Rule

    @property
    def accuracy(self) -> float | None:
        return self.right / self.decided if self.decided else None


def halves(count: int) -> tuple[slice, slice]:
    return slice(0, count // 2), slice(count // 2, count)


def choose(scores: Floats, members: Coins, delta: float, error: float) -> Rule:
    """The thresholds for the other half: from a Gaussian fit where that is what the scores look like."""
    error = min(error, LUCK)
    return gaussian_rule(scores, members, delta, error) or best_rule(scores, members, delta, error)[0]


def gaussian_rule(scores: Floats, members: Coins, delta: float, error: float) -> Rule | None:
    """The thresholds that promise most if scores are Gaussian of equal variance; None: they do not look so.

    A fit of two numbers leaves nothing to luck, where the best of many empirical tails owes much to it.
    """
    ins, outs = scores[members], scores[~members]
    if min(len(ins), len(outs)) < 1000:
        return None
    moments = [(float(x.mean()), float(x.std()), float(stats.skew(x)), float(stats.kurtosis(x))) for x in (ins, outs)]
    (mean_in, spread_in, *_), (mean_out, spread_out, *_) = moments
    mu = (mean_in - mean_out) / max(spread_out, 1e-300)
    odd = any(abs(skew) > 0.1 or abs(tail) > 0.2 for _, _, skew, tail in moments)
    if odd or not 0 < mu < 2 or abs(math.log(max(spread_in, 1e-300) / max(spread_out, 1e-300))) > 0.05:
        return None
    cuts = np.linspace(0, 5, 200)
    right, wrong = len(scores) * stats.norm.sf(cuts - mu / 2), len(scores) * stats.norm.sf(cuts + mu / 2)
    cut = cuts[int(np.argmax(guesses_bound(right, right + wrong, len(scores), 2, delta, error)))]
    middle = (mean_in + mean_out) / 2
    return Rule(middle - cut * spread_out, middle + cut * spread_out)


def best_rule(scores: Floats, members: Coins, delta: float, error: float) -> tuple[Rule, float]:
    """The thresholds with the best bound on these trials, and that bound."""
    order = np.argsort(scores, kind="stable")
    scores, members = scores[order], members[order]
    count = len(scores)
    if count == 0:
        return Rule(-np.inf, np.inf), 0.0
    # Tails from one trial up to all of them, in steps of a constant ratio.
    tails = np.unique(np.geomspace(1, count, CUTS).astype(np.int64))
    highs, lows = scores[count - tails], scores[tails - 1]
    inside = np.concatenate([[0], np.cumsum(members)])
    first_high = np.searchsorted(scores, highs, "left")
    last_low = np.searchsorted(scores, lows, "right")
    in_guesses, in_right = count - first_high, inside[-1] - inside[first_high]
    out_guesses, out_right = last_low, last_low - inside[last_low]
    none = np.array([0])
    in_guesses, in_right = np.concatenate([none, in_guesses]), np.concatenate([none, in_right])
    out_guesses, out_right = np.concatenate([none, out_guesses]), np.concatenate([none, out_right])
    highs, lows = np.concatenate([[np.inf], highs]), np.concatenate([[-np.inf], lows])
    sides = (in_guesses > 0)[:, None].astype(int) + (out_guesses > 0)[None, :]
    decided = in_guesses[:, None] + out_guesses[None, :]
    found = guesses_bound(in_right[:, None] + out_right[None, :], decided, count, sides, delta, error)
    found = np.where(lows[None, :] < highs[:, None], found, 0.0)
    at = np.unravel_index(int(np.argmax(found)), found.shape)
    return Rule(float(lows[at[1]]), float(highs[at[0]])), float(found[at])


def likelihood_ratio(seen: Floats, members: Coins) -> Floats:
    """Weights of the columns: the log-likelihood ratio of two Gaussians of equal covariance, up to a constant."""
    ins, outs = seen[members], seen[~members]
    width = seen.shape[1]
    if len(ins) < 2 or len(outs) < 2:
        return np.ones(width)
    apart = ins.mean(axis=0) - outs.mean(axis=0)
    centred = np.concatenate([ins - ins.mean(axis=0), outs - outs.mean(axis=0)])
    # In units of each column's own spread, so that a column without noise does not drown in the ridge of the others.
    # A column that never changes has only rounding in it, and gets no weight from that.
    size = np.maximum(1e-9 * np.abs(apart), 1e-12 * np.abs(seen).max(axis=0))
    scale = np.maximum(centred.std(axis=0), np.maximum(size, 1e-30))
    centred /= scale
    covariance = centred.T @ centred / len(centred) + 1e-9 * np.eye(width)
    return np.asarray(np.linalg.pinv(covariance, hermitian=True) @ (apart / scale) / scale, dtype=np.float64)


def scored(trials: Trials) -> Floats:
    """One number a trial, the higher the likelier in; fitted on the first half where there is something to fit."""
    seen = trials.seen if trials.seen.ndim == 2 else trials.seen[:, None]
    if seen.shape[1] == 1:
        return np.asarray(seen[:, 0], dtype=np.float64)
    first, _ = halves(len(trials))
    return np.asarray(seen @ likelihood_ratio(seen[first], trials.members[first]), dtype=np.float64)


def bound(trials: Trials, delta: float, error: float, scores: Floats | None = None, one_run: bool = False) -> Bound:
    """The bound of one attack at one error; with `one_run`, the second half are the canaries of a single run.

    Guarantee
    ---------
    If the mechanism is (ε, δ)-private and the trials are as `guesses_bound` wants them, it exceeds ε with probability
    at most `error`: score, place and thresholds are functions of the first half (or fixed), and the guesses that
    count are those on the second half (or all).
    """
    scores = scored(trials) if scores is None else scores
    members = trials.members
    if trials.thresholds is not None:
        rule, use = Rule(*trials.thresholds), np.ones(len(trials), dtype=bool)
    else:
        first, second = halves(len(trials))
        use = np.zeros(len(trials), dtype=bool)
        use[second] = True
        if trials.places is None:
            rule = choose(scores[first], members[first], delta, error)
        else:
            found = []
            for place in np.unique(trials.places[first]):
                here = trials.places[first] == place
                found.append((best_rule(scores[first][here], members[first][here], delta, min(error, LUCK)), place))
            (rule, _), worst = max(found, key=lambda item: item[0][1])
            use &= trials.places == worst
    right, decided = rule.counts(scores[use], members[use])
    count = int(use.sum())
    epsilon = _epsilon(right, decided, max(count, 1), rule.sides, delta, error, one_run)
    return Bound(epsilon, error, count, decided, right, rule)


def _epsilon(right: int, decided: int, count: int, sides: int, delta: float, error: float, one_run: bool) -> float:
    if one_run:
        return one_run_bound(count, decided, right, delta, error)
    return float(guesses_bound(right, decided, count, sides, delta, error))


def highest(trials: Trials, delta: float, error: float, one_run: bool = False) -> float:
    """The ceiling: the bound if every trial were decided, and rightly. No attack can show more with so many trials."""
    if trials.thresholds is not None:
        count = len(trials)
    else:
        _, second = halves(len(trials))
        places = trials.places
        count = len(trials.members[second]) if places is None else int(np.bincount(places[second]).max())
    return _epsilon(count, count, count, 2, delta, error, one_run) if count else 0.0


def estimate(trials: Trials, delta: float, scores: Floats | None = None) -> float | None:
    """ε at δ if the scores were those of a Gaussian mechanism. An *estimate*: neither a bound nor a guarantee."""
    scores = scored(trials) if scores is None else scores
    use = slice(None) if trials.thresholds is not None else halves(len(trials))[1]
    return gaussian_epsilon(gaussian_mu(scores[use], trials.members[use]), delta)


def curve(trials: Trials, scores: Floats | None = None, points: int = 120) -> dict[str, Any]:
    """Error rates of all thresholds on the trials that bound: false alarms, and misses."""
    scores = scored(trials) if scores is None else scores
    use = slice(None) if trials.thresholds is not None else halves(len(trials))[1]
    scores, members = scores[use], trials.members[use]
    ins, outs = np.sort(scores[members]), np.sort(scores[~members])
    if len(ins) == 0 or len(outs) == 0:
        return {"false_positive_rate": [], "false_negative_rate": []}
    cuts = np.unique(np.quantile(scores, np.linspace(0, 1, points)))
    cuts = np.concatenate([cuts, [np.nextafter(cuts[-1], np.inf)]])
    alarms = 1 - np.searchsorted(outs, cuts, "left") / len(outs)
    misses = np.searchsorted(ins, cuts, "left") / len(ins)
    return {"false_positive_rate": alarms.tolist(), "false_negative_rate": misses.tolist()}
