"""From ordered samples to sessions: duplicates merged, cut at gaps, kept if their rate is stable and wanted.

Sessions are ranges of rows (`first`, `count`) of the frame they came from; no step copies samples it need not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from l2dp.har.order import session_starts
from l2dp.har.tables import AXES

SECOND = 10**9


def finite(frame: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, int]]:
    """Leaves out samples with a value that is missing, not a number or infinite."""
    good = frame.filter(pl.all_horizontal(pl.col(*AXES).is_finite().fill_null(False)))
    return good, {"a value is missing or not finite": len(frame) - len(good)}


def merge_duplicates(frame: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, int]]:
    """Samples of one user at one instant become one, their mean."""
    starts = session_starts(frame, 0)
    merged = len(frame) - len(starts)
    if merged == 0:
        return frame, {}
    counts = np.diff(np.append(starts, len(frame)))
    means = {
        axis: (np.add.reduceat(frame[axis].to_numpy().astype(np.float64), starts) / counts).astype(np.float32)
        for axis in AXES
    }
    first = {name: frame[name].to_numpy()[starts] for name in ("user", "time")}
    return pl.DataFrame({**first, **means}), {"merged with a sample of the same instant": merged}


def find_sessions(frame: pl.DataFrame, gap_ns: int) -> pl.DataFrame:
    """user, first, count: a new session after every gap of more than `gap_ns`."""
    starts = session_starts(frame, gap_ns)
    return pl.DataFrame(
        {
            "user": frame["user"].to_numpy()[starts],
            "first": starts,
            "count": np.diff(np.append(starts, len(frame))),
        }
    )


def keep_stable(
    frame: pl.DataFrame,
    sessions: pl.DataFrame,
    rates: Sequence[float],
    tolerance: float = 0.05,
    jitter: float = 0.2,
    share: float = 0.9,
) -> tuple[pl.DataFrame, dict[str, int]]:
    """Sessions with a stable rate among `rates`, which becomes their `rate`; and samples of the others, by reason.

    The mean rate must lie within `tolerance` of a wanted one, and at least `share` of the intervals within `jitter`
    of its period.
    """
    first, count = sessions["first"].to_numpy(), sessions["count"].to_numpy()
    time = frame["time"].to_numpy()
    span = (time[first + count - 1] - time[first]) / SECOND
    measured = np.divide(count - 1, span, out=np.zeros(len(count)), where=span > 0)
    wanted = np.asarray(sorted(rates), dtype=np.float64)
    off = np.abs(measured[:, None] / wanted - 1)
    nearest = wanted[off.argmin(axis=1)]
    suitable = off.min(axis=1) <= tolerance
    # The interval before a session's first sample is not its own.
    steady = np.abs(np.diff(time, prepend=time[:1]) * (np.repeat(nearest, count) / SECOND) - 1) <= jitter
    steady[first] = False
    regular = np.add.reduceat(steady, first, dtype=np.int64) if len(first) else np.zeros(0, np.int64)
    stable = regular >= share * (count - 1)
    kept = suitable & stable
    dropped = {
        "session of a single sample": int(count[count < 2].sum()),
        "rate is none of those wanted": int(count[(count > 1) & ~suitable].sum()),
        "rate is not stable": int(count[suitable & ~stable].sum()),
    }
    return sessions.with_columns(rate=pl.Series(nearest)).filter(pl.Series(kept)), dropped
