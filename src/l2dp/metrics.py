"""The paper's measures as pure functions: average accuracy, forgetting, p-value curves, and means over seeds.

They take and return plain lists, with None for what was not evaluated. Nothing here trains, evaluates a
model, or touches a file.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2dp.errors import BadInput

Matrix = Sequence[Sequence[float | None]]
Curve = Sequence[float | None]


def average_accuracy(matrix: Matrix) -> list[float | None]:
    """Mean accuracy over tasks 1..τ after learning task τ, for every τ.

    `matrix[τ-1][t-1]` is the paper's a_{τ,n,t}. None where one of the τ accuracies was not evaluated.

    >>> average_accuracy([[0.75, 0.25], [0.5, 1.0]])
    [0.75, 0.75]
    """
    a = _accuracies(matrix)
    if a.size == 0:
        return []
    learned = np.tri(*a.shape, dtype=np.bool_)
    means: list[float | None] = _nones(np.where(learned, a, 0.0).sum(axis=1) / np.arange(1, len(a) + 1))
    return means


def average_forgetting(matrix: Matrix) -> list[float | None]:
    """Mean over t < τ of f_t^τ = max over l in {1..τ-1} of (a_{l,n,t} - a_{τ,n,t}), for every τ.

    As in the paper, l ranges over all earlier rows, also those before task t was learned. None for the first
    task, where row τ was not evaluated, and where some t has no earlier evaluation.

    >>> average_forgetting([[0.75, 0.25], [0.5, 1.0]])
    [None, 0.25]
    """
    a = _accuracies(matrix)
    if len(a) < 2:
        return [None] * len(a)
    best_before = np.fmax.accumulate(a[:-1], axis=0)
    forgotten = best_before - a[1:]
    earlier = np.tri(*forgotten.shape, dtype=np.bool_)
    means = np.where(earlier, forgotten, 0.0).sum(axis=1) / np.arange(1, len(a))
    return [None, *_nones(means)]


def p_value_curve(a: Curve, b: Curve, paired: bool = False, at: Collection[int] | None = None) -> list[float | None]:
    """Two-tailed t-test between the first τ entries of two average-accuracy curves, for every τ.

    The paper's test, as we read it, treats the two curves as independent samples; `paired` (ours) compares them task by
    task.
    An entry that is None in one curve is left out of both. None for fewer than two remaining pairs; 1.0 where
    there is neither a difference nor a variance. With `at`, only those entries (counted from 0) are tested and
    the rest is None: a curve of a thousand tasks need not be tested a thousand times to be drawn.

    >>> p_value_curve([0.5, 0.5, 0.5], [0.5, 0.5, 0.5])
    [None, 1.0, 1.0]
    """
    if len(a) != len(b):
        raise BadInput(f"cannot compare curves of {len(a)} and {len(b)} tasks; cut the longer one first")
    # Imported here because it takes longer than everything else in this module, and most callers never test.
    from scipy import stats

    first: list[float] = []
    second: list[float] = []
    curve: list[float | None] = []
    for x, y in zip(a, b, strict=True):
        if x is None or y is None:
            curve.append(curve[-1] if curve else None)
            continue
        first.append(x)
        second.append(y)
        if len(first) < 2 or (at is not None and len(curve) not in at):
            curve.append(None)
            continue
        # Constant curves are ordinary here, a floor at chance for example, and SciPy warns about each.
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore", RuntimeWarning)
            test = stats.ttest_rel(first, second) if paired else stats.ttest_ind(first, second)
        p = float(test.pvalue)
        curve.append(1.0 if np.isnan(p) else p)
    return curve


def mean_and_sd(values: Sequence[Any]) -> tuple[Any, Any]:
    """Mean and sample standard deviation (divisor n-1) over seeds, entry by entry.

    `values` holds one number, list or nested list per seed, all of one shape; both results have that shape.
    None where any seed has None. The deviation of a single seed is 0.0.

    >>> mean_and_sd([[0.5, None], [1.0, 0.5]])
    ([0.75, None], [0.3535533905932738, None])
    """
    if not values:
        raise BadInput("no runs to summarise")
    try:
        stacked = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise BadInput("cannot summarise runs of different shapes; use runs of one benchmark and length") from None
    mean = stacked.mean(axis=0)
    sd = stacked.std(axis=0, ddof=1) if len(values) > 1 else mean * 0.0
    return _nones(mean), _nones(sd)


def _accuracies(matrix: Matrix) -> NDArray[np.float64]:
    """The matrix as an array with NaN for None; a row per learned task, a column per task of the stream."""
    try:
        a = np.array(matrix, dtype=np.float64)
    except (TypeError, ValueError):
        raise BadInput("the accuracy matrix must hold numbers or null, in rows of one length") from None
    if a.size == 0:
        if len(matrix):
            raise BadInput("the accuracy matrix has rows without tasks")
        return np.empty((0, 0))
    if a.ndim != 2 or a.shape[0] > a.shape[1]:
        raise BadInput(f"the accuracy matrix needs a column for each of its rows, but has the shape {a.shape}")
    return a


def _nones(array: Any) -> Any:
    """Plain Python numbers and lists, with None for NaN (which JSON does not have)."""
    plain = np.asarray(array).astype(object)
    plain[np.isnan(array)] = None
    return plain.tolist()
