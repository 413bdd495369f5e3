"""Datasets by name or path: what the benchmark streams are cut from.

`Dataset.load` checks form only: arrays, types, ranks, lengths, labels that fit the declared names. Whether
the values of training records are acceptable is for the boundary to say.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path

import numpy as np
import torch

from l2dp.errors import BadInput
from l2dp.streams.fetch import locate
from l2dp.streams.files import Array, Arrays, read_cifar10, read_cifar100, read_idx, unreadable
from l2dp.streams.npz import read_npz
from l2dp.streams.records import Source, Space

_IDX_NAMES = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}
_DIGITS_TEST = 360
_MOST_CLASSES = 1 << 16


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named set of records over one declared space, with a train and a test part."""

    name: str
    space: Space
    train: Source
    test: Source

    @staticmethod
    def load(what: Dataset | str) -> Dataset:
        """A loaded dataset as it is, a known name, or the path of an idx folder or an NPZ file.

        Integer inputs must lie in 0 to 255 and are scaled from that range to [−1, 1]; floats are taken as
        they are.

        >>> digits = Dataset.load("digits")
        >>> digits.space.shape, digits.space.classes, len(digits.train), len(digits.test)
        ((1, 8, 8), 10, 1437, 360)
        """
        if isinstance(what, Dataset):
            return what
        if what in _NAMED:
            return _NAMED[what]()
        path = _existing(what)
        arrays = _read_idx_folder(path) if path.is_dir() else _read_npz(path)
        return _dataset(path.resolve().stem, str(path), arrays)


def _existing(what: str) -> Path:
    try:
        path = Path(what).expanduser()
        if what and (path.is_dir() or path.is_file()):
            return path
    except OSError as error:
        raise unreadable(Path(what), error) from error
    except RuntimeError:
        # `~name` of a user who does not exist: no such path.
        pass
    near = difflib.get_close_matches(what.lower(), _NAMED, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise BadInput(
        f"there is no dataset, folder or file {what!r}; {hint}give one of {', '.join(_NAMED)}, "
        "a folder with the four idx files, or an NPZ file"
    )


@lru_cache(maxsize=1)
def _digits() -> Dataset:
    with resources.files("l2dp.streams").joinpath("digits.npz").open("rb") as file:
        stored = np.load(file, allow_pickle=False)
        x, y = stored["x"][:, None], stored["y"].astype(np.int64)
    # RandomState's numbers are frozen for all versions of NumPy: the split is the same everywhere.
    order = np.random.RandomState(0).permutation(len(y))
    train, test = order[_DIGITS_TEST:], order[:_DIGITS_TEST]

    def part(rows: Array) -> Source:
        return Source(torch.from_numpy(x[rows]), torch.from_numpy(y[rows]), "digits", 0.0, 16.0)

    return Dataset("digits", Space((1, 8, 8), tuple(str(i) for i in range(10))), part(train), part(test))


# The folder is the key, not the name: another $L2DP_DATA is another copy.
@lru_cache(maxsize=4)
def _public(name: str, folder: Path) -> Dataset:
    readers: dict[str, Callable[[Path], Arrays]] = {
        "mnist": _read_idx_folder,
        "cifar10": read_cifar10,
        "cifar100": read_cifar100,
    }
    return _dataset(name, str(folder), readers[name](folder))


_NAMED: dict[str, Callable[[], Dataset]] = {
    "digits": _digits,
    "mnist": lambda: _public("mnist", locate("mnist")),
    "cifar10": lambda: _public("cifar10", locate("cifar10")),
    "cifar100": lambda: _public("cifar100", locate("cifar100")),
}


def _read_idx_folder(folder: Path) -> Arrays:
    found: dict[str, Path] = {}
    try:
        for part, name in _IDX_NAMES.items():
            for path in (folder / name, folder / f"{name}.gz"):
                if path.is_file():
                    found.setdefault(part, path)
    except OSError as error:
        raise unreadable(folder, error) from error
    missing = [name for part, name in _IDX_NAMES.items() if part not in found]
    if missing:
        raise BadInput(f"{folder} lacks {', '.join(missing)} (plain or .gz); put the four idx files there")
    return Arrays(**{part: read_idx(path) for part, path in found.items()}, labels=None)


def _read_npz(path: Path) -> Arrays:
    arrays = read_npz(path, tuple(_IDX_NAMES), ("labels",))
    labels = _label_names(path, arrays.pop("labels")) if "labels" in arrays else None
    return Arrays(**arrays, labels=labels)


def _label_names(path: Path, array: Array) -> tuple[str, ...]:
    if array.dtype.kind != "U" or array.ndim != 1:
        raise BadInput(f"{path}: array labels must be a list of strings, one for each class")
    names = tuple(str(name) for name in array)
    if len(set(names)) != len(names) or not all(name and name.isprintable() for name in names):
        raise BadInput(f"{path}: array labels must hold different, non-empty, printable names")
    return names


def _dataset(name: str, where: str, arrays: Arrays) -> Dataset:
    x_train, x_test = _inputs(where, "x_train", arrays.x_train), _inputs(where, "x_test", arrays.x_test)
    if x_train.shape[1:] != x_test.shape[1:] or x_train.dtype != x_test.dtype:
        raise BadInput(
            f"{where}: x_train has inputs of shape {x_train.shape[1:]} ({x_train.dtype}), "
            f"x_test of shape {x_test.shape[1:]} ({x_test.dtype}); they must agree"
        )
    classes = _MOST_CLASSES if arrays.labels is None else len(arrays.labels)
    y_train = _targets(where, "y_train", arrays.y_train, classes)
    y_test = _targets(where, "y_test", arrays.y_test, classes)
    labels = arrays.labels
    if labels is None:
        labels = tuple(str(i) for i in range(int(max(y_train.max(), y_test.max())) + 1))
    return Dataset(
        name,
        Space(x_train.shape[1:], labels),
        Source(torch.from_numpy(x_train), torch.from_numpy(y_train), f"{where} (train)"),
        Source(torch.from_numpy(x_test), torch.from_numpy(y_test), f"{where} (test)"),
    )


def _inputs(where: str, part: str, array: Array) -> Array:
    if array.ndim not in (2, 3, 4):
        raise BadInput(f"{where}: {part} has the shape {array.shape}; inputs are (N, D), (N, H, W) or (N, C, H, W)")
    if array.size == 0:
        raise BadInput(f"{where}: {part} is empty (shape {array.shape}); there must be records with values")
    if array.ndim == 3:
        array = array[:, None]
    if array.dtype.kind in "iu":
        if array.dtype != np.uint8 and (array.min() < 0 or array.max() > 255):
            raise BadInput(f"{where}: {part} has integers outside 0 to 255; scale the inputs to floats in [-1, 1]")
        return np.ascontiguousarray(array, np.uint8)
    if array.dtype.kind == "f":
        # What overflows becomes infinite, and the boundary refuses it with all that is not finite.
        with np.errstate(over="ignore", invalid="ignore"):
            return np.ascontiguousarray(array, np.float32)
    raise BadInput(f"{where}: {part} has the type {array.dtype}; inputs are integers in 0 to 255 or floats")


def _targets(where: str, part: str, array: Array, classes: int) -> Array:
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise BadInput(
            f"{where}: {part} has the shape {array.shape} and type {array.dtype}; labels are integers, "
            "one for each record"
        )
    if array.size == 0:
        raise BadInput(f"{where}: {part} is empty; there must be records")
    if array.min() < 0 or array.max() >= classes:
        raise BadInput(
            f"{where}: {part} has labels outside 0 to {classes - 1}; number the classes from 0"
            + ("" if classes == _MOST_CLASSES else " in the order of their names")
        )
    return array.astype(np.int64)
