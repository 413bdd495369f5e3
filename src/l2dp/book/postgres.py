"""The book in a PostgreSQL database, for teams where several machines learn at once.

Writers queue for one lock, and every transaction is serialisable besides: whatever the lock would let through is tried
again. psycopg 3 is an optional part (`pip install 'l2dp[postgres]'`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from l2dp.book.places import shown
from l2dp.book.store import GUARDED, TABLES, Row, Store, T, Transaction
from l2dp.errors import BadInput, L2dpError

if TYPE_CHECKING:
    import psycopg

WAIT_SECONDS = 30
TRIES = 50

SCHEMA = """
CREATE TABLE l2dp_book (version BIGINT NOT NULL, sequence BIGINT NOT NULL, hash TEXT NOT NULL);
CREATE TABLE l2dp_entries (
    sequence BIGINT PRIMARY KEY, kind TEXT NOT NULL, task TEXT, settles BIGINT UNIQUE,
    body TEXT NOT NULL, hash TEXT NOT NULL
);
CREATE INDEX l2dp_entries_task ON l2dp_entries (task, sequence);
CREATE TABLE l2dp_charges (block BYTEA NOT NULL, sequence BIGINT NOT NULL, PRIMARY KEY (block, sequence));
CREATE INDEX l2dp_charges_sequence ON l2dp_charges (sequence, block);
CREATE TABLE l2dp_levels (
    level BIGINT PRIMARY KEY, epsilon TEXT NOT NULL, delta TEXT NOT NULL, blocks BIGINT NOT NULL,
    UNIQUE (epsilon, delta)
);
CREATE TABLE l2dp_balances (block BYTEA PRIMARY KEY, level BIGINT NOT NULL);
CREATE FUNCTION l2dp_append_only() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'the book is append-only'; END $$;
"""
GUARDS = tuple(f"{table}_guard" for table in GUARDED)


class _Transaction:
    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self._connection = connection
        self._streams = 0

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        done = self._connection.execute(statement.replace("?", "%s").encode(), values or None)
        return done.fetchall() if done.description else []

    def stream(self, statement: str) -> Iterator[Row]:
        self._streams += 1
        with self._connection.cursor(name=f"l2dp_{self._streams}") as cursor:
            cursor.itersize = 10_000
            cursor.execute(statement.encode())
            yield from cursor

    def incoming(self, keys: Sequence[bytes]) -> None:
        self._fill("incoming", [(key,) for key in keys])

    def moves(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._fill("moves", pairs)

    def _fill(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        self._connection.execute(f"TRUNCATE pg_temp.{table}".encode())
        with self._connection.cursor() as cursor, cursor.copy(f"COPY pg_temp.{table} FROM STDIN".encode()) as copy:
            for row in rows:
                copy.write_row(row)
        if len(rows) > 1000:  # or the planner takes it for empty
            self._connection.execute(f"ANALYZE pg_temp.{table}".encode())


class PostgresStore(Store):
    """One book in one database (or in one schema, by `?options=-csearch_path=NAME`)."""

    def __init__(self, address: str) -> None:
        try:
            import psycopg
        except ImportError as error:
            raise BadInput(
                "a ledger on PostgreSQL needs psycopg; install it with: pip install 'l2dp[postgres]'"
            ) from error
        self._psycopg = psycopg
        self.place = shown(address)
        self._secrets = [word for word in (_password(address),) if word]
        self._made = False
        try:
            self._connection = psycopg.connect(address, autocommit=True, connect_timeout=WAIT_SECONDS)
            for statement in (
                # A commit that has returned is on the disk, whatever the server's default is.
                "SET synchronous_commit = on",
                f"SET lock_timeout = '{WAIT_SECONDS}s'",
                "SET client_min_messages = warning",
                "CREATE TEMP TABLE incoming (block BYTEA PRIMARY KEY)",
                "CREATE TEMP TABLE moves (source BIGINT PRIMARY KEY, target BIGINT NOT NULL)",
            ):
                self._connection.execute(statement.encode())
        except psycopg.ProgrammingError:
            # Its text quotes the address, password and all.
            raise BadInput("the address of the ledger is not valid; write postgresql://user@host/database") from None
        except psycopg.Error as error:
            raise self._clear(error) from None

    def write(self, work: Callable[[Transaction], T]) -> T:
        def alone(transaction: Transaction) -> T:
            # Before the first query, so that it sees everything that writers before it have done.
            if self._made:
                transaction.rows("LOCK TABLE l2dp_entries IN SHARE ROW EXCLUSIVE MODE")
            return work(transaction)

        return self._run(alone, "BEGIN ISOLATION LEVEL SERIALIZABLE")

    def read(self, work: Callable[[Transaction], T]) -> T:
        return self._run(work, "BEGIN ISOLATION LEVEL REPEATABLE READ")

    def _run(self, work: Callable[[Transaction], T], begin: str) -> T:
        errors = self._psycopg.errors
        # The last two: another process made the tables, or the entry, in the same moment.
        again = errors.SerializationFailure, errors.DeadlockDetected, errors.DuplicateTable, errors.UniqueViolation
        for attempt in range(TRIES):
            try:
                return self._once(work, begin)
            except again:
                time.sleep(random.uniform(0, 0.01 * 2 ** min(attempt, 6)))
            except self._psycopg.Error as error:
                raise self._clear(error) from None
        raise L2dpError(f"too many writers on the ledger {self.place}, nothing was charged; run the same command again")

    def _once(self, work: Callable[[Transaction], T], begin: str) -> T:
        connection = self._connection
        connection.execute(begin.encode())
        try:
            result = work(_Transaction(connection))
        except BaseException:
            if not connection.broken:
                connection.execute(b"ROLLBACK")
            raise
        try:
            connection.execute(b"COMMIT")
        except self._psycopg.OperationalError:
            if connection.broken:
                raise L2dpError(
                    f"the connection to the ledger {self.place} broke while it was writing; run the same "
                    "command again, a task that was charged finds its reservation"
                ) from None
            raise
        return result

    def tables(self, transaction: Transaction) -> set[str]:
        # From the catalogue itself: to_regclass looks past the transaction's snapshot, and while another process makes
        # the tables it would find some of them.
        statement = (
            "SELECT relname::text FROM pg_class WHERE relname = ANY(?) AND relnamespace IN "
            "(SELECT oid FROM pg_namespace WHERE nspname = ANY(current_schemas(false)))"
        )
        there = {str(row[0]) for row in transaction.rows(statement, (list(TABLES),))}
        self._made = "l2dp_entries" in there
        return there

    def create(self, transaction: Transaction) -> None:
        transaction.rows(SCHEMA)
        for table, guard in zip(GUARDED, GUARDS, strict=True):
            transaction.rows(
                f"CREATE TRIGGER {guard} BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
                "FOR EACH STATEMENT EXECUTE FUNCTION l2dp_append_only()"
            )

    def faults(self, transaction: Transaction) -> list[str]:
        statement = (
            "SELECT tgname, tgenabled, tgtype, tgrelid::regclass::text, tgfoid::regproc::text FROM pg_trigger "
            "WHERE NOT tgisinternal AND tgrelid IN (SELECT to_regclass(name) FROM unnest(?::text[]) AS name)"
        )
        found = {row[0]: row[1:] for row in transaction.rows(statement, (list(TABLES),))}
        faults = []
        for table, guard in zip(GUARDED, GUARDS, strict=True):
            # 58: for each statement, before an update, a delete or a truncate; O: switched on.
            if found.pop(guard, None) != ("O", 58, table, "l2dp_append_only"):
                faults.append(f"the guard {guard} that keeps the book append-only is missing or changed")
        return faults + [f"the book has a trigger {name} that is not ours" for name in found]

    def close(self) -> None:
        self._connection.close()

    def _clear(self, error: psycopg.Error) -> L2dpError:
        errors = self._psycopg.errors
        text = " ".join(str(error).split())
        for secret in self._secrets:
            text = text.replace(secret, "…")
        if isinstance(error, errors.LockNotAvailable):
            return L2dpError(
                f"another process holds the ledger {self.place}; wait for it and run the same command again"
            )
        if isinstance(error, errors.ReadOnlySqlTransaction):
            return L2dpError(f"the ledger {self.place} is read-only, nothing was charged; use the writable server")
        if isinstance(error, errors.DiskFull):
            return L2dpError(
                f"the disk of the ledger {self.place} is full, nothing was charged; make room and run again"
            )
        if isinstance(error, errors.InsufficientPrivilege):
            return BadInput(f"the ledger {self.place} does not let this user in ({text}); ask for the right to write")
        if isinstance(error, self._psycopg.OperationalError):
            return L2dpError(
                f"cannot reach the ledger {self.place} ({text}); nothing was charged, run the same command again"
            )
        return L2dpError(f"the ledger {self.place} failed, nothing was charged: {text}")


def _password(address: str) -> str | None:
    try:
        return urlsplit(address).password
    except ValueError:
        return None
