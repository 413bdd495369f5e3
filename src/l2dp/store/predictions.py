"""Predictions as a table: one row for each row of the input, in its order."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import polars as pl

from l2dp.durable import write_bytes
from l2dp.errors import BadInput
from l2dp.store.release import Release


def write_predictions(release: Release, data: Path, out: Path) -> int:
    """Writes columns `label` and `confidence`; gives the number of rows."""
    kind = out.suffix.lower()
    if kind not in (".parquet", ".csv", ".arrow", ".npz"):
        raise BadInput(f"--out {out}: choose a name that ends in .parquet, .csv, .arrow or .npz")
    if not out.absolute().parent.is_dir():
        raise BadInput(f"--out {out}: there is no folder {out.parent}")
    if out.exists() and data.exists() and out.samefile(data):
        raise BadInput(f"--out {out} is the table itself, which would be lost; choose another name")
    names, sure = release.predict(data)
    frame = pl.DataFrame({"label": names, "confidence": sure})
    buffer = io.BytesIO()
    if kind == ".parquet":
        frame.write_parquet(buffer)
    elif kind == ".csv":
        frame.write_csv(buffer)
    elif kind == ".arrow":
        frame.write_ipc(buffer)
    else:
        np.savez(buffer, label=np.asarray(names), confidence=np.asarray(sure))
    write_bytes(out, buffer.getvalue())
    return len(names)
