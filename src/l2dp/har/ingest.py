"""The whole way from recordings to windows, a piece at a time, with the funnel filled on the way.

`windows` yields them; `l2dp.har.folder` writes them down. Peak memory depends on the size of a piece, not of the file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from l2dp.errors import BadInput
from l2dp.har import labels as verdicts_of
from l2dp.har.funnel import Funnel
from l2dp.har.order import Survey, pieces, survey
from l2dp.har.resample import resample
from l2dp.har.sessions import SECOND, find_sessions, finite, keep_stable, merge_duplicates
from l2dp.har.windows import Overlap, cut, gather

Progress = Callable[[str, int, int], None]
"""What is going on, rows done, rows in all (0: not known yet)."""


@dataclass(frozen=True)
class Recipe:
    """How recordings become windows. Public configuration; the defaults are the paper's where it gives one."""

    gap_ms: float = 300
    rates: tuple[float, ...] = (5, 10, 20, 50)
    tolerance: float = 0.05
    """How far the mean rate of a session may be from the nominal one, as a share."""
    jitter: float = 0.2
    steady_share: float = 0.9
    """The share of a session's intervals that must lie within `jitter` of its period."""
    trim_seconds: float = 10
    cap_minutes: float = 30
    size: int = 100
    overlap: Overlap | Literal["paper"] = field(default_factory=Overlap)
    """A public rule, or the paper's balancing of classes and rates, which looks at everybody's data."""
    rename: Mapping[str, str] = field(default_factory=dict)
    classes: tuple[str, ...] | None = None
    """The labels that count, declared in advance; None: all that occur."""
    exclude_positions: tuple[str, ...] = ()
    resample: Mapping[float, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.rates or min(self.rates) <= 0:
            raise BadInput(f"rates must be positive, not {self.rates}")
        if self.size < 2:
            raise BadInput(f"a window needs at least 2 samples, not {self.size}")
        if self.gap_ms <= 0 or self.trim_seconds < 0 or self.cap_minutes <= 0:
            raise BadInput("gap and cap must be positive, and trim at least 0")
        if not 0 <= self.tolerance < 1 or self.jitter < 0 or not 0 <= self.steady_share <= 1:
            raise BadInput("tolerance, jitter and steady share are shares: at least 0, and below or up to 1")
        slow = [rate for rate in self.rates if SECOND / rate * (1 + self.jitter) > self.gap_ms * 1e6]
        if slow:
            raise BadInput(f"at {slow[0]:g} Hz every interval may exceed the gap of {self.gap_ms:g} ms; raise --gap")
        if self.classes is not None and len(set(self.classes)) < len(self.classes):
            raise BadInput(f"a class is named twice: {', '.join(self.classes)}")


class Windows(NamedTuple):
    """Some windows, in order of user and time. `values` are m/s²: window, axis, sample."""

    user: NDArray[np.uint32]
    rate: NDArray[np.float64]
    label: list[str]
    start: NDArray[np.int64]
    values: NDArray[np.float32]


def windows(
    samples: pl.LazyFrame,
    label_sessions: pl.DataFrame,
    recipe: Recipe,
    funnel: Funnel,
    progress: Progress = lambda what, done, total: None,
) -> tuple[Survey, Iterator[Windows]]:
    """Who is in the recordings, and their windows, piece by piece."""
    read = 0

    def looked(rows: int) -> None:
        nonlocal read
        read += rows
        progress("looking through", read, 0)

    found = survey(samples, looked)
    if found.total == 0 or not found.users:
        raise BadInput("the samples hold no row with a user and a time; check the file, its columns and its clock")
    verdicts = lay_out(label_sessions, found, recipe, funnel)
    step = funnel.step("read samples")
    lost = {"no user, or no such instant on the declared clock": found.unplaced}
    step.count(found.total, found.total - found.unplaced, lost, {"older than the sample before": found.backward})
    return found, _windows(samples, found, verdicts, recipe, funnel, progress)


def lay_out(label_sessions: pl.DataFrame, found: Survey, recipe: Recipe, funnel: Funnel) -> pl.DataFrame:
    """The verdicts over everybody's time, users by their place in the survey."""
    step = funnel.step("read labels", "label sessions")
    good, lost = verdicts_of.valid(label_sessions)
    known = good.filter(pl.col("user").is_in(found.users))
    lost["user has no samples"] = len(good) - len(known)
    step.count(len(label_sessions), len(known), lost)
    if len(known) == 0:
        raise BadInput("no label session belongs to a user who has samples; check the user columns of both files")
    coded = known.with_columns(pl.col("user").cast(pl.Enum(found.users)).to_physical().cast(pl.UInt32))
    verdicts = verdicts_of.resolve(coded)
    verdicts = verdicts_of.choose(verdicts, recipe.rename, recipe.classes)
    verdicts = verdicts_of.exclude_positions(verdicts, recipe.exclude_positions)
    verdicts = verdicts_of.trim(verdicts, round(recipe.trim_seconds * SECOND))
    return verdicts_of.cap(verdicts, round(recipe.cap_minutes * 60 * SECOND))


def _windows(
    samples: pl.LazyFrame, found: Survey, verdicts: pl.DataFrame, recipe: Recipe, funnel: Funnel, progress: Progress
) -> Iterator[Windows]:
    done = 0

    def tick(rows: int) -> None:
        nonlocal done
        done += rows
        progress("cutting windows", done, found.total - found.unplaced)

    with tempfile.TemporaryDirectory(prefix="l2dp-har-") as scratch:
        gap_ns = round(recipe.gap_ms * 1e6)
        source: Iterator[tuple[pl.DataFrame, pl.DataFrame]] = (
            _stretches(piece, verdicts, recipe, funnel) for piece in pieces(samples, found, gap_ns, Path(scratch), tick)
        )
        overlap = recipe.overlap
        if isinstance(overlap, str):
            source, overlap = _counted(source, Path(scratch))
        for frame, stretches in source:
            yield _cut(frame, stretches, recipe.size, overlap, funnel)


def _stretches(
    piece: pl.DataFrame, verdicts: pl.DataFrame, recipe: Recipe, funnel: Funnel
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """One piece through every step up to labelled stretches."""
    frame, lost = finite(piece)
    funnel.step("check values").count(len(piece), len(frame), lost)
    merged, lost = merge_duplicates(frame)
    funnel.step("merge duplicates").count(len(frame), len(merged), lost)
    sessions = find_sessions(merged, round(recipe.gap_ms * 1e6))
    funnel.step("split into sessions").count(len(merged), len(merged), {}, {"sessions": len(sessions)})
    stable, lost = keep_stable(merged, sessions, recipe.rates, recipe.tolerance, recipe.jitter, recipe.steady_share)
    left = int(stable["count"].sum())
    funnel.step("keep stable rates").count(len(merged), left, lost, {"sessions": len(stable)})
    stretches, lost = verdicts_of.attach(merged, stable, verdicts)
    labelled = int(stretches["count"].sum())
    funnel.step("attach labels").count(left, labelled, lost, {"stretches": len(stretches)})
    if recipe.resample:
        merged, stretches = resample(merged, stretches, recipe.resample)
        thinned = int(stretches["count"].sum())
        funnel.step("resample").count(labelled, thinned, {"thinned out behind a low-pass filter": labelled - thinned})
    return merged, stretches


def _counted(
    source: Iterator[tuple[pl.DataFrame, pl.DataFrame]], scratch: Path
) -> tuple[Iterator[tuple[pl.DataFrame, pl.DataFrame]], Overlap]:
    """Stretches set aside on disk until all are counted, and the paper's overlaps for what was counted."""
    totals: dict[tuple[str, float], int] = {}
    number = 0
    for number, (frame, stretches) in enumerate(source, start=1):
        rows = [np.arange(first, first + count) for first, count in stretches.select("first", "count").iter_rows()]
        kept = frame[np.concatenate(rows)] if rows else frame.clear()
        counts = stretches["count"].to_numpy()
        placed = stretches.with_columns(first=pl.Series(counts.cumsum() - counts, dtype=pl.Int64))
        kept.write_parquet(scratch / f"samples-{number}.parquet", compression="lz4")
        placed.write_parquet(scratch / f"stretches-{number}.parquet")
        for label, rate, count in stretches.select("label", "rate", "count").iter_rows():
            totals[label, rate] = totals.get((label, rate), 0) + count

    def again() -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
        for place in range(1, number + 1):
            yield (
                pl.read_parquet(scratch / f"samples-{place}.parquet"),
                pl.read_parquet(scratch / f"stretches-{place}.parquet"),
            )

    return again(), Overlap.balancing(totals)


def _cut(frame: pl.DataFrame, stretches: pl.DataFrame, size: int, overlap: Overlap, funnel: Funnel) -> Windows:
    table, lost = cut(stretches, size, overlap)
    entered = int(stretches["count"].sum())
    funnel.step("cut windows").count(entered, entered - sum(lost.values()), lost, {"windows": len(table)})
    return Windows(
        table["user"].to_numpy(),
        table["rate"].to_numpy(),
        table["label"].to_list(),
        frame["time"].to_numpy()[table["first"].to_numpy()],
        gather(frame, table, size),
    )
