"""The book in one SQLite file: WAL mode, synchronous=FULL, private to the user.

A locked, read-only, full or damaged file becomes one clear line.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from l2dp.book.store import GUARDED, TABLES, Row, Store, T, Transaction
from l2dp.durable import PRIVATE
from l2dp.errors import BadInput, L2dpError

WAIT_SECONDS = 30.0
FAILURES = (sqlite3.Error, UnicodeDecodeError)
"""The second: text of a damaged file, or a message about it, that is no text."""

SCHEMA = """
CREATE TABLE l2dp_book (version INTEGER NOT NULL, sequence INTEGER NOT NULL, hash TEXT NOT NULL) STRICT;
CREATE TABLE l2dp_entries (
    sequence INTEGER PRIMARY KEY, kind TEXT NOT NULL, task TEXT, settles INTEGER UNIQUE,
    body TEXT NOT NULL, hash TEXT NOT NULL
) STRICT;
CREATE INDEX l2dp_entries_task ON l2dp_entries (task, sequence);
CREATE TABLE l2dp_charges (
    block BLOB NOT NULL, sequence INTEGER NOT NULL, PRIMARY KEY (block, sequence)
) WITHOUT ROWID, STRICT;
CREATE INDEX l2dp_charges_sequence ON l2dp_charges (sequence);
CREATE TABLE l2dp_levels (
    level INTEGER PRIMARY KEY, epsilon TEXT NOT NULL, delta TEXT NOT NULL, blocks INTEGER NOT NULL,
    UNIQUE (epsilon, delta)
) STRICT;
CREATE TABLE l2dp_balances (block BLOB PRIMARY KEY, level INTEGER NOT NULL) WITHOUT ROWID, STRICT;
"""
GUARDS = {
    f"{table}_no_{verb}": f"CREATE TRIGGER {table}_no_{verb} BEFORE {verb.upper()} ON {table} "
    "BEGIN SELECT RAISE(ABORT, 'the book is append-only'); END"
    for table in GUARDED
    for verb in ("update", "delete")
}


class _Transaction:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        return self._connection.execute(statement, values).fetchall()

    def stream(self, statement: str) -> Iterator[Row]:
        return iter(self._connection.execute(statement))

    def incoming(self, keys: Sequence[bytes]) -> None:
        self._connection.execute("DELETE FROM incoming")
        self._connection.executemany("INSERT INTO incoming VALUES (?)", ((key,) for key in keys))

    def moves(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._connection.execute("DELETE FROM moves")
        self._connection.executemany("INSERT INTO moves VALUES (?, ?)", pairs)


class SqliteStore(Store):
    """One file, for the processes of one machine. `readonly` opens it without the right to change anything."""

    def __init__(self, path: Path, create: bool = False, readonly: bool = False) -> None:
        self.place = str(path)
        self._path = path
        if create:
            self._make_file()
        try:
            self._connection = sqlite3.connect(
                f"file:{quote(str(path.absolute()))}?{self._mode(readonly)}",
                uri=True,
                isolation_level=None,
                timeout=WAIT_SECONDS,
            )
        except FAILURES as error:
            raise self._clear(error) from error
        try:
            # Without a right to write, a file that is not in WAL mode yet is shown as it is.
            if not readonly:
                self._connection.execute("PRAGMA journal_mode = WAL").fetchall()
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("CREATE TEMP TABLE incoming (block BLOB PRIMARY KEY) WITHOUT ROWID")
            self._connection.execute("CREATE TEMP TABLE moves (source INTEGER PRIMARY KEY, target INTEGER NOT NULL)")
        except FAILURES as error:
            self._connection.close()
            raise self._clear(error) from error

    def _make_file(self) -> None:
        """An empty file that nobody else may read: SQLite would make one that others can."""
        try:
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, PRIVATE))
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise BadInput(f"cannot make the ledger {self.place}: {error.strerror}; choose another place") from error

    def _mode(self, readonly: bool) -> str:
        if not readonly:
            return "mode=rw"
        # In a folder where nothing can be written there is no writer either, and no place for the files of WAL mode.
        wal = self._path.with_name(self._path.name + "-wal")
        return "mode=ro" if wal.exists() or os.access(self._path.parent, os.W_OK) else "mode=ro&immutable=1"

    def write(self, work: Callable[[Transaction], T]) -> T:
        return self._run(work, "BEGIN IMMEDIATE")

    def read(self, work: Callable[[Transaction], T]) -> T:
        return self._run(work, "BEGIN")

    def _run(self, work: Callable[[Transaction], T], begin: str) -> T:
        connection = self._connection
        try:
            connection.execute(begin)
            try:
                result = work(_Transaction(connection))
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # SQLite itself rolls back after some errors
                    connection.execute("ROLLBACK")
                raise
        except FAILURES as error:
            raise self._clear(error) from error
        return result

    def tables(self, transaction: Transaction) -> set[str]:
        return {name for (name,) in transaction.rows("SELECT name FROM sqlite_master WHERE type = 'table'")} & {*TABLES}

    def create(self, transaction: Transaction) -> None:
        for statement in SCHEMA.split(";"):
            transaction.rows(statement)
        for guard in GUARDS.values():
            transaction.rows(guard)

    def faults(self, transaction: Transaction) -> list[str]:
        found = [
            f"the file is damaged: {' '.join(text.split())}"
            for (text,) in transaction.rows("PRAGMA integrity_check(5)")
            if text != "ok"
        ]
        triggers = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        guards: dict[str, str] = dict(transaction.rows(triggers))
        for name, statement in GUARDS.items():
            if guards.pop(name, None) != statement:
                found.append(f"the guard {name} that keeps the book append-only is missing or changed")
        return found + [f"the book has a trigger {name} that is not ours" for name in guards]

    def close(self) -> None:
        self._connection.close()

    def _clear(self, error: Exception) -> L2dpError:
        name = getattr(error, "sqlite_errorname", "") or ""
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return L2dpError(
                f"another process holds the ledger {self.place}; wait for it and run the same command again"
            )
        if name.startswith("SQLITE_READONLY"):
            return L2dpError(
                f"the ledger {self.place} is read-only, nothing was charged; make it writable and run again"
            )
        if name.startswith(("SQLITE_FULL", "SQLITE_IOERR")):
            return L2dpError(
                f"could not write the ledger {self.place} ({_line(error)}), nothing was charged; make room and run "
                "the same command again"
            )
        if name == "SQLITE_CANTOPEN":
            return BadInput(f"cannot open the ledger {self.place}; check that the file is there and may be read")
        no_text = isinstance(error, UnicodeDecodeError) or str(error).startswith("Could not decode")
        if no_text or name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
            return BadInput(f"the ledger {self.place} is damaged ({_line(error)}); restore it from a backup")
        return L2dpError(f"the ledger {self.place} failed, nothing was charged: {_line(error)}")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
