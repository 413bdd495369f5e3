"""Arrays from NPZ files that need not be trusted: sizes are checked before anything is unpacked; no pickles."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path

import numpy as np

from l2dp.errors import BadInput
from l2dp.streams.files import Array, unreadable

_MOST = 8 << 30
# Real data of this size never packs this tightly; a few zeros repeated for ever do.
_BOMB_SIZE, _BOMB_RATIO = 256 << 20, 200


def read_npz(path: Path, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, Array]:
    """The required arrays of a file, and those of the optional ones that it holds."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise unreadable(path, error) from error
    with file:
        try:
            archive = zipfile.ZipFile(file)
        # A hostile directory makes zipfile raise nearly anything.
        except Exception as error:
            raise BadInput(
                f"{path} is not a whole NPZ file ({_one_line(error)}); write it again with numpy.savez"
            ) from error
        with archive:
            present = {n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy")}
            missing = [part for part in required if part not in present]
            if missing:
                raise BadInput(f"{path} lacks the arrays {', '.join(missing)}; it must hold {', '.join(required)}")
            wanted = [*required, *(part for part in optional if part in present)]
            # All sizes are checked before anything is unpacked.
            total = sum(_declared_size(path, archive, part) for part in wanted)
            if total > _MOST:
                raise BadInput(f"{path} unpacks to {total:,} bytes, more than this reader takes (8 GiB)")
            return {part: _read_array(path, archive, part) for part in wanted}


def _declared_size(path: Path, archive: zipfile.ZipFile, part: str) -> int:
    """The bytes that the array unpacks to; its own header and the archive's must agree."""
    info = archive.getinfo(f"{part}.npy")
    if info.file_size > _BOMB_SIZE and info.file_size > _BOMB_RATIO * info.compress_size:
        raise BadInput(
            f"{path}: array {part} unpacks to {info.file_size:,} bytes from {info.compress_size:,}, "
            "which no real data does; write it again with numpy.savez"
        )
    try:
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError("its compression is not one that numpy.savez uses")
        with archive.open(info) as stream:
            version = np.lib.format.read_magic(stream)
            if version == (1, 0):
                shape, _, kind = np.lib.format.read_array_header_1_0(stream)
            elif version == (2, 0):
                shape, _, kind = np.lib.format.read_array_header_2_0(stream)
            else:
                raise ValueError(f"format version {version[0]}.{version[1]} is not for plain arrays")
            start = stream.tell()
    # A hostile header makes NumPy's parser raise nearly anything.
    except Exception as error:
        raise _corrupt_array(path, part, error) from error
    if kind.hasobject:
        raise BadInput(f"{path}: array {part} holds Python objects, which are never unpickled; save numbers or strings")
    if min(shape, default=0) < 0 or start + math.prod(shape) * kind.itemsize != info.file_size:
        raise BadInput(f"{path}: array {part} is not as long as its header says; write it again with numpy.savez")
    return info.file_size


def _read_array(path: Path, archive: zipfile.ZipFile, part: str) -> Array:
    try:
        with archive.open(f"{part}.npy") as stream:
            array: Array = np.lib.format.read_array(stream, allow_pickle=False)
    except MemoryError as error:
        raise BadInput(f"{path}: array {part} does not fit into memory; use fewer records") from error
    except Exception as error:
        raise _corrupt_array(path, part, error) from error
    return array


def _corrupt_array(path: Path, part: str, error: Exception) -> BadInput:
    return BadInput(f"{path}: array {part} is corrupt ({_one_line(error)}); write it again with numpy.savez")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
