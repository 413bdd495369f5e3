"""One writer at a time: a home is held by the process that changes it, and let go by the system when that ends."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from l2dp.durable import PRIVATE
from l2dp.errors import BadInput, L2dpError


@contextmanager
def held(folder: Path, wait: float = 0.0) -> Iterator[None]:
    """Holds a home; refuses after `wait` seconds if another process does."""
    try:
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, PRIVATE)
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise L2dpError(f"{folder} cannot be written ({error.strerror}); nothing was changed") from error
        raise L2dpError(f"cannot lock {folder}: {error.strerror}; nothing was changed") from error
    try:
        until = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() >= until:
                    raise BadInput(
                        f"another process is working in {folder}; nothing was changed; wait for it, or use --wait"
                    ) from None
                time.sleep(0.05)
        yield
    finally:
        os.close(handle)
