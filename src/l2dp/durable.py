"""Files that are either wholly there or not there: temporary file, fsync, rename, fsync of the folder.

JSON and safetensors only; nothing is ever unpickled. A full or read-only disk becomes one clear line.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from l2dp.errors import BadInput, L2dpError

if TYPE_CHECKING:  # torch is imported where tensors are: a question about a home is answered before it is loaded
    from torch import Tensor

PRIVATE = 0o600


def sha256(path: Path) -> str:
    """The SHA-256 of a file, as the hexadecimal digits that `sha256sum` prints."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot make the folder {path}: {error.strerror}; choose another --out") from error


def sync_folder(path: Path) -> None:
    """Makes the names in a folder durable: what was renamed, made or removed there."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder that is there whole or not at all: filled under another name, for its owner alone, and then renamed.

    `path` must not exist or be an empty folder.
    """
    parent = path.absolute().parent
    make_folder(parent)
    try:
        draft = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=parent))
    except OSError as error:
        raise BadInput(f"cannot write to {path}: {error.strerror}; choose another place") from error
    try:
        yield draft
        sync_folder(draft)
        os.rename(draft, path)  # noqa: PTH104 (onto an empty folder as well)
        sync_folder(parent)
    except OSError as error:
        raise L2dpError(
            f"could not write {path}: {error.strerror or error}; nothing was made, make room and run the same command "
            "again"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_bytes(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Writes `data` to `path` durably and atomically: after a crash the old content or the new, never less."""
    if path.is_dir():
        raise BadInput(f"cannot write {path}: it is a folder; name a file")
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)  # noqa: PTH105 (a path from mkstemp)
        sync_folder(path.parent)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise L2dpError(
            f"could not write {path}: {error.strerror}; what was saved before is intact, "
            "make room and run the same command again"
        ) from error


def _no_nan(value: Any) -> Any:
    """JSON has no NaN: what does not apply is null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _no_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_no_nan(item) for item in value]
    return value


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, (json.dumps(_no_nan(value), indent=1, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path} cannot be read as JSON ({error}); restore it or use another folder") from error


def _checksum(tensors: dict[str, Tensor], text: str) -> str:
    """Of all that a file holds: safetensors itself does not notice a changed number."""
    import torch

    total = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()


def write_tensors(path: Path, tensors: dict[str, Tensor], meta: Any, mode: int = PRIVATE) -> None:
    """One safetensors file; `meta` is JSON in its header, so both change in one step."""
    import safetensors.torch

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(meta)
    # One entry only: safetensors writes several in random order, and equal contents should make equal files.
    header = {"l2dp": f"{_checksum(plain, text)} {text}"}
    write_bytes(path, safetensors.torch.save(plain, metadata=header), mode)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    import safetensors.torch

    try:
        data = path.read_bytes()
        tensors = safetensors.torch.load(data)
        (length,) = struct.unpack("<Q", data[:8])
        checksum, _, text = json.loads(data[8 : 8 + length])["__metadata__"]["l2dp"].partition(" ")
        if _checksum(tensors, text) != checksum:
            raise ValueError("its checksum does not match")
        return tensors, json.loads(text)
    except Exception as error:
        raise BadInput(f"{path} is damaged ({type(error).__name__}); remove its folder to start over") from error
