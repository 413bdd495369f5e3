"""Where the public datasets are: in `$L2DP_DATA`, in the user's cache, or at their home on the network.

What is downloaded is checked against published checksums before it gets its name, so that a file in the
cache is always whole. Only the expected files ever come out of an archive, to paths chosen here.
"""

from __future__ import annotations

import errno
import fcntl
import gzip
import hashlib
import http.client
import os
import re
import socket
import ssl
import sys
import tarfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol, cast

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from l2dp.errors import BadInput, L2dpError
from l2dp.streams.files import unreadable

_BLOCK = 1 << 16
TIMEOUT = 30.0
# Fewer bytes than this within one timeout is a stalled connection, even if it never quite stops.
SLOWEST = 1024
WAITS = (1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class Content:
    """A file inside an archive: its greatest size and its checksum (`kind:hex`).

    Label names have none of their own: the archive's covers them, and a dataset is complete without them.
    """

    limit: int
    checksum: str | None


@dataclass(frozen=True)
class Archive:
    """What is downloaded (a gzipped file or a tar.gz), and the files to take from it, by their last name."""

    url: str
    size: int
    md5: str
    holds: Mapping[str, Content]


@dataclass(frozen=True)
class Home:
    """A public dataset: the folder it lives in, and the archives it comes from.

    `suffixes` are those under which a file that somebody put there by hand can be read.
    """

    title: str
    folder: str
    by_hand: str
    archives: tuple[Archive, ...]
    suffixes: tuple[str, ...] = ("",)

    def missing(self, folder: Path) -> list[str]:
        """The necessary files that `folder` lacks."""
        return [
            name
            for archive in self.archives
            for name, content in archive.holds.items()
            if content.checksum and not any((folder / (name + s)).is_file() for s in self.suffixes)
        ]


def _mnist(name: str, size: int, md5: str, limit: int, sha256: str) -> Archive:
    url = f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}.gz"
    return Archive(url, size, md5, {name: Content(limit, f"sha256:{sha256}")})


def _cifar10_file(md5: str) -> Content:
    return Content(30_730_000, f"md5:{md5}")


HOMES: dict[str, Home] = {
    "mnist": Home(
        "MNIST",
        "mnist",
        "the four idx files",
        (
            _mnist(
                "train-images-idx3-ubyte",
                9_912_422,
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                47_040_016,
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            ),
            _mnist(
                "train-labels-idx1-ubyte",
                28_881,
                "d53e105ee54ea40749a09fcbcd1e9432",
                60_008,
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            ),
            _mnist(
                "t10k-images-idx3-ubyte",
                1_648_877,
                "9fb629c4189551a2d022fa330f9573f3",
                7_840_016,
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            ),
            _mnist(
                "t10k-labels-idx1-ubyte",
                4_542,
                "ec29112dd5afa0611ce80d1b7f02629c",
                10_008,
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
        ),
        suffixes=("", ".gz"),
    ),
    "cifar10": Home(
        "CIFAR-10",
        "cifar-10-batches-bin",
        "the six .bin files of the binary version",
        (
            Archive(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                170_052_171,
                "c32a1d4ab5d03f1284b67883e8d87530",
                {
                    "data_batch_1.bin": _cifar10_file("5dd7e06a14cb22eb9f671a540d1b7c25"),
                    "data_batch_2.bin": _cifar10_file("5ea93a67294ea407fff1d09f752e9692"),
                    "data_batch_3.bin": _cifar10_file("942cd6a4bcdd0dd3c604fbe906cb4421"),
                    "data_batch_4.bin": _cifar10_file("ae636b3ba5c66a11e91e8cb52e771fcb"),
                    "data_batch_5.bin": _cifar10_file("53f37980c15c3d472c316c40844f3f0d"),
                    "test_batch.bin": _cifar10_file("803d5f7f4d78ea53de84dbe85f74fb6d"),
                    "batches.meta.txt": Content(4096, None),
                },
            ),
        ),
    ),
    "cifar100": Home(
        "CIFAR-100",
        "cifar-100-binary",
        "train.bin and test.bin of the binary version",
        (
            Archive(
                "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
                168_513_733,
                "03b5dce01913d631647c71ecec9e9cb8",
                {
                    "train.bin": Content(
                        153_700_000,
                        "sha256:f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
                    ),
                    "test.bin": Content(
                        30_740_000,
                        "sha256:d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
                    ),
                    "fine_label_names.txt": Content(4096, None),
                },
            ),
        ),
    ),
}


class _Broken(Exception):
    """A try of a download failed; another may succeed."""


class _Hopeless(Exception):
    """A download failed in a way that another try does not mend."""


class _Readable(Protocol):
    def read(self, size: int = ..., /) -> bytes: ...


def locate(name: str) -> Path:
    """The folder that holds the public dataset `name`, downloaded if it must be."""
    home = HOMES[name]
    found, looked = _given(home)
    if found:
        return found
    folder = cache_folder() / home.folder
    try:
        if home.missing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with _locked(folder, home):
                for archive in home.archives:
                    # Asked again under the lock: another process may have brought it meanwhile.
                    if archive.holds.keys() & home.missing(folder):
                        _bring(archive, folder)
    except _Hopeless as error:
        raise BadInput(
            f"{home.title} is neither in $L2DP_DATA ({looked}) nor in {folder}, and the download failed "
            f"({error}); put {home.by_hand} into {folder}, "
            f"or set L2DP_DATA to a folder with {home.folder}/ in it"
        ) from error
    except OSError as error:
        raise L2dpError(
            f"{home.title} could not be written to {folder}: {error.strerror or error}; make room or set "
            "XDG_CACHE_HOME to another place; a download that was begun is continued next time"
        ) from error
    return folder


def present(name: str) -> Path | None:
    """The folder that holds the dataset `name`, if it is on this machine already."""
    home = HOMES[name]
    found, _ = _given(home)
    folder = cache_folder() / home.folder
    return found or (None if home.missing(folder) else folder)


def _given(home: Home) -> tuple[Path | None, str]:
    """The dataset's folder in `$L2DP_DATA` if it is complete, and what was found there if not."""
    asked = os.environ.get("L2DP_DATA")
    if not asked:
        return None, "not set"
    root = Path(asked)
    try:
        if not root.is_dir():
            raise BadInput(f"L2DP_DATA is {asked}, which is not a folder; correct it, or unset it")
        folder = root / home.folder
        if not folder.is_dir():
            return None, f"{root} has no {home.folder}/"
        missing = home.missing(folder)
    except OSError as error:
        raise unreadable(root, error) from error
    return (None, f"{folder} lacks {', '.join(missing)}") if missing else (folder, "")


RECORDINGS = ("wisdm", "motionsense")
"""The sets behind `har-rates`, each in a folder of its own below `har/`."""
RECORDED = ("samples.parquet", "labels.parquet")


def recordings_at(dataset: str) -> tuple[Path | None, list[Path]]:
    """The folder with one set of recordings, if there is one, and where was looked."""
    asked = os.environ.get("L2DP_DATA")
    places = [place / "har" / dataset for place in (*([Path(asked)] if asked else []), cache_folder())]
    return next((place for place in places if all((place / name).is_file() for name in RECORDED)), None), places


def cache_folder() -> Path:
    # A relative path must be ignored, says the XDG specification.
    asked = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (asked if asked.is_absolute() else Path.home() / ".cache") / "l2dp"
    except RuntimeError as error:
        raise BadInput("there is no home directory for a cache; set L2DP_DATA or XDG_CACHE_HOME") from error


@contextmanager
def _locked(folder: Path, home: Home) -> Iterator[None]:
    """One process at a time; the operating system frees the lock of one that died."""
    with (folder / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another process that is downloading {home.title}", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _bring(archive: Archive, folder: Path) -> None:
    """Download, check and unpack one archive. Its part file outlives everything but being wrong."""
    name = archive.url.rpartition("/")[2]
    part = folder / f"{name}.part"
    with _progress(name, archive, folder) as show:
        _download(archive, part, show)
    if _checksum(part, "md5") != archive.md5:
        part.unlink()
        raise _Hopeless(f"{archive.url} came with a wrong checksum and was deleted; try again later")
    try:
        _unpack(archive, part, folder)
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        part.unlink()
        raise _Hopeless(f"{archive.url} is corrupt ({error}) and was deleted") from error
    part.unlink()


@contextmanager
def _progress(name: str, archive: Archive, folder: Path) -> Iterator[Callable[[int], None]]:
    console = Console(stderr=True)
    if not console.is_terminal:
        print(f"downloading {archive.url} ({archive.size / 1e6:.1f} MB) to {folder}", file=sys.stderr)
        yield lambda done: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bars:
        bar = bars.add_task(name, total=archive.size)
        yield lambda done: bars.update(bar, completed=done)


def _download(archive: Archive, part: Path, show: Callable[[int], None]) -> None:
    """Complete the part file, a few tries long, each going on where the last one stopped."""
    with part.open("ab") as out:
        for wait in (*WAITS, None):
            try:
                if out.tell() > archive.size:
                    _empty(out)
                if out.tell() < archive.size:
                    _try(archive, out, show)
                os.fsync(out.fileno())
                return
            except _Broken as error:
                if wait is None:
                    raise _Hopeless(f"{archive.url}: {error}, {len(WAITS) + 1} times") from error
                time.sleep(wait)


def _try(archive: Archive, out: IO[bytes], show: Callable[[int], None]) -> None:
    with _answer(archive, out.tell()) as (reply, start):
        if start == 0:
            _empty(out)
        window, before = time.monotonic(), out.tell()
        while (left := archive.size - out.tell()) > 0:
            try:
                block = reply.read1(min(left, _BLOCK))
            except (OSError, http.client.HTTPException) as error:
                raise _Broken(f"the connection broke ({_reason(error)})") from error
            if not block:
                raise _Broken(f"the connection ended {left:,} bytes early")
            out.write(block)
            # What has arrived survives a kill, and the next try sees where it stopped.
            out.flush()
            show(out.tell())
            if time.monotonic() - window > TIMEOUT:
                if out.tell() - before < SLOWEST:
                    raise _Broken("the connection stalled")
                window, before = time.monotonic(), out.tell()


def _empty(out: IO[bytes]) -> None:
    out.truncate(0)
    out.seek(0)


@contextmanager
def _answer(archive: Archive, start: int) -> Iterator[tuple[http.client.HTTPResponse, int]]:
    """The server's answer from byte `start` on, or from 0 if it does not continue; both are checked."""
    request = urllib.request.Request(archive.url, headers={"User-Agent": "l2dp"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        reply: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        raise _Broken(f"the server answered {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        offline = isinstance(cause, OSError) and cause.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH)
        if offline or isinstance(cause, socket.gaierror | ssl.SSLCertVerificationError):
            raise _Hopeless(f"{archive.url}: {_reason(cause)}") from error
        raise _Broken(_reason(cause)) from error
    with reply:
        offered = reply.headers.get("Content-Length", "")
        span = re.fullmatch(r"bytes (\d+)-\d+/[\d*]+", reply.headers.get("Content-Range", ""))
        continues = reply.status == 206 and start > 0 and span is not None and span[1] == str(start)
        if reply.status != 200 and not continues:
            raise _Broken(f"the server answered {reply.status} with another part than the one asked for")
        first = start if continues else 0
        if offered and offered != str(archive.size - first):
            raise _Broken(f"the server offers {offered[:20]} bytes instead of {archive.size - first}")
        yield reply, first


def _reason(error: object) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(str(text).split()) or type(error).__name__


def _checksum(path: Path, kind: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def _unpack(archive: Archive, part: Path, folder: Path) -> None:
    with gzip.open(part) as unpacked:
        budget = sum(content.limit for content in archive.holds.values()) + (1 << 20)
        members = _members if archive.url.endswith(".tar.gz") else _single
        waiting = dict(archive.holds)
        for name, stream in members(_Limited(unpacked, budget), archive):
            if content := waiting.pop(name, None):
                _write(folder / name, stream, content)
    if lacking := [name for name, content in waiting.items() if content.checksum]:
        raise tarfile.TarError(f"it lacks {', '.join(lacking)}")


class _Limited:
    """A stream that refuses to unpack to more than was expected of it."""

    def __init__(self, stream: _Readable, left: int) -> None:
        self._stream, self._left = stream, left

    def read(self, size: int = -1, /) -> bytes:
        block = self._stream.read(self._left + 1 if size < 0 else min(size, self._left + 1))
        self._left -= len(block)
        if self._left < 0:
            raise tarfile.TarError("it unpacks to more than it should")
        return block


def _single(stream: _Limited, archive: Archive) -> Iterator[tuple[str, _Readable]]:
    yield next(iter(archive.holds)), stream


def _members(stream: _Limited, archive: Archive) -> Iterator[tuple[str, _Readable]]:
    with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r|") as tar:
        for member in tar:
            # Only regular files have bytes of their own; the name picks a file and never a place.
            if member.isreg() and (inside := tar.extractfile(member)):
                yield member.name.rpartition("/")[2], inside


def _write(path: Path, stream: _Readable, content: Content) -> None:
    """Give `path` to the stream's bytes, all at once and only if they are the right ones."""
    fresh = path.with_name(f"{path.name}.new")
    try:
        with fresh.open("wb") as out:
            while block := stream.read(_BLOCK):
                out.write(block)
                if out.tell() > content.limit:
                    raise tarfile.TarError(f"{path.name} is larger than it should be")
            out.flush()
            os.fsync(out.fileno())
        if content.checksum:
            kind, _, digest = content.checksum.partition(":")
            if _checksum(fresh, kind) != digest:
                raise tarfile.TarError(f"{path.name} has a wrong checksum")
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
