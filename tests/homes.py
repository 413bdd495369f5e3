"""Small homes and tables for the tests of the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import l2dp
from l2dp.store import Home

WIDTH = 12
LABELS = ("low", "mid", "high")
CENTRES = np.random.default_rng(7).uniform(-0.6, 0.6, (len(LABELS), WIDTH))


def arrays(seed: int, rows: int = 90) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    y = np.arange(rows) % len(LABELS)
    return np.clip(CENTRES[y] + rng.normal(0, 0.2, (rows, WIDTH)), -1, 1).astype(np.float32), y


def frame(seed: int, rows: int = 90, users: int | None = None) -> pl.DataFrame:
    x, y = arrays(seed, rows)
    columns: dict[str, Any] = {f"f{place}": x[:, place] for place in range(WIDTH)}
    columns["label"] = [LABELS[place] for place in y]
    if users is not None:
        columns["who"] = [f"user {row % users}" for row in range(rows)]
    return pl.DataFrame(columns)


def table(folder: Path, seed: int, rows: int = 90, users: int | None = None, kind: str = "parquet") -> Path:
    path = folder / f"data-{seed}-{rows}-{users}.{kind}"
    found = frame(seed, rows, users)
    if kind == "csv":
        found.write_csv(path)
    elif kind == "arrow":
        found.write_ipc(path)
    elif kind == "npz":
        np.savez(
            path,
            x=found.select([f"f{p}" for p in range(WIDTH)]).to_numpy(),
            label=found["label"].to_numpy().astype(str),
        )
    else:
        found.write_parquet(path)
    return path


def home(folder: Path, name: str = "home", **changed: Any) -> Home:
    """Pure ε by default: class sums alone, which need no calibration and learn in milliseconds."""
    asked: dict[str, Any] = {"epsilon": 4.0, "delta": 0.0, "labels": LABELS, "features": WIDTH, "task_size": 90}
    return l2dp.init(folder / name, **(asked | changed))


def user_home(folder: Path, name: str = "home", **changed: Any) -> Home:
    asked: dict[str, Any] = {"unit": "user", "unit_column": "who", "per_task_epsilon": 1.0, "per_user": 3}
    return home(folder, name, **(asked | changed))
