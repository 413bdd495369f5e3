"""Lines that are only ever added: one JSON object each, durable when `append` returns. A torn last line never was."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from l2dp.durable import PRIVATE, sync_folder
from l2dp.errors import BadInput, L2dpError

RELEASES, EVALUATIONS = "releases.jsonl", "evaluations.jsonl"


def read(path: Path) -> list[dict[str, Any]]:
    """All lines; none if there is no file."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}; check its permissions") from error
    found = []
    for line in text[: text.rfind(b"\n") + 1].splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            raise BadInput(f"{path} is damaged; restore it from a backup, or remove it: it is a history only") from None
    return found


def append(path: Path, line: dict[str, Any]) -> None:
    """One more line; what a crash tore off before is removed."""
    data = (json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n").encode()
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE)
        try:
            size = os.fstat(handle).st_size
            kept = size
            if size and os.pread(handle, 1, size - 1) != b"\n":
                kept = path.read_bytes().rfind(b"\n") + 1
            os.ftruncate(handle, kept)
            os.pwrite(handle, data, kept)
            os.fsync(handle)
        finally:
            os.close(handle)
        sync_folder(path.parent)
    except OSError as error:
        raise L2dpError(
            f"could not write {path}: {error.strerror}; make room and run the same command again"
        ) from error
