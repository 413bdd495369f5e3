"""Parsers of the public file formats: idx (MNIST's) and CIFAR's binary layouts.

They turn bytes into arrays and refuse what is truncated, corrupt or of another format. They never download
and never unpickle, and no header makes them reserve memory that the file cannot fill.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from l2dp.errors import BadInput

Array = NDArray[Any]

CIFAR_TRAIN, CIFAR_TEST = 50_000, 10_000
_PIXELS = 3 * 32 * 32
_CIFAR10_NAMES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)

_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_IDX_MOST = 8 << 30
# Deflate cannot pack tighter than 1032 to 1: a gzip file that promises more is cut off or lies.
_GZIP_BEST = 1032


class Arrays(NamedTuple):
    """What a dataset consists of; `labels` names the classes in order."""

    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    labels: tuple[str, ...] | None


def unreadable(path: Path, error: OSError) -> BadInput:
    """The one sentence for a file that the operating system does not hand out."""
    return BadInput(f"cannot read {path}: {error.strerror or error}; check the path and its permissions")


def read_idx(path: Path) -> Array:
    """The array in an idx file, plain or gzipped (told apart by content, not by name)."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            held = path.stat().st_size * (_GZIP_BEST if packed else 1)
            if packed:
                with gzip.GzipFile(fileobj=raw) as unpacked:
                    return _parse_idx(path, cast(IO[bytes], unpacked), held)
            return _parse_idx(path, raw, held)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadInput(f"{path}: the gzip data is cut off or corrupt ({error}); fetch the file again") from error
    except MemoryError as error:
        raise BadInput(f"{path} does not fit into memory; use fewer records") from error
    except OSError as error:
        raise unreadable(path, error) from error


def _parse_idx(path: Path, stream: IO[bytes], held: int) -> Array:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0":
        raise BadInput(f"{path} is not an idx file: it must start with two zero bytes; fetch the file again")
    code, rank = magic[2], magic[3]
    if code not in _IDX_TYPES:
        raise BadInput(f"{path}: idx type code 0x{code:02x} is unknown; fetch the file again")
    if not 1 <= rank <= 8:
        raise BadInput(f"{path}: an idx array of rank {rank} is not supported, only 1 to 8; fetch the file again")
    header = stream.read(4 * rank)
    if len(header) < 4 * rank:
        raise BadInput(f"{path} is cut off within its header; fetch the file again")
    shape = struct.unpack(f">{rank}I", header)
    kind = np.dtype(_IDX_TYPES[code])
    size = math.prod(shape) * kind.itemsize
    if size > _IDX_MOST:
        raise BadInput(f"{path}: its header promises {size:,} bytes, more than this reader takes (8 GiB)")
    body = stream.read(size) if size <= held else b""
    if len(body) < size:
        raise BadInput(f"{path} is cut off: its header promises {size:,} bytes of data; fetch the file again")
    # Reading past the end also makes gzip compare its checksum.
    if stream.read(1):
        raise BadInput(f"{path} has bytes after the {size:,} that its header promises; fetch the file again")
    return np.frombuffer(body, kind).reshape(shape).astype(kind.newbyteorder("="))


def read_cifar10(folder: Path) -> Arrays:
    """CIFAR-10 from `cifar-10-batches-bin`: one label byte, then 3072 pixels, a record."""
    batch = CIFAR_TRAIN // 5
    parts = [_read_bin(folder / f"data_batch_{i}.bin", batch, 1, 10) for i in range(1, 6)]
    x_test, y_test = _read_bin(folder / "test_batch.bin", CIFAR_TEST, 1, 10)
    return Arrays(
        np.concatenate([x for x, _ in parts]),
        np.concatenate([y for _, y in parts]),
        x_test,
        y_test,
        _read_names(folder / "batches.meta.txt", 10) or _CIFAR10_NAMES,
    )


def read_cifar100(folder: Path) -> Arrays:
    """CIFAR-100 from `cifar-100-binary`: a coarse and a fine label byte, then 3072 pixels; fine labels."""
    x_train, y_train = _read_bin(folder / "train.bin", CIFAR_TRAIN, 2, 100)
    x_test, y_test = _read_bin(folder / "test.bin", CIFAR_TEST, 2, 100)
    names = _read_names(folder / "fine_label_names.txt", 100) or tuple(str(i) for i in range(100))
    return Arrays(x_train, y_train, x_test, y_test, names)


def _read_bin(path: Path, records: int, label_bytes: int, classes: int) -> tuple[Array, Array]:
    width = label_bytes + _PIXELS
    try:
        size = path.stat().st_size
        if size != records * width:
            raise BadInput(
                f"{path} has {size:,} bytes instead of {records * width:,} ({records:,} records of {width}); "
                "fetch the file again"
            )
        rows = np.fromfile(path, np.uint8).reshape(records, width)
    except OSError as error:
        raise unreadable(path, error) from error
    labels = rows[:, label_bytes - 1]
    if labels.max(initial=0) >= classes:
        raise BadInput(f"{path} has labels beyond {classes - 1}: it is corrupt or another set; fetch it again")
    return rows[:, label_bytes:].reshape(records, 3, 32, 32), labels.copy()


def _read_names(path: Path, classes: int) -> tuple[str, ...] | None:
    try:
        names = tuple(path.read_text("utf-8").split())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text; fetch it again or delete it") from error
    if len(set(names)) != classes or len(names) != classes:
        raise BadInput(f"{path} must name {classes} different classes, one a line; fetch it again or delete it")
    return names
