"""The parsers give back what was written and refuse everything that was damaged."""

from __future__ import annotations

import gzip
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from l2dp.errors import BadInput
from l2dp.streams import files
from l2dp.streams.files import read_cifar10, read_cifar100, read_idx

CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def idx_bytes(array: np.ndarray[Any, Any]) -> bytes:
    header = struct.pack(">BBBB", 0, 0, CODES[array.dtype.str[1:]], array.ndim)
    body = array.astype(array.dtype.newbyteorder(">")).tobytes()
    return header + struct.pack(f">{array.ndim}I", *array.shape) + body


def refusal(path: Path, content: bytes | None = None) -> str:
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInput) as caught:
        read_idx(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


arrays = st.sampled_from(sorted(CODES)).flatmap(
    lambda kind: hnp.arrays(np.dtype(kind), hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5))
)
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(array=arrays, packed=st.booleans())
def test_idx_round_trip(tmp_path: Path, array: np.ndarray[Any, Any], packed: bool) -> None:
    path = tmp_path / "a"
    path.write_bytes(gzip.compress(idx_bytes(array)) if packed else idx_bytes(array))
    back = read_idx(path)
    assert back.dtype == array.dtype
    assert back.dtype.isnative
    assert back.flags.writeable
    np.testing.assert_array_equal(back, array)


@quick
@given(array=arrays, cut=st.integers(1, 60), packed=st.booleans())
def test_idx_refuses_every_truncation(tmp_path: Path, array: np.ndarray[Any, Any], cut: int, packed: bool) -> None:
    whole = gzip.compress(idx_bytes(array)) if packed else idx_bytes(array)
    refusal(tmp_path / "a", whole[: max(0, len(whole) - cut)])


@quick
@given(content=st.binary(max_size=200), packed=st.booleans())
def test_idx_never_raises_anything_else(tmp_path: Path, content: bytes, packed: bool) -> None:
    path = tmp_path / "a"
    path.write_bytes(gzip.compress(content) if packed else content)
    with suppress(BadInput):
        read_idx(path)


GOOD = idx_bytes(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not an idx file"),
        (b"\x89PNG" + GOOD[4:], "not an idx file"),
        (b"\0\0\x0a\x03" + GOOD[4:], "0x0a"),
        (b"\0\0\x08\x00" + GOOD[4:], "rank 0"),
        (b"\0\0\x08\xff" + GOOD[4:], "rank 255"),
        (GOOD[:9], "header"),
        (GOOD[:-1], "cut off"),
        (GOOD + b"\0", "bytes after"),
        (b"\0\0\x08\x03" + b"\xff" * 12 + GOOD[16:], "more than this reader takes"),
        (b"\0\0\x08\x01" + struct.pack(">I", 4_000_000_000) + b"\0" * 100, "cut off"),
    ],
)
def test_idx_says_what_is_wrong(tmp_path: Path, content: bytes, says: str, packed: bool) -> None:
    assert says in refusal(tmp_path / "a", gzip.compress(content) if packed else content)


def test_idx_checks_the_gzip_checksum_and_what_follows_it(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress(GOOD))
    whole[-6] ^= 1
    assert "corrupt" in refusal(tmp_path / "a", bytes(whole))
    assert "corrupt" in refusal(tmp_path / "a", gzip.compress(GOOD) + b"more")


def test_idx_of_nothing(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "absent")
    assert "directory" in refusal(tmp_path)


def cifar_rows(rng: np.random.Generator, records: int, classes: tuple[int, ...]) -> np.ndarray[Any, Any]:
    labels = [rng.integers(0, c, (records, 1)) for c in classes]
    return np.concatenate([*labels, rng.integers(0, 256, (records, 3072))], axis=1).astype(np.uint8)


@pytest.fixture
def small_cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray[Any, Any]]:
    """Both sets with 4 training records a file and 3 for testing."""
    monkeypatch.setattr(files, "CIFAR_TRAIN", 20)
    monkeypatch.setattr(files, "CIFAR_TEST", 3)
    rng = np.random.default_rng(0)
    written = {f"data_batch_{i}.bin": cifar_rows(rng, 4, (10,)) for i in range(1, 6)}
    written |= {"test_batch.bin": cifar_rows(rng, 3, (10,))}
    written |= {"train.bin": cifar_rows(rng, 20, (20, 100)), "test.bin": cifar_rows(rng, 3, (20, 100))}
    for name, rows in written.items():
        (tmp_path / name).write_bytes(rows.tobytes())
    return written


def test_cifar10(tmp_path: Path, small_cifar: dict[str, np.ndarray[Any, Any]]) -> None:
    found = read_cifar10(tmp_path)
    assert found.x_train.shape == (20, 3, 32, 32)
    assert found.x_test.shape == (3, 3, 32, 32)
    third = small_cifar["data_batch_3.bin"]
    np.testing.assert_array_equal(found.y_train[8:12], third[:, 0])
    np.testing.assert_array_equal(found.x_train[8:12].reshape(4, -1), third[:, 1:])
    np.testing.assert_array_equal(found.y_test, small_cifar["test_batch.bin"][:, 0])
    assert found.labels is not None
    assert found.labels[0] == "airplane"
    assert len(found.labels) == 10


def test_cifar100_has_the_fine_labels(tmp_path: Path, small_cifar: dict[str, np.ndarray[Any, Any]]) -> None:
    found = read_cifar100(tmp_path)
    np.testing.assert_array_equal(found.y_train, small_cifar["train.bin"][:, 1])
    np.testing.assert_array_equal(found.x_test.reshape(3, -1), small_cifar["test.bin"][:, 2:])
    assert found.labels == tuple(str(i) for i in range(100))
    (tmp_path / "fine_label_names.txt").write_text("".join(f"thing_{i}\n" for i in range(100)) + "\n")
    assert read_cifar100(tmp_path).labels == tuple(f"thing_{i}" for i in range(100))


@pytest.mark.usefixtures("small_cifar")
@pytest.mark.parametrize("names", [b"one\ntwo\n", b"x\n" * 10, b"\xff\xfe\n"])
def test_cifar_refuses_wrong_label_names(tmp_path: Path, names: bytes) -> None:
    (tmp_path / "batches.meta.txt").write_bytes(names)
    with pytest.raises(BadInput, match=r"batches\.meta\.txt"):
        read_cifar10(tmp_path)


@pytest.mark.usefixtures("small_cifar")
def test_cifar_refuses_damage(tmp_path: Path) -> None:
    path = tmp_path / "data_batch_2.bin"
    good = path.read_bytes()
    for bad, says in [
        (good[:-1], "12,291 bytes instead of 12,292"),
        (good[:-3073], "bytes instead of"),
        (good + b"\0", "bytes instead of"),
        (b"", "0 bytes instead of"),
        (b"\x0a" + good[1:], "labels beyond 9"),
    ]:
        path.write_bytes(bad)
        with pytest.raises(BadInput, match=says) as caught:
            read_cifar10(tmp_path)
        assert str(path) in str(caught.value)
    path.unlink()
    with pytest.raises(BadInput, match="No such file"):
        read_cifar10(tmp_path)
