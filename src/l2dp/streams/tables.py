"""One's own tables: CSV, Parquet, Arrow, NPZ and folders of images, columns by name, as a schema declares them.

Readers check form: names, types, lengths, labels. They scale values from their declared range to [−1, 1] and mark what
lies outside as NaN, which the boundary refuses. Whatever is wrong with a file is one line; nothing is unpickled.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from l2dp.errors import BadInput, L2dpError
from l2dp.har.folder import Folder, Part, part_of
from l2dp.har.split import shuffled
from l2dp.streams.files import unreadable
from l2dp.streams.npz import read_npz
from l2dp.streams.records import Records, Sealed, Source, Task
from l2dp.streams.schema import LONGEST, Schema

Array = NDArray[Any]
T = TypeVar("T")

MOST_BYTES = 8 << 30
_SUFFIXES = {".csv": "CSV", ".parquet": "Parquet", ".arrow": "Arrow", ".feather": "Arrow", ".ipc": "Arrow"}
_PICTURES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
_DUPLICATE = re.compile(r"(.*)_duplicated_\d+")


@dataclass(frozen=True, eq=False)
class Table:
    """A file as it was read: inputs in [−1, 1] or NaN, labels by position, and whose each row is."""

    path: str
    schema: Schema
    """With the columns that the file has."""
    x: NDArray[np.float32]
    y: NDArray[np.int64] | None
    users: tuple[str, ...] | None
    """The distinct users, in the order of their first row."""
    owners: NDArray[np.int64] | None
    """The position among them of every row's user."""

    def __len__(self) -> int:
        return len(self.x)

    def records(self) -> Records:
        """The rows as records to test with."""
        return Records(self._source(None))

    def _source(self, units: torch.Tensor | None) -> Source:
        y = np.zeros(len(self.x), np.int64) if self.y is None else self.y
        return Source(torch.from_numpy(self.x), torch.from_numpy(y), self.path, units=units)

    def task(self, name: str, classes: tuple[int, ...], declared_size: int) -> Task:
        """The rows as the sealed training records of a task."""
        source = self._source(None if self.owners is None else torch.from_numpy(self.owners))
        nothing = Records(source, rows=torch.zeros(0, dtype=torch.int64))
        return Task(name, Sealed(Records(source), declared_size), nothing, classes)


def read_table(path: Path, schema: Schema, labelled: bool = True, part: Part = "train") -> Table:
    """A file or folder as records of the schema; with `labelled` false its labels and units are not looked at.

    Of an ingested folder of recordings, `part` is the one that is meant where the path names none.
    """
    try:
        folder, file = path.is_dir(), path.is_file()
    except (OSError, ValueError) as error:
        raise BadInput(f"{str(path)[:200]!r} is not a path that can be read ({error})") from error
    if folder and (windows := part_of(path, part)) is not None:
        x, labels, units = _read_windows(*windows, schema, labelled)
    elif folder:
        x, labels, units = _read_pictures(path, schema, labelled)
    elif not file:
        raise BadInput(f"there is no file or folder {path}; give a CSV, Parquet, Arrow or NPZ file, or images")
    elif path.suffix.lower() == ".npz":
        x, labels, units = _read_arrays(path, schema, labelled)
    elif path.suffix.lower() in _SUFFIXES:
        schema, x, labels, units = _read_frame(path, schema, labelled)
    else:
        raise BadInput(f"{path}: unknown kind of file; give .csv, .parquet, .arrow, .npz or a folder of images")
    if len(x) == 0:
        raise BadInput(f"{path} has no rows; a task needs at least one record")
    y = None if labels is None else _positions(path, labels, schema)
    users, owners = (None, None) if units is None else _users(path, units, schema)
    return Table(str(path), schema, _scaled(x, schema), y, users, owners)


def _read_windows(
    folder: Folder, part: Part, schema: Schema, labelled: bool
) -> tuple[Array, Array | None, Array | None]:
    """Windows of an ingested folder, all rates together."""
    shape = tuple(folder.described["shape"])
    if schema.shape != shape or set(schema.low) != {-1.0} or set(schema.high) != {1.0}:
        raise BadInput(f"{folder.path} holds windows of shape {shape} in [-1, 1]; the schema declares {schema.shape}")
    wrong = folder.unsigned()
    if labelled and part == "train" and wrong:
        raise BadInput(f"{folder.path}: {wrong[0]}, so no statement could be signed; ingest it with the safe defaults")
    table = folder.table(part)
    table = table[shuffled(table["user"].to_list(), table["time"].to_numpy())]
    x = table["window"].to_numpy()
    if not labelled:
        return x, None, None
    units = None if schema.unit_column is None else table["user"].to_numpy().astype(str)
    return x, table["label"].to_numpy().astype(str), units


def _scaled(x: Array, schema: Schema) -> NDArray[np.float32]:
    """From the declared ranges to [−1, 1]; what lies outside, or is no number, becomes NaN."""
    flat = x.reshape(len(x), -1)
    out = np.empty(flat.shape, np.float32)
    low, high = np.asarray(schema.low), np.asarray(schema.high)
    for start in range(0, len(flat), 4096):
        part = flat[start : start + 4096].astype(np.float64)
        inside = (part >= low) & (part <= high)  # NaN compares false
        part = np.where(inside, part, low)
        part = np.clip((part - low) / (high - low) * 2.0 - 1.0, -1.0, 1.0)
        out[start : start + 4096] = np.where(inside, part, np.nan)
    return out.reshape(len(x), *schema.shape)


def _positions(path: Path, labels: Array, schema: Schema) -> NDArray[np.int64]:
    """The positions of labels, which are names or numbers that are written like a name."""
    known = {label: place for place, label in enumerate(schema.labels)}
    distinct, where = np.unique(labels, return_inverse=True)
    found = np.empty(len(distinct), np.int64)
    for place, label in enumerate(distinct.tolist()):
        if label not in known:
            row = int(np.flatnonzero(where == place)[0])
            raise BadInput(
                f"{path}, row {row + 1}: label {label[:40]!r} is not one of those declared; "
                "correct it, or declare it with `l2dp labels add`"
            )
        found[place] = known[label]
    return found[where]


def _users(path: Path, units: Array, schema: Schema) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    distinct, first, where = np.unique(units, return_index=True, return_inverse=True)
    if distinct[0] == "":
        raise BadInput(
            f"{path}, row {int(first[0]) + 1}: no user in column {schema.unit_column!r}; every row needs one"
        )
    padded = np.flatnonzero(np.char.strip(distinct) != distinct)
    if len(padded):  # taken for somebody else than the same name without, one person would pay twice
        place = padded[first[padded].argmin()]
        raise BadInput(
            f"{path}, row {int(first[place]) + 1}: the user {str(distinct[place])[:40]!r} begins or ends with a space; "
            f"clean column {schema.unit_column!r}, or one person counts as two"
        )
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return tuple(str(user) for user in distinct[order]), rank[where]


# --- CSV, Parquet, Arrow -----------------------------------------------------------------------------


def _guarded(path: Path, kind: str, read: Callable[[], T]) -> T:
    """A reader's answer, or one line: hostile files make polars raise nearly anything, panics included."""
    try:
        return read()
    except (KeyboardInterrupt, SystemExit, L2dpError):
        raise
    except MemoryError as error:
        raise BadInput(f"{path} does not fit into memory; use fewer rows") from error
    except OSError as error:
        if error.strerror is not None:
            raise unreadable(path, error) from error
        raise BadInput(f"{path} is not a whole {kind} file ({_first_line(error)}); write it again") from error
    except BaseException as error:  # polars' PanicException is not an Exception
        raise BadInput(f"{path} is not a whole {kind} file ({_first_line(error)}); write it again") from error


def _first_line(error: BaseException) -> str:
    lines = str(error).split("\n")
    return " ".join(lines[0].split())[:120] or type(error).__name__


def _scan(path: Path, kind: str) -> pl.LazyFrame:
    if kind == "CSV":
        # Every cell as text: what a column is, is declared and not guessed from its first rows.
        return pl.scan_csv(path, infer_schema=False, glob=False)
    if kind == "Parquet":
        return pl.scan_parquet(path, glob=False, hive_partitioning=False)
    return pl.scan_ipc(path, glob=False, hive_partitioning=False)


def _read_frame(path: Path, schema: Schema, labelled: bool) -> tuple[Schema, Array, Array | None, Array | None]:
    kind = _SUFFIXES[path.suffix.lower()]
    if path.stat().st_size > MOST_BYTES:
        raise BadInput(f"{path} has more than 8 GiB; split it")
    frame = _guarded(path, kind, lambda: _scan(path, kind))
    types = _guarded(path, kind, lambda: frame.collect_schema())
    present = list(types)
    twice = [found[1] for name in present if (found := _DUPLICATE.fullmatch(name)) and found[1] in types]
    if twice:
        raise BadInput(f"{path} has two columns {twice[0]!r}; names must differ")
    special = [schema.label_column, *([schema.unit_column] if schema.unit_column is not None else [])]
    columns = schema.columns
    if columns is None:
        columns = tuple(name for name in present if name not in special)
        if len(columns) != schema.values:
            raise BadInput(
                f"{path} has {len(columns)} columns beside {' and '.join(map(repr, special))}, "
                f"{schema.values} are declared; name the columns at `l2dp init --columns`, or leave out the others"
            )
        schema = Schema(
            schema.shape, schema.labels, schema.low, schema.high, columns, schema.label_column, schema.unit_column
        )
    wanted = [*columns, *(special if labelled else [])]
    missing = [name for name in wanted if name not in types]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise BadInput(f"{path} has no column {missing[0]!r}{more}; it has {', '.join(map(repr, present))[:120]}")
    numeric = pl.String() if kind == "CSV" else None
    for name in columns:
        if numeric is None and not types[name].is_numeric() and types[name] != pl.Boolean():
            raise BadInput(f"{path}: column {name!r} has the type {types[name]}; inputs are numbers")
    rows = _guarded(path, kind, lambda: int(frame.select(pl.len()).collect().item()))
    if rows * len(wanted) * 8 > MOST_BYTES:
        raise BadInput(f"{path} unpacks to {rows:,} rows of {len(wanted)} columns, too many at once; split it")
    read = _guarded(path, kind, lambda: frame.select(wanted).collect())
    x = np.empty((len(read), len(columns)), np.float64)
    for place, name in enumerate(columns):
        x[:, place] = _numbers(path, kind, name, read[name])
    if not labelled:
        return schema, x, None, None
    labels = _words(path, kind, schema.label_column, read[schema.label_column])
    units = None
    if schema.unit_column is not None:
        units = _words(path, kind, schema.unit_column, read[schema.unit_column])
    return schema, x, labels, units


def _numbers(path: Path, kind: str, name: str, column: pl.Series) -> Array:
    cast = _guarded(path, kind, lambda: column.cast(pl.Float64(), strict=False))
    bad = (cast.is_null() & column.is_not_null()).arg_max() if cast.null_count() > column.null_count() else None
    if bad is not None:
        raise BadInput(f"{path}, row {bad + 1}, column {name!r}: {str(column[bad])[:40]!r} is not a number")
    return np.asarray(cast.fill_null(float("nan")).to_numpy(), np.float64)


def _words(path: Path, kind: str, name: str, column: pl.Series) -> Array:
    """Labels and users as text: whole numbers as they are written, texts as they are."""
    kinds = (pl.String(), pl.Boolean(), pl.Categorical())
    if not (column.dtype.is_integer() or column.dtype in kinds or isinstance(column.dtype, pl.Enum)):
        raise BadInput(f"{path}: column {name!r} has the type {column.dtype}; give whole numbers or texts")
    words = _guarded(path, kind, lambda: column.cast(pl.String()))
    if words.null_count():
        raise BadInput(f"{path}, row {(words.is_null().arg_max() or 0) + 1}: column {name!r} is empty; fill or drop it")
    _short(path, name, int(words.str.len_bytes().to_numpy().max(initial=0)))
    return np.asarray(words.to_numpy(), str)


def _short(path: Path, name: str, longest: int) -> None:
    if longest > 4 * LONGEST:
        raise BadInput(f"{path}: a text in column {name!r} has {longest:,} bytes; labels and users are short names")


# --- NPZ ---------------------------------------------------------------------------------------------


def _read_arrays(path: Path, schema: Schema, labelled: bool) -> tuple[Array, Array | None, Array | None]:
    unit = [schema.unit_column] if schema.unit_column is not None else []
    needed = ("x", schema.label_column, *unit) if labelled else ("x",)
    arrays = read_npz(path, needed)
    x = arrays["x"]
    if x.dtype.kind not in "iufb":
        raise BadInput(f"{path}: array x has the type {x.dtype}; inputs are numbers")
    if x.ndim < 1 or x.shape[1:] not in (schema.shape, (schema.values,)):
        raise BadInput(f"{path}: array x has the shape {x.shape}, inputs of shape {schema.shape} are declared")
    words = []
    for name in needed[1:]:
        array = arrays[name]
        if array.shape != (len(x),) or array.dtype.kind not in "iuU":
            raise BadInput(
                f"{path}: array {name} has the shape {array.shape} and type {array.dtype}; "
                f"give {len(x)} whole numbers or texts, one for each record"
            )
        _short(path, name, 0 if array.dtype.kind != "U" else array.dtype.itemsize // 4)
        words.append(array.astype(str))
    return x, words[0] if labelled else None, words[1] if labelled and unit else None


# --- images ------------------------------------------------------------------------------------------


def _read_pictures(folder: Path, schema: Schema, labelled: bool) -> tuple[Array, Array | None, Array | None]:
    """`LABEL/name.png`, or pictures side by side with a `records.csv` of columns file, label and unit."""
    if len(schema.shape) == 1:
        raise BadInput(f"{folder} is a folder, and the home declares {schema.values} features; give a table")
    channels = 1 if len(schema.shape) == 2 else schema.shape[0]
    if channels not in (1, 3):
        raise BadInput(f"images have 1 or 3 channels, the home declares {channels}; give an NPZ file")
    listed = folder / "records.csv"
    labels: list[str] | None = None
    units: list[str] | None = None
    if listed.is_file():
        files, labels, units = _listed(listed, schema, labelled)
    elif labelled:
        if schema.unit_column is not None:
            raise BadInput(
                f"{folder} needs a records.csv with columns file, {schema.label_column}, {schema.unit_column}"
            )
        pairs = [(path, part.name) for part in _entries(folder) if part.is_dir() for path in _pictures(part)]
        files, labels = [path for path, _ in pairs], [label for _, label in pairs]
    else:
        files = _pictures(folder)
    if not files:
        raise BadInput(f"{folder} holds no images; put them into one folder for each label")
    x = np.empty((len(files), *schema.shape), np.uint8)
    for place, path in enumerate(files):
        x[place] = _picture(path, channels, schema)
    return (
        x,
        np.asarray(labels, str) if labelled and labels is not None else None,
        np.asarray(units, str) if labelled and units is not None else None,
    )


def _entries(folder: Path) -> list[Path]:
    try:
        # A link could lead anywhere: it is not followed.
        return sorted(path for path in folder.iterdir() if not path.name.startswith(".") and not path.is_symlink())
    except OSError as error:
        raise unreadable(folder, error) from error


def _pictures(folder: Path) -> list[Path]:
    return [path for path in _entries(folder) if path.suffix.lower() in _PICTURES and path.is_file()]


def _listed(path: Path, schema: Schema, labelled: bool) -> tuple[list[Path], list[str] | None, list[str] | None]:
    needed = ["file"]
    if labelled:
        needed += [schema.label_column, *([schema.unit_column] if schema.unit_column is not None else [])]
    frame = _guarded(path, "CSV", lambda: pl.read_csv(path, infer_schema=False, glob=False))
    missing = [name for name in needed if name not in frame.columns]
    if missing:
        raise BadInput(f"{path} has no column {missing[0]!r}; it needs {', '.join(needed)}")
    parts = [[str(word) for word in _words(path, "CSV", name, frame[name])] for name in needed]
    files = []
    for name in parts[0]:
        if name != Path(name).name or name in ("", ".", "..") or (path.parent / name).is_symlink():
            raise BadInput(f"{path}: {name[:60]!r} is not the name of a file beside it")
        files.append(path.parent / name)
    return files, parts[1] if labelled else None, parts[2] if len(parts) > 2 else None


def _picture(path: Path, channels: int, schema: Schema) -> Array:
    from PIL import Image

    height, width = schema.shape[-2:]

    def read() -> Array:
        with Image.open(path) as image:
            if image.size != (width, height):  # known from the header: nothing large is ever unpacked
                raise BadInput(f"{path} has {image.size[0]}x{image.size[1]} pixels, {width}x{height} are declared")
            pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"), np.uint8)
        return pixels.reshape(schema.shape) if channels == 1 else pixels.transpose(2, 0, 1)

    return _guarded(path, "image", read)
