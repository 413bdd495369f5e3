"""Which records a home has learned, in which task: an exact index of keyed fingerprints on disk, in bounded memory.

It sees fingerprints only, never a record. They lie in sorted files of fixed width that are searched where they are
(mapped, not loaded) and merged as they grow, so that a task costs what it writes and not what was there before: in a
B-tree every task would touch almost every page, for fingerprints are random.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2dp.durable import PRIVATE, make_folder, sha256, write_bytes
from l2dp.errors import BadInput, L2dpError

Words = NDArray[np.uint64]
Numbers = NDArray[np.uint32]
Mask = NDArray[np.bool_]

FORMAT = 1
WIDTH = 16
"""Bytes kept of a fingerprint: two different records among ten million meet by chance once in 10²⁴ homes."""
ROW = WIDTH + 4
"""Bytes on disk for one fingerprint: two words, and the number of its task."""
FANOUT = 8
"""That many files of one size are merged into one: a fingerprint is written about log₈ of their number times."""
SMALLEST = 4096
PART = 1 << 19
"""Fingerprints that a merge holds in memory."""
EXCLUDED = 0
"""The number under which those are kept who must not be learned any more; tasks count from 1."""


def words(found: NDArray[Any]) -> tuple[Words, Words]:
    """The first 16 bytes of each fingerprint as two numbers; comparing the numbers compares the bytes."""
    if found.ndim != 1 or found.dtype.itemsize < WIDTH:
        raise BadInput(f"a fingerprint has at least {WIDTH} bytes, in one row of its own")
    plain = np.ascontiguousarray(found).view(np.uint8).reshape(-1, found.dtype.itemsize)[:, :WIDTH]
    both = np.ascontiguousarray(plain).view(">u8").astype(np.uint64)
    return np.ascontiguousarray(both[:, 0]), np.ascontiguousarray(both[:, 1])


@dataclass(frozen=True)
class Segment:
    """One sorted file: all first words, all second words, all task numbers."""

    name: str
    count: int
    sha256: str

    @property
    def tier(self) -> int:
        """Files of one tier have about the same size."""
        return (self.count // SMALLEST).bit_length() // (FANOUT.bit_length() - 1)


Stamp = tuple[int, int, int, int]


def _stamp(found: os.stat_result) -> Stamp:
    """What tells a file from the same file written since, or from another one in its place."""
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _stamp_of(path: Path) -> Stamp | None:
    try:
        return _stamp(path.stat())
    except OSError:
        return None


class _Mapped:
    """A segment as arrays that are read from the disk where they are touched."""

    def __init__(self, path: Path, count: int) -> None:
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size != ROW * count:
                    raise BadInput(f"{path} is damaged (its size is not what it was); restore it from a backup")
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                self.stamp = _stamp(os.fstat(file.fileno()))
        except OSError as error:
            raise BadInput(f"cannot read {path}: {error.strerror}; restore it from a backup") from error
        self.first: Words = np.frombuffer(data, "<u8", count)
        self.second: Words = np.frombuffer(data, "<u8", count, 8 * count)
        self.task: Numbers = np.frombuffer(data, "<u4", count, WIDTH * count)

    def matches(self, first: Words, second: Words) -> tuple[NDArray[np.int64], Numbers]:
        """For questions in ascending order: the places of those that are here, and under which number each time."""
        at = np.searchsorted(self.first, first, "left")
        rows = np.flatnonzero(at < len(self.first))
        places, numbers = [], []
        # One step along the equal first words in each turn; a second turn is all but never needed.
        while len(rows):
            here = at[rows]
            rows = rows[self.first[here] == first[rows]]
            here = at[rows]
            same = self.second[here] == second[rows]
            places.append(rows[same])
            numbers.append(self.task[here[same]])
            at[rows] += 1
            rows = rows[at[rows] < len(self.first)]
        if not places:
            return np.zeros(0, np.int64), np.zeros(0, np.uint32)
        return np.concatenate(places), np.concatenate(numbers)


class Fingerprints:
    """The index of one home, in a folder of its own. One process writes at a time: the home sees to that.

    Guarantee
    ---------
    Exact: a fingerprint is found if and only if it was added (up to the chance that two records share 128 bits of an
    HMAC). `add` and `exclude` are durable when they return, and after a crash either wholly done or not at all. A task
    that is added again finds its own fingerprints as its own, never as an overlap.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._manifest = folder / "index.json"
        self._segments: list[Segment] = []
        self._tasks: dict[str, int] = {}
        """How many fingerprints each task brought, in the order of their numbers, which start at 1."""
        self._numbers: dict[str, int] = {}
        self._excluded = 0
        self._mapped: dict[str, _Mapped] = {}
        self._listed: Stamp | None = None
        """Of the list of files, from before it was read."""
        self._checked: set[str] = set()
        """Files whose contents are known to be what was written: before its first answer each is read once."""
        self._open()

    def _open(self) -> None:
        for attempt in range(5):
            self._load()
            try:
                self._mapped = {part.name: _Mapped(self._folder / part.name, part.count) for part in self._segments}
                break
            except BadInput:
                # A writer may have merged files since; then the list of them has changed as well.
                if attempt == 4 or all((self._folder / part.name).exists() for part in self._segments):
                    raise

    def _load(self) -> None:
        self._segments, self._tasks, self._excluded, self._numbers = [], {}, 0, {}
        self._listed = _stamp_of(self._manifest)
        if not self._manifest.exists():
            return
        try:
            checksum, _, text = self._manifest.read_text("utf-8").partition("\n")
            if hashlib.sha256(text.encode()).hexdigest() != checksum:
                raise ValueError("its checksum does not match")
            found = json.loads(text)
            if found["format"] > FORMAT:
                raise BadInput(
                    f"{self._folder} has format {found['format']}, this l2dp knows up to {FORMAT}; use a newer l2dp"
                )
            self._segments = [Segment(**part) for part in found["segments"]]
            self._tasks = {str(name): int(count) for name, count in found["tasks"]}
            self._numbers = {name: number for number, name in enumerate(self._tasks, 1)}
            self._excluded = int(found["excluded"])
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadInput(f"{self._manifest} is damaged ({error}); restore it from a backup") from error

    # --- questions ----------------------------------------------------------------------------------------

    def current(self) -> bool:
        """Whether the files are those that were opened, untouched since: then this need not be opened again."""
        files = {self._folder / name: mapped.stamp for name, mapped in self._mapped.items()}
        return _stamp_of(self._manifest) == self._listed and all(_stamp_of(path) == files[path] for path in files)

    @property
    def tasks(self) -> dict[str, int]:
        """How many fingerprints each task added that were not known before."""
        return dict(self._tasks)

    def counts(self) -> tuple[int, int]:
        """How many fingerprints of tasks there are, and how many that are excluded."""
        return sum(self._tasks.values()), self._excluded

    def known(self, found: NDArray[Any], task: str) -> Mask:
        """Marks the fingerprints that another task has brought."""
        own = self._number(task)
        rows, numbers = self._matches(found)
        return self._mask(rows[(numbers != EXCLUDED) & (numbers != own)], len(found))

    def excluded(self, found: NDArray[Any]) -> Mask:
        """Marks the fingerprints that must not be learned any more."""
        rows, numbers = self._matches(found)
        return self._mask(rows[numbers == EXCLUDED], len(found))

    def verify(self) -> list[str]:
        """Everything that is wrong with the index, in plain words. Reads all of it."""
        faults = []
        counts = np.zeros(len(self._tasks) + 1, dtype=np.int64)
        for segment in self._segments:
            path, mapped = self._folder / segment.name, self._mapped[segment.name]
            if sha256(path) != segment.sha256:
                faults.append(f"{path} was changed: its SHA-256 does not match")
                continue
            seen = np.bincount(mapped.task, minlength=len(counts))
            if len(seen) > len(counts):
                faults.append(f"{path} names a task that the index does not know")
                continue
            counts += seen
        if not faults and counts.tolist() != [self._excluded, *self._tasks.values()]:
            faults.append(f"{self._folder}: the tasks do not have as many fingerprints as its list says")
        return faults

    # --- changes ------------------------------------------------------------------------------------------

    def add(self, task: str, found: NDArray[Any]) -> None:
        """Notes that a task has brought these. What it brought before is its own and not added again."""
        own = self._number(task)
        rows, numbers = self._matches(found)
        mine = self._mask(rows[numbers == own], len(found))
        # Whoever asks, one of two tasks is another one: a third need not be kept.
        others = np.bincount(rows[(numbers != EXCLUDED) & (numbers != own)], minlength=len(found))
        new = found[~mine & (others < 2)]
        with self._whole():
            added = self._write(new, own)
            self._tasks[task] = self._tasks.get(task, 0) + added
            self._numbers[task] = own
            self._publish()

    def exclude(self, found: NDArray[Any]) -> int:
        """Notes that these must not be learned any more; gives how many were not excluded before."""
        new = found[~self.excluded(found)]
        with self._whole():
            added = self._write(new, EXCLUDED)
            self._excluded += added
            self._publish()
        return added

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """A change that fails half-way is forgotten: what is on the disk counts."""
        try:
            yield
        except BaseException:
            self._open()
            raise

    # --- files --------------------------------------------------------------------------------------------

    def _number(self, task: str) -> int:
        """A task's number; a new one gets the next."""
        return self._numbers.get(task, len(self._tasks) + 1)

    def _mask(self, rows: NDArray[np.int64], size: int) -> Mask:
        mask = np.zeros(size, dtype=np.bool_)
        mask[rows] = True
        return mask

    def _matches(self, found: NDArray[Any]) -> tuple[NDArray[np.int64], Numbers]:
        """Every place of `found` that is known, and under which number, once for each."""
        for segment in self._segments:
            if segment.name not in self._checked:
                if sha256(self._folder / segment.name) != segment.sha256:
                    raise BadInput(f"{self._folder / segment.name} was changed; restore it from a backup")
                self._checked.add(segment.name)
        first, second = words(found)
        order = np.argsort(first)
        first, second = first[order], second[order]
        parts = [mapped.matches(first, second) for mapped in self._mapped.values()]
        if not parts:
            return np.zeros(0, np.int64), np.zeros(0, np.uint32)
        return order[np.concatenate([rows for rows, _ in parts])], np.concatenate([numbers for _, numbers in parts])

    def _write(self, found: NDArray[Any], number: int) -> int:
        """One more file, each fingerprint once; gives how many. It counts from when it is published."""
        make_folder(self._folder)
        self._sweep()
        first, second = words(found)
        order = np.lexsort((second, first))
        first, second = first[order], second[order]
        if len(first):
            new = np.append(True, (first[1:] != first[:-1]) | (second[1:] != second[:-1]))
            first, second = first[new], second[new]
            self._write_file([(first, second, np.full(len(first), number, dtype=np.uint32))], len(first))
        return len(first)

    def _merge(self, tier: int) -> None:
        """All files of one tier become one, a part of the range of fingerprints after the other."""
        old = [part for part in self._segments if part.tier == tier]
        total = sum(part.count for part in old)
        steps = -(-total // PART)
        edges = [np.uint64(2**64 * step // steps) for step in range(1, steps)]
        mapped = [self._mapped[part.name] for part in old]
        cuts = [np.array([0, *np.searchsorted(part.first, edges).tolist(), len(part.first)]) for part in mapped]

        def parts() -> Any:
            for step in range(steps):
                slices = [slice(cut[step], cut[step + 1]) for cut in cuts]
                first = np.concatenate([part.first[where] for part, where in zip(mapped, slices, strict=True)])
                second = np.concatenate([part.second[where] for part, where in zip(mapped, slices, strict=True)])
                task = np.concatenate([part.task[where] for part, where in zip(mapped, slices, strict=True)])
                order = np.lexsort((task, second, first))
                yield first[order], second[order], task[order]

        self._segments = [part for part in self._segments if part.tier != tier]
        self._write_file(parts(), total)

    def _write_file(self, parts: Any, count: int) -> None:
        """A sorted file, durable under its name; a temporary one until then."""
        taken = [int(part.name[4:-4]) for part in self._segments] + [int(path.name[4:-4]) for path in self._files()]
        name = f"seg-{max(taken, default=0) + 1:06d}.bin"
        path, temporary = self._folder / name, self._folder / f".{name}"
        try:
            handle = os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_RDWR, PRIVATE)
            try:
                done = 0
                for first, second, task in parts:
                    for column, offset, width in ((first, 0, 8), (second, 8 * count, 8), (task, WIDTH * count, 4)):
                        _write_all(handle, column.astype(f"<u{width}").tobytes(), offset + width * done)
                    done += len(first)
                os.fsync(handle)
            finally:
                os.close(handle)
            temporary.rename(path)
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise L2dpError(
                f"could not write {path}: {error.strerror}; what was saved before is intact, make room and run the "
                "same command again"
            ) from error
        self._segments.append(Segment(name, count, sha256(path)))
        self._checked.add(name)
        self._mapped[name] = _Mapped(path, count)

    def _publish(self) -> None:
        """The new list of files takes the place of the old one, in one step; what it leaves out is removed."""
        while full := _full_tier(self._segments):
            self._merge(full[0].tier)
        text = json.dumps(
            {
                "format": FORMAT,
                "segments": [asdict(part) for part in self._segments],
                "tasks": list(self._tasks.items()),
                "excluded": self._excluded,
            },
            ensure_ascii=False,
        )
        checksum = hashlib.sha256(text.encode()).hexdigest()
        write_bytes(self._manifest, f"{checksum}\n{text}".encode(), PRIVATE)
        self._listed = _stamp_of(self._manifest)
        self._mapped = {part.name: self._mapped[part.name] for part in self._segments}
        self._sweep()

    def _files(self) -> list[Path]:
        return list(self._folder.glob("seg-*.bin"))

    def _sweep(self) -> None:
        """Removes what a killed process was writing, and files that were merged."""
        kept = {part.name for part in self._segments}
        for path in [*self._files(), *self._folder.glob(".seg-*.bin"), *self._folder.glob(".index.json.*")]:
            if path.name not in kept:
                path.unlink(missing_ok=True)


def _full_tier(segments: Sequence[Segment]) -> list[Segment]:
    """The files of the lowest tier that has enough of them to be merged."""
    for tier in sorted({part.tier for part in segments}):
        same = [part for part in segments if part.tier == tier]
        if len(same) >= FANOUT:
            return same
    return []


def _write_all(handle: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(handle, view, offset)
        view, offset = view[done:], offset + done
