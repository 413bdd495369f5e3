"""Samples and label sessions from CSV or Parquet: columns by name, units and clocks as declared.

What comes out has one form whatever went in: users as text, times in nanoseconds since 1970 UTC, accelerations in
m/s². A local time that the clock shows twice, or never, has no such instant and becomes null.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from zoneinfo import ZoneInfo

import polars as pl

from l2dp.errors import BadInput

UNITS = {"m/s2": 1.0, "g": 9.80665, "mg": 0.00980665}
"""m/s² in one unit of acceleration."""
CLOCKS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
"""Nanoseconds in one tick."""
AXES = ("x", "y", "z")


@dataclass(frozen=True)
class Dialect:
    """What a file calls things and how it counts time. Declared, never guessed from values."""

    columns: Mapping[str, str] = field(default_factory=dict)
    """Our name → the file's, where they differ."""
    clock: str = "ns"
    """ns, us, ms or s since 1970; or iso for written dates. A column of dates needs none."""
    zone: str = "UTC"
    """Of dates that name none."""
    units: str = "m/s2"

    def __post_init__(self) -> None:
        if self.clock not in (*CLOCKS, "iso"):
            raise BadInput(f"unknown clock {self.clock!r}; choose from {', '.join(CLOCKS)} or iso")
        if self.units not in UNITS:
            raise BadInput(f"unknown units {self.units!r}; choose from {', '.join(UNITS)}")
        try:
            ZoneInfo(self.zone)
        except (KeyError, ValueError, OSError):
            raise BadInput(f"unknown time zone {self.zone!r}; use a name such as Europe/Berlin") from None


def _scan(path: Path, text: tuple[str, ...]) -> pl.LazyFrame:
    if not path.exists():
        raise BadInput(f"there is no file {path}; check the path")
    if path.suffix.lower() in (".parquet", ".pq") or path.is_dir():
        return pl.scan_parquet(path / "*.parquet" if path.is_dir() else path)
    if path.suffix.lower() in (".csv", ".gz", ".txt", ".tsv"):
        # Users and labels that look like numbers must stay what they are written as.
        separator = "\t" if path.suffix.lower() == ".tsv" else ","
        frame = pl.scan_csv(path, separator=separator, infer_schema_length=10_000)
        known = frame.collect_schema().names()
        overrides: dict[str, pl.DataType] = {name: pl.String() for name in text if name in known}
        return pl.scan_csv(path, separator=separator, infer_schema_length=10_000, schema_overrides=overrides)
    raise BadInput(f"{path}: only .csv, .tsv and .parquet can be read; convert it first")


def _open(path: Path, dialect: Dialect, wanted: tuple[str, ...], text: tuple[str, ...]) -> tuple[pl.LazyFrame, Dialect]:
    """The file with our names for its columns, and the dialect with the clock that a name such as time_ms declares."""
    names = {ours: dialect.columns.get(ours, ours) for ours in wanted}
    try:
        frame = _scan(path, tuple(names.get(name, name) for name in text))
        there = frame.collect_schema()
    except pl.exceptions.PolarsError as error:
        raise unreadable(path, error) from error
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error}; check the path and its permissions") from error
    for ours in wanted:
        if names[ours] in there or ours in dialect.columns:
            continue
        for clock in CLOCKS:
            if f"{ours}_{clock}" in there and ours in ("time", "start", "end"):
                names[ours] = f"{ours}_{clock}"
                dialect = Dialect(dialect.columns, clock, dialect.zone, dialect.units)
    missing = [theirs for theirs in names.values() if theirs not in there]
    if missing:
        some = ", ".join(repr(name[:30]) for name in there.names()[:8])
        raise BadInput(
            f"{path} has no column {missing[0]!r}, only {some}{' …' if len(there) > 8 else ''}; "
            "name it with --columns or --label-columns ours=theirs"
        )
    return frame.select(pl.col(theirs).alias(ours) for ours, theirs in names.items()), dialect


def unreadable(path: Path, error: Exception) -> BadInput:
    return BadInput(f"{path} cannot be read: {str(error).splitlines()[0]}; correct the file or its declared columns")


def _instant(name: str, kind: pl.DataType, dialect: Dialect, path: Path) -> pl.Expr:
    """A column of times as nanoseconds since 1970; null where the declared clock has no such instant."""
    column = pl.col(name)
    if isinstance(kind, pl.String):
        if dialect.clock != "iso":
            raise BadInput(f"{path}: column {name!r} is text; declare --clock iso for written dates")
        column, kind = column.str.to_datetime(time_unit="ns", strict=True), pl.Datetime("ns")
    if isinstance(kind, pl.Datetime):
        if kind.time_zone is None:
            column = column.dt.replace_time_zone(dialect.zone, ambiguous="null", non_existent="null")
        return column.dt.cast_time_unit("ns").cast(pl.Int64)
    if not kind.is_numeric():
        raise BadInput(f"{path}: column {name!r} holds {kind}, not times; declare another column")
    if dialect.clock == "iso":
        raise BadInput(f"{path}: column {name!r} holds numbers; declare its clock: {', '.join(CLOCKS)}")
    ticks = CLOCKS[dialect.clock]
    number = column.cast(pl.Float64) * ticks if kind.is_float() else column.cast(pl.Int64, strict=False)
    most = 2**63 // (1 if kind.is_float() else ticks) - 1024
    inside = pl.when(number.is_between(-most, most)).then(number)
    return inside.round().cast(pl.Int64, strict=False) if kind.is_float() else inside * ticks


def samples(path: Path, dialect: Dialect) -> pl.LazyFrame:
    """user, time, x, y, z of a file, lazily."""
    frame, dialect = _open(path, dialect, ("user", "time", *AXES), ("user",))
    kinds = frame.collect_schema()
    for axis in AXES:
        if not kinds[axis].is_numeric():
            raise BadInput(f"{path}: column {axis!r} holds {kinds[axis]}, not numbers; correct the file")
    return frame.select(
        pl.col("user").cast(pl.String),
        _instant("time", kinds["time"], dialect, path).alias("time"),
        *((pl.col(axis) * UNITS[dialect.units]).cast(pl.Float32) for axis in AXES),
    )


def label_sessions(path: Path, dialect: Dialect) -> pl.DataFrame:
    """user, start, end, label (and position, null if the file has none) of a file."""
    wanted = ("user", "start", "end", "label")
    _, plain = _open(path, dialect, wanted, ("user", "label", "position"))
    try:
        frame, plain = _open(path, dialect, (*wanted, "position"), ("user", "label", "position"))
    except BadInput:
        if "position" in dialect.columns:
            raise
        frame, plain = _open(path, dialect, wanted, ("user", "label"))
    kinds = frame.collect_schema()
    position = pl.col("position").cast(pl.String) if "position" in kinds else pl.lit(None, pl.String)
    try:
        return frame.select(
            pl.col("user").cast(pl.String),
            _instant("start", kinds["start"], plain, path).alias("start"),
            _instant("end", kinds["end"], plain, path).alias("end"),
            pl.col("label").cast(pl.String).str.strip_chars(),
            position.alias("position"),
        ).collect()
    except pl.exceptions.PolarsError as error:
        raise unreadable(path, error) from error
