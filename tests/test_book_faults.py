"""Kills, tampering, damage, full and read-only disks: the book says what is wrong, and nobody is charged unseen."""

from __future__ import annotations

import os
import random
import resource
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from l2dp.book import Book, Voucher, book, open_book, shown, sqlite, verify, without_password
from l2dp.book.store import TABLES
from l2dp.budget import Budget
from l2dp.errors import BadInput, L2dpError, Refused

LIFETIME = Budget(1.0, 1e-5)
TENTH = Budget(0.1, 1e-6)


def voucher(task: str) -> Voucher:
    return Voucher(task, "data", "it", 1.0)


def fill(place: str) -> None:
    with open_book(place, LIFETIME) as made:
        first = made.reserve(["a"], LIFETIME, voucher("a"))
        made.commit(first, "answers")
        second = made.reserve([b"u", b"v"], TENTH, voucher("b"))
        made.cancel(second)
        made.reserve([b"u", b"w"], TENTH, voucher("c"))
        made.charge([7], TENTH, "by hand")
        third = made.reserve([b"u"], TENTH, voucher("d"))
        made.commit(third)
        assert made.verify() == []


@pytest.fixture
def filled(place: str) -> str:
    fill(place)
    return place


@contextmanager
def raw(place: str) -> Iterator[Callable[..., list[Any]]]:
    """Statements against the tables themselves, with the guards out of the way and put back afterwards."""
    if place.startswith("postgresql"):
        import psycopg

        with psycopg.connect(place, autocommit=True) as server:
            for table in ("l2dp_entries", "l2dp_charges"):
                server.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER".encode())

            def run(statement: str, *values: Any) -> list[Any]:
                done = server.execute(statement.replace("?", "%s").encode(), values or None)
                return done.fetchall() if done.description else []

            yield run
            for table in ("l2dp_entries", "l2dp_charges"):
                server.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER".encode())
        return
    file = sqlite3.connect(place, isolation_level=None)
    file.execute("PRAGMA synchronous = OFF")
    for name in sqlite.GUARDS:
        file.execute(f"DROP TRIGGER {name}")
    yield lambda statement, *values: file.execute(statement, values).fetchall()
    for guard in sqlite.GUARDS.values():
        file.execute(guard)
    file.close()


def faults(place: str) -> list[str]:
    """What is wrong, told by `verify` or by a refusal to open."""
    try:
        with open_book(place) as opened:
            found = opened.verify()
    except BadInput as error:
        found = [str(error)]
    assert all("\n" not in text for text in found)
    return found


# --- tampering --------------------------------------------------------------------------------------------

KEYS = {
    "l2dp_book": ["version"],
    "l2dp_entries": ["sequence"],
    "l2dp_charges": ["block", "sequence"],
    "l2dp_levels": ["level"],
    "l2dp_balances": ["block"],
}
COLUMNS = {
    "l2dp_book": ["version", "sequence", "hash"],
    "l2dp_entries": ["sequence", "kind", "task", "settles", "body", "hash"],
    "l2dp_charges": ["block", "sequence"],
    "l2dp_levels": ["level", "epsilon", "delta", "blocks"],
    "l2dp_balances": ["block", "level"],
}


def other(value: Any, column: str) -> Any:
    """Another value of the same type."""
    if isinstance(value, int) or (value is None and column == "settles"):
        return (value or 0) + 100
    if isinstance(value, bytes | memoryview):
        return bytes(value) + b"x"
    if value is None:
        return "x"
    return value.replace("0.1", "0.2") if column == "body" and "0.1" in value else str(value) + "1"


@pytest.mark.parametrize("table", TABLES)
def test_a_change_of_any_value_and_a_removed_row_are_found(filled: str, table: str) -> None:
    columns, keys = COLUMNS[table], KEYS[table]
    where = " AND ".join(f"{key} = ?" for key in keys)
    with raw(filled) as run:
        rows = run(f"SELECT {', '.join(columns)} FROM {table}")
    assert rows
    with open_book(filled) as opened:
        for row in rows:
            values = dict(zip(columns, row, strict=True))
            old = [values[key] for key in keys]
            for column in columns:
                changed = values | {column: other(values[column], column)}
                with raw(filled) as run:
                    run(f"UPDATE {table} SET {column} = ? WHERE {where}", changed[column], *old)
                assert opened.verify(), (table, values, column)
                new = [changed[key] for key in keys]
                with raw(filled) as run:
                    run(f"UPDATE {table} SET {column} = ? WHERE {where}", values[column], *new)
            with raw(filled) as run:
                run(f"DELETE FROM {table} WHERE {where}", *old)
            assert opened.verify(), (table, values, "removed")
            marks = ", ".join("?" * len(columns))
            with raw(filled) as run:
                run(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", *row)
        assert opened.verify() == []
    assert faults(filled) == []


def test_a_forged_row_is_found(filled: str) -> None:
    for table, row in (
        ("l2dp_charges", (b"fx", 1)),
        ("l2dp_charges", (b"fx", 99)),
        ("l2dp_balances", (b"fx", 1)),
        ("l2dp_levels", (50, "1/7", "0", 1)),
        ("l2dp_levels", (50, "no number", "0", 1)),
        ("l2dp_entries", (99, "commit", "c", 5, "{}", "0" * 64)),
    ):
        marks = ", ".join("?" * len(row))
        with raw(filled) as run:
            run(f"INSERT INTO {table} VALUES ({marks})", *row)
        assert faults(filled), (table, row)
        key = KEYS[table][0]
        with raw(filled) as run:
            run(f"DELETE FROM {table} WHERE {key} = ?" + (" AND sequence = ?" if table == "l2dp_charges" else ""),
                *row[: 2 if table == "l2dp_charges" else 1])  # fmt: skip
    assert faults(filled) == []


def test_a_rewritten_entry_is_found_though_its_own_hash_fits(filled: str) -> None:
    """Whoever changes an entry and its hash breaks the chain; the last one is known to the head, and to releases."""
    from l2dp.book.chain import hash_of

    with open_book(filled) as opened:
        head = opened.head()
    with raw(filled) as run:
        rows = run("SELECT sequence, body FROM l2dp_entries ORDER BY sequence")
    for sequence, text in rows:
        forged = text.replace("0.1.0", "9.9.9")
        assert forged != text
        with raw(filled) as run:
            run("UPDATE l2dp_entries SET body = ?, hash = ? WHERE sequence = ?", forged, hash_of(forged), sequence)
        assert faults(filled)
        with open_book(filled) as opened:
            assert opened.knows(head) == (sequence != head.sequence)
            for _ in range(2):
                with pytest.raises(BadInput, match="nothing was charged; run l2dp verify"):
                    opened.reserve(["z"], TENTH, voucher("z"))
        with raw(filled) as run:
            run("UPDATE l2dp_entries SET body = ?, hash = ? WHERE sequence = ?", text, hash_of(text), sequence)
    assert faults(filled) == []


def test_a_block_whose_balance_was_changed_pays_nothing(filled: str) -> None:
    with raw(filled) as run:
        levels = dict(run("SELECT epsilon, level FROM l2dp_levels"))
        run("UPDATE l2dp_balances SET level = ? WHERE block = ?", levels["1/10"], b"ta")
    with open_book(filled) as opened:
        with pytest.raises(BadInput, match="block 'a' has a balance that is not what its charges add up to"):
            opened.reserve(["a"], TENTH, voucher("more"))
        opened.reserve(["z"], TENTH, voucher("z"))  # nobody else is kept from it
    with raw(filled) as run:
        run("DELETE FROM l2dp_balances WHERE block = ?", b"ta")
    with open_book(filled) as opened, pytest.raises(BadInput, match="was charged, and the book has no balance of it"):
        opened.reserve(["a"], TENTH, voucher("more"))


def test_the_tables_refuse_changes(filled: str) -> None:
    statements = ["UPDATE l2dp_entries SET body = 'x'", "DELETE FROM l2dp_entries", "DELETE FROM l2dp_charges"]
    statements.append("UPDATE l2dp_charges SET sequence = 1")
    if filled.startswith("postgresql"):
        import psycopg

        with psycopg.connect(filled, autocommit=True) as server:
            for statement in [*statements, "TRUNCATE l2dp_entries", "TRUNCATE l2dp_charges"]:
                with pytest.raises(psycopg.errors.RaiseException, match="append-only"):
                    server.execute(statement.encode())
            server.execute(b"ALTER TABLE l2dp_entries DISABLE TRIGGER USER")
    else:
        file = sqlite3.connect(filled, isolation_level=None)
        for statement in statements:
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                file.execute(statement)
        file.execute("DROP TRIGGER l2dp_entries_no_update")
        file.close()
    (fault,) = faults(filled)
    assert "append-only is missing or changed" in fault


def test_overspending_that_the_tables_agree_on_is_still_found(filled: str) -> None:
    """Charges, balances and levels that all fit each other, and a block above its lifetime."""
    with raw(filled) as run:
        for sequence in (3, 5):  # cancelled and live
            run("INSERT INTO l2dp_charges (block, sequence) VALUES (?, ?)", b"ta", sequence)
    found = faults(filled)
    assert any("block 'a' has spent more than its lifetime budget" in text for text in found)


def test_many_faults_of_one_kind_are_counted(place: str) -> None:
    with open_book(place, LIFETIME) as made:
        made.charge(range(100), TENTH, "all")
    with raw(place) as run:
        run("DELETE FROM l2dp_balances")
    found = faults(place)
    assert len(found) == verify.MOST + 2
    assert "and 80 more: balances" in found


# --- formats ----------------------------------------------------------------------------------------------


def test_a_newer_format_is_refused_and_an_older_one_migrates(filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with raw(filled) as run:
        run("UPDATE l2dp_book SET version = 99")
    with pytest.raises(BadInput, match=r"has format 99, this l2dp knows up to 1; use a newer l2dp"):
        open_book(filled)
    with raw(filled) as run:
        run("UPDATE l2dp_book SET version = 1")
    for module in (book, verify):
        monkeypatch.setattr(module, "FORMAT", 3)
    with pytest.raises(BadInput, match="has format 1, which this l2dp cannot bring up to date"):
        open_book(filled)
    steps = []
    monkeypatch.setitem(book.MIGRATIONS, 1, lambda transaction: steps.append(1))
    monkeypatch.setitem(book.MIGRATIONS, 2, lambda transaction: steps.append(2))
    with open_book(filled) as opened:
        assert steps == [1, 2]
        assert opened.entries()[-1]["kind"] == "migrate"
        assert opened.verify() == []
        opened.reserve(["z"], TENTH, voucher("z"))
    with open_book(filled) as opened:
        assert steps == [1, 2]
        assert opened.verify() == []


def test_a_missing_table_is_one_clear_line(filled: str) -> None:
    with raw(filled) as run:
        run("DROP TABLE l2dp_balances")
    with pytest.raises(BadInput, match="lacks l2dp_balances; restore it from a backup"):
        open_book(filled)


# --- kills ------------------------------------------------------------------------------------------------

KILLS = """
import os, signal, sys
from l2dp.book import Voucher, open_book, {module}
from l2dp.budget import Budget
place = sys.argv[1]
TENTH = Budget(0.1, 1e-6)
open_book(place, Budget(1.0, 1e-5)).close()

def actions(book, turn):
    number = book.reserve([b"u", b"v", turn], TENTH, Voucher(f"task {{turn}}", "data", "it", 1.0))
    (book.cancel if turn % 2 else book.commit)(number)

original = {module}._Transaction.rows
for turn in range(2):
    for last in range(1, 100):
        child = os.fork()
        if child == 0:
            left = last
            def rows(self, statement, values=()):
                global left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(self, statement, values)
            book = open_book(place)
            {module}._Transaction.rows = rows
            actions(book, turn)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        with open_book(place) as book:
            faults = book.verify()
            spent = book.spent(b"u")
            found = book.reservation(f"task {{turn}}")
        print(turn, last, os.WIFSIGNALED(status), None if found is None else found.state,
              0 if spent is None else spent.epsilon, len(faults), sep=",", flush=True)
        if not os.WIFSIGNALED(status):
            break
"""


def test_killed_inside_a_transaction_it_charges_once_or_not_at_all(place: str) -> None:
    """A kill before every single statement of a reservation and its settlement; then the same task once more."""
    module = "postgres" if place.startswith("postgresql") else "sqlite"
    if module == "postgres":
        pytest.importorskip("psycopg")
    program = KILLS.format(module=module)
    done = subprocess.run([sys.executable, "-c", program, place], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split(",") for line in done.stdout.splitlines()]
    kills = [line for line in lines if line[2] == "True"]
    assert len(kills) > 20
    for turn, _, killed, state, spent, bad in lines:
        assert bad == "0"
        expected = {"None": 0.0, "reserved": 0.1, "committed": 0.1, "cancelled": 0.0}[state]
        before = 0.1 if turn == "1" else 0.0
        assert float(spent) == pytest.approx(expected + before)
        if killed == "False":
            assert state == ("cancelled" if turn == "1" else "committed")
    states = [line[3] for line in kills if line[0] == "0"]
    assert states[0] == "None"
    assert states[-1] == "reserved"
    with open_book(place) as opened:
        assert [found.state for found in opened.reservations()].count("committed") == 1
        assert opened.verify() == []


# --- disks ------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.sqlite"
    fill(str(path))
    return path


def test_the_file_is_private_and_safe_against_power_loss(file: Path) -> None:
    with open_book(file) as opened:
        opened.charge([8], TENTH, "it")
        files = sorted(file.parent.iterdir())
        assert [path.name for path in files] == ["ledger.sqlite", "ledger.sqlite-shm", "ledger.sqlite-wal"]
        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
        connection = opened._store._connection  # type: ignore[attr-defined]
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_a_full_disk_is_one_clear_line_and_charges_nobody(file: Path) -> None:
    """A limit on the size of files stands for the full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open_book(file) as opened:
        before = opened.head(), opened.levels()
        size = max(path.stat().st_size for path in file.parent.iterdir())
        for room in (0, 1000, 20_000, 100_000):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, limits[1]))
            try:
                with pytest.raises(L2dpError, match="nothing was charged; make room and run") as caught:
                    opened.reserve(range(100_000, 120_000), TENTH, voucher("big"))
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            assert "\n" not in str(caught.value)
            assert (opened.head(), opened.levels()) == before
        assert opened.verify() == []
        number = opened.reserve(range(100_000, 120_000), TENTH, voucher("big"))
        assert opened.reservation("big").id == number  # type: ignore[union-attr]
    assert faults(str(file)) == []


def test_a_look_without_the_right_to_write(file: Path) -> None:
    with open_book(file, readonly=True) as looked:
        assert looked.spent("a") == LIFETIME
        assert looked.exhausted(["a", "z"], TENTH) == ["a"]
        assert looked.verify() == []
        with pytest.raises(L2dpError, match="is read-only, nothing was charged"):
            looked.reserve(["z"], TENTH, voucher("z"))
    assert faults(str(file)) == []


def test_a_read_only_file_or_folder_is_one_clear_line(file: Path) -> None:
    if os.getuid() == 0:
        pytest.skip("root may write everywhere")
    file.chmod(0o400)
    with pytest.raises(L2dpError, match=r"read-only|cannot open"):
        open_book(file).reserve(["z"], TENTH, voucher("z"))
    file.chmod(0o600)
    file.parent.chmod(0o500)
    try:
        with pytest.raises(L2dpError, match=r"read-only|cannot open"):
            open_book(file).reserve(["z"], TENTH, voucher("z"))
        with open_book(file, readonly=True) as looked:
            assert looked.spent("a") == LIFETIME
    finally:
        file.parent.chmod(0o700)


def test_what_is_not_a_ledger_is_one_clear_line(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("this is no database, " * 100)
    empty = tmp_path / "empty"
    empty.touch()
    for path, what in (
        (text, "is damaged"),
        (empty, "holds no ledger"),
        (tmp_path / "none", "cannot open"),
        (tmp_path, "cannot open"),
        (tmp_path / "no folder" / "ledger", "cannot open"),
    ):
        with pytest.raises(BadInput, match=what):
            open_book(path)
    with pytest.raises(BadInput, match="cannot make the ledger"):
        open_book(tmp_path / "no folder" / "ledger", LIFETIME)
    with open_book(empty, LIFETIME) as made:  # a crash while it was made left it so
        assert made.verify() == []


def test_damage_is_found_or_does_no_harm(file: Path, tmp_path: Path) -> None:
    """Bytes changed at random: a fault, or a refusal, or a byte that no value is in; never anything else."""
    with open_book(file) as opened:
        truth = opened.entries(), opened.levels(), opened.reservations()
    good = file.read_bytes()
    chance = random.Random(0)
    damaged = tmp_path / "damaged"
    found = 0
    for turn in range(120):
        place = chance.randrange(len(good))
        span = chance.choice([1, 1, 4, 64, 3000])
        damaged.write_bytes(good[:place] + chance.randbytes(span) + good[place + span :])
        for suffix in ("-wal", "-shm"):
            Path(f"{damaged}{suffix}").unlink(missing_ok=True)
        if faults(str(damaged)):
            found += 1
            continue
        with open_book(damaged) as opened:
            assert (opened.entries(), opened.levels(), opened.reservations()) == truth, turn
    assert found > 20
    for cut in (0, 1, 100, 4096, 5000, len(good) - 4096, len(good) - 1):
        damaged.write_bytes(good[:cut])
        assert faults(str(damaged)), cut


def test_a_ledger_in_use_is_waited_for_and_then_refused(filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if filled.startswith("postgresql"):
        import psycopg

        from l2dp.book import postgres

        monkeypatch.setattr(postgres, "WAIT_SECONDS", 1)
        with psycopg.connect(filled) as server, open_book(filled) as opened:
            server.execute(b"LOCK TABLE l2dp_entries IN EXCLUSIVE MODE")
            with pytest.raises(L2dpError, match="another process holds the ledger"):
                opened.reserve(["z"], TENTH, voucher("z"))
            assert opened.spent("z") is None
    else:
        monkeypatch.setattr(sqlite, "WAIT_SECONDS", 0.2)
        server = sqlite3.connect(filled, isolation_level=None)
        server.execute("BEGIN IMMEDIATE")
        with open_book(filled) as opened:
            with pytest.raises(L2dpError, match="another process holds the ledger"):
                opened.reserve(["z"], TENTH, voucher("z"))
            assert opened.spent("z") is None
        server.execute("ROLLBACK")
        server.close()
    with open_book(filled) as opened:
        opened.reserve(["z"], TENTH, voucher("z"))


def test_an_old_backup_is_known_by_the_head_of_a_release(file: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    shutil.copy(file, backup)
    with open_book(file) as opened:
        opened.reserve(["new"], LIFETIME, voucher("new"))
        release = opened.head()
        assert opened.knows(release)
    with open_book(backup) as restored:
        assert not restored.knows(release)
        restored.reserve(["other"], LIFETIME, voucher("other"))
        assert not restored.knows(release), "as far, but another way"


# --- servers ----------------------------------------------------------------------------------------------


def test_no_message_holds_a_password() -> None:
    pytest.importorskip("psycopg")
    for address in (
        "postgresql://ann:s3cret@127.0.0.1:1/clinic",
        "postgresql://ann:s3cret@127.0.0.1:port/clinic",
        "postgresql://ann:s3cret@127.0.0.1:1/clinic?nonsense=s3cret",
        "postgresql://ann@127.0.0.1:1/clinic?password=s3cret&connect_timeout=2",
    ):
        with pytest.raises(L2dpError) as caught:
            open_book(address, LIFETIME)
        told = str(caught.value)
        assert "s3cret" not in told
        assert "\n" not in told
        assert "s3cret" not in repr(caught.value.__cause__)
        assert "ann" not in shown(address)
        if "nonsense" not in address:
            assert "s3cret" not in without_password(address)
    by_socket = "postgresql:///clinic?host=/run/pg&user=ann"
    assert without_password(by_socket) == by_socket
    assert without_password("postgres://db/clinic?password=s3cret") == "postgres://db/clinic"
    assert shown(by_socket) == "postgresql:///clinic"
    assert without_password("ledger.sqlite") == shown("ledger.sqlite") == "ledger.sqlite"


def test_a_server_that_hangs_up_is_one_clear_line(postgres_server: str) -> None:
    import psycopg

    with psycopg.connect(postgres_server, autocommit=True) as server:
        server.execute(b"CREATE SCHEMA IF NOT EXISTS hangs_up")
        place = f"{postgres_server}&options=-csearch_path%3Dhangs_up"
        opened = open_book(place, LIFETIME)
        server.execute(b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        with pytest.raises(L2dpError, match="run the same command again") as caught:
            opened.reserve(["a"], TENTH, voucher("a"))
        assert "\n" not in str(caught.value)
        opened.close()
        with open_book(place) as again:
            assert again.spent("a") is None
            assert again.verify() == []


def test_two_may_make_the_same_book_at_once(place: str) -> None:
    program = (
        "import sys; from l2dp.book import open_book; from l2dp.budget import Budget; "
        "book = open_book(sys.argv[1], Budget(1.0)); print(book.identity); book.close()"
    )
    makers = [
        subprocess.Popen([sys.executable, "-c", program, place], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    names = {maker.communicate(timeout=120)[0] for maker in makers}
    assert [maker.returncode for maker in makers] == [0] * 3
    assert len(names) == 1


def test_a_book_is_seen_whole_or_not_at_all(postgres_server: str) -> None:
    """Whoever looks while another process makes the tables sees none of them, however long the look takes."""
    import psycopg

    from l2dp.book.postgres import PostgresStore

    with psycopg.connect(postgres_server, autocommit=True) as server:
        server.execute(b"CREATE SCHEMA IF NOT EXISTS seen_whole")
    place = f"{postgres_server}&options=-csearch_path%3Dseen_whole"
    store = PostgresStore(place)

    def look(transaction: Any) -> set[str]:
        transaction.rows("SELECT 1")  # from here on nothing that others do is seen
        open_book(place, LIFETIME).close()
        return store.tables(transaction)

    assert store.read(look) == set()
    assert store.read(store.tables) == {*TABLES}
    store.close()


def test_a_refusal_is_not_bad_input(file: Path) -> None:
    with open_book(file) as opened, pytest.raises(Refused) as caught:
        opened.reserve(["a"], TENTH, voucher("z"))
    assert caught.value.exit_code == 3
    assert isinstance(opened, Book)
