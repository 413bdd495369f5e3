"""Sabotage of one process, for `bench.faults`: with this folder first on PYTHONPATH, L2DP_SABOTAGE says what happens.

`kill:N` kills the process at the N-th point around a durable operation (writes, fsyncs, renames, removals, and every
statement of a SQLite transaction). `power:N` does the same and takes back what no fsync has made durable: renames and
removals in folders that were not synced, files that were renamed before they were. `count` only counts. L2DP_POINTS
names a file for the number of points passed, L2DP_ANSWERS one for digests of every noisy answer.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import sqlite3
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

_mode, _, _number = os.environ.get("L2DP_SABOTAGE", "").partition(":")
_limit = int(_number) if _number else -1
_points = 0
_undo: list[tuple[str, Callable[[], Any]]] = []
"""What to take back at a loss of power: the folder whose fsync would make it durable, and how."""
_synced: set[tuple[int, int, int]] = set()
"""Files that were synced, as device, inode and size."""
_real = {name: getattr(os, name) for name in ("fsync", "replace", "rename", "unlink", "pwrite", "ftruncate")}


def _die() -> None:
    if _mode == "power":
        for _, back in reversed(_undo):
            with contextlib.suppress(OSError):
                back()
    os.kill(os.getpid(), signal.SIGKILL)


def _point() -> None:
    global _points
    _points += 1
    if _points == _limit:
        _die()


def _around(name: str) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        _point()
        _note(name, arguments)
        found = _real[name](*arguments, **named)
        if name == "fsync":
            _sync(arguments[0])
        _point()
        return found

    return call


def _sync(handle: int) -> None:
    about = os.fstat(handle)
    if stat.S_ISDIR(about.st_mode):
        where = os.path.realpath(f"/proc/self/fd/{handle}")
        _undo[:] = [entry for entry in _undo if entry[0] != where]
    else:
        _synced.add((about.st_dev, about.st_ino, about.st_size))


def _note(name: str, arguments: Sequence[Any]) -> None:
    """Remembers how to take an operation back that only an fsync of its folder makes durable."""
    if _mode != "power" or name not in ("replace", "rename", "unlink"):
        return
    source = Path(arguments[0]).absolute()
    if name == "unlink":
        if source.is_file():
            _undo.append((str(source.parent.resolve()), _putting(source)))
        return
    target = Path(arguments[1]).absolute()
    folder = str(target.parent.resolve())
    if source.is_dir():
        _undo.append((folder, lambda: _real["rename"](target, source)))
        return
    about = source.stat()
    if target.exists():
        _undo.append((folder, _putting(target)))
    elif (about.st_dev, about.st_ino, about.st_size) not in _synced:
        _undo.append((folder, lambda: target.write_bytes(b"")))
    else:
        _undo.append((folder, lambda: _real["unlink"](target)))


def _putting(path: Path) -> Callable[[], Any]:
    """Puts a file back as it is now."""
    data, mode = path.read_bytes(), stat.S_IMODE(path.stat().st_mode)

    def put() -> None:
        path.write_bytes(data)
        path.chmod(mode)

    return put


class _Connection(sqlite3.Connection):
    """Points around every statement: before the transaction, inside it, at its commit and after."""

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        _point()
        found = super().execute(*arguments)
        _point()
        return found

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        _point()
        found = super().executemany(*arguments)
        _point()
        return found


def _watch(module: ModuleType) -> None:
    """Notes a digest of every noisy answer as it is made."""
    law = module.rounded_sum

    def noted(exact: Any, drawn: Any) -> Any:
        answer = law(exact, drawn)
        line = hashlib.sha256(answer.tobytes()).hexdigest() + "\n"
        handle = os.open(os.environ["L2DP_ANSWERS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(handle, line.encode())
        os.close(handle)
        return answer

    for user in [module, *sys.modules.values()]:
        if getattr(user, "rounded_sum", None) is law:
            user.rounded_sum = noted  # type: ignore[attr-defined]


class _Watching(importlib.abc.MetaPathFinder):
    """Watches the answers of `l2dp.noise` from when it is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "l2dp.noise":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            _watch(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def count() -> None:
    Path(os.environ["L2DP_POINTS"]).write_text(str(_points))


if _mode:
    import atexit

    _connect = sqlite3.connect
    sqlite3.connect = lambda *arguments, **named: _connect(*arguments, **{**named, "factory": _Connection})
    for _name in _real:
        setattr(os, _name, _around(_name))
    if "L2DP_POINTS" in os.environ:
        atexit.register(count)
if "L2DP_ANSWERS" in os.environ:
    if "l2dp.noise" in sys.modules:  # a fork
        _watch(sys.modules["l2dp.noise"])
    else:
        sys.meta_path.insert(0, _Watching())
