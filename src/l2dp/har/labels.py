"""From label sessions to verdicts: which stretch of a user's time counts as what, and why the rest does not count.

A verdict is a half-open interval [start, end) of one user with a `label`, or with a `reason` for which its samples are
left out. Verdicts of one user never overlap.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import polars as pl

CONTESTED = "two labels at once"
UNWANTED = "label is not asked for"
POSITION = "phone position is excluded"
MARGIN = "too near the border of a label session"
LATE = "too late in a long label session"
UNLABELLED = "no label"


def valid(labels: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, int]]:
    """Label sessions with a user, a label and an end after their start."""
    whole = labels.drop_nulls(["user", "start", "end", "label"])
    good = whole.filter(pl.col("end") > pl.col("start"))
    return good, {
        "something is missing, or a local time is ambiguous": len(labels) - len(whole),
        "ends before it starts": len(whole) - len(good),
    }


def resolve(labels: pl.DataFrame) -> pl.DataFrame:
    """Label sessions → verdicts that do not overlap: where two sessions disagree, nobody is believed.

    Overlapping sessions of the same label and position are one. Ends are inclusive in a file, so [start, end + 1).
    """
    kinds = labels.select("label", "position").unique().sort("label", "position", nulls_last=True)
    kinds = kinds.with_row_index("kind")
    merged = (
        labels.join(kinds, on=["label", "position"], how="left", nulls_equal=True)
        .sort("user", "kind", "start", "end")
        .with_columns(reach=pl.col("end").cum_max().over("user", "kind"))
        .with_columns(
            fresh=(pl.col("start") > pl.col("reach").shift(1).over("user", "kind")).fill_null(True).cast(pl.Int64)
        )
        .with_columns(run=pl.col("fresh").cum_sum().over("user", "kind"))
        .group_by("user", "kind", "run")
        .agg(pl.col("start").min(), pl.col("end").max() + 1)
    )
    # A sweep over borders: how many sessions are open, and the sum of their kinds, which names the one if it is one.
    opened = merged.select("user", "kind", at="start", step=pl.lit(1, pl.Int64))
    closed = merged.select("user", "kind", at="end", step=pl.lit(-1, pl.Int64))
    borders = (
        pl.concat([opened, closed])
        .group_by("user", "at")
        .agg(pl.col("step").sum(), (pl.col("step") * pl.col("kind").cast(pl.Int64)).sum().alias("kind"))
        .sort("user", "at")
        .with_columns(
            active=pl.col("step").cum_sum().over("user"),
            kind=pl.col("kind").cum_sum().over("user"),
            end=pl.col("at").shift(-1).over("user"),
        )
        .filter(pl.col("active") > 0)
        .select("user", "active", "kind", "end", start="at")
    )
    return (
        borders.with_columns(
            kind=pl.when(pl.col("active") == 1).then(pl.col("kind")).cast(pl.UInt32),
            reason=pl.when(pl.col("active") > 1).then(pl.lit(CONTESTED)),
        )
        .join(kinds.with_columns(pl.col("kind").cast(pl.UInt32)), on="kind", how="left")
        .select("user", "start", "end", "label", "position", "reason")
        .sort("user", "start")
    )


def choose(verdicts: pl.DataFrame, names: Mapping[str, str], classes: Collection[str] | None) -> pl.DataFrame:
    """Labels by their new names; those not among `classes` do not count."""
    renamed = verdicts.with_columns(pl.col("label").replace(dict(names)))
    if classes is None:
        return renamed
    outside = pl.col("reason").is_null() & ~pl.col("label").is_in(list(classes))
    return renamed.with_columns(reason=pl.when(outside).then(pl.lit(UNWANTED)).otherwise("reason"))


def exclude_positions(verdicts: pl.DataFrame, positions: Collection[str]) -> pl.DataFrame:
    """Sessions in which the phone lay somewhere else than on the body do not count."""
    there = pl.col("reason").is_null() & pl.col("position").is_in(list(positions)).fill_null(False)
    return verdicts.with_columns(reason=pl.when(there).then(pl.lit(POSITION)).otherwise("reason"))


def trim(verdicts: pl.DataFrame, margin_ns: int) -> pl.DataFrame:
    """The first and last `margin_ns` of a session do not count: people were operating the phone."""
    counted = verdicts.filter(pl.col("reason").is_null())
    middle = pl.min_horizontal(pl.col("start") + margin_ns, "end")
    after = pl.max_horizontal(pl.col("end") - margin_ns, middle)
    return _parts(
        verdicts,
        counted.with_columns(end=middle, reason=pl.lit(MARGIN)),
        counted.with_columns(start=middle, end=after),
        counted.with_columns(start=after, reason=pl.lit(MARGIN)),
    )


def cap(verdicts: pl.DataFrame, longest_ns: int) -> pl.DataFrame:
    """What lies more than `longest_ns` after the start of a session does not count: people forget to end it."""
    counted = verdicts.filter(pl.col("reason").is_null())
    limit = pl.min_horizontal(pl.col("start") + longest_ns, "end")
    return _parts(
        verdicts,
        counted.with_columns(end=limit),
        counted.with_columns(start=limit, reason=pl.lit(LATE)),
    )


def _parts(verdicts: pl.DataFrame, *parts: pl.DataFrame) -> pl.DataFrame:
    """What does not count, and the parts of what does; empty ones are left out."""
    settled = verdicts.filter(pl.col("reason").is_not_null())
    return pl.concat([settled, *parts]).filter(pl.col("end") > pl.col("start")).sort("user", "start")


def attach(frame: pl.DataFrame, sessions: pl.DataFrame, verdicts: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, int]]:
    """Stretches of sessions under one label: user, session, rate, label, first, count; and lost samples by reason.

    `session` is the row of the session. No stretch crosses the border of a session or of a label.
    """
    found: list[tuple[int, float, str | None, str | None, int, int]] = []
    time = frame["time"].to_numpy()
    by_user = {
        key[0]: (part["start"].to_numpy(), part["end"].to_numpy(), part["label"].to_list(), part["reason"].to_list())
        for key, part in verdicts.partition_by("user", as_dict=True).items()
    }
    rows = sessions.select("user", "first", "count", "rate").iter_rows()
    for session, (user, first, count, rate) in enumerate(rows):
        if user not in by_user:
            continue
        starts, ends, names, reasons = by_user[user]
        own = time[first : first + count]
        # Verdicts that touch the session, and the rows between their borders.
        low = int(np.searchsorted(ends, own[0], side="right"))
        high = int(np.searchsorted(starts, own[-1], side="right"))
        if low >= high:
            continue
        begin = np.searchsorted(own, starts[low:high])
        stop = np.searchsorted(own, ends[low:high])
        for place, (a, b) in enumerate(zip(begin.tolist(), stop.tolist(), strict=True), start=low):
            if b > a:
                found.append((session, rate, names[place], reasons[place], first + a, b - a))
    table = pl.DataFrame(
        found,
        schema={
            "session": pl.Int64,
            "rate": pl.Float64,
            "label": pl.String,
            "reason": pl.String,
            "first": pl.Int64,
            "count": pl.Int64,
        },
        orient="row",
    )
    lost = dict(table.filter(pl.col("reason").is_not_null()).group_by("reason").agg(pl.col("count").sum()).iter_rows())
    lost[UNLABELLED] = int(sessions["count"].sum()) - int(table["count"].sum())
    kept = table.filter(pl.col("reason").is_null()).drop("reason")
    users = sessions["user"].gather(kept["session"])
    return kept.with_columns(user=users).select("user", "session", "rate", "label", "first", "count"), lost
