"""Datasets come out whole, alike wherever they come from, and nothing malformed gets in."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from l2dp.errors import BadInput
from l2dp.streams import Dataset, Records

Array = np.ndarray[Any, Any]
IDX = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}


def parts(**changed: Any) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    made = {
        "x_train": rng.integers(0, 256, (6, 4, 5), np.uint8),
        "y_train": np.array([0, 1, 2, 0, 1, 2]),
        "x_test": rng.integers(0, 256, (3, 4, 5), np.uint8),
        "y_test": np.array([2, 1, 0]),
    }
    return made | {name: np.asarray(value) for name, value in changed.items()}


def npz(path: Path, **changed: Any) -> str:
    np.savez_compressed(path, **parts(**changed))
    return str(path)


def refusal(what: str) -> str:
    with pytest.raises(BadInput) as caught:
        Dataset.load(what)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_digits_split_is_fixed() -> None:
    digits = Dataset.load("digits")
    assert digits.space.shape == (1, 8, 8)
    assert digits.space.labels == tuple("0123456789")
    assert (digits.train.x.shape, digits.test.x.shape) == ((1437, 1, 8, 8), (360, 1, 8, 8))
    assert digits.train.y.dtype == torch.int64
    # The split is part of every published result; this digest was taken when it was chosen.
    assert hashlib.sha256(digits.test.y.numpy().astype(np.uint8).tobytes()).hexdigest()[:16] == "4446639e9df96744"
    x, _ = Records(digits.train).batch(slice(None))
    assert (x.min(), x.max()) == (-1.0, 1.0)


def test_digits_are_the_ones_of_scikit_learn() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    theirs = datasets.load_digits()
    ours = Dataset.load("digits")
    x = torch.cat([ours.train.x, ours.test.x]).flatten(1).numpy()
    y = torch.cat([ours.train.y, ours.test.y]).numpy()
    rows = sorted((*map(int, a), int(b)) for a, b in zip(x, y, strict=True))
    assert rows == sorted((*map(int, a), int(b)) for a, b in zip(theirs.data, theirs.target, strict=True))


def test_streams_share_one_copy_and_a_dataset_is_itself() -> None:
    digits = Dataset.load("digits")
    assert Dataset.load(digits) is digits
    assert Dataset.load("digits").train.x is digits.train.x


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("mnits", "did you mean 'mnist'?"),
        ("CIFAR10", "did you mean 'cifar10'?"),
        ("cifar-100", "did you mean 'cifar100'?"),
        ("nothing like it", "give one of digits, mnist"),
        ("", "there is no dataset"),
        ("/nowhere/at/all.npz", "/nowhere/at/all.npz"),
        ("~nobody-of-that-name/x.npz", "there is no dataset"),
        ("a\0b", "there is no dataset"),
        ("x" * 5000, "cannot read"),
    ],
)
def test_unknown_names(what: str, says: str) -> None:
    assert says in refusal(what)


def test_npz(tmp_path: Path) -> None:
    data = Dataset.load(npz(tmp_path / "mine.npz"))
    assert data.name == "mine"
    assert data.space.shape == (1, 4, 5)
    assert data.space.labels == ("0", "1", "2")
    assert data.train.x.dtype == torch.uint8
    np.testing.assert_array_equal(data.train.x[:, 0].numpy(), parts()["x_train"])
    np.testing.assert_array_equal(data.test.y.numpy(), [2, 1, 0])


@pytest.mark.parametrize(
    ("shape", "kind", "space", "becomes"),
    [
        ((7,), "f8", (7,), torch.float32),
        ((7,), ">f4", (7,), torch.float32),
        ((2, 4, 5), "f2", (2, 4, 5), torch.float32),
        ((4, 5), ">i4", (1, 4, 5), torch.uint8),
        ((3, 4, 5), "u8", (3, 4, 5), torch.uint8),
    ],
)
def test_npz_shapes_and_types(
    tmp_path: Path, shape: tuple[int, ...], kind: str, space: tuple[int, ...], becomes: torch.dtype
) -> None:
    x = np.asfortranarray(np.arange(6 * np.prod(shape)).reshape(6, *shape) % 200).astype(kind)
    data = Dataset.load(npz(tmp_path / "a.npz", x_train=x, x_test=x[:3]))
    assert data.space.shape == space
    assert data.train.x.dtype == becomes
    np.testing.assert_array_equal(data.train.x.numpy(), x.reshape(6, *space).astype(np.float64))


def test_npz_leaves_the_values_of_floats_to_the_boundary(tmp_path: Path) -> None:
    x = np.full((6, 2), np.nan)
    x[0] = 1e300
    data = Dataset.load(npz(tmp_path / "a.npz", x_train=x, x_test=x[:3]))
    assert data.train.x[0].isinf().all()
    assert data.train.x[1:].isnan().all()


def test_npz_label_names(tmp_path: Path) -> None:
    data = Dataset.load(npz(tmp_path / "a.npz", labels=["cat", "dog", "eel", "fox"]))
    assert data.space.labels == ("cat", "dog", "eel", "fox")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"x_train": np.zeros((6, 4, 5), bool)}, "x_train has the type bool"),
        ({"x_train": np.zeros((6, 4, 5), complex)}, "x_train has the type complex"),
        ({"x_test": np.full((3, 4, 5), "a")}, "x_test has the type"),
        ({"x_train": np.zeros(6)}, "x_train has the shape (6,)"),
        ({"x_train": np.zeros((6, 1, 1, 1, 1))}, "x_train has the shape"),
        ({"x_train": np.full((6, 4, 5), 256)}, "x_train has integers outside 0 to 255"),
        ({"x_train": np.full((6, 4, 5), -1)}, "x_train has integers outside 0 to 255"),
        ({"x_test": np.zeros((3, 5, 4), np.uint8)}, "must agree"),
        ({"x_test": np.zeros((3, 4, 5))}, "must agree"),
        ({"x_test": np.zeros((0, 4, 5), np.uint8)}, "x_test is empty"),
        ({"x_test": np.zeros((3, 0, 5), np.uint8)}, "x_test is empty"),
        ({"y_train": [0, 1]}, "6 inputs but 2 labels"),
        ({"y_test": [0.0, 1.0, 2.0]}, "y_test has the shape (3,) and type float64"),
        ({"y_test": [[0], [1], [2]]}, "y_test has the shape (3, 1)"),
        ({"y_test": np.zeros(0, int)}, "y_test is empty"),
        ({"y_train": [0, 1, 2, -1, 1, 2]}, "y_train has labels outside"),
        ({"y_train": [0, 1, 2, 10**12, 1, 2]}, "y_train has labels outside"),
        ({"y_train": np.array([0, 1, 2, 2**64 - 1, 1, 2], np.uint64)}, "y_train has labels outside"),
        ({"labels": ["a", "b"]}, "labels outside 0 to 1"),
        ({"labels": ["a", "a", "b"]}, "array labels"),
        ({"labels": ["a", "", "b"]}, "array labels"),
        ({"labels": ["a", "b\n", "c"]}, "array labels"),
        ({"labels": [1, 2, 3]}, "array labels"),
        ({"labels": "abc"}, "array labels"),
    ],
)
def test_npz_refuses_what_is_malformed(tmp_path: Path, changed: dict[str, Any], says: str) -> None:
    message = refusal(npz(tmp_path / "a.npz", **changed))
    assert says in message
    assert "a.npz" in message


def test_npz_without_an_array(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **{k: v for k, v in parts().items() if k != "y_test"})
    assert "lacks the arrays y_test" in refusal(str(tmp_path / "a.npz"))


class _Trap:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("an object was unpickled",))


def test_npz_never_unpickles(tmp_path: Path) -> None:
    trap = np.empty(6, object)
    trap[:] = [_Trap() for _ in range(6)]
    np.savez(tmp_path / "a.npz", **parts(), labels=trap)
    assert "labels holds Python objects" in refusal(str(tmp_path / "a.npz"))
    (tmp_path / "b.npz").write_bytes(pickle.dumps([1]))
    assert "not a whole NPZ" in refusal(str(tmp_path / "b.npz"))


def rewritten(path: Path, part: str, content: bytes, kind: int = zipfile.ZIP_DEFLATED) -> str:
    """The good archive with the bytes of one array replaced."""
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, array in parts().items():
            buffer = io.BytesIO()
            np.save(buffer, array)
            archive.writestr(f"{name}.npy", content if name == part else buffer.getvalue())
    return str(path)


def header(shape: str, kind: str = "|u1") -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "x_test is corrupt"),
        (b"not an array", "x_test is corrupt"),
        (b"\x93NUMPY\x07\x00" + b"\0" * 90, "x_test is corrupt"),
        (header("(3, 4, 5)", "|nonsense"), "x_test is corrupt"),
        (header("(3, 4, 5") + bytes(60), "x_test is corrupt"),
        (header("((((((3, 4, 5)") + bytes(60), "x_test is corrupt"),
        (header("(3, 4, 5)"), "not as long as its header says"),
        (header("(3, 4, 5)") + bytes(61), "not as long as its header says"),
        (header("(1 << 40,)"), "x_test is corrupt"),
        (header("(99999999999999, 4, 5)"), "not as long as its header says"),
        (header("(-3, -4, 5)") + bytes(60), "not as long as its header says"),
    ],
)
def test_npz_refuses_a_damaged_array(tmp_path: Path, content: bytes, says: str) -> None:
    assert says in refusal(rewritten(tmp_path / "a.npz", "x_test", content))


def test_npz_refuses_other_compressions(tmp_path: Path) -> None:
    assert "compression" in refusal(rewritten(tmp_path / "a.npz", "x_test", b"", zipfile.ZIP_LZMA))


def test_npz_refuses_bombs_before_unpacking_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unpacked(*_: object, **__: object) -> None:
        pytest.fail("it was unpacked")

    monkeypatch.setattr(np.lib.format, "read_array", unpacked)
    monkeypatch.setattr("l2dp.streams.npz._BOMB_SIZE", 1 << 20)
    bomb = npz(tmp_path / "a.npz", x_train=np.zeros((2000, 1000), np.uint8))
    assert "which no real data does" in refusal(bomb)
    monkeypatch.setattr("l2dp.streams.npz._MOST", 100)
    assert "more than this reader takes" in refusal(npz(tmp_path / "b.npz"))


@pytest.fixture(scope="module", params=[np.savez, np.savez_compressed])
def good_npz(request: pytest.FixtureRequest) -> bytes:
    buffer = io.BytesIO()
    request.param(buffer, **parts())
    return buffer.getvalue()


quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(share=st.floats(0, 0.999))
def test_npz_refuses_every_truncation(tmp_path: Path, good_npz: bytes, share: float) -> None:
    (tmp_path / "a.npz").write_bytes(good_npz[: int(share * len(good_npz))])
    refusal(str(tmp_path / "a.npz"))


@quick
@given(where=st.integers(0, 1 << 20), flip=st.integers(1, 255))
def test_npz_damage_is_harmless_or_refused(tmp_path: Path, good_npz: bytes, where: int, flip: int) -> None:
    damaged = bytearray(good_npz)
    damaged[where % len(damaged)] ^= flip
    (tmp_path / "a.npz").write_bytes(damaged)
    try:
        data = Dataset.load(str(tmp_path / "a.npz"))
    except BadInput:
        return
    np.testing.assert_array_equal(data.train.x[:, 0].numpy(), parts()["x_train"])
    np.testing.assert_array_equal(data.train.y.numpy(), parts()["y_train"])


def write_idx(path: Path, array: Array, packed: bool) -> None:
    content = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype("u1").tobytes()
    path.with_name(path.name + ".gz" * packed).write_bytes(gzip.compress(content) if packed else content)


def test_idx_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    for number, (part, array) in enumerate(parts().items()):
        write_idx(folder / IDX[part], array, packed=number % 2 == 0)
    monkeypatch.setenv("HOME", str(tmp_path))
    for what in (str(folder), "~/mine"):
        data = Dataset.load(what)
        assert (data.name, data.space.shape, data.space.classes) == ("mine", (1, 4, 5), 3)
        np.testing.assert_array_equal(data.train.x[:, 0].numpy(), parts()["x_train"])
    monkeypatch.chdir(folder)
    assert Dataset.load(".").name == "mine"
    (folder / IDX["y_train"]).unlink()
    assert "lacks train-labels-idx1-ubyte" in refusal(str(folder))


def real(name: str, folder: str) -> Dataset:
    root = os.environ.get("L2DP_DATA")
    if not root or not (Path(root) / folder).is_dir():
        pytest.skip(f"needs $L2DP_DATA/{folder}")
    return Dataset.load(name)


def test_real_mnist() -> None:
    data = real("mnist", "mnist")
    assert (len(data.train.y), len(data.test.y)) == (60_000, 10_000)
    assert (data.space.shape, data.space.labels) == ((1, 28, 28), tuple("0123456789"))
    # The counts that LeCun's set is known by.
    assert data.train.y.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.train.y[:5].tolist() == [5, 0, 4, 1, 9]


@pytest.mark.parametrize(
    ("name", "folder", "classes", "first", "last"),
    [
        ("cifar10", "cifar-10-batches-bin", 10, "airplane", "truck"),
        ("cifar100", "cifar-100-binary", 100, "apple", "worm"),
    ],
)
def test_real_cifar(name: str, folder: str, classes: int, first: str, last: str) -> None:
    data = real(name, folder)
    assert (data.space.shape, data.space.classes) == ((3, 32, 32), classes)
    assert (data.space.labels[0], data.space.labels[-1]) == (first, last)
    assert data.train.y.bincount().tolist() == [50_000 // classes] * classes
    assert data.test.y.bincount().tolist() == [10_000 // classes] * classes
