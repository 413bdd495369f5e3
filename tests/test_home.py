"""A lifelong home: what is learned, charged, refused, released, and found again."""

from __future__ import annotations

import json
import runpy
import shutil
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import l2dp
from homes import LABELS, arrays, frame, home, table, user_home
from l2dp import cli
from l2dp.durable import write_bytes
from l2dp.errors import BadInput, L2dpError, Refused
from l2dp.keys import Keys
from l2dp.store import Home, Release
from l2dp.store.predictions import write_predictions
from l2dp.streams import Sealed, Task


def spent(place: Home) -> list[tuple[float, int]]:
    return [(level["epsilon"], level["blocks"]) for level in place.status()["budget"]["levels"]]


def test_three_months(tmp_path: Path) -> None:
    place = home(tmp_path)
    for month, kind in ((1, "csv"), (2, "parquet"), (3, "npz")):
        found = place.learn(table(tmp_path, month, kind=kind), f"month {month}")
        assert (found.index, found.records, found.before) == (month - 1, 90, False)
    assert place.evaluate(table(tmp_path, 9))["accuracy"] > 0.9
    release = place.release(tmp_path / "release")
    assert release.evaluate(table(tmp_path, 9))["accuracy"] > 0.9
    assert release.about["tasks"] == ["month 1", "month 2", "month 3"]
    names, sure = release.predict(table(tmp_path, 9))
    assert len(names) == len(sure) == 90
    assert set(names) <= set(LABELS)
    found = l2dp.open(tmp_path / "home").status()
    assert [task["task"] for task in found["tasks"]] == ["month 1", "month 2", "month 3"]
    assert found["guarantee"] | {"status": "proved", "epsilon": 4.0, "delta": 0.0} == found["guarantee"]
    assert spent(place) == [(4.0, 3)]
    assert found["releases"][0]["ledger_head"] == release.privacy["ledger_head"] == found["ledger"]["head"]
    assert place.verify([tmp_path / "release"]) == []
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow", "npz"])
def test_every_format_is_the_same_data(tmp_path: Path, kind: str) -> None:
    place = home(tmp_path)
    place.learn(table(tmp_path, 1), "task")
    # The very same records in another format: found again, not charged again.
    assert place.learn(table(tmp_path, 1, kind=kind), "task").before
    assert spent(place) == [(4.0, 1)]


def test_a_task_of_python(tmp_path: Path) -> None:
    place = home(tmp_path)
    x, y = arrays(1)
    part = torch.from_numpy(x), torch.from_numpy(y)
    place.learn(Task.from_tensors("python", part, part))
    assert place.learn(table(tmp_path, 1), "python").before


def test_the_default_learner_with_heads(tmp_path: Path) -> None:
    place = home(tmp_path, epsilon=4.0, delta=1e-5, task_size=300)
    place.learn(table(tmp_path, 1, 300), "one")
    place.learn(table(tmp_path, 2, 300), "two")
    assert place.evaluate(table(tmp_path, 9))["accuracy"] > 0.9
    reopened = l2dp.open(tmp_path / "home")
    assert reopened.evaluate(table(tmp_path, 9)) == place.evaluate(table(tmp_path, 9))


# --- overlap and copies -----------------------------------------------------------------------------------


def test_records_of_another_task_are_refused_or_left_out(tmp_path: Path) -> None:
    place = home(tmp_path)
    place.learn(table(tmp_path, 1), "one")
    both = pl.concat([frame(1)[:30], frame(2)])
    both.write_parquet(tmp_path / "both.parquet")
    with pytest.raises(Refused, match="30 of 120 records were learned in another task"):
        place.learn(tmp_path / "both.parquet", "two")
    assert spent(place) == [(4.0, 1)]
    found = place.learn(tmp_path / "both.parquet", "two", on_overlap="drop")
    assert (found.overlapping, found.records) == (30, 120)
    assert spent(place) == [(4.0, 2)]
    # A record that was labelled anew is still the same record.
    frame(2).with_columns(label=pl.lit("mid")).write_parquet(tmp_path / "again.parquet")
    with pytest.raises(Refused, match="90 of 90 records"):
        place.learn(tmp_path / "again.parquet", "three")
    with pytest.raises(Refused, match="no record is left"):
        place.learn(tmp_path / "again.parquet", "three", on_overlap="drop")
    card = (place.release(tmp_path / "release").path / "MODEL_CARD.md").read_text()
    assert "if there were any, were left out of later ones" in card


def test_copies_within_a_task_count_once(tmp_path: Path) -> None:
    twice = pl.concat([frame(1), frame(1)])
    twice.write_parquet(tmp_path / "twice.parquet")
    place = home(tmp_path, insecure_noise_seed=1)
    assert place.learn(tmp_path / "twice.parquet", "one").copies == 90
    other = home(tmp_path, "other", insecure_noise_seed=1)
    other.learn(table(tmp_path, 1), "one")
    same = [
        release.path / "model.safetensors" for release in (place.release(tmp_path / "a"), other.release(tmp_path / "b"))
    ]
    assert same[0].read_bytes() == same[1].read_bytes()


def test_a_name_is_for_one_set_of_data(tmp_path: Path) -> None:
    place = home(tmp_path)
    place.learn(table(tmp_path, 1), "one")
    with pytest.raises(Refused, match="are not what it was learned from"):
        place.learn(table(tmp_path, 2), "one")
    assert spent(place) == [(4.0, 1)]


# --- users ------------------------------------------------------------------------------------------------


def test_users_who_come_back_pay_each_time_until_they_cannot(tmp_path: Path) -> None:
    place = user_home(tmp_path)
    for month in range(4):
        place.learn(table(tmp_path, month, users=10), f"{month}")
    assert spent(place) == [(4.0, 10)]
    with pytest.raises(Refused, match="10 of 10 units would exceed"):
        place.learn(table(tmp_path, 9, users=10), "9")
    assert spent(place) == [(4.0, 10)]
    assert place.verify() == []


def test_users_who_cannot_pay_are_left_out_if_so_declared(tmp_path: Path) -> None:
    place = user_home(tmp_path, epsilon=1.0, options={"exhausted": "drop"})
    place.learn(table(tmp_path, 1, users=10), "one")
    place.learn(table(tmp_path, 2, users=20), "two")  # ten of them have nothing left
    assert spent(place) == [(1.0, 20)]
    assert place.evaluate(table(tmp_path, 9))["records"] == 90  # a test table need not say whose a row is


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"unit": "user", "unit_column": "who"}, "needs --per-task-epsilon"),
        ({"unit": "user", "per_task_epsilon": 1.0}, "needs --unit-column"),
        ({"unit_column": "who"}, "go with --unit user"),
        ({"unit": "family"}, "choose record or user"),
        ({"shape": (2, 2)}, "--features or with --shape"),
        ({"labels": ("a", "a")}, "declared twice"),
        ({"labels": ("a", "=cmd()")}, "formula"),
        ({"labels": ()}, "declare 1 to"),
        ({"labels": ("a", "b\nc")}, "printable"),
        ({"low": 1.0, "high": 0.0}, "range"),
        ({"epsilon": -1.0}, "epsilon must be"),
        ({"learner": "agem"}, "a home holds none"),
        ({"task_size": 0}, "--task-size"),
        ({"columns": ("a", "b")}, "name 12 different ones"),
    ],
)
def test_what_cannot_be_declared(tmp_path: Path, changed: dict[str, Any], what: str) -> None:
    with pytest.raises(BadInput, match=what):
        home(tmp_path, **changed)
    assert list(tmp_path.iterdir()) == []


def test_a_home_is_not_made_over_anything(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "mine").touch()
    with pytest.raises(BadInput, match="not empty"):
        home(tmp_path)


# --- releases ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"delta": 1e-5},
        {"delta": 1e-5, "options": {"scatter_share": "0.3", "head_share": "0.5"}},
        {"delta": 1e-5, "options": {"head": "fixed", "width": "16", "replay_steps": "5"}},
    ],
)
def test_a_release_answers_as_its_home_did_and_so_does_its_loader(tmp_path: Path, changed: dict[str, Any]) -> None:
    place = home(tmp_path, low=-2.0, high=3.0, **changed)
    place.learn(table(tmp_path, 1), "one", classes=["low", "mid", "high"])
    place.learn(table(tmp_path, 2), "two")
    first = place.release(tmp_path / "first", "one")
    release = place.release(tmp_path / "release")
    assert first.about["tasks"] == ["one"]
    rows = place.table(table(tmp_path, 9))
    x = torch.from_numpy(rows.x)
    with torch.no_grad():
        expected = place.looked_at(place.learned(place.book())).scores(x)
        assert torch.equal(Release(release.path).scores(x), expected)
    loader = runpy.run_path(str(release.path / "loader.py"))
    with torch.no_grad():
        found = loader["load"](release.path)(torch.from_numpy(arrays(9)[0]))
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_the_loader_needs_no_l2dp(tmp_path: Path) -> None:
    place = home(tmp_path)
    place.learn(table(tmp_path, 1), "one")
    release = place.release(tmp_path / "release")
    np.savez(tmp_path / "x.npz", x=arrays(9)[0])
    code = "import runpy, sys; sys.modules['l2dp'] = None; runpy.run_path(sys.argv[0], run_name='__main__')"
    words = [f"import sys; sys.argv = {[str(release.path / 'loader.py'), str(tmp_path / 'x.npz')]!r}; {code}"]
    done = subprocess.run([sys.executable, "-c", *words], capture_output=True, text=True, timeout=400)
    assert done.stderr == ""
    assert done.stdout.split() == release.predict(table(tmp_path, 9))[0]


def test_a_release_holds_no_record_no_key_and_no_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    from l2dp import noise

    law = noise.Noise.k_norm

    def watched(self: Any, scale: float, rows: int, width: int) -> Any:
        drawn.append(law(self, scale, rows, width))
        return drawn[-1]

    monkeypatch.setattr(noise.Noise, "k_norm", watched)
    keys: list[bytes] = []
    write = Keys.write
    monkeypatch.setattr(Keys, "write", lambda self, name, key: keys.append(key) or write(self, name, key))
    place = home(tmp_path)
    place.learn(table(tmp_path, 1), "one")
    release = place.release(tmp_path / "release")
    held = {path: path.read_bytes() for path in release.path.iterdir()}
    held |= {path: path.read_bytes() for path in (tmp_path / "home" / "state").iterdir()}
    x = arrays(1)[0]
    secrets = [row.tobytes() for row in x] + [row.astype(np.float64).tobytes() for row in x]
    secrets += [np.float32(v).tobytes() * 2 for v in (x[0, 0],)]
    for one in drawn:
        for values in (one, np.rint(one), np.rint(one) * 2.0**-16):
            secrets += [row[:2].tobytes() for row in values.astype(np.float64)]
            secrets += [row[:2].tobytes() for row in values.astype(np.float32)]
    assert (len(drawn), len(keys)) == (1, 2)
    secrets += keys
    for path, data in held.items():
        for secret in secrets:
            assert secret not in data, path
    assert not any(name.name.startswith("noise-") for name in (tmp_path / "home" / "secrets").iterdir())


def test_accuracy_is_in_a_card_only_if_the_data_is_public(tmp_path: Path) -> None:
    place = home(tmp_path)
    place.learn(table(tmp_path, 1), "one")
    place.evaluate(table(tmp_path, 9))
    assert "Not stated" in (place.release(tmp_path / "a").path / "MODEL_CARD.md").read_text()
    place.evaluate(table(tmp_path, 8), public=True)
    card = (place.release(tmp_path / "b").path / "MODEL_CARD.md").read_text()
    assert "declared public" in card
    assert card.count("% on 90 records") == 1


def test_a_release_is_never_overwritten(tmp_path: Path) -> None:
    place = home(tmp_path)
    with pytest.raises(BadInput, match="no task yet"):
        place.release(tmp_path / "release")
    place.learn(table(tmp_path, 1), "one")
    place.release(tmp_path / "release")
    place.release(tmp_path / "release")  # the same one again is no harm
    assert len(place.status()["releases"]) == 1
    place.learn(table(tmp_path, 2), "two")
    with pytest.raises(BadInput, match="not empty"):
        place.release(tmp_path / "release")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_an_insecure_home_says_none_everywhere(tmp_path: Path) -> None:
    place = home(tmp_path, insecure_noise_seed=3)
    place.learn(table(tmp_path, 1), "one")
    release = place.release(tmp_path / "release")
    assert release.privacy["status"] == "none"
    assert release.privacy["epsilon"] is None
    assert release.privacy["per_task"]["epsilon"] is None
    card = (release.path / "MODEL_CARD.md").read_text()
    assert "Status: none" in card
    assert "ε =" not in card
    assert place.status()["guarantee"]["status"] == "none"


# --- years ------------------------------------------------------------------------------------------------


def test_an_old_backup_refuses_once_it_was_shown_a_newer_release(tmp_path: Path) -> None:
    place = home(tmp_path)
    place.learn(table(tmp_path, 1), "one")
    shutil.copytree(tmp_path / "home", tmp_path / "backup")
    place.learn(table(tmp_path, 2), "two")
    place.release(tmp_path / "release")
    shutil.rmtree(tmp_path / "home")
    shutil.move(tmp_path / "backup", tmp_path / "home")
    old = l2dp.open(tmp_path / "home")
    assert any("older than the release" in fault for fault in old.verify([tmp_path / "release"]))
    with pytest.raises(Refused, match="restored from a backup"):
        old.learn(table(tmp_path, 3), "three", releases=[tmp_path / "release"])
    with pytest.raises(Refused, match="restored from a backup"):  # also when it is not shown again
        l2dp.open(tmp_path / "home").learn(table(tmp_path, 3), "three")
    assert spent(old) == [(4.0, 1)]


def test_half_a_backup_refuses(tmp_path: Path) -> None:
    place = home(tmp_path)
    place.learn(table(tmp_path, 1), "one")
    shutil.copytree(tmp_path / "home", tmp_path / "backup")
    place.learn(table(tmp_path, 2), "two")
    shutil.copytree(tmp_path / "home", tmp_path / "newer")
    (tmp_path / "home" / "state" / "task-000001.safetensors").unlink()
    with pytest.raises(Refused, match="the state is from an older backup"):
        l2dp.open(tmp_path / "home").learn(table(tmp_path, 3), "three")
    assert place.verify() != []
    shutil.copy(tmp_path / "backup" / "ledger.db", tmp_path / "newer" / "ledger.db")
    for more in ("ledger.db-wal", "ledger.db-shm"):
        (tmp_path / "newer" / more).unlink(missing_ok=True)
    with pytest.raises(Refused, match="the ledger is from an older backup"):
        l2dp.open(tmp_path / "newer").learn(table(tmp_path, 3), "three")


def test_labels_can_be_added(tmp_path: Path) -> None:
    place = home(tmp_path, labels=("low", "mid"))
    some = frame(1).filter(pl.col("label") != "high")
    some.write_parquet(tmp_path / "some.parquet")
    place.learn(tmp_path / "some.parquet", "one")
    with pytest.raises(BadInput, match="label 'high' is not one of those declared"):
        place.learn(table(tmp_path, 2), "two")
    l2dp.open(tmp_path / "home").add_labels(["high"])
    place.learn(table(tmp_path, 2), "two")
    assert place.release(tmp_path / "release").labels == LABELS
    assert place.evaluate(table(tmp_path, 9))["accuracy"] > 0.75
    with pytest.raises(BadInput, match="declared twice"):
        place.add_labels(["low"])
    assert place.verify() == []


def test_the_excluded_are_left_out_of_what_comes(tmp_path: Path) -> None:
    place = user_home(tmp_path)
    place.learn(table(tmp_path, 1, users=10), "one")
    assert place.exclude(["user 3", "user 4"]) == 2
    assert place.exclude(["user 3"]) == 0
    assert place.learn(table(tmp_path, 2, users=10), "two").excluded == 18
    assert spent(place) == [(1.0, 2), (2.0, 8)]
    records = home(tmp_path, "records")
    frame(5)[:7].write_parquet(tmp_path / "these.parquet")
    assert records.exclude(records=tmp_path / "these.parquet") == 7
    assert records.learn(table(tmp_path, 5), "one").excluded == 7
    with pytest.raises(BadInput, match=r"the unit of .* is the record"):
        records.exclude(["user 3"])


def test_a_home_of_the_future_is_refused(tmp_path: Path) -> None:
    place = home(tmp_path)
    found = json.loads((place.path / "home.json").read_text())
    (place.path / "home.json").write_text(json.dumps(found | {"format": 99}))
    with pytest.raises(BadInput, match="use a newer l2dp"):
        l2dp.open(place.path)


def test_an_old_format_is_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from l2dp.store import declared

    place = home(tmp_path)
    found = json.loads((place.path / "home.json").read_text())
    found["size_of_tasks"] = found.pop("task_size")
    (place.path / "home.json").write_text(json.dumps(found | {"format": 0}))
    monkeypatch.setitem(
        declared.MIGRATIONS, 0, lambda old: {k: v for k, v in old.items() if k != "size_of_tasks"} | {"task_size": 90}
    )
    l2dp.open(place.path).learn(table(tmp_path, 1), "one")
    assert json.loads((place.path / "home.json").read_text())["format"] == declared.FORMAT


def test_a_home_of_the_first_format_goes_on(tmp_path: Path) -> None:
    """It did not say what its ε is worth, and its tasks noted a digest without that."""
    place = home(tmp_path)
    place.learn(table(tmp_path, 1), "one")
    found = json.loads((place.path / "home.json").read_text())
    assert found.pop("status") == "proved"
    (place.path / "home.json").write_text(json.dumps(found | {"format": 1}))
    again = l2dp.open(place.path)
    assert again.declared == place.declared
    assert again.verify() == []
    again.learn(table(tmp_path, 2), "two")
    assert json.loads((place.path / "home.json").read_text())["status"] == "proved"
    assert again.verify() == []
    # Of somebody else's learner nobody had proved anything.
    (place.path / "home.json").write_text(json.dumps(found | {"format": 1, "learner": "mine.py:Mine"}))
    assert l2dp.open(place.path).declared.guarantee.status == "claimed"


# --- tampering --------------------------------------------------------------------------------------------


def flip(path: Path, at: int = -5) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def test_a_changed_state_is_found_and_refused(tmp_path: Path) -> None:
    place = home(tmp_path)
    for month in range(3):
        place.learn(table(tmp_path, month), f"{month}")
    flip(tmp_path / "home" / "state" / "task-000001.safetensors")
    assert any("state of task '1'" in fault for fault in place.verify())
    fresh = l2dp.open(tmp_path / "home")
    for act in (
        lambda: fresh.learn(table(tmp_path, 9), "9"),
        lambda: fresh.release(tmp_path / "release"),
        lambda: fresh.evaluate(table(tmp_path, 9)),
    ):
        with pytest.raises(L2dpError, match="was changed"):
            act()
    assert spent(fresh) == [(4.0, 3)]


def test_a_changed_declaration_is_found_and_refused(tmp_path: Path) -> None:
    place = user_home(tmp_path)
    place.learn(table(tmp_path, 1, users=10), "one")
    found = json.loads((place.path / "home.json").read_text())
    (place.path / "home.json").write_text(json.dumps(found | {"per_user": 1}))
    fresh = l2dp.open(place.path)
    assert any("home.json was changed" in fault for fault in fresh.verify())
    with pytest.raises(Refused, match="was changed after task 'one'"):
        fresh.learn(table(tmp_path, 2, users=10), "two")
    (place.path / "home.json").write_text(json.dumps(found | {"epsilon": 100.0}))
    with pytest.raises(Refused, match="its ledger was made for epsilon 4"):
        l2dp.open(place.path).learn(table(tmp_path, 2, users=10), "two")


@pytest.mark.parametrize("name", ["model.safetensors", "privacy.json", "labels.txt", "MODEL_CARD.md", "loader.py"])
def test_a_changed_release_is_found_and_refused(tmp_path: Path, name: str) -> None:
    place = home(tmp_path)
    place.learn(table(tmp_path, 1), "one")
    place.release(tmp_path / "release")
    flip(tmp_path / "release" / name, 3)
    with pytest.raises(BadInput, match="was changed"):
        Release(tmp_path / "release")
    assert any("was changed" in fault for fault in place.verify())


def test_secrets_and_state_are_for_their_owner_only(tmp_path: Path) -> None:
    place = home(tmp_path)
    place.learn(table(tmp_path, 1), "one")
    for part in ("secrets", "state"):
        for path in (place.path / part).rglob("*"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    (place.path / "state" / "task-000000.safetensors").chmod(0o644)
    assert any("can be read by others" in fault for fault in place.verify())


# --- one at a time ----------------------------------------------------------------------------------------


def test_a_second_process_is_refused_or_waits(tmp_path: Path) -> None:
    from l2dp.store.lock import held

    place = home(tmp_path)
    with held(place.path), pytest.raises(BadInput, match="another process is working"):
        place.learn(table(tmp_path, 1), "one")
    assert spent(place) == []
    place.learn(table(tmp_path, 1), "one", wait=5.0)


def test_status_does_not_wait_for_torch(tmp_path: Path) -> None:
    home(tmp_path)
    code = (
        "import sys, l2dp; l2dp.open(sys.argv[1]).status(); from l2dp import cli; "
        "print(sorted({'torch', 'scipy', 'polars', 'dp_accounting', 'matplotlib'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "home"], capture_output=True, text=True, timeout=400)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


# --- what a home knows of the past, and of its learner ----------------------------------------------------


def test_without_its_fingerprints_a_home_does_not_learn(tmp_path: Path) -> None:
    place = home(tmp_path)
    place.learn(table(tmp_path, 1), "one")
    (place.path / "fingerprints").rename(tmp_path / "away")
    with pytest.raises(Refused, match="fingerprints of task 'one' are missing"):
        l2dp.open(place.path).learn(table(tmp_path, 1), "again")
    (tmp_path / "away").rename(place.path / "fingerprints")
    with pytest.raises(Refused, match="90 of 90 records were learned in another task"):
        l2dp.open(place.path).learn(table(tmp_path, 1), "again")


def test_a_home_that_stays_open_sees_what_happens_to_its_fingerprints(tmp_path: Path) -> None:
    place = home(tmp_path)
    place.learn(table(tmp_path, 1), "one")
    place.learn(table(tmp_path, 2), "two")
    first = place.index()
    place.learn(table(tmp_path, 3), "three")
    assert place.index() is first  # opened and checked once, not for every task
    l2dp.open(place.path).learn(table(tmp_path, 4), "four")
    with pytest.raises(Refused, match="90 of 90 records were learned in another task"):
        place.learn(table(tmp_path, 4), "again")
    assert l2dp.open(place.path).exclude(records=table(tmp_path, 5)) == 90
    with pytest.raises(Refused, match="no record is left"):
        place.learn(table(tmp_path, 5), "five")
    segment = sorted((place.path / "fingerprints").glob("seg-*"))[0]
    good = segment.read_bytes()
    segment.write_bytes(good[:8] + b"?" + good[9:])
    with pytest.raises(BadInput, match="was changed; restore it from a backup"):
        place.learn(table(tmp_path, 1), "again")
    segment.write_bytes(good)
    (place.path / "fingerprints").rename(tmp_path / "away")
    with pytest.raises(Refused, match="fingerprints of task 'one' are missing"):
        place.learn(table(tmp_path, 1), "again")
    (tmp_path / "away").rename(place.path / "fingerprints")
    place.learn(table(tmp_path, 6), "six")
    assert place.verify() == []
    assert spent(place) == [(4.0, 5)]


@pytest.mark.parametrize("make", [home, user_home])
def test_with_another_key_a_home_does_not_learn(tmp_path: Path, make: Any) -> None:
    place = make(tmp_path)
    users = 30 if make is user_home else None
    place.learn(table(tmp_path, 1, users=users), "one")
    other = make(tmp_path, "other")
    shutil.copy(other.path / "secrets" / "fingerprints", place.path / "secrets" / "fingerprints")
    with pytest.raises(Refused, match="not the one that the home was made with"):
        l2dp.open(place.path).learn(table(tmp_path, 2, users=users), "two")
    assert any("not the one that the home was made with" in fault for fault in place.verify())
    assert spent(l2dp.open(place.path)) == spent(place)


def test_a_task_whose_preparation_spent_something_is_refused(tmp_path: Path) -> None:
    x, y = (torch.from_numpy(part) for part in arrays(1))
    made = Task.from_tensors("one", (x, y), (x, y))
    odd = Task(
        "one", Sealed(made.train.unseal(), prepared="its constants have cost people budget"), made.test, (0, 1, 2)
    )
    with pytest.raises(BadInput, match="have cost people budget, so no statement could be signed"):
        home(tmp_path).learn(odd)


MINE = """
from dataclasses import dataclass
from typing import ClassVar
from l2dp.budget import NO_PRIVACY
from l2dp.learners import PrivateReplay

@dataclass
class Mine(PrivateReplay):
    NAME: ClassVar[str] = "mine"

@dataclass
class Honest(PrivateReplay):
    NAME: ClassVar[str] = "honest"

    @property
    def guarantee(self):
        return NO_PRIVACY
"""


@pytest.mark.parametrize(("name", "status"), [("Mine", "claimed"), ("Honest", "none")])
def test_the_home_of_somebody_s_own_learner_proves_nothing(tmp_path: Path, name: str, status: str) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    place = home(tmp_path, learner=f"{tmp_path / 'mine.py'}:{name}")
    place.learn(table(tmp_path, 1), "one")
    release = place.release(tmp_path / "release")
    assert release.privacy["status"] == place.status()["guarantee"]["status"] == status
    assert release.privacy["epsilon"] == (4.0 if status == "claimed" else None)
    assert "guarantee is **proved**" not in (release.path / "MODEL_CARD.md").read_text()


def test_code_that_a_release_names_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(MINE)
    place = home(tmp_path, learner=f"{mine}:Mine")
    data = table(tmp_path, 1)
    place.learn(data, "one")
    place.release(tmp_path / "release")
    mine.write_text(f"{MINE}\nopen({str(tmp_path / 'ran')!r}, 'w').close()\n")
    words = ["evaluate", str(tmp_path / "release"), str(data)]
    for asked in (words, ["predict", *words[1:], "--out", str(tmp_path / "told.csv")]):
        with pytest.raises(SystemExit) as ended:
            cli.main(asked)
        said = capsys.readouterr().err
        assert (ended.value.code, said.count("\n")) == (2, 1)
        assert "code that a release names is not run" in said
    assert not (tmp_path / "ran").exists()
    with pytest.raises(SystemExit) as ended:
        cli.main([*words, "--learner", f"{mine}:Mine"])
    assert (ended.value.code, (tmp_path / "ran").exists()) == (0, True)
    with pytest.raises(SystemExit) as ended:
        cli.main(["evaluate", str(place.path), str(data), "--learner", f"{mine}:Mine"])
    assert ended.value.code == 2
    assert "goes with a release" in capsys.readouterr().err


# --- after a restore, an interruption, a mistake ----------------------------------------------------------


def test_verify_makes_an_old_backup_refuse_as_well(tmp_path: Path) -> None:
    place = home(tmp_path)
    place.learn(table(tmp_path, 1), "one")
    shutil.copytree(place.path, tmp_path / "backup")
    place.learn(table(tmp_path, 2), "two")
    place.release(tmp_path / "newer")
    old = l2dp.open(tmp_path / "backup")
    assert old.verify() == []
    assert any("is older than the release" in fault for fault in old.verify([tmp_path / "newer"]))
    assert any("is older than the release" in fault for fault in old.verify()), "it remembers"
    with pytest.raises(Refused, match="restored from a backup"):
        old.learn(table(tmp_path, 2), "two")
    with pytest.raises(Refused, match="restored from a backup"):
        old.release(tmp_path / "from backup")
    with pytest.raises(BadInput, match="is of another home"):
        home(tmp_path, "other").learn(table(tmp_path, 3), "three", releases=[tmp_path / "newer"])


def test_a_ledger_without_its_charges_is_refused(tmp_path: Path) -> None:
    place = user_home(tmp_path, per_task_epsilon=2.5)
    place.learn(table(tmp_path, 1, users=30), "one")
    with sqlite3.connect(place.path / "ledger.db") as there:
        guards = there.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in guards:
            there.execute(f"DROP TRIGGER {name}")
        there.executescript("DELETE FROM l2dp_balances; DELETE FROM l2dp_charges; UPDATE l2dp_levels SET blocks = 0")
        for _, statement in guards:
            there.execute(statement)
    with pytest.raises(BadInput, match="30 blocks in all, and 0 are noted"):
        l2dp.open(place.path).learn(table(tmp_path, 2, users=30), "two")


def test_a_task_stopped_before_its_first_read_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = home(tmp_path)

    def killed(self: Any, task: str, found: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as now:
        now.setattr("l2dp.fingerprints.Fingerprints.add", killed)
        with pytest.raises(KeyboardInterrupt):
            place.learn(table(tmp_path, 1), "one")
    again = l2dp.open(place.path)
    with pytest.raises(BadInput, match="a task is unfinished"):
        again.exclude(records=table(tmp_path, 2))
    assert not again.abandon("one")
    assert again.verify() == []
    assert spent(again) == []
    again.learn(table(tmp_path, 1), "again")
    assert spent(again) == [(4.0, 1)]


def test_names_in_a_card_are_text(tmp_path: Path) -> None:
    place = home(tmp_path, labels=("low", "mid", "high", "<b>`x`"))
    place.learn(table(tmp_path, 1), "<img src=x onerror=alert(1)> [here](there)")
    text = (place.release(tmp_path / "release").path / "MODEL_CARD.md").read_text()
    assert "<img" not in text
    assert "<b>" not in text
    assert "[here]" not in text


def test_places_that_are_not_there_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be kept at mysql://…; give a file, or postgresql://"):
        home(tmp_path, "other", ledger="mysql://ann:secret@db/clinic")
    assert not (tmp_path / "other").exists()
    place = home(tmp_path)
    with pytest.raises(BadInput, match="there is no release nowhere"):
        place.verify(["nowhere"])
    with pytest.raises(BadInput, match="it is a folder; name a file"):
        write_bytes(tmp_path, b"")


def test_a_label_that_the_task_does_not_declare_is_named(tmp_path: Path) -> None:
    place = home(tmp_path)
    with pytest.raises(BadInput, match="row 3: label 'high' is not among the --classes"):
        place.learn(table(tmp_path, 1), "one", classes=["low", "mid"])
    assert spent(place) == []


def test_a_release_has_a_place_of_its_own(tmp_path: Path) -> None:
    place = home(tmp_path)
    place.learn(table(tmp_path, 1), "one")
    assert place.release().path == tmp_path / "home-one"
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="is a file"):
        place.release(tmp_path / "file")


def test_what_can_never_match_is_not_excluded(tmp_path: Path) -> None:
    frame(1).with_columns(pl.lit(5.0).alias("f3")).write_parquet(tmp_path / "far.parquet")
    with pytest.raises(BadInput, match="outside the declared range"):
        home(tmp_path).exclude(records=tmp_path / "far.parquet")
    with pytest.raises(BadInput, match="must not be empty"):
        user_home(tmp_path, "users").exclude([" "])


def test_predictions_do_not_take_the_place_of_their_table(tmp_path: Path) -> None:
    place = home(tmp_path)
    place.learn(table(tmp_path, 1), "one")
    data = table(tmp_path, 2, kind="csv")
    before = data.read_bytes()
    with pytest.raises(BadInput, match="is the table itself"):
        write_predictions(place.release(tmp_path / "release"), data, data)
    assert data.read_bytes() == before
