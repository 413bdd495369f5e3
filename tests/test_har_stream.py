"""Streams of human activity: people in one task and one part only, an order that depends on nobody else, whole runs."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
import torch

from l2dp import benchmarks
from l2dp.cli import main
from l2dp.errors import BadInput
from l2dp.har.folder import Finish, write
from l2dp.har.ingest import Recipe
from l2dp.har.split import shuffled
from l2dp.streams import har
from test_har_ingest import big

S = 10**9


def sets(root, users=16):
    """Recordings in the places and rates of the benchmark's two sets, made up."""
    generator = np.random.default_rng(1)
    for name, rate, letter in (("wisdm", 20, "w"), ("motionsense", 50, "m")):
        frames, marks = [], []
        for user in range(users):
            for place, label in enumerate(["walking", "jogging", "upstairs", "sitting", "standing"]):
                start = (user * 10 + place) * 3600 * S
                count = 60 * rate
                seconds = np.arange(count) / rate
                wave = 8 * np.sin(2 * np.pi * (0.4 + 0.4 * place) * seconds)
                values = wave[:, None] + generator.normal(place, 1, (count, 3))
                columns = {axis: values[:, at].astype(np.float32) for at, axis in enumerate("xyz")}
                times = start + np.arange(count, dtype=np.int64) * (S // rate)
                frames.append(pl.DataFrame({"user": [f"{letter}{user:02d}"] * count, "time_ns": times, **columns}))
                marks.append((f"{letter}{user:02d}", start, int(times[-1]), label))
        folder = root / "har" / name
        folder.mkdir(parents=True)
        pl.concat(frames).write_parquet(folder / "samples.parquet")
        schema = {"user": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64, "label": pl.String}
        pl.DataFrame(marks, schema=schema, orient="row").write_parquet(folder / "labels.parquet")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    sets(folder)
    return folder


@pytest.fixture(autouse=True)
def _here(root, monkeypatch):
    monkeypatch.setenv("L2DP_DATA", str(root))


def whose(records) -> set[int]:
    return set(records.units().tolist())


def test_four_rates_of_disjoint_people():
    stream = benchmarks.make("har-rates")
    assert [task.name for task in stream] == ["5 Hz", "10 Hz", "20 Hz", "50 Hz"]
    assert stream.space.labels == har.ACTIVITIES
    seen: set[int] = set()
    for task in stream:
        train, test = whose(task.train.unseal()), whose(task.test)
        assert not train & test
        assert not (train | test) & seen
        seen |= train | test
    assert len(seen) == 32
    rates = stream.config["rates"]
    assert [rates[task.name]["resampled"] for task in stream] == [True, True, False, False]


def test_test_people_rotate_with_the_seed_and_those_for_tuning_never_test():
    tested: dict[str, set[int]] = {}
    for seed in range(6):
        for task in benchmarks.make("har-rates", seed=seed):
            tested.setdefault(task.name, set()).update(whose(task.test))
    for task in benchmarks.make("har-rates-dev"):
        assert len(whose(task.test)) == har.DEVELOPMENT
        assert not whose(task.test) & tested[task.name]
        assert len(tested[task.name]) == 8 - har.DEVELOPMENT


def test_the_order_of_a_users_windows_depends_on_nobody_else():
    starts = np.arange(50, dtype=np.int64) * S
    alone = shuffled(["a"] * 50, starts)
    both = shuffled(["a"] * 50 + ["b"] * 50, np.concatenate([starts, starts + 7]))
    assert [row for row in both.tolist() if row < 50] == alone.tolist()
    assert alone.tolist() != sorted(alone.tolist())


def test_orders_and_sizes():
    stream = benchmarks.make("har-rates", order="50 Hz;20 Hz;10 Hz;5 Hz", per_task=50)
    assert [task.name for task in stream] == ["50 Hz", "20 Hz", "10 Hz", "5 Hz"]
    assert {len(task.train.unseal()) for task in stream} == {50}
    with pytest.raises(BadInput, match="training windows"):
        benchmarks.make("har-rates", per_task=10**6)
    with pytest.raises(BadInput, match="leave it out"):
        benchmarks.make("har-rates", tasks=3)


def test_missing_recordings_are_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("L2DP_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(BadInput, match=r"put samples\.parquet .* labels\.parquet"):
        benchmarks.make("har-rates")


def run(out, *arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["run", *arguments, "--out", str(out), "--threads", "1"])
    return int(stopped.value.code or 0)


@pytest.mark.parametrize(
    ("options", "status", "unit"),
    [
        (("--learner", "agem"), "none", "record"),
        (("--learner", "l2dp-ml", "--epsilon", "1"), "refuted", "record"),
        (("--epsilon", "8", "-o", "protects=record"), "proved", "record"),
        (("--epsilon", "8"), "proved", "user"),
    ],
)
def test_a_run_of_each_learner(tmp_path, capsys, options, status, unit):
    assert run(tmp_path / "run", "har-rates", "--per-task", "64", *options) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["guarantee"]["status"] == status
    assert result["guarantee"]["unit"] == unit
    assert result["config"]["stream"]["rates"]["5 Hz"]["recorded_at_hz"] == 20
    assert ("windows overlap" in capsys.readouterr().err) == (status in ("proved", "refuted") and unit == "record")


def test_an_ingested_folder_is_a_stream(tmp_path):
    samples, labels = big()
    marks = labels.with_columns(position=pl.lit(None, pl.String))
    folder = tmp_path / "windows"
    write(samples.lazy(), marks, Recipe(classes=("walking", "sitting")), Finish(test_share=0.3), folder)
    stream = benchmarks.make(f"har:{folder}")
    assert [task.name for task in stream] == ["20 Hz", "50 Hz"]
    assert stream.space.labels == ("walking", "sitting")
    for task in stream:
        assert not whose(task.train.unseal()) & whose(task.test)
        x, y = task.test.batch(slice(0, 4))
        assert x.shape == (4, 3, 100)
        assert y.dtype == torch.int64
    assert (
        run(tmp_path / "run", f"har:{folder}", "--epsilon", "4") == 3
    )  # the same people at two rates cannot pay twice
    assert run(tmp_path / "again", f"har:{folder}", "--epsilon", "4", "-o", "per_task_epsilon=2") == 0
    assert json.loads((tmp_path / "again" / "result.json").read_text())["guarantee"]["unit"] == "user"


def test_a_folder_says_what_is_wrong_with_it(tmp_path):
    with pytest.raises(BadInput, match="not an ingested folder"):
        benchmarks.make(f"har:{tmp_path}")
    (tmp_path / "dataset.json").write_text('{"format": "something"}')
    with pytest.raises(BadInput, match="format"):
        benchmarks.make(f"har:{tmp_path}")
