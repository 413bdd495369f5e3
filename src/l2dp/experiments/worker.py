"""One run in a process of its own: `python -m l2dp.experiments.worker`, with the run as one line of JSON on its input.

The process ends when its input does: a runner that dies, however it dies, takes its runs with it.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from l2dp.errors import L2dpError
from l2dp.sweeps import Request

ORPHANED = 4
PATIENCE = 30.0
"""Seconds to wait for a process that is just ending in the same folder."""


def to_line(request: Request, seed: int, folder: Path, threads: int) -> str:
    return json.dumps({"request": asdict(request), "seed": seed, "folder": str(folder), "threads": threads}) + "\n"


def request_from(found: dict[str, Any]) -> Request:
    return Request(**{**found, "epochs": tuple(found["epochs"])})


def main() -> int:
    asked = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with, args=(sys.stdin.read,), daemon=True).start()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch
    from rich.console import Console

    from l2dp import sweeps

    torch.set_num_threads(asked["threads"])
    folder = Path(asked["folder"])
    try:
        _wait_for(folder)
        sweeps.run_one(request_from(asked["request"]), asked["seed"], folder, Console())
    except L2dpError as error:
        print(" ".join(str(error).split()), file=sys.stderr, flush=True)
        return error.exit_code
    return 0


def _end_with(read: Callable[[], str]) -> None:
    read()
    os._exit(ORPHANED)


def _wait_for(folder: Path) -> None:
    """Waits until whoever holds a run folder lets it go; the run itself then says if it did not."""
    lock = folder / ".lock"
    until = time.monotonic() + PATIENCE
    while lock.exists() and time.monotonic() < until:
        with lock.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError:
                time.sleep(0.1)


if __name__ == "__main__":
    # The other thread may sit in a read that never ends.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
