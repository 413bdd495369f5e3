"""An ingested folder: windows as ordinary Parquet files, and `dataset.json` that says what they are.

The files in `train/` and `test/` have the columns user, rate (Hz), label, time (nanoseconds since 1970, of the
first sample) and window (x, then y, then z, in [−1, 1]). The folder is as private as the recordings; only its owner can
read it. It appears under its name when it is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from l2dp.durable import read_json, whole_folder, write_json
from l2dp.errors import BadInput
from l2dp.har.funnel import Funnel
from l2dp.har.ingest import Progress, Recipe, Windows, windows
from l2dp.har.normalise import Constants, How, Moments
from l2dp.har.split import user_tests, windows_test
from l2dp.har.tables import AXES, unreadable

FORMAT, VERSION = "l2dp-har", 1
GROUP = 20_000
"""Windows in one group of rows of a file."""


@dataclass(frozen=True)
class Finish:
    """How windows are divided and scaled. Public configuration; the defaults are the safe ones."""

    split: Literal["user", "window"] = "user"
    unit: Literal["user", "window"] = "user"
    test_share: float = 0.15
    split_seed: int = 0
    normalise: How = "public"

    def __post_init__(self) -> None:
        if not 0 < self.test_share < 1:
            raise BadInput(f"--test must lie between 0 and 1, not {self.test_share}")

    def warnings(self) -> list[str]:
        """What the chosen ways do not protect or measure, one line each."""
        found = []
        if self.split == "window":
            found.append(
                "--split window: test windows share samples and people with training windows, so accuracies "
                "say nothing about people who are not in the data"
            )
        if self.unit == "window":
            found.append(
                "--unit window: a guarantee will hold for one window only; it does not protect a person, a recording, "
                "or even a second of one, since windows overlap"
            )
        if self.normalise == "paper":
            found.append(
                "--normalise paper: mean and variance of the training data are used without noise; no guarantee "
                "covers them"
            )
        return found


Paid = Callable[[Iterator[tuple[str, NDArray[np.float32]]]], tuple[Constants, dict[str, Any]]]
"""Turns the training windows of users into constants, and says what that cost."""


@dataclass
class _Writer:
    """Parts of one folder. Windows that cannot be scaled yet wait as they are."""

    folder: Path
    finish: Finish
    constants: Constants | None
    moments: Moments = field(default_factory=Moments)
    parts: list[Path] = field(default_factory=list)
    counts: dict[tuple[str, float, str], int] = field(default_factory=dict)
    users: dict[tuple[str, float], set[str]] = field(default_factory=dict)

    def add(self, found: Windows, names: list[str]) -> None:
        if len(found.label) == 0:
            return
        users = pl.Series(names).gather(found.user)
        testing = np.zeros(len(found.label), dtype=bool)
        for code in np.unique(found.user):
            rows, name = found.user == code, names[int(code)]
            if self.finish.split == "user":
                testing[rows] = user_tests(name, self.finish.test_share, self.finish.split_seed)
            else:
                testing[rows] = windows_test(name, found.start[rows], self.finish.test_share, self.finish.split_seed)
        for part, rows in (("train", ~testing), ("test", testing)):
            if rows.any():
                self._write(part, found, users, np.flatnonzero(rows))

    def _write(self, part: str, found: Windows, users: pl.Series, rows: NDArray[np.int64]) -> None:
        values = found.values[rows]
        if self.constants is None:
            if part == "train":
                self.moments.add(values)
        else:
            values = self.constants(values)
        table = pl.DataFrame(
            {
                "user": users.gather(rows),
                "rate": found.rate[rows],
                "label": pl.Series(found.label).gather(rows),
                "time": found.start[rows],
                "window": _column(values),
            }
        )
        path = self.folder / part / f"part-{len(self.parts):05d}.parquet"
        path.parent.mkdir(exist_ok=True)
        table.write_parquet(path, compression="lz4", row_group_size=GROUP, statistics=False)
        self.parts.append(path)
        for user, rate, label, count in table.group_by("user", "rate", "label").len().iter_rows():
            key = (part, rate, label)
            self.counts[key] = self.counts.get(key, 0) + count
            self.users.setdefault((part, rate), set()).add(user)

    def training(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Users and their waiting training windows, a user's possibly in several portions."""
        for path in self.parts:
            if path.parent.name == "train":
                for key, part in pl.read_parquet(path).partition_by("user", as_dict=True).items():
                    yield str(key[0]), _values(part)

    def scale(self, constants: Constants) -> None:
        """Scales what has waited."""
        for path in self.parts:
            table = pl.read_parquet(path)
            scaled = table.with_columns(window=_column(constants(_values(table))))
            scaled.write_parquet(path, compression="lz4", row_group_size=GROUP, statistics=False)


def _column(values: NDArray[np.float32]) -> pl.Series:
    flat = np.ascontiguousarray(values.reshape(len(values), -1))
    return pl.Series("window", flat, dtype=pl.Array(pl.Float32, flat.shape[1]))


def _values(table: pl.DataFrame) -> NDArray[np.float32]:
    flat = table["window"].to_numpy()
    return flat.reshape(len(table), len(AXES), -1)


def write(
    samples: pl.LazyFrame,
    label_sessions: pl.DataFrame,
    recipe: Recipe,
    finish: Finish,
    out: Path,
    progress: Progress = lambda what, done, total: None,
    paid: Paid | None = None,
) -> dict[str, Any]:
    """Ingests recordings into the folder `out` and returns its description; `paid` finds private constants."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"{out} exists and is not empty; choose another --out")
    try:
        with whole_folder(out) as partial:
            described = _write_all(samples, label_sessions, recipe, finish, partial, progress, paid)
    except pl.exceptions.PolarsError as error:
        raise unreadable(Path("the file of samples"), error) from error
    return described


def _write_all(
    samples: pl.LazyFrame,
    label_sessions: pl.DataFrame,
    recipe: Recipe,
    finish: Finish,
    folder: Path,
    progress: Progress,
    paid: Paid | None,
) -> dict[str, Any]:
    funnel = Funnel()
    found, source = windows(samples, label_sessions, recipe, funnel, progress)
    constants = Constants() if finish.normalise == "public" else None
    writer = _Writer(folder, finish, constants)
    for some in source:
        writer.add(some, found.users)
    total = sum(writer.counts.values())
    if total == 0:
        last = list(funnel.steps.values())[-1]
        why = "; ".join(f"{step.name}: {dict(step.dropped)}" for step in funnel.steps.values() if step.dropped)
        raise BadInput(
            f"not one window of {recipe.size} samples came out of {last.name!r} ({why}); nothing was written"
        )
    spent: dict[str, Any] | None = None
    if finish.normalise == "paper":
        constants = writer.moments.constants()
    elif finish.normalise == "private":
        if paid is None:
            raise BadInput("--normalise private needs a budget: give --epsilon")
        constants, spent = paid(writer.training())
    assert constants is not None
    if finish.normalise != "public":
        writer.scale(constants)
    sides = {side: sum(n for key, n in writer.counts.items() if key[0] == side) for side in ("train", "test")}
    funnel.step(f"split by {finish.split}", "windows").count(total, total, {}, sides)
    funnel.check()
    labels = recipe.classes or tuple(sorted({label for _, _, label in writer.counts}))
    described = {
        "format": FORMAT,
        "version": VERSION,
        "shape": [len(AXES), recipe.size],
        "labels": list(labels),
        "labels_declared": recipe.classes is not None,
        "rates": sorted({rate for _, rate, _ in writer.counts}),
        "resampled": [f"{old:g} Hz to {new:g} Hz" for old, new in recipe.resample.items()],
        "unit": finish.unit,
        "split": {"by": finish.split, "test_share": finish.test_share, "seed": finish.split_seed},
        "normalisation": {**constants.to_json(), **({"spent": spent} if spent else {})},
        "overlap": recipe.overlap if isinstance(recipe.overlap, str) else recipe.overlap.to_json(),
        "windows": [
            {"part": part, "rate": rate, "label": label, "windows": number}
            for (part, rate, label), number in sorted(writer.counts.items())
        ],
        "users": [
            {"part": part, "rate": rate, "users": len(names)} for (part, rate), names in sorted(writer.users.items())
        ],
        "funnel": funnel.to_json(),
    }
    write_json(folder / "dataset.json", described)
    write_json(folder / "funnel.json", funnel.to_json())
    return described


Part = Literal["train", "test"]


def part_of(path: Path, usual: Part = "train") -> tuple[Folder, Part] | None:
    """The folder and part that a path means: an ingested folder (its usual part), or `train` or `test` in one."""
    for folder, part in ((path, usual), (path.parent, path.name)):
        if part in ("train", "test") and (folder / "dataset.json").is_file():
            return Folder.open(folder), "test" if part == "test" else "train"
    return None


@dataclass(frozen=True)
class Folder:
    """A folder read back."""

    path: Path
    described: dict[str, Any]

    @staticmethod
    def open(path: Path) -> Folder:
        if not (path / "dataset.json").is_file():
            raise BadInput(f"{path} is not an ingested folder (no dataset.json); make one with `l2dp har ingest`")
        described = read_json(path / "dataset.json")
        if not isinstance(described, dict) or described.get("format") != FORMAT or described.get("version") != VERSION:
            raise BadInput(f"{path}/dataset.json is not of this program's format; ingest the recordings again")
        return Folder(path, described)

    def uncovered(self) -> list[str]:
        """What was done to the data that no guarantee for its people covers, one phrase each; empty: nothing."""
        found = []
        if not self.described["normalisation"]["private"]:
            found.append("it was normalised with statistics of the data")
        if self.described["overlap"] == "paper":
            found.append("its overlaps follow everybody's data")
        if not self.described["labels_declared"]:
            found.append("its labels are those that occurred, not declared ones (--classes)")
        return found

    def unsigned(self) -> list[str]:
        """Why no statement could be signed about the folder's windows alone; nothing: one could."""
        spent = ["its constants have cost people budget that is not in this book"]
        return self.uncovered() + (spent if self.described["normalisation"].get("spent") else [])

    def table(self, part: Part) -> pl.DataFrame:
        """user, rate, label, time, window of one part; empty if it has no windows."""
        files = sorted((self.path / part).glob("*.parquet"))
        if not files:
            channels, size = self.described["shape"]
            window = pl.Array(pl.Float32, channels * size)
            return pl.DataFrame(
                schema={"user": pl.String, "rate": pl.Float64, "label": pl.String, "time": pl.Int64, "window": window}
            )
        try:
            found = pl.read_parquet(files)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise unreadable(self.path, error) from error
        noted = sum(line["windows"] for line in self.described["windows"] if line["part"] == part)
        if len(found) != noted:
            raise BadInput(
                f"{self.path / part} holds {len(found)} windows, and dataset.json counts {noted}; "
                "ingest the recordings again"
            )
        return found
