"""Crashes at random points of `learn`, in short: `make faults` does it two hundred times with the installed command."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from bench import faults

from homes import home, table
from l2dp.errors import L2dpError, Refused
from l2dp.store import open_home

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "SOURCE_DATE_EPOCH": "1700000000"}
USERS = {"unit": "user", "unit_column": "who", "per_task_epsilon": 0.01, "per_user": 3}
PURE: dict[str, Any] = {"delta": 0.0, "options": {}}
"""Class sums alone: what is tested is the order of durable steps, which is the same."""


def trial(folder: Path, seed: int, cost: float, blocks: int, **changed: Any) -> faults.Trial:
    place = faults.make(folder, "home", **(PURE | changed))
    return faults.Trial(place, folder, random.Random(seed), ENVIRONMENT, cost, blocks, forked=True)


def test_a_killed_home_ends_as_one_that_nobody_disturbed(tmp_path: Path) -> None:
    one = trial(tmp_path, 1, faults.EPSILON, 1, insecure_noise_seed=1)
    shutil.copytree(one.home, tmp_path / "twin")
    one.run(8)
    assert sum(one.kills.values()) == 8
    for task in range(one.tasks):
        assert one.learn(tmp_path / "twin", task).wait() == 0
    made = faults.release(one.home, tmp_path / "a", ENVIRONMENT, True)
    assert made == faults.release(tmp_path / "twin", tmp_path / "b", ENVIRONMENT, True)
    assert set(made) >= {"model.safetensors", "privacy.json", "SHA256SUMS"}


@pytest.mark.parametrize(("changed", "cost", "blocks"), [({}, 2.0, 1), (USERS, 0.01, 40)])
def test_with_real_entropy_nothing_is_drawn_or_charged_twice(
    tmp_path: Path, changed: dict[str, Any], cost: float, blocks: int
) -> None:
    trial(tmp_path, 2, cost, blocks, **changed).run(5)


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    one = trial(tmp_path, 3, faults.EPSILON, 1)
    one.run(0)
    faults.full_disk(one, 3)


def test_the_installed_command_is_killed_and_goes_on(tmp_path: Path) -> None:
    one = trial(tmp_path, 4, faults.EPSILON, 1)
    count = tmp_path / "points"
    copy = tmp_path / "copy"
    shutil.copytree(one.home, copy)
    assert one.learn(copy, 0, L2DP_SABOTAGE="count", L2DP_POINTS=str(count)).wait() == 0
    one.forked = False
    one.environment = {**ENVIRONMENT, "PYTHONPATH": f"{faults.SABOTAGE}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")}
    middle = int(count.read_text()) * 3 // 4  # charged, and not yet durable
    assert one.learn(one.home, 0, L2DP_SABOTAGE=f"kill:{middle}").wait() == -signal.SIGKILL
    assert open_home(one.home).status()["unfinished"] == "task 0"
    assert open_home(one.home).verify() == []
    assert one.learn(one.home, 0).wait() == 0
    assert open_home(one.home).status()["tasks"][0]["state"] == "learned"


# --- a task that was begun --------------------------------------------------------------------------------


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home in which task `one` was charged and not finished."""
    from l2dp.store import state

    place = home(tmp_path)

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(state, "write", crash)
        with pytest.raises(KeyboardInterrupt):
            place.learn(table(tmp_path, 1), "one")
    assert place.status()["unfinished"] == "one"
    return place.path


def test_other_data_never_meets_the_noise_of_a_task_that_was_begun(tmp_path: Path, begun: Path) -> None:
    with pytest.raises(Refused, match="was charged before for other data"):
        open_home(begun).learn(table(tmp_path, 2), "one")
    with pytest.raises(Refused, match="was begun and not finished"):
        open_home(begun).learn(table(tmp_path, 2), "two")
    assert open_home(begun).learn(table(tmp_path, 1), "one").before is False
    assert open_home(begun).verify() == []


def test_a_task_whose_data_is_lost_can_be_given_up(tmp_path: Path, begun: Path) -> None:
    place = open_home(begun)
    place.abandon("one")
    assert [task["state"] for task in place.status()["tasks"]] == ["abandoned"]
    assert place.status()["budget"]["levels"][0]["epsilon"] == 4.0  # it stays charged
    with pytest.raises(Refused, match="it was given up"):
        place.learn(table(tmp_path, 1), "one")
    with pytest.raises(Refused, match="learned in another task"):  # its records may have been read
        place.learn(table(tmp_path, 1), "again")
    place.learn(table(tmp_path, 2), "two")
    assert place.verify() == []


def test_a_lost_noise_key_is_never_replaced(tmp_path: Path, begun: Path) -> None:
    (begun / "secrets" / "noise-000000").unlink()
    with pytest.raises(Refused, match="noise key of task 'one' is lost"):
        open_home(begun).learn(table(tmp_path, 1), "one")


def test_a_clock_that_was_set_back_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = home(tmp_path)
    place.learn(table(tmp_path, 1), "one")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    monkeypatch.setattr(time, "time", lambda: 1.0)
    place.learn(table(tmp_path, 2), "two")
    assert [task["task"] for task in place.status()["tasks"]] == ["one", "two"]
    assert place.status()["tasks"][1]["time"] < place.status()["tasks"][0]["time"]
    assert place.verify() == []


def test_two_at_once_never_both(tmp_path: Path) -> None:
    one = trial(tmp_path, 5, faults.EPSILON, 1)
    both = [one.learn(one.home, task) for task in range(2)]
    codes = sorted(process.wait() for process in both)
    assert codes in ([0, 0], [0, 2])  # one waited its turn by luck, or was refused
    found = open_home(one.home)
    assert len(found.status()["tasks"]) == codes.count(0)
    assert found.verify() == []


def test_encrypted_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("L2DP_KEY", "ab" * 32)
    place = home(tmp_path, encrypt=True)
    place.learn(table(tmp_path, 1), "one")
    assert place.verify() == []
    monkeypatch.setenv("L2DP_KEY", "cd" * 32)
    with pytest.raises(L2dpError, match="another key"):
        place.learn(table(tmp_path, 2), "two")
    monkeypatch.delenv("L2DP_KEY")
    with pytest.raises(L2dpError, match="set L2DP_KEY"):
        open_home(place.path).learn(table(tmp_path, 2), "two")
    assert len(place.status()["tasks"]) == 1  # what was spent is told without keys
