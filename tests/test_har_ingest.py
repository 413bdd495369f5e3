"""The whole way: what comes out of recordings does not depend on how they lie in a file, and every count adds up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from l2dp import benchmarks
from l2dp.boundary import moments
from l2dp.budget import Budget
from l2dp.cli import main
from l2dp.errors import BadInput
from l2dp.har import order
from l2dp.har.folder import Finish, Folder, write
from l2dp.har.funnel import Funnel
from l2dp.har.ingest import Recipe, windows
from l2dp.har.windows import Overlap
from l2dp.noise import InsecureNoise

S = 10**9
SMALL = Recipe(size=10, trim_seconds=0.1)


def make(seed: int, users: int = 3) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Recordings with gaps, changes of rate, duplicates and rows out of order, and labels that overlap at times."""
    generator = np.random.default_rng(seed)
    rows, marks = [], []
    for user in range(users):
        now = int(generator.integers(0, S))
        begin = now
        for _ in range(int(generator.integers(1, 5))):
            period = int(S / generator.choice([5, 10, 20, 50, 33]))
            count = int(generator.integers(1, 120))
            steps = (period * (1 + generator.uniform(-0.05, 0.05, count))).astype(np.int64)
            if generator.random() < 0.3:
                steps[generator.integers(0, count)] = 0
            times = now + np.cumsum(steps)
            rows.append(pl.DataFrame({"user": [f"u{user}"] * count, "time": times}))
            now = int(times[-1]) + int(generator.choice([250, 299, 300, 301, 2000])) * 10**6
        for _ in range(int(generator.integers(0, 4))):
            start = int(generator.integers(begin, now))
            end = start + int(generator.integers(-S, 4 * S))
            marks.append((f"u{user}", start, end, str(generator.choice(["walking", "sitting", "driving"])), None))
    table = pl.concat(rows)
    values = generator.normal(0, 5, (len(table), 3)).astype(np.float32)
    samples = table.with_columns(x=values[:, 0], y=values[:, 1], z=values[:, 2])
    kinds = {"user": pl.String, "start": pl.Int64, "end": pl.Int64, "label": pl.String, "position": pl.String}
    return samples, pl.DataFrame(marks, schema=kinds, orient="row")


def run(samples: pl.DataFrame, labels: pl.DataFrame, recipe: Recipe = SMALL) -> tuple[list[tuple], Funnel, list[str]]:
    funnel = Funnel()
    found, source = windows(samples.lazy(), labels, recipe, funnel)
    rows = []
    for piece in source:
        for index, label in enumerate(piece.label):
            who = found.users[int(piece.user[index])]
            values = piece.values[index].tobytes()
            rows.append((who, float(piece.rate[index]), label, int(piece.start[index]), values))
    return rows, funnel, found.users


def has_labels(samples: pl.DataFrame, labels: pl.DataFrame) -> bool:
    return (
        len(labels.filter((pl.col("end") > pl.col("start")) & pl.col("user").is_in(samples["user"].unique().to_list())))
        > 0
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.5, 0.9]))
def test_no_window_crosses_a_session_or_a_label_and_counts_add_up(seed, overlap):
    samples, labels = make(seed)
    if not has_labels(samples, labels):
        return
    rows, funnel, _ = run(samples, labels, Recipe(size=10, trim_seconds=0.1, overlap=Overlap(overlap)))
    funnel.check()
    assert funnel.step("read samples").entered == len(samples)
    assert funnel.step("cut windows").noted["windows"] == len(rows)
    for who, _rate, label, start, _values in rows:
        own = samples.filter(pl.col("user") == who)["time"].unique().sort()
        times = own.filter(own >= start).head(10).to_numpy()
        assert np.diff(times).max() <= 300 * 10**6
        # From a margin before its first sample to a margin after its last, its label is the only one.
        valid = labels.filter((pl.col("user") == who) & (pl.col("end") > pl.col("start")))
        for instant in (times[0] - int(0.1 * S), *times.tolist(), times[-1] + int(0.1 * S)):
            there = valid.filter((pl.col("start") <= instant) & (pl.col("end") >= instant))
            assert set(there["label"]) == {label}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6))
def test_the_order_of_rows_and_the_size_of_pieces_do_not_matter(monkeypatch, seed):
    samples, labels = make(seed)
    if not has_labels(samples, labels):
        return
    whole, funnel, _ = run(samples.sort("user", "time"), labels)
    monkeypatch.setattr(order, "CHUNK", 37)
    monkeypatch.setattr(order, "SHARD", 50)
    monkeypatch.setattr(order, "BLOCK_NS", S)
    shuffled, other, _ = run(samples.sample(fraction=1, shuffle=True, seed=seed), labels)
    ordered, third, _ = run(samples.sort("user", "time"), labels)
    assert sorted(shuffled) == sorted(whole) == sorted(ordered)
    for one in (other, third):
        for step, same in zip(funnel.to_json()[2:], one.to_json()[2:], strict=True):
            assert (step["in"], step["out"], step["dropped"]) == (same["in"], same["out"], same["dropped"])


def test_backward_timestamps_are_put_in_order_and_counted():
    times = np.arange(300, dtype=np.int64) * 20 * 10**6
    times[[10, 11]] = times[[11, 10]]
    zeros = np.zeros(300, np.float32)
    samples = pl.DataFrame(
        {"user": ["a"] * 300, "time": times, "x": np.arange(300, dtype=np.float32), "y": zeros, "z": zeros}
    )
    labels = pl.DataFrame({"user": ["a"], "start": [0], "end": [6 * S], "label": ["a"], "position": [None]})
    rows, funnel, _ = run(samples, labels, Recipe(size=100, trim_seconds=0, overlap=Overlap(0)))
    assert funnel.step("read samples").noted == {"older than the sample before": 1}
    assert len(rows) == 3
    first = np.frombuffer(rows[0][4], np.float32).reshape(3, 100)[0]
    assert first[8:14].tolist() == [8, 9, 11, 10, 12, 13]


def test_the_papers_overlap_makes_small_classes_larger():
    times = np.arange(6000, dtype=np.int64) * 20 * 10**6
    zeros = np.zeros(6000, np.float32)
    samples = pl.DataFrame({"user": ["a"] * 6000, "time": times, "x": zeros, "y": zeros, "z": zeros})
    labels = pl.DataFrame(
        {
            "user": ["a", "a"],
            "start": [0, 100 * S],
            "end": [100 * S - 1, 120 * S - 1],
            "label": ["many", "few"],
            "position": [None, None],
        }
    )
    rows, funnel, _ = run(samples, labels, Recipe(trim_seconds=0, overlap="paper"))
    funnel.check()
    count = {label: sum(row[2] == label for row in rows) for label in ("many", "few")}
    assert count == {"many": 66, "few": 61}  # strides of 75 and 15 in 5,000 and 1,000 samples


# --- folders


def big(users: int = 12, seconds: int = 60) -> tuple[pl.DataFrame, pl.DataFrame]:
    generator = np.random.default_rng(0)
    frames, marks = [], []
    for user in range(users):
        for part, (rate, label) in enumerate([(50, "walking"), (20, "sitting"), (50, "sitting"), (20, "walking")]):
            start = part * 3600 * S
            times = start + np.arange(seconds * rate, dtype=np.int64) * (S // rate)
            values = generator.normal(user, 3, (len(times), 3)).astype(np.float32)
            columns = {"x": values[:, 0], "y": values[:, 1], "z": values[:, 2]}
            frames.append(pl.DataFrame({"user": [f"u{user}"] * len(times), "time": times, **columns}))
            marks.append((f"u{user}", start, start + seconds * S, label))
    schema = {"user": pl.String, "start": pl.Int64, "end": pl.Int64, "label": pl.String}
    return pl.concat(frames), pl.DataFrame(marks, schema=schema, orient="row")


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("recordings")
    samples, labels = big()
    samples.write_csv(folder / "samples.csv")
    labels.write_parquet(folder / "labels.parquet")
    return folder / "samples.csv", folder / "labels.parquet"


def ingest(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["har", "ingest", *map(str, arguments)])
    return int(stopped.value.code or 0)


def test_ingest_prints_the_funnel_and_writes_windows_and_json(files, tmp_path, capsys):
    out = tmp_path / "windows"
    assert ingest(*files, "--out", out, "--test", "0.3") == 0
    printed = capsys.readouterr()
    assert "keep stable rates" in printed.out
    assert "cut windows" in printed.out
    assert printed.err == ""
    described = json.loads((out / "dataset.json").read_text())
    assert described["funnel"] == json.loads((out / "funnel.json").read_text())
    assert described["rates"] == [20, 50]
    assert described["labels"] == ["sitting", "walking"]
    assert described["normalisation"]["how"] == "public"
    folder = Folder.open(out)
    train, test = folder.table("train"), folder.table("test")
    assert not set(train["user"]) & set(test["user"])
    assert len(train) + len(test) == sum(row["windows"] for row in described["windows"])
    assert out.stat().st_mode & 0o777 == 0o700
    values = train["window"].to_numpy()
    assert values.shape[1] == 300
    assert np.abs(values).max() <= 1
    assert ingest(*files, "--out", out) == 2
    assert "not empty" in capsys.readouterr().err


def test_the_papers_ways_come_with_warnings(files, tmp_path, capsys):
    out = tmp_path / "windows"
    options = ("--split", "window", "--unit", "window", "--normalise", "paper", "--overlap", "paper")
    assert ingest(*files, "--out", out, *options) == 0
    said = capsys.readouterr().err
    for word in ("--split window", "does not protect a person", "--normalise paper", "--overlap paper"):
        assert word in said
    folder = Folder.open(out)
    train, test = folder.table("train"), folder.table("test")
    assert set(train["user"]) == set(test["user"])
    assert folder.described["unit"] == "window"
    scale = folder.described["normalisation"]
    assert (scale["how"], scale["private"]) == ("paper", False)
    # Training values have mean 0 and deviation 1 before they are clipped to ±2 and halved.
    values = train["window"].to_numpy().reshape(len(train), 3, -1)
    assert np.abs(values.mean(axis=(0, 2))).max() < 0.02
    assert values.std(axis=(0, 2)) == pytest.approx([0.48] * 3, abs=0.03)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--split", "day"), "--split day"),
        (("--unit", "house"), "--unit house"),
        (("--normalise", "no"), "--normalise no"),
        (("--rates", "fast"), "--rates"),
        (("--rates", "1"), "raise --gap"),
        (("--overlap", "2"), "overlap"),
        (("--test", "0"), "--test"),
        (("--resample", "20"), "--resample"),
        (("--resample", "20:40"), "lower"),
        (("--classes", "flying"), "label is not asked for"),
        (("--columns", "user=who"), "no column 'who'"),
        (("--clock", "iso"), "holds numbers"),
        (("--size", "1"), "2 samples"),
    ],
)
def test_wrong_usage_is_one_line_and_leaves_nothing(files, tmp_path, capsys, options, message):
    out = tmp_path / "windows"
    assert ingest(*files, "--out", out, *options) == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert "\n" not in said
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_one_line(files, tmp_path, capsys):
    for name, content in (("samples.parquet", b"PAR1 no"), ("samples.csv", b"user,time,x,y,z\na,1,2,3\n,,,,,,\n")):
        (tmp_path / name).write_bytes(content)
        assert ingest(tmp_path / name, files[1], "--out", tmp_path / "out") == 2
        said = capsys.readouterr().err.strip()
        assert name in said or "file of samples" in said
        assert "\n" not in said


def test_labels_of_other_people_are_refused(files, tmp_path):
    samples, labels = big(users=2, seconds=5)
    strangers = labels.with_columns(user=pl.lit("nobody"), position=pl.lit(None, pl.String))
    with pytest.raises(BadInput, match="no label session belongs"):
        write(samples.lazy(), strangers, SMALL, Finish(), tmp_path / "out")


# --- private constants


def test_private_constants_are_near_the_truth_and_their_price_is_added_to_every_guarantee(files, tmp_path):
    out = tmp_path / "windows"
    options = ("--normalise", "private", "--epsilon", "1000", "--test", "0.3", "--rates", "50")
    assert ingest(*files, "--out", out, *options) == 0
    scale = Folder.open(out).described["normalisation"]
    assert scale["spent"] == {"status": "proved", "epsilon": 1000, "delta": 0, "unit": "user"}
    plain = tmp_path / "plain"
    assert ingest(*files, "--out", plain, "--normalise", "paper", "--test", "0.3", "--rates", "50") == 0
    known = Folder.open(plain).described["normalisation"]
    assert scale["mean"] == pytest.approx(known["mean"], abs=0.5)
    assert scale["deviation"] == pytest.approx(known["deviation"], abs=0.5)
    assert benchmarks.make(f"har:{out}").spent == (1000.0, 0.0)
    with pytest.raises(SystemExit) as stopped:
        main(["run", f"har:{out}", "--epsilon", "4", "--out", str(tmp_path / "run"), "--threads", "1"])
    assert not stopped.value.code
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["guarantee"]["epsilon"] == 1004
    assert result["guarantee"]["unit"] == "user"


def test_private_constants_need_a_budget_and_nothing_else_takes_one(files, tmp_path, capsys):
    for options in (("--normalise", "private"), ("--epsilon", "1"), ("--normalise", "private", "--epsilon", "-1")):
        assert ingest(*files, "--out", tmp_path / "out", *options) == 2
        assert "epsilon" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_one_person_moves_the_sum_by_at_most_one(seed):
    generator = np.random.default_rng(seed)

    def person(name: str) -> list[tuple[str, np.ndarray]]:
        size = (int(generator.integers(1, 9)), 3, 20)
        values = generator.normal(0, 10.0 ** generator.integers(-2, 4), size).astype(np.float32)
        return [(name, values[:2]), (name, values[2:])] if len(values) > 2 else [(name, values)]

    rows = list(moments._rows(iter(person("a") + person("b"))))
    assert len(rows) == 2
    assert all(float(row.norm()) <= 1 + 1e-12 for row in rows)


def test_the_noise_of_private_constants_has_the_scale_of_the_budget():
    class Asked(InsecureNoise):
        scales: ClassVar[list[tuple[float, int, int]]] = []

        def k_norm(self, scale, rows, width):
            self.scales.append((scale, rows, width))
            return super().k_norm(scale, rows, width)

    moments.private_moments(iter([("a", np.zeros((1, 3, 20), np.float32))]), Budget(0.5), Asked(0))
    assert Asked.scales == [(2.0**16 / 0.5, 1, 7)]
