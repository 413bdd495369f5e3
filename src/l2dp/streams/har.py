"""Streams of human activity: one task for each sampling rate, of an ingested folder or of the benchmark's two sets.

The benchmark `har-rates` cuts its windows from the recordings when it is asked for: WISDM's phones (20 Hz) and
MotionSense's (50 Hz), half of the people of each at the recorded rate, the others resampled to a lower one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from l2dp.errors import BadInput
from l2dp.har.folder import Folder
from l2dp.har.funnel import Funnel
from l2dp.har.ingest import Recipe, windows
from l2dp.har.normalise import Constants
from l2dp.har.split import shuffled
from l2dp.har.tables import Dialect, label_sessions, samples
from l2dp.har.windows import Overlap
from l2dp.streams.fetch import RECORDED, recordings_at
from l2dp.streams.records import Records, Sealed, Source, Space, Stream, Task

ACTIVITIES = ("walking", "running", "stairs", "sitting", "standing")
SAME = {"jogging": "running", "upstairs": "stairs", "downstairs": "stairs"}


@dataclass(frozen=True)
class Part:
    """Where the recordings of one task come from."""

    dataset: str
    recorded: float
    rate: float
    turn: int
    """Which of a set's people: those at even (0) or odd (1) places of the list of their names."""


PARTS = (
    Part("wisdm", 20, 5, 1),
    Part("motionsense", 50, 10, 1),
    Part("wisdm", 20, 20, 0),
    Part("motionsense", 50, 50, 0),
)
DEVELOPMENT = 3
"""People of each task who never test: settings are tried on them, and reported runs train on them."""
TESTING = 3
"""People of each task who test, other ones with every seed."""
TEST_SHARE = 0.15
OVERLAP = 0.5


@dataclass(frozen=True, eq=False)
class Labelled:
    """Windows of one rate: values in [−1, 1], labels as places in a list, and whose they are."""

    x: Tensor
    y: Tensor
    users: tuple[str, ...]
    owner: Tensor
    """Places in `users`."""

    def rows(self, chosen: set[str]) -> Tensor:
        places = [place for place, name in enumerate(self.users) if name in chosen]
        return torch.isin(self.owner, torch.tensor(places, dtype=torch.int64)).nonzero().flatten()


def from_folder(path: str) -> Stream:
    """The rates of an ingested folder, lowest first, with its own split into training and test windows."""
    folder = Folder.open(Path(path))
    described = folder.described
    space = Space(tuple(described["shape"]), tuple(described["labels"]))
    train, test = folder.table("train"), folder.table("test")
    names = pl.concat([train["user"], test["user"]]).unique().sort().to_list()
    prepared = next(iter(folder.unsigned()), "")
    tasks = []
    for rate in described["rates"]:
        parts = []
        for what, table in (("training", train), ("test", test)):
            rows = table.filter(pl.col("rate") == rate)
            if len(rows) == 0:
                raise BadInput(
                    f"{path}: {rate:g} Hz has no {what} windows; ingest with another --split-seed, a larger --test or "
                    "--split window, or leave the rate out with --rates"
                )
            parts.append(_source(rows, space, names, f"{path}, {rate:g} Hz, {what} part"))
        tasks.append(_task(f"{rate:g} Hz", space, Records(parts[0]), Records(parts[1]), prepared))
    facts: dict[str, object] = {"not_covered": folder.uncovered()}
    facts |= {key: described[key] for key in ("unit", "split", "normalisation", "overlap", "resampled", "users")}
    return Stream(
        "har",
        space,
        tuple(tasks),
        config=facts,
        spent=_spent(described["normalisation"]),
        covered=not folder.uncovered(),
    )


def _spent(normalisation: Mapping[str, Any]) -> tuple[float, float]:
    """What private constants have cost a person, and so each of their windows: added to every guarantee to come."""
    found = normalisation.get("spent")
    return (0.0, 0.0) if found is None else (float(found["epsilon"]), float(found["delta"]))


def _task(name: str, space: Space, train: Records, test: Records, prepared: str = "") -> Task:
    # All labels are declared for every rate: which of them occur at one is not for everybody to know.
    return Task(name, Sealed(train, prepared=prepared), test, tuple(range(space.classes)))


def _source(rows: pl.DataFrame, space: Space, names: list[str], title: str) -> Source:
    rows = rows[shuffled(rows["user"].to_list(), rows["time"].to_numpy())]
    values: NDArray[np.float32] = rows["window"].to_numpy()
    x = torch.from_numpy(values.reshape(len(rows), *space.shape).copy())
    y = rows["label"].cast(pl.Enum(space.labels)).to_physical().cast(pl.Int64).to_numpy()
    owner = rows["user"].cast(pl.Enum(names)).to_physical().cast(pl.Int64).to_numpy()
    return Source(x, torch.from_numpy(y.copy()), title, units=torch.from_numpy(owner.copy()))


def recordings(dataset: str) -> Path:
    """The folder of one of the benchmark's sets, in `$L2DP_DATA` or in the cache."""
    folder, places = recordings_at(dataset)
    if folder is not None:
        return folder
    looked = " nor ".join(map(str, places))
    raise BadInput(
        f"the {dataset} recordings are not in {looked}; put samples.parquet (user, time_ns, x, y, z in m/s2) and "
        f"labels.parquet (user, start_ns, end_ns, label) there, or set L2DP_DATA to a folder with har/{dataset}/ in it"
    )


How = Literal["user", "development", "window"]


def har_rates(seed: int = 0, split: How = "user", per_task: int | None = None, rate: float | None = None) -> Stream:
    """Four tasks, 5, 10, 20 and 50 Hz, of disjoint people, five activities each; or the one of a `rate`.

    Test people rotate with the seed. With the split "development", people who never test otherwise do, and everybody
    else trains: for choosing settings. With "window" (the paper's) 15 % of the windows of everybody test.
    """
    space = Space((3, Recipe.size), ACTIVITIES)
    tasks = []
    facts: dict[str, Any] = {}
    offset = 0
    for part in PARTS:
        if rate not in (None, part.rate):
            continue
        name = f"{part.rate:g} Hz"
        found = labelled(part, str(recordings(part.dataset)))
        rows, held_out, testing = _divide(found, seed, split, name)
        if per_task is not None:
            if not 1 <= per_task <= len(rows):
                raise BadInput(f"--per-task {per_task}: {name} has {len(rows)} training windows")
            generator = torch.Generator().manual_seed(seed)
            rows = rows[torch.randperm(len(rows), generator=generator)[:per_task].sort().values]
        source = Source(found.x, found.y, f"har-rates, {name}", units=found.owner + offset)
        offset += len(found.users)
        tasks.append(_task(name, space, Records(source, rows), Records(source, held_out)))
        facts[name] = {
            "recordings": part.dataset,
            "recorded_at_hz": part.recorded,
            "resampled": part.rate != part.recorded,
            "training_users": len(found.owner[rows].unique()),
            "test_users": testing,
            "training_windows": len(rows),
            "test_windows": len(held_out),
        }
    if not tasks:
        raise BadInput(f"har-rates has no {rate:g} Hz; choose from {', '.join(f'{part.rate:g}' for part in PARTS)}")
    return Stream("har-rates", space, tuple(tasks), config={"rates": facts, "overlap": OVERLAP, "split": split})


def _divide(found: Labelled, seed: int, split: How, name: str) -> tuple[Tensor, Tensor, list[str]]:
    """Training rows, test rows, and the people who test."""
    if split == "window":
        generator = torch.Generator().manual_seed(seed)
        shuffled = torch.randperm(len(found.y), generator=generator)
        count = round(TEST_SHARE * len(shuffled))
        return shuffled[count:].sort().values, shuffled[:count].sort().values, list(found.users)
    held, rest = list(found.users[:DEVELOPMENT]), list(found.users[DEVELOPMENT:])
    if len(rest) <= TESTING:
        raise BadInput(f"the recordings for {name} have too few people with windows: {len(found.users)}")
    first = seed * TESTING % len(rest)
    testing = held if split == "development" else [rest[(first + step) % len(rest)] for step in range(TESTING)]
    return found.rows(set(found.users) - set(testing)), found.rows(set(testing)), testing


@lru_cache(maxsize=8)
def labelled(part: Part, folder: str, overlap: float = OVERLAP) -> Labelled:
    """All windows of one task of `har-rates`, scaled by public constants."""
    source = samples(Path(folder) / RECORDED[0], Dialect())
    marks = label_sessions(Path(folder) / RECORDED[1], Dialect())
    everybody = marks["user"].unique().sort().to_list()
    people = everybody[part.turn :: 2]
    slower: Mapping[float, float] = {} if part.rate == part.recorded else {part.recorded: part.rate}
    recipe = Recipe(rates=(part.recorded,), rename=SAME, classes=ACTIVITIES, resample=slower, overlap=Overlap(overlap))
    funnel = Funnel()
    found, source_of = windows(
        source.filter(pl.col("user").is_in(people)), marks.filter(pl.col("user").is_in(people)), recipe, funnel
    )
    pieces = [piece for piece in source_of if len(piece.label)]
    funnel.check()
    whose = [found.users[code] for piece in pieces for code in piece.user.tolist()]
    order = shuffled(whose, np.concatenate([piece.start for piece in pieces]))
    names = tuple(sorted(set(whose)))
    scale = Constants()
    x = np.concatenate([scale(piece.values) for piece in pieces])[order]
    y = np.array([ACTIVITIES.index(label) for piece in pieces for label in piece.label])[order]
    owner = np.array([names.index(name) for name in whose])[order]
    return Labelled(torch.from_numpy(x), torch.from_numpy(y), names, torch.from_numpy(owner))
