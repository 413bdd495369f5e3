"""Recordings at a lower rate, as a phone with a slower sensor would have made them.

Samples are put on an even grid of the recorded rate and then thinned out behind a low-pass filter, so that no fast
movement turns up as a slow one. Each stretch is filtered by itself: nothing crosses its borders.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import numpy as np
import polars as pl
from scipy.signal import resample_poly

from l2dp.errors import BadInput
from l2dp.har.sessions import SECOND
from l2dp.har.tables import AXES


def resample(
    frame: pl.DataFrame, stretches: pl.DataFrame, rates: Mapping[float, float]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Stretches of a rate among the keys at the rate it maps to, the others as they are, in a frame of their own."""
    for old, new in rates.items():
        if not 0 < new < old:
            raise BadInput(f"--resample {old:g}:{new:g}: the new rate must be lower than the recorded one")
    frames: list[pl.DataFrame] = []
    counts: list[int] = []
    for user, rate, first, count in stretches.select("user", "rate", "first", "count").iter_rows():
        part = frame.slice(first, count)
        if rate in rates:
            part = _slower(part, user, rate, rates[rate])
        frames.append(part)
        counts.append(len(part))
    if not frames:
        return frame.clear(), stretches
    table = stretches.with_columns(
        pl.col("rate").replace(dict(rates)),
        first=pl.Series(np.cumsum([0, *counts[:-1]]), dtype=pl.Int64),
        count=pl.Series(counts, dtype=pl.Int64),
    )
    return pl.concat(frames), table


def _slower(part: pl.DataFrame, user: int, old: float, new: float) -> pl.DataFrame:
    time = part["time"].to_numpy()
    grid = np.arange(time[0], time[-1] + 1, SECOND / old)
    values = np.stack([np.interp(grid, time, part[axis].to_numpy()) for axis in AXES], axis=1)
    ratio = Fraction(new / old).limit_denominator(1000)
    thinned = resample_poly(values, ratio.numerator, ratio.denominator, axis=0, padtype="line").astype(np.float32)
    times = time[0] + np.round(np.arange(len(thinned)) * (SECOND / new)).astype(np.int64)
    axes = {axis: thinned[:, place] for place, axis in enumerate(AXES)}
    return pl.DataFrame({"user": np.full(len(thinned), user, np.uint32), "time": times, **axes})
