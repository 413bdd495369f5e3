"""The index of fingerprints against a plain dictionary, through merges, crashes, damage and full disks."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from l2dp import fingerprints
from l2dp.errors import BadInput, L2dpError
from l2dp.fingerprints import ROW, Fingerprints, words


def some(*numbers: int) -> NDArray[Any]:
    """Fingerprints of these numbers; equal numbers have equal ones."""
    return np.frombuffer(b"".join(hashlib.sha256(b"%d" % number).digest() for number in numbers), "V32")


def close(*pairs: tuple[int, int]) -> NDArray[Any]:
    """Fingerprints with chosen words, so that first words collide."""
    return np.frombuffer(b"".join(a.to_bytes(8, "big") + b.to_bytes(8, "big") + bytes(16) for a, b in pairs), "V32")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merges early and in many parts."""
    monkeypatch.setattr(fingerprints, "SMALLEST", 4)
    monkeypatch.setattr(fingerprints, "PART", 8)


def test_an_empty_index_knows_nobody(tmp_path: Path) -> None:
    index = Fingerprints(tmp_path / "index")
    assert index.known(some(1, 2), "a").tolist() == [False, False]
    assert index.excluded(some(1)).tolist() == [False]
    assert index.counts() == (0, 0)
    assert index.verify() == []
    assert not (tmp_path / "index").exists(), "a question makes nothing"
    index.add("a", some())
    assert Fingerprints(tmp_path / "index").tasks == {"a": 0}
    assert index.known(some(), "b").tolist() == []


def test_others_are_found_and_a_task_finds_its_own_as_its_own(tmp_path: Path) -> None:
    index = Fingerprints(tmp_path)
    index.add("a", some(1, 2, 3))
    index.add("b", some(4, 5))
    for again in (index, Fingerprints(tmp_path)):
        assert again.known(some(3, 9, 4, 1), "a").tolist() == [False, False, True, False]
        assert again.known(some(3, 9, 4, 1), "c").tolist() == [True, False, True, True]
    index.add("a", some(1, 2, 3))
    index.add("a", some(3, 6))
    assert index.tasks == {"a": 4, "b": 2}
    assert Fingerprints(tmp_path).verify() == []


def test_copies_within_a_task_are_kept_once(tmp_path: Path) -> None:
    index = Fingerprints(tmp_path)
    index.add("a", some(1, 1, 2, 1))
    assert index.tasks == {"a": 2}
    assert index.known(some(1, 1), "b").tolist() == [True, True]


def test_the_excluded_are_another_matter(tmp_path: Path) -> None:
    index = Fingerprints(tmp_path)
    index.add("a", some(1, 2))
    assert index.exclude(some(2, 3, 3)) == 2
    assert index.exclude(some(2, 3, 4)) == 1
    again = Fingerprints(tmp_path)
    assert again.excluded(some(1, 2, 3, 4)).tolist() == [False, True, True, True]
    assert again.known(some(1, 2, 3, 4), "b").tolist() == [True, True, False, False]
    assert again.counts() == (2, 3)
    assert again.verify() == []


def test_only_all_sixteen_bytes_make_two_equal(tmp_path: Path) -> None:
    index = Fingerprints(tmp_path)
    stored = [(7, 1), (7, 3), (7, 5), (2**64 - 1, 2**64 - 1), (0, 0)]
    index.add("a", close(*stored))
    asked = [*stored, (7, 0), (7, 2), (7, 4), (7, 6), (2**64 - 1, 0), (0, 1), (8, 1)]
    assert index.known(close(*asked), "b").tolist() == [pair in stored for pair in asked]


def test_a_record_of_many_tasks_is_kept_for_two(tmp_path: Path) -> None:
    index = Fingerprints(tmp_path)
    for task in "abcde":
        index.add(task, some(1))
    assert index.counts() == (2, 0)
    assert all(index.known(some(1), task).tolist() == [True] for task in "abcdef")


adding = st.tuples(st.sampled_from("abcd"), st.lists(st.integers(0, 40), max_size=25))


@settings(deadline=None, max_examples=30)
@given(st.lists(adding, max_size=20), st.integers(1, 6))
def test_it_answers_as_a_dictionary_does(steps: list[tuple[str, list[int]]], spread: int) -> None:
    import tempfile

    def make(numbers: list[int]) -> NDArray[Any]:
        return close(*((number // spread, number) for number in numbers))  # many equal first words

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(fingerprints, "SMALLEST", 4)
        patch.setattr(fingerprints, "PART", 8)
        truth: dict[int, set[str]] = {}
        index = Fingerprints(Path(folder) / "index")
        for turn, (task, numbers) in enumerate(steps):
            index.add(task, make(numbers))
            for number in numbers:
                truth.setdefault(number, set()).add(task)
            if turn % 3 == 2:
                index = Fingerprints(Path(folder) / "index")
        everything = list(range(42))
        for task in "abcde":
            expected = [bool(truth.get(number, set()) - {task}) for number in everything]
            assert index.known(make(everything), task).tolist() == expected
        assert index.verify() == []
        files = {path.name for path in (Path(folder) / "index").glob("seg-*")}
        assert len(files) == len(index._segments)


@pytest.mark.usefixtures("small")
def test_files_stay_few_and_small(tmp_path: Path) -> None:
    index = Fingerprints(tmp_path)
    for task in range(90):
        index.add(f"task {task}", some(*range(10 * task, 10 * task + 10)))
    assert len(list(tmp_path.glob("seg-*"))) < 30
    assert sum(path.stat().st_size for path in tmp_path.glob("seg-*")) == 900 * ROW
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    assert index.known(some(*range(900)), "new").all()
    assert index.verify() == []


def test_what_is_no_fingerprint_is_refused(tmp_path: Path) -> None:
    for wrong in (np.zeros(3, "V8"), np.zeros((2, 2), "V32")):
        with pytest.raises(BadInput, match="16 bytes"):
            words(wrong)


# --- damage -------------------------------------------------------------------------------------------------


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    folder = tmp_path / "index"
    index = Fingerprints(folder)
    index.add("a", some(*range(50)))
    index.add("b", some(*range(50, 60)))
    index.exclude(some(99))
    return folder


def test_every_changed_byte_is_found(filled: Path) -> None:
    for path in sorted(filled.iterdir()):
        good = path.read_bytes()
        for place in range(0, len(good), 7):
            path.write_bytes(good[:place] + bytes([good[place] ^ 4]) + good[place + 1 :])
            try:
                faults = Fingerprints(filled).verify()
            except BadInput as error:
                faults = [str(error)]
            assert len(faults) == 1, (path.name, place)
            assert "\n" not in faults[0]
        path.write_bytes(good)
    assert Fingerprints(filled).verify() == []


def test_a_changed_file_is_never_searched(filled: Path) -> None:
    segment = sorted(filled.glob("seg-*"))[0]
    good = segment.read_bytes()
    segment.write_bytes(good[:8] + b"?" + good[9:])
    index = Fingerprints(filled)
    for _ in range(2):
        with pytest.raises(BadInput, match="was changed; restore it from a backup"):
            index.known(some(1), "c")
        with pytest.raises(BadInput, match="was changed; restore it from a backup"):
            index.add("c", some(1))
    assert index.counts() == (60, 1)


def test_an_open_index_notices_every_hand_but_its_own(filled: Path) -> None:
    index = Fingerprints(filled)
    assert index.current()
    index.add("c", some(*range(100, 140)))
    index.exclude(some(3))
    assert index.current()
    Fingerprints(filled).known(some(1), "d")
    assert index.current()
    Fingerprints(filled).add("d", some(70))
    assert not index.current()
    index = Fingerprints(filled)
    for path in sorted(filled.iterdir()):
        good, when = path.read_bytes(), path.stat()
        path.write_bytes(good[:9] + b"?" + good[10:])
        os.utime(path, ns=(when.st_atime_ns, when.st_mtime_ns))
        assert not index.current(), path.name
        path.write_bytes(good)
        index = Fingerprints(filled)
        path.rename(filled / "away")
        assert not index.current(), path.name
        (filled / "away").rename(path)
        index = Fingerprints(filled)
    assert index.verify() == []


def test_missing_and_cut_files_are_refused(filled: Path) -> None:
    segment = sorted(filled.glob("seg-*"))[0]
    good = segment.read_bytes()
    segment.write_bytes(good[:-1])
    with pytest.raises(BadInput, match="is damaged"):
        Fingerprints(filled)
    segment.unlink()
    with pytest.raises(BadInput, match="cannot read"):
        Fingerprints(filled)


def test_a_newer_format_is_refused(filled: Path) -> None:
    manifest = filled / "index.json"
    text = json.dumps(json.loads(manifest.read_text().partition("\n")[2]) | {"format": 99})
    manifest.write_text(f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}")
    with pytest.raises(BadInput, match="use a newer l2dp"):
        Fingerprints(filled)


# --- crashes and full disks ---------------------------------------------------------------------------------

PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from l2dp import fingerprints
fingerprints.SMALLEST, fingerprints.PART = 64, 256
index = fingerprints.Fingerprints(Path(sys.argv[1]))
print("ready", flush=True)
for task in range(len(index.tasks), 10_000):
    index.add(str(task), np.arange(32 * 4 * task, 32 * 4 * task + 128, dtype="<u4").view("V32"))
    print(task, flush=True)
"""


def test_killed_at_any_moment_it_holds_what_it_had_said(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    said = -1
    for turn in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder)], stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert process.stdout is not None
        for _ in range(4 + 7 * turn):
            line = process.stdout.readline().strip()
            said = int(line) if line.isdigit() else said
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split("\n")[:-1]
        process.stdout.close()
        process.wait()
        said = max([said, *(int(word) for word in rest if word.isdigit())])
        index = Fingerprints(folder)
        assert index.verify() == []
        assert len(index.tasks) in (said + 1, said + 2), "what was said is there, and at most one more"
        assert set(index.tasks.values()) == {16}
        everything = np.arange(128 * len(index.tasks), dtype="<u4").view("V32")
        assert index.known(everything, "new").all()
    assert said > 40


@pytest.mark.usefixtures("small")
def test_a_full_disk_is_one_clear_line_and_loses_nothing(filled: Path) -> None:
    """A limit on the size of files stands for the full disk; the process of the tests sets it back."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    index = Fingerprints(filled)
    before = index.tasks
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, limits[1]))
    try:
        with pytest.raises(L2dpError, match="make room and run") as caught:
            index.add("c", some(*range(1000, 1100)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not isinstance(caught.value, BadInput)
    for again in (index, Fingerprints(filled)):
        assert again.tasks == before
        assert again.verify() == []
        assert not again.known(some(1000), "d").any()
    again.add("c", some(*range(1000, 1100)))
    assert again.verify() == []
    assert not list(filled.glob(".*"))
    assert {path.name for path in filled.glob("seg-*")} == {part.name for part in again._segments}


def test_a_read_only_folder_is_one_clear_line(filled: Path) -> None:
    if os.getuid() == 0:
        pytest.skip("root may write everywhere")
    filled.chmod(0o500)
    try:
        index = Fingerprints(filled)
        with pytest.raises(L2dpError, match="could not write"):
            index.add("c", some(1000))
    finally:
        filled.chmod(0o700)
    assert Fingerprints(filled).tasks == {"a": 50, "b": 10}
