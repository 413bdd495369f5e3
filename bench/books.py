"""What ten million records and users cost a home: one more task against the index of fingerprints, and in the ledger.

Both are filled first, then one task of 100,000 is timed, and the questions that `l2dp status` and `l2dp verify` ask.
"""

from __future__ import annotations

import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from l2dp.book import Voucher, open_book
from l2dp.budget import Budget
from l2dp.fingerprints import Fingerprints

STATUS_SECONDS = 1.0
"""What a question of `l2dp status` may take."""


class Seconds(NamedTuple):
    """On the wall, and of this process: the second does not count what other programs took in between."""

    wall: float
    process: float

    def __str__(self) -> str:
        return f"{self.wall:.3g} ({self.process:.3g})"


def _timed(work: Callable[[], object]) -> Seconds:
    start, used = time.perf_counter(), time.process_time()
    work()
    return Seconds(time.perf_counter() - start, time.process_time() - used)


def _middle(taken: Sequence[Seconds]) -> Seconds:
    return sorted(taken)[len(taken) // 2]


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def fingerprints(total: int, task: int) -> dict[str, Any]:
    """Seconds and memory of one task of `task` records against an index of `total`."""
    chance = np.random.default_rng(0)

    def some() -> NDArray[Any]:
        return np.frombuffer(chance.bytes(32 * task), "V32")

    with tempfile.TemporaryDirectory() as folder:
        index = Fingerprints(Path(folder))
        filling = [_timed(partial(index.add, f"task {number}", some())) for number in range(total // task)]
        size = _bytes(Path(folder))
        opening = _timed(lambda: Fingerprints(Path(folder)).counts())
        asking, adding, peak = [], [], 0
        old = some()
        index.add("old", old)
        half = np.concatenate([old[::2], some()[::2]])
        for number in range(5):
            new = some()
            tracemalloc.start()
            asking.append(_timed(partial(index.known, new, "new")))
            adding.append(_timed(partial(index.add, f"more {number}", new)))
            peak = max(peak, tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        return {
            "fingerprints": total,
            "task": task,
            "bytes_each": size / total,
            "open_seconds": opening,
            "ask_seconds": _middle(asking),
            "add_seconds": _middle(adding),
            "longest_add_seconds": max(filling),
            "middle_add_seconds": _middle(filling),
            "peak_memory_mb": peak / 1e6,
            "overlap_found": int(index.known(half, "new").sum()),
            "overlap_true": len(half) // 2,
            "verify_seconds": _timed(index.verify),
        }


def ledger(total: int, task: int) -> dict[str, Any]:
    """Seconds of one task of `task` returning users in a book of `total`, and of the questions of `status`."""
    cost = Budget(0.1, 1e-7)
    part = min(total, 10 * task)
    chance = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder, open_book(Path(folder) / "ledger", Budget(1.0, 1e-6)) as book:
        users: list[bytes] = []
        for number in range(total // part):
            text = chance.bytes(16 * part)
            new = [text[16 * row : 16 * row + 16] for row in range(part)]
            book.reserve(new, cost, Voucher(f"task {number}", "data", "it", 1.0))
            users += new[:: total // task]
        reserve = _timed(lambda: book.reserve(users, cost, Voucher("new", "data", "it", 1.0)))
        again = _timed(lambda: book.reserve(users, cost, Voucher("new", "data", "it", 1.0)))
        tracemalloc.start()
        book.reserve(users, cost, Voucher("newer", "data", "it", 1.0))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        status = _timed(lambda: (book.levels(), book.reservations(), book.head()))
        spent = _timed(lambda: book.spent(users[0]))
        verify = _timed(book.verify)
        book.close()  # the write-ahead log is folded in
        size = _bytes(Path(folder))
        return {
            "blocks": total,
            "task": len(users),
            "bytes_each": size / total,
            "reserve_seconds": reserve,
            "again_seconds": again,
            "peak_memory_mb": peak / 1e6,
            "status_seconds": status,
            "spent_seconds": spent,
            "verify_seconds": verify,
        }


def _size(quick: bool) -> tuple[int, int]:
    """At ten million; in quick form at 100,000."""
    return (100_000, 10_000) if quick else (10_000_000, 100_000)


def _shown(console: Console, title: str, rows: dict[str, object]) -> None:
    out = Table(title=title, caption="seconds on the wall (of this process)")
    out.add_column("")
    out.add_column("", justify="right")
    for name, value in rows.items():
        out.add_row(name, str(value))
    console.print(out)


def run_fingerprints(console: Console, quick: bool) -> dict[str, Any]:
    total, task = _size(quick)
    index = fingerprints(total, task)
    _shown(
        console,
        f"A task of {task:,} records against {total:,} fingerprints",
        {
            "asking who is known": index["ask_seconds"],
            "adding": index["add_seconds"],
            "longest add while filling, with merges": index["longest_add_seconds"],
            "opening, for status": index["open_seconds"],
            "verifying everything": index["verify_seconds"],
            "bytes each on disk": f"{index['bytes_each']:.1f}",
            "memory, MB": f"{index['peak_memory_mb']:.0f}",
            "overlap found, true": f"{index['overlap_found']:,}, {index['overlap_true']:,}",
        },
    )
    exact = index["overlap_found"] == index["overlap_true"]
    return index | {"passed": exact and index["open_seconds"].wall <= STATUS_SECONDS}


def run_ledger(console: Console, quick: bool) -> dict[str, Any]:
    total, task = _size(quick)
    book = ledger(total, task)
    _shown(
        console,
        f"A task of {task:,} returning users in a ledger of {total:,}",
        {
            "reserving": book["reserve_seconds"],
            "finding the reservation again": book["again_seconds"],
            "what status asks": book["status_seconds"],
            "what one user has spent": book["spent_seconds"],
            "verifying everything": book["verify_seconds"],
            "bytes each on disk": f"{book['bytes_each']:.1f}",
            "memory, MB": f"{book['peak_memory_mb']:.0f}",
        },
    )
    return book | {"passed": book["status_seconds"].wall <= STATUS_SECONDS}
