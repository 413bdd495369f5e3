"""Samples in order, a bounded piece at a time, whatever the size and order of the file.

A file whose users come one after the other, each in time, is read as it stands. Any other is first dealt out to
scratch files of a few million rows that follow each other by user and time; each of them is then sorted in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

CHUNK = 2_000_000
"""Rows that are read at once."""
SHARD = 4_000_000
"""Rows that are sorted at once."""
LONGEST = 4_000_000
"""Rows of a session without a gap after which it is cut, so that memory stays bounded: 22 hours at 50 Hz."""
BLOCK_NS = 3600 * 10**9


@dataclass(frozen=True)
class Survey:
    """What one look at users and times tells. `users` is in the order in which pieces will come."""

    users: list[str]
    rows: dict[str, int]
    total: int
    unplaced: int
    """Rows without a user or an instant; they are left out."""
    backward: int
    """Rows that are older than the row before them, of the same user."""
    ordered: bool


Tick = Callable[[int], None]


def survey(samples: pl.LazyFrame, tick: Tick = lambda rows: None) -> Survey:
    """Users, their numbers of rows, and whether the file is in order."""
    rows: dict[str, int] = {}
    total = unplaced = backward = 0
    contiguous = True
    last_user, last_time = "", 0
    for batch in samples.select("user", "time").collect_batches(chunk_size=CHUNK, maintain_order=True):
        total += len(batch)
        tick(len(batch))
        placed = batch.drop_nulls()
        unplaced += len(batch) - len(placed)
        if len(placed) == 0:
            continue
        user, time = placed["user"], placed["time"].to_numpy()
        changes = np.flatnonzero((user != user.shift(1)).fill_null(True).to_numpy())
        fallen = np.flatnonzero(np.diff(time) < 0) + 1
        backward += len(np.setdiff1d(fallen, changes, assume_unique=True))
        if user[0] == last_user:
            backward += int(time[0] < last_time)
        # Stretches of one user, added up by user: a file in order has few of them, an interleaved one as many as rows.
        stretches = pl.DataFrame({"user": user.gather(changes), "rows": np.diff(np.append(changes, len(placed)))})
        counted = stretches.group_by("user", maintain_order=True).agg(pl.col("rows").sum(), pl.len())
        for name, count, times_seen in counted.iter_rows():
            before = name in rows and not (name == last_user and user[0] == name)
            contiguous = contiguous and times_seen == 1 and not before
            rows[name] = rows.get(name, 0) + count
        last_user, last_time = str(user[-1]), int(time[-1])
    ordered = contiguous and backward == 0
    return Survey(list(rows) if ordered else sorted(rows), rows, total, unplaced, backward, ordered)


def pieces(
    samples: pl.LazyFrame, found: Survey, gap_ns: int, scratch: Path, tick: Tick = lambda rows: None
) -> Iterator[pl.DataFrame]:
    """Whole sessions in order of user and time; `user` becomes the place in the survey's list."""
    kind = pl.Enum(found.users)
    coded = samples.drop_nulls(["user", "time"]).with_columns(pl.col("user").cast(kind).to_physical().cast(pl.UInt32))
    source: Iterator[pl.DataFrame]
    if found.ordered:
        source = coded.collect_batches(chunk_size=CHUNK, maintain_order=True)
    else:
        source = _sorted_shards(coded, found, scratch)
    carry: pl.DataFrame | None = None
    for batch in source:
        frame = batch if carry is None else pl.concat([carry, batch])
        ready, carry = whole_sessions(frame, gap_ns)
        if len(ready):
            tick(len(ready))
            yield ready
    if carry is not None and len(carry):
        tick(len(carry))
        yield carry


def whole_sessions(frame: pl.DataFrame, gap_ns: int, longest: int = LONGEST) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Cuts ordered samples before their last session, which may go on in the next piece.

    A session of more than `longest` rows is cut as if it had a gap, between two different instants.
    """
    if len(frame) == 0:
        return frame, frame
    breaks = session_starts(frame, gap_ns)
    start = int(breaks[-1])
    if len(frame) - start > longest:
        instants = session_starts(frame, 0)
        start = int(instants[-1])
    return frame.slice(0, start), frame.slice(start)


def session_starts(frame: pl.DataFrame, gap_ns: int) -> NDArray[np.int64]:
    """Rows at which a user begins, or a gap of more than `gap_ns` has ended."""
    user, time = frame["user"].to_numpy(), frame["time"].to_numpy()
    fresh = np.empty(len(frame), dtype=bool)
    fresh[:1] = True
    np.greater(np.diff(time), gap_ns, out=fresh[1:])
    fresh[1:] |= user[1:] != user[:-1]
    return np.flatnonzero(fresh)


def _sorted_shards(coded: pl.LazyFrame, found: Survey, scratch: Path) -> Iterator[pl.DataFrame]:
    """Deals rows out to files by user, large users by hours too, and yields each file sorted."""
    plan = _plan(coded, found)
    by_block = coded.with_columns(block=pl.col("time").floordiv(BLOCK_NS))
    large = [code for code, name in enumerate(found.users) if found.rows[name] > SHARD]
    whole = plan.filter(pl.col("block").is_null()).select("user", "shard")
    parts = plan.filter(pl.col("block").is_not_null())
    dealt = by_block.filter(~pl.col("user").is_in(large)).join(
        whole.lazy(), on="user", how="inner", maintain_order="left"
    )
    if large:
        split = by_block.filter(pl.col("user").is_in(large)).join(
            parts.lazy(), on=["user", "block"], how="inner", maintain_order="left"
        )
        dealt = pl.concat([dealt, split.select(dealt.collect_schema().names())])
    dealt.drop("block").sink_parquet(
        pl.PartitionBy(scratch / "shards", key="shard", include_key=False), compression="lz4", mkdir=True
    )
    for shard in plan["shard"].unique().sort().to_list():
        files = sorted((scratch / "shards" / f"shard={shard}").glob("*.parquet"))
        yield in_order(pl.read_parquet(files))
        for file in files:
            file.unlink()


def in_order(frame: pl.DataFrame) -> pl.DataFrame:
    """Rows by user and time. Most files have each user's rows in time, so rows are put together by user first."""
    user, time = frame["user"].to_numpy(), frame["time"].to_numpy()
    small = user - user.min() if len(user) else user
    if len(small) == 0 or small.max() < 2**16:
        small = small.astype(np.uint16)  # for which numpy counts instead of comparing
    order = np.argsort(small, kind="stable")
    ahead = np.diff(time[order]) >= 0
    if not bool((ahead | (np.diff(user[order]) != 0)).all()):
        order = np.lexsort((time, user))
    return frame[order]


def _plan(coded: pl.LazyFrame, found: Survey) -> pl.DataFrame:
    """user, block, shard: whole users (block null) together up to `SHARD` rows, larger ones cut between hours."""
    user: list[int] = []
    block: list[int | None] = []
    shard: list[int] = []
    current, filled = 0, 0
    for code, name in enumerate(found.users):
        count = found.rows[name]
        if count <= SHARD:
            if filled and filled + count > SHARD:
                current, filled = current + 1, 0
            filled += count
            user.append(code)
            block.append(None)
            shard.append(current)
            continue
        hours = (
            coded.filter(pl.col("user") == code)
            .group_by(pl.col("time").floordiv(BLOCK_NS).alias("block"))
            .len()
            .sort("block")
            .collect(engine="streaming")
        )
        current, filled = current + 1, 0
        for hour, rows in hours.iter_rows():
            if filled and filled + rows > SHARD:
                current, filled = current + 1, 0
            filled += rows
            user.append(code)
            block.append(hour)
            shard.append(current)
        current, filled = current + 1, 0
    schema = {"user": pl.UInt32, "block": pl.Int64, "shard": pl.Int64}
    return pl.DataFrame({"user": user, "block": block, "shard": shard}, schema=schema)
