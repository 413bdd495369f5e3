"""Samples a second that `l2dp har ingest` takes in, and the memory it needs, with synthetic recordings.

Half of the time has labels. The command runs as a process of its own, so that its peak memory is its own; once with
people one after the other in the file, and once, on fewer rows, with all people interleaved.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from rich.console import Console
from rich.table import Table

from bench.timing import verdict

ROWS, INTERLEAVED, QUICK = 100_000_000, 20_000_000, 400_000
PEOPLE = 100
WANTED, MOST_MEMORY = 2_000_000, 2 * 1024.0
SECOND = 10**9
ACTIVITIES = ("walking", "running", "stairs", "sitting", "standing")


class Case(NamedTuple):
    name: str
    rows: int
    interleaved: bool


def run(console: Console, quick: bool) -> dict[str, Any]:
    cases = [
        Case("in order", QUICK if quick else ROWS, False),
        Case("interleaved", QUICK if quick else INTERLEAVED, True),
    ]
    rows = []
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="l2dp-bench-") as folder:
            samples, labels = _write(case, Path(folder))
            rows.append({"file": case.name, "samples": case.rows, **_measure(samples, labels, Path(folder) / "out")})
    passed = rows[0]["samples_per_second"] >= WANTED and max(row["peak_memory_mb"] for row in rows) < MOST_MEMORY
    _show(console, rows, passed)
    return {"rows": rows, "wanted_per_second": WANTED, "most_memory_mb": MOST_MEMORY, "passed": passed}


def _write(case: Case, folder: Path) -> tuple[Path, Path]:
    """50 Hz with a little jitter and a gap of five seconds every ten minutes; labels in every other 20 minutes."""
    generator = np.random.default_rng(0)
    each = case.rows // PEOPLE
    steps = 20_000_000 + generator.integers(-1_000_000, 1_000_000, each)
    steps[::30_000] = 5 * SECOND
    times = np.cumsum(steps)
    axes = {axis: generator.normal(9.8 * (axis == "z"), 3, each).astype(np.float32) for axis in "xyz"}
    person = pl.DataFrame({"time": times, **axes})
    samples, labels = folder / "samples.parquet", folder / "labels.parquet"
    parts = [
        person.lazy().select(pl.lit(f"person-{number:03d}").alias("user"), pl.col("time") + number, "x", "y", "z")
        for number in range(PEOPLE)
    ]
    whole = pl.concat(parts)
    (whole.sort("time") if case.interleaved else whole).sink_parquet(samples, compression="lz4", row_group_size=500_000)
    starts = range(int(times[0]), int(times[-1]), 40 * 60 * SECOND)
    marks = [
        (f"person-{number:03d}", start, start + 20 * 60 * SECOND, ACTIVITIES[(number + place) % len(ACTIVITIES)])
        for number in range(PEOPLE)
        for place, start in enumerate(starts)
    ]
    pl.DataFrame(marks, schema=["user", "start", "end", "label"], orient="row").write_parquet(labels)
    return samples, labels


def _measure(samples: Path, labels: Path, out: Path) -> dict[str, Any]:
    rows = pl.scan_parquet(samples).select(pl.len()).collect().item()
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "l2dp", "har", "ingest", str(samples), str(labels), "--out", str(out)],
        stdout=subprocess.DEVNULL,
    )
    _, code, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    if code != 0:
        raise SystemExit(f"l2dp har ingest ended with {os.waitstatus_to_exitcode(code)}")
    processor = used.ru_utime + used.ru_stime
    return {
        "seconds": seconds,
        "processor_seconds": processor,
        "samples_per_second": rows / seconds,
        "samples_per_processor_second": rows / processor,
        "peak_memory_mb": used.ru_maxrss / 1024,
    }


def _show(console: Console, rows: list[dict[str, Any]], passed: bool) -> None:
    table = Table(title="Ingest of recordings", title_justify="left", caption=verdict(passed), caption_justify="left")
    for name in ("file", "samples", "seconds", "samples/s", "samples/s of processor time", "peak memory (MB)"):
        table.add_column(name, justify="left" if name == "file" else "right")
    for row in rows:
        table.add_row(
            row["file"],
            f"{row['samples']:,}",
            f"{row['seconds']:.1f}",
            f"{row['samples_per_second']:,.0f}",
            f"{row['samples_per_processor_second']:,.0f}",
            f"{row['peak_memory_mb']:,.0f}",
        )
    console.print(table)
