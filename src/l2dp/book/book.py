"""The durable ledger: reservations before the first read, commits after, refusals before anything.

Its truth are the entries, chained by hashes, and the blocks that each of them charges, both append-only. What every
block has spent is kept beside them in the same transaction, so that a question about one block, or all, is cheap.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Hashable, Mapping
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from importlib.metadata import version
from typing import Any, Literal

from l2dp.book.amounts import ZERO, Amounts, amounts, as_budget, read, written
from l2dp.book.chain import NOWHERE, BlockDigest, Head, hash_of, json_of, key_of
from l2dp.book.store import FORMAT, TABLES, Store, Transaction
from l2dp.book.verify import faults, faults_of_incoming
from l2dp.budget import Adjacency, Budget, Unit
from l2dp.errors import BadInput, L2dpError, Refused

MIGRATIONS: dict[int, Any] = {}
"""What turns a book of one version into the next: version → function of a transaction."""

State = Literal["reserved", "committed", "cancelled"]


@dataclass(frozen=True)
class Voucher:
    """What a charge is for. `task` and `content` make it repeatable: the same task with the same data pays once."""

    task: str
    content: str
    """A digest of the data and of all that the answers depend on; keyed, for it is stored in the clear."""
    mechanism: str
    sensitivity: float
    noise: Mapping[str, Any] = field(default_factory=dict)
    """The parameters of the noise: laws, multipliers, sampling rate, steps."""
    adjacency: Adjacency = "add-remove"
    unit: Unit = "record"
    entropy: str = "operating system"


@dataclass(frozen=True)
class Reservation:
    """One task's charge as it stands in the book."""

    id: int
    task: str
    content: str
    state: State
    cost: Budget
    blocks: int
    body: Mapping[str, Any]
    answer: str | None = None
    """What was noted when it was committed: a digest of the answers."""

    @property
    def spends(self) -> bool:
        """Whether it counts: a reservation that never committed does, a cancelled one does not."""
        return self.state != "cancelled"


@dataclass(frozen=True)
class Levels:
    """How many blocks have spent how much: the odometer of a whole book."""

    blocks: int
    counts: tuple[tuple[Budget, int], ...]
    """From the least spent to the most."""


def other_data(task: str) -> Refused:
    return Refused(
        f"task {task!r} was charged before for other data or at another price; nothing was read or charged; "
        "give new records a new task name"
    )


class Book:
    """What blocks of units have spent, on a disk or a server, for a whole lifetime.

    Guarantee
    ---------
    Basic composition, exact (fractions of the prices as they are written): no sequence of reservations, commits,
    cancellations, crashes and concurrent writers takes a block above the lifetime budget, which is fixed when the book
    is made. That is valid also when later tasks depend on earlier releases. A reservation is on the disk before
    `reserve` returns, charges all its blocks or none, and counts as spent until it is cancelled. A refusal changes
    nothing. Entries are ordered by their number, never by the clock.
    """

    def __init__(self, store: Store, lifetime: Budget | None = None) -> None:
        """Opens the book in a store; with a lifetime, makes it if there is none yet."""
        self._store = store
        self.place = store.place
        try:
            self.lifetime, self.identity = self._begin(lifetime)
        except BaseException:
            store.close()
            raise
        self._limit = amounts(self.lifetime)
        self._checks: dict[str, str] = {}
        """What homes noted of their keys: no entry is ever changed, so it is read once."""
        self._seen = NOWHERE
        self._charged = 0
        """The chain was looked at up to here."""

    def _begin(self, lifetime: Budget | None) -> tuple[Budget, str]:
        store = self._store
        there = store.read(store.tables)
        if not there:
            if lifetime is None:
                raise BadInput(f"{self.place} holds no ledger; make one with l2dp init")
            store.write(lambda transaction: self._make(transaction, lifetime))
        elif missing := {*TABLES} - there:
            raise BadInput(f"the ledger {self.place} lacks {', '.join(sorted(missing))}; restore it from a backup")
        versions = store.read(lambda transaction: transaction.rows("SELECT version FROM l2dp_book"))
        if len(versions) != 1 or not isinstance(versions[0][0], int):
            raise BadInput(f"the ledger {self.place} does not say which format it has; restore it from a backup")
        version_there = versions[0][0]
        if version_there > FORMAT:
            raise BadInput(
                f"the ledger {self.place} has format {version_there}, this l2dp knows up to {FORMAT}; use a newer l2dp"
            )
        if version_there < FORMAT:
            store.write(self._migrate)
        first = store.read(lambda transaction: transaction.rows("SELECT body FROM l2dp_entries WHERE sequence = 0"))
        try:
            body = json.loads(first[0][0])
            found = Budget(float(body["lifetime"]["epsilon"]), float(body["lifetime"]["delta"]))
            identity = str(body["book"])
        except (IndexError, KeyError, TypeError, ValueError):
            raise BadInput(f"the ledger {self.place} has no readable first entry; restore it from a backup") from None
        if lifetime is not None and lifetime != found:
            raise BadInput(
                f"the ledger {self.place} was made for a lifetime of epsilon {found.epsilon:g}, delta {found.delta:g}, "
                f"not epsilon {lifetime.epsilon:g}, delta {lifetime.delta:g}; a lifetime is fixed, choose another place"
            )
        return found, identity

    def _make(self, transaction: Transaction, lifetime: Budget) -> None:
        if self._store.tables(transaction):  # another process was faster
            return
        self._store.create(transaction)
        transaction.rows("INSERT INTO l2dp_book VALUES (?, ?, ?)", (FORMAT, *NOWHERE))
        self._append(transaction, "open", {"book": os.urandom(16).hex(), "lifetime": written(lifetime)})

    def _migrate(self, transaction: Transaction) -> None:
        ((old,),) = transaction.rows("SELECT version FROM l2dp_book")
        for step in range(old, FORMAT):
            if step not in MIGRATIONS:
                raise BadInput(f"the ledger {self.place} has format {step}, which this l2dp cannot bring up to date")
            MIGRATIONS[step](transaction)
        transaction.rows("UPDATE l2dp_book SET version = ?", (FORMAT,))
        if old < FORMAT:
            self._append(transaction, "migrate", {"from": old, "to": FORMAT})

    # --- questions ----------------------------------------------------------------------------------------

    def spent(self, unit: Hashable) -> Budget | None:
        """What a unit has been charged; None: nothing yet."""
        found = self._store.read(
            lambda transaction: transaction.rows(
                "SELECT l.epsilon, l.delta FROM l2dp_balances b JOIN l2dp_levels l ON l.level = b.level "
                "WHERE b.block = ?",
                (key_of(unit),),
            )
        )
        return as_budget((Fraction(found[0][0]), Fraction(found[0][1]))) if found else None

    def exhausted(self, units: Collection[Hashable], cost: Budget) -> list[Hashable]:
        """The units that cannot pay this cost any more."""
        by_key = {key_of(unit): unit for unit in units}
        price = amounts(cost)
        if not self._fits(ZERO, price):
            return list(by_key.values())

        def ask(transaction: Transaction) -> list[Hashable]:
            transaction.incoming(sorted(by_key))
            poor = [level for level, had, _ in self._levels_of_incoming(transaction) if not self._fits(had, price)]
            rows = [
                row
                for level in poor
                for row in transaction.rows(
                    "SELECT i.block FROM incoming i JOIN l2dp_balances b ON b.block = i.block WHERE b.level = ?",
                    (level,),
                )
            ]
            return [by_key[bytes(key)] for (key,) in rows]

        return self._store.read(ask)

    def outside(self, units: Collection[Hashable], reservation: int) -> list[Hashable]:
        """The units that a reservation does not charge."""
        by_key = {key_of(unit): unit for unit in units}

        def ask(transaction: Transaction) -> list[Hashable]:
            transaction.incoming(sorted(by_key))
            rows = transaction.rows(
                "SELECT i.block FROM incoming i WHERE NOT EXISTS "
                "(SELECT 1 FROM l2dp_charges c WHERE c.block = i.block AND c.sequence = ?)",
                (reservation,),
            )
            return [by_key[bytes(key)] for (key,) in rows]

        return self._store.read(ask)

    def reservation(self, task: str) -> Reservation | None:
        """The latest reservation of a task; None: there was none."""
        return self._store.read(lambda transaction: self._reservation(transaction, task))

    def reservations(self) -> list[Reservation]:
        """All reservations in the order they were made."""
        rows = self._store.read(lambda transaction: transaction.rows(f"{_RESERVATIONS} ORDER BY r.sequence"))
        return [_reservation(*row) for row in rows]

    def entries(self) -> list[dict[str, Any]]:
        """All entries in order, as they are written."""
        rows = self._store.read(lambda transaction: transaction.rows("SELECT body FROM l2dp_entries ORDER BY sequence"))
        return [json.loads(text) for (text,) in rows]

    def levels(self) -> Levels:
        """How many blocks have spent how much. As fast with ten million blocks as with ten."""
        rows = self._store.read(
            lambda transaction: transaction.rows("SELECT epsilon, delta, blocks FROM l2dp_levels WHERE blocks > 0")
        )
        counted = sorted((Fraction(epsilon), Fraction(delta), blocks) for epsilon, delta, blocks in rows)
        return Levels(
            sum(blocks for *_, blocks in counted),
            tuple((as_budget((epsilon, delta)), blocks) for epsilon, delta, blocks in counted),
        )

    def head(self) -> Head:
        """The number and the hash of the last entry: what a release carries."""
        return self._store.read(self._head)

    def knows(self, head: Head | tuple[int, str]) -> bool:
        """Whether the book holds the entry that a release names. If not, the book is older than the release, or another
        one: what it says is not all that was spent, and nothing may be learned with it."""
        sequence, found = head
        rows = self._store.read(
            lambda transaction: transaction.rows("SELECT hash FROM l2dp_entries WHERE sequence = ?", (sequence,))
        )
        return bool(rows) and rows[0][0] == found

    def verify(self) -> list[str]:
        """Everything that is wrong with the book, in plain words; nothing: it is as it was written."""
        try:
            return self._store.read(lambda transaction: faults(self._store, transaction))
        except L2dpError as error:
            return [str(error)]

    # --- bookings -----------------------------------------------------------------------------------------

    def reserve(self, units: Collection[Hashable], cost: Budget, voucher: Voucher) -> int:
        """Charges every unit, or none of them, durably, before the first read; gives the number of the reservation.

        The same task with the same content, units and cost finds the reservation it made before, whether it was
        committed since or not: what it pays for is one set of answers, drawn from one durable key.
        """
        keys = sorted({key_of(unit) for unit in units})
        if not keys:
            raise BadInput(f"task {voucher.task!r} has no units to charge")
        digest = BlockDigest()
        digest.update(keys)
        names = {"name": next(iter(units))} if len(keys) == 1 and keys[0].startswith(b"t") else {}
        details = {
            **asdict(voucher),
            "noise": dict(voucher.noise),
            "cost": written(cost),
            "blocks": {"count": len(keys), "digest": digest.hex(), **names},
        }
        try:
            json_of(details)
        except (TypeError, ValueError) as error:
            raise BadInput(f"task {voucher.task!r}: its voucher cannot be written ({error})") from error

        def book(transaction: Transaction) -> int:
            before = self._reservation(transaction, voucher.task)
            if before is not None and before.spends:
                if any(before.body[name] != details[name] for name in ("content", "cost", "blocks")):
                    raise other_data(voucher.task)
                return before.id
            return self._book(transaction, keys, cost, "reserve", voucher.task, details, f"task {voucher.task!r}")

        return self._store.write(book)

    def join(self, home: str, check: str, unit: Unit) -> None:
        """Notes that a home books here; `check` tells whether two homes have the same fingerprint key.

        Guarantee
        ---------
        Users of several homes share one budget only if each is known by the same fingerprint in all of them, and a
        record that two homes learn would be charged as two. So a second home is refused unless it has the key of
        the first and both protect users.
        """

        def book(transaction: Transaction) -> None:
            there = [json.loads(text) for (text,) in transaction.rows(_HOMES)]
            mine = {"home": home, "check": check, "unit": unit}
            if any(all(found[name] == mine[name] for name in mine) for found in there):
                return
            if any(found["unit"] != "user" or unit != "user" for found in there):
                raise Refused(
                    f"the ledger {self.place} belongs to another home, and records of two homes cannot be compared; "
                    "give this home a ledger of its own"
                )
            if any(found["check"] != check for found in there):
                raise Refused(
                    f"the ledger {self.place} belongs to a home with another fingerprint key, and would not know a "
                    "user who is in both; make this home with the key of the first"
                )
            self._append(transaction, "home", mine)

        self._store.write(book)

    def check_of_home(self, home: str) -> str | None:
        """What `join` noted of a home's fingerprint key; None: it never joined."""
        if home not in self._checks:
            rows = self._store.read(lambda transaction: transaction.rows(_HOMES))
            for found in reversed([json.loads(text) for (text,) in rows]):
                self._checks[found["home"]] = str(found["check"])
        return self._checks.get(home)

    def charge(self, units: Collection[Hashable], cost: Budget, what: str) -> None:
        """Charges every unit, or none of them, for good: a reservation that nobody can cancel or find again."""
        keys = sorted({key_of(unit) for unit in units})
        digest = BlockDigest()
        digest.update(keys)
        details = {"what": what, "cost": written(cost), "blocks": {"count": len(keys), "digest": digest.hex()}}
        self._store.write(lambda transaction: self._book(transaction, keys, cost, "charge", None, details, what))

    def commit(self, reservation: int, answer: str | None = None) -> None:
        """Notes that the answers are durable, and their digest. Once more is no harm."""
        self._settle(reservation, "commit", {} if answer is None else {"answer": answer})

    def cancel(self, reservation: int) -> None:
        """Gives back what was reserved.

        Guarantee
        ---------
        Only for a boundary that can prove that no record was read for learning under this reservation.
        A committed reservation is never given back.
        """
        self._settle(reservation, "cancel")

    def close(self) -> None:
        self._store.close()

    def __enter__(self) -> Book:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- within a transaction -----------------------------------------------------------------------------

    def _fits(self, had: Amounts, price: Amounts) -> bool:
        return all(old + more <= most for old, more, most in zip(had, price, self._limit, strict=True))

    def _head(self, transaction: Transaction) -> Head:
        return Head(*transaction.rows("SELECT sequence, hash FROM l2dp_book")[0])

    def _reservation(self, transaction: Transaction, task: str) -> Reservation | None:
        rows = transaction.rows(f"{_RESERVATIONS} AND r.task = ? ORDER BY r.sequence DESC LIMIT 1", (task,))
        return _reservation(*rows[0]) if rows else None

    def _levels_of_incoming(self, transaction: Transaction) -> list[tuple[int, Amounts, int]]:
        """The levels that the incoming blocks stand at: number, amounts, how many of them."""
        rows = transaction.rows(
            "SELECT l.level, l.epsilon, l.delta, COUNT(*) FROM incoming i JOIN l2dp_balances b ON b.block = i.block "
            "JOIN l2dp_levels l ON l.level = b.level GROUP BY l.level, l.epsilon, l.delta"
        )
        return [(level, (Fraction(epsilon), Fraction(delta)), count) for level, epsilon, delta, count in rows]

    def _book(
        self,
        transaction: Transaction,
        keys: list[bytes],
        cost: Budget,
        kind: str,
        task: str | None,
        details: dict[str, Any],
        what: str,
    ) -> int:
        price = amounts(cost)
        transaction.incoming(keys)
        standing = self._levels_of_incoming(transaction)
        new = len(keys) - sum(count for *_, count in standing)
        over = sum(count for _, had, count in standing if not self._fits(had, price))
        over += 0 if self._fits(ZERO, price) else new
        if over:
            raise Refused(
                f"{what}: {over} of {len(keys)} units would exceed their lifetime budget of "
                f"epsilon {self.lifetime.epsilon:g}, delta {self.lifetime.delta:g}; nothing was read or charged; "
                "leave their rows out"
            )
        wrong, seen, charged = faults_of_incoming(transaction, self._seen, self._charged, self._limit)
        self._seen, self._charged = (NOWHERE, 0) if wrong else (seen, charged)  # whoever tries again is told again
        if wrong:
            raise BadInput(f"the ledger {self.place} was changed ({wrong[0]}); nothing was charged; run l2dp verify")
        sequence = self._append(transaction, kind, details, task)
        transaction.rows("INSERT INTO l2dp_charges (block, sequence) SELECT block, ? FROM incoming", (sequence,))
        self._move(transaction, standing, price, +1)
        if new:
            first = self._level(transaction, price, new)
            transaction.rows(
                "INSERT INTO l2dp_balances (block, level) SELECT i.block, ? FROM incoming i "
                "WHERE NOT EXISTS (SELECT 1 FROM l2dp_balances b WHERE b.block = i.block)",
                (first,),
            )
        return sequence

    def _settle(
        self, reservation: int, kind: Literal["commit", "cancel"], details: dict[str, Any] | None = None
    ) -> None:
        def settle(transaction: Transaction) -> None:
            rows = transaction.rows(f"{_RESERVATIONS} AND r.sequence = ?", (reservation,))
            if not rows:
                raise BadInput(f"the ledger {self.place} holds no reservation {reservation}")
            found = _reservation(*rows[0])
            if found.state == _STATES[kind]:
                return
            if found.state != "reserved":
                raise Refused(f"the reservation of task {found.task!r} is {found.state}; it cannot be changed any more")
            self._append(transaction, kind, details or {}, found.task, found.id)
            if kind == "cancel":
                keys = transaction.rows("SELECT block FROM l2dp_charges WHERE sequence = ? ORDER BY block", (found.id,))
                transaction.incoming([bytes(key) for (key,) in keys])
                self._move(transaction, self._levels_of_incoming(transaction), read(found.body, "cost") or ZERO, -1)

        self._store.write(settle)

    def _move(
        self, transaction: Transaction, standing: list[tuple[int, Amounts, int]], price: Amounts, sign: int
    ) -> None:
        """Takes the incoming blocks from the levels they stand at to those a price higher or lower."""
        moves = []
        for level, had, count in standing:
            now = had[0] + sign * price[0], had[1] + sign * price[1]
            moves.append((level, self._level(transaction, now, count)))
            transaction.rows("UPDATE l2dp_levels SET blocks = blocks - ? WHERE level = ?", (count, level))
        transaction.moves(moves)
        transaction.rows(
            "UPDATE l2dp_balances SET level = (SELECT m.target FROM moves m WHERE m.source = l2dp_balances.level) "
            "WHERE block IN (SELECT block FROM incoming)"
        )
        # A block that got everything back is as one that was never charged.
        for (zero,) in transaction.rows("SELECT level FROM l2dp_levels WHERE epsilon = '0' AND blocks > 0"):
            transaction.rows(
                "DELETE FROM l2dp_balances WHERE level = ? AND block IN (SELECT block FROM incoming)", (zero,)
            )
        transaction.rows("DELETE FROM l2dp_levels WHERE epsilon = '0' OR blocks = 0")

    def _level(self, transaction: Transaction, spent: Amounts, more: int) -> int:
        """The number of a level, with `more` blocks on it than before."""
        text = str(spent[0]), str(spent[1])
        rows = transaction.rows("SELECT level FROM l2dp_levels WHERE epsilon = ? AND delta = ?", text)
        if rows:
            transaction.rows("UPDATE l2dp_levels SET blocks = blocks + ? WHERE level = ?", (more, rows[0][0]))
            return int(rows[0][0])
        ((latest,),) = transaction.rows("SELECT COALESCE(MAX(level), 0) FROM l2dp_levels")
        transaction.rows("INSERT INTO l2dp_levels VALUES (?, ?, ?, ?)", (latest + 1, *text, more))
        return int(latest) + 1

    def _append(
        self,
        transaction: Transaction,
        kind: str,
        details: dict[str, Any],
        task: str | None = None,
        settles: int | None = None,
    ) -> int:
        """One more entry at the end of the chain."""
        head = self._head(transaction)
        rows = transaction.rows("SELECT sequence, body FROM l2dp_entries ORDER BY sequence DESC LIMIT 1")
        if (Head(rows[0][0], hash_of(rows[0][1])) if rows else NOWHERE) != head:
            raise BadInput(f"the last entry of the ledger {self.place} was changed or removed; run l2dp verify")
        sequence = head.sequence + 1
        text = json_of(
            details
            | {
                "kind": kind,
                "task": task,
                "settles": settles,
                "sequence": sequence,
                "previous": head.hash,
                "version": version("l2dp"),
                "time": _now(),
            }
        )
        transaction.rows(
            "INSERT INTO l2dp_entries (sequence, kind, task, settles, body, hash) VALUES (?, ?, ?, ?, ?, ?)",
            (sequence, kind, task, settles, text, hash_of(text)),
        )
        transaction.rows("UPDATE l2dp_book SET sequence = ?, hash = ?", (sequence, hash_of(text)))
        return sequence


def _now() -> str:
    """For people only. SOURCE_DATE_EPOCH fixes it where books are to be compared bit by bit."""
    fixed = os.environ.get("SOURCE_DATE_EPOCH", "")
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(fixed)) if fixed.isdecimal() else time.gmtime())


_RESERVATIONS = (
    "SELECT r.sequence, r.body, s.kind, s.body FROM l2dp_entries r "
    "LEFT JOIN l2dp_entries s ON s.settles = r.sequence WHERE r.kind = 'reserve'"
)
_HOMES = "SELECT body FROM l2dp_entries WHERE kind = 'home' ORDER BY sequence"
_STATES: dict[str | None, State] = {None: "reserved", "commit": "committed", "cancel": "cancelled"}


def _reservation(sequence: int, text: str, settled: str | None, settlement: str | None) -> Reservation:
    body = json.loads(text)
    cost = Budget(float(body["cost"]["epsilon"]), float(body["cost"]["delta"]))
    answer = None if settlement is None else json.loads(settlement).get("answer")
    return Reservation(
        sequence, body["task"], body["content"], _STATES[settled], cost, body["blocks"]["count"], body, answer
    )
