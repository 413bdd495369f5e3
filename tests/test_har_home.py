"""A month of recordings is one command: an ingested folder as a task of a lifelong home."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from l2dp.cli import main
from l2dp.har.folder import Finish, write
from l2dp.har.ingest import Recipe
from test_har_ingest import big


def call(*words: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in words])
    return int(stopped.value.code or 0)


def month(folder: Path, number: int, finish: Finish | None = None) -> Path:
    """Recordings of other people every month."""
    samples, labels = big(users=8, seconds=40)
    rename = pl.format("month-{}-{}", pl.lit(number), pl.col("user"))
    marks = labels.with_columns(user=rename, position=pl.lit(None, pl.String))
    recipe = Recipe(classes=("walking", "sitting"))
    made = folder / f"month-{number}"
    write(samples.with_columns(user=rename).lazy(), marks, recipe, finish or Finish(test_share=0.3), made)
    return made


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "labels.txt").write_text("walking\nsitting\n", encoding="utf-8")
    place = tmp_path / "home"
    declared = ("--shape", "3x100", "--range", "-1,1", "--unit", "user", "--unit-column", "user", "--per-user", "20")
    declared += ("--per-task-epsilon", "4")
    asked = ("--epsilon", "4", "--labels", tmp_path / "labels.txt", "-o", "features=motion", "-o", "lift=none")
    assert call("init", place, *asked, *declared) == 0
    return place


def test_months_of_recordings(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = month(tmp_path, 1), month(tmp_path, 2)
    assert call("learn", home, first, "--task", "first") == 0
    assert call("learn", home, second, "--task", "second") == 0
    assert call("evaluate", home, second / "test") == 0
    told = capsys.readouterr().out
    assert "%" in told
    assert call("evaluate", home, second) == 0
    assert told.endswith(capsys.readouterr().out), "of a folder, the part that nobody learned from"
    # The same people again: their lifetime budget is spent.
    assert call("learn", home, second, "--task", "third") == 3


def test_a_folder_that_lacks_windows_is_refused(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = month(tmp_path, 1)
    described = json.loads((made / "dataset.json").read_text())
    described["windows"][0]["windows"] += 1
    (made / "dataset.json").write_text(json.dumps(described))
    described["windows"][-1]["windows"] += 1  # of either part
    (made / "dataset.json").write_text(json.dumps(described))
    assert {described["windows"][place]["part"] for place in (0, -1)} == {"train", "test"}
    assert call("learn", home, made, "--task", "first") == 2
    assert "ingest the recordings again" in capsys.readouterr().err


def test_what_no_proof_covers_is_refused(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = month(tmp_path, 1, Finish(test_share=0.3, normalise="paper"))
    assert call("learn", home, made, "--task", "first") == 2
    assert "statistics of the data" in capsys.readouterr().err
