"""Reads a book and says what is wrong with it, in plain words and in bounded memory.

Everything is worked out anew from the chain of entries: which reservations count, what every block has spent, how many
blocks stand at every level; and compared with what the book says. Before a charge the chain and the blocks that are to
pay are looked at in the same way.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from json.encoder import encode_basestring
from typing import Any

from l2dp.book.amounts import Amounts, read
from l2dp.book.chain import NOWHERE, BlockDigest, Head, hash_of, json_of, unit_of
from l2dp.book.store import FORMAT, Row, Store, Transaction

MOST = 20
"""Faults of one kind that are told one by one."""
UNKNOWN: Amounts = (Fraction(-1), Fraction(-1))
"""The amounts of a level that is not there."""


@dataclass
class Findings:
    """Faults by kind; of each kind the first ones, and how many more."""

    told: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, text: str) -> None:
        self.counts[kind] += 1
        if self.counts[kind] <= MOST:
            self.told.append(text)

    def all(self) -> list[str]:
        more = [f"and {count - MOST} more: {kind}" for kind, count in self.counts.items() if count > MOST]
        return self.told + more


@dataclass
class Walk:
    """A walk along the whole chain, and what it finds there."""

    head: Head = NOWHERE
    limit: Amounts = UNKNOWN
    blocks: dict[int, tuple[int, str]] = field(default_factory=dict)
    """Of each entry that charges: how many blocks, and their digest."""
    live: dict[int, Amounts] = field(default_factory=dict)
    """What each charge that counts costs."""
    open: dict[int, str] = field(default_factory=dict)
    """The reservations that are neither committed nor cancelled, and their tasks."""

    def on(self, transaction: Transaction, found: Findings) -> None:
        """From the first entry to the last."""
        statement = "SELECT sequence, kind, task, settles, body, hash FROM l2dp_entries ORDER BY sequence"
        for row in transaction.stream(statement):
            self._take(row, found)
        if transaction.rows("SELECT version, sequence, hash FROM l2dp_book") != [(FORMAT, *self.head)]:
            last = self.head.sequence
            found.add("head", f"the book ends at entry {last}, and that is not the last one that was written")
        if self.head == NOWHERE:
            found.add("first entry", "the book is empty: its first entry is missing")

    def _take(self, row: Row, found: Findings) -> None:
        sequence, kind, task, settles, text, kept = row
        if sequence != self.head.sequence + 1:
            found.add("missing entries", f"entry {self.head.sequence + 1} is missing: the next one is {sequence}")
        if hash_of(text) != kept:
            found.add("changed entries", f"entry {sequence} was changed: its hash does not match")
        body = _body(text)
        if body is None or body.get("previous") != self.head.hash:
            found.add("broken chain", f"entry {sequence} does not follow the entry before it: the chain is broken")
        self.head = Head(sequence, kept)
        if body is None:
            return
        if (body.get("sequence"), body.get("kind"), body.get("task"), body.get("settles")) != row[:4]:
            found.add("changed columns", f"entry {sequence}: its columns say other than its text")
        if sequence == 0:
            limit = read(body, "lifetime")
            if kind != "open" or limit is None:
                found.add("first entry", "entry 0 does not open a book with a lifetime budget")
            else:
                self.limit = limit
        elif kind in ("reserve", "charge"):
            cost, blocks = read(body, "cost"), body.get("blocks")
            if cost is None or not isinstance(blocks, dict):
                found.add("unreadable entries", f"entry {sequence} charges nobody or no readable amount")
                return
            self.blocks[sequence], self.live[sequence] = (blocks.get("count", 0), blocks.get("digest", "")), cost
            if kind == "reserve":
                self.open[sequence] = str(task)
        elif kind in ("commit", "cancel"):
            if self.open.pop(settles, None) != task:
                found.add("stray entries", f"entry {sequence} settles no open reservation of its task")
            elif kind == "cancel":
                del self.live[settles]
        elif kind not in ("home", "migrate"):
            found.add("stray entries", f"entry {sequence} is of a kind that has no place there: {kind!r}")


def faults(store: Store, transaction: Transaction) -> list[str]:
    """Everything that is wrong; a damaged database is not read any further."""
    found = Findings()
    for text in store.faults(transaction):
        found.add("database", text)
    if any(text.startswith("the file is damaged") for text in found.told):
        return found.all()
    walk = Walk()
    walk.on(transaction, found)
    _charges(transaction, walk, found)
    counts = _balances(transaction, walk.live, walk.limit, found, "")
    for level, blocks in transaction.rows("SELECT level, blocks FROM l2dp_levels ORDER BY level"):
        if counts[level] != blocks:
            found.add("levels", f"the book counts {blocks} blocks at level {level}, and there are {counts[level]}")
    return found.all()


def faults_of_incoming(
    transaction: Transaction, seen: Head, charged: int, limit: Amounts
) -> tuple[list[str], Head, int]:
    """What is wrong with the chain from `seen` on, and with the balances of the incoming blocks; the head now.

    `charged` counts the blocks that entries up to `seen` charged; those up to the head come back.

    Entries are not parsed, but for those that the blocks have paid: a ledger of thousands of tasks is read in
    milliseconds.
    """
    found = Findings()
    statement = (
        "SELECT sequence, kind, task, settles, body, hash FROM l2dp_entries "
        f"WHERE sequence > {seen.sequence} ORDER BY sequence"
    )
    for sequence, kind, task, settles, text, kept in transaction.stream(statement):
        settled, named = "null" if settles is None else settles, "null" if task is None else encode_basestring(task)
        said = f'"sequence":{sequence},"settles":{settled},"task":{named},"time":'
        same = f'"kind":"{kind}"' in text and f'"previous":"{seen.hash}"' in text and said in text
        if not same or hash_of(text) != kept or sequence != seen.sequence + 1:
            found.add("changed entries", f"entry {sequence} was changed, or does not follow the entry before it")
        seen = Head(sequence, kept)
        if kind in ("reserve", "charge") and (noted := _COUNT.search(text)):
            charged += int(noted[1])
    ((there,),) = transaction.rows("SELECT COUNT(*) FROM l2dp_charges")
    if there != charged:
        found.add("charges", f"entries charged {charged} blocks in all, and {there} are noted")
    if transaction.rows("SELECT sequence, hash FROM l2dp_book") != [tuple(seen)]:
        found.add("head", f"the book ends at entry {seen.sequence}, and that is not the last one that was written")
    paid = transaction.rows(
        "SELECT r.sequence, r.body FROM l2dp_entries r WHERE r.sequence IN "
        "(SELECT c.sequence FROM l2dp_charges c JOIN incoming i ON i.block = c.block) "
        "AND NOT EXISTS (SELECT 1 FROM l2dp_entries s WHERE s.settles = r.sequence AND s.kind = 'cancel')"
    )
    live = {sequence: read(_body(text) or {}, "cost") or UNKNOWN for sequence, text in paid}
    _balances(transaction, live, limit, found, " WHERE block IN (SELECT block FROM incoming)")
    return found.all(), seen, charged


_COUNT = re.compile(r'"blocks":\{"count":(\d+)')


def _body(text: str) -> dict[str, Any] | None:
    try:
        body = json.loads(text)
        return body if isinstance(body, dict) and json_of(body) == text else None
    except (ValueError, RecursionError):
        return None


def _charges(transaction: Transaction, walk: Walk, found: Findings) -> None:
    """The blocks of every charge are those that its entry was written for."""
    statement = "SELECT sequence, block FROM l2dp_charges ORDER BY sequence, block"
    missing = dict(walk.blocks)
    for sequence, rows in itertools.groupby(transaction.stream(statement), key=lambda row: row[0]):
        digest = BlockDigest()
        digest.update(bytes(block) for _, block in rows)
        if sequence not in walk.blocks:
            found.add("stray charges", f"{digest.count} blocks are charged for entry {sequence}, which charges nobody")
        elif (digest.count, digest.hex()) != missing.pop(sequence):
            found.add("changed charges", f"the blocks that are booked for entry {sequence} are not those it charged")
    for sequence, (count, _) in missing.items():
        if count:
            found.add("missing charges", f"the blocks that entry {sequence} charged are missing")


def _balances(
    transaction: Transaction, live: Mapping[int, Amounts], limit: Amounts, found: Findings, which: str
) -> Counter[int]:
    """What blocks have spent, worked out anew, is what the book says, and within the lifetime budget.

    Gives how many of them stand at each level.
    """
    levels: dict[int, Amounts] = {}
    for level, epsilon, delta in transaction.rows("SELECT level, epsilon, delta FROM l2dp_levels"):
        try:
            levels[level] = Fraction(epsilon), Fraction(delta)
        except (ValueError, ZeroDivisionError):
            found.add("levels", f"level {level} has no readable amount")
    counts: Counter[int] = Counter()
    # Blocks with the same charges and the same balance are judged alike: millions of them, few judgements.
    judged: dict[tuple[tuple[int, ...], int | None], list[tuple[str, str]]] = {}
    for block, sequences, level in _side_by_side(transaction, which):
        if level is not None:
            counts[level] += 1
        verdict = judged.get((sequences, level))
        if verdict is None:
            if len(judged) > 100_000:
                judged.clear()
            costs = [live[sequence] for sequence in sequences if sequence in live]
            said = None if level is None else levels.get(level, UNKNOWN)
            verdict = judged[sequences, level] = _judge(costs, said, limit)
        for kind, text in verdict:
            found.add(kind, f"block {_name(block)} {text}")
    return counts


def _judge(costs: list[Amounts], said: Amounts | None, limit: Amounts) -> list[tuple[str, str]]:
    """What is wrong with a block that has these charges and this balance: kinds and texts."""
    spent = sum((cost[0] for cost in costs), Fraction(0)), sum((cost[1] for cost in costs), Fraction(0))
    wrong = []
    if costs and (spent[0] > limit[0] or spent[1] > limit[1]):
        wrong.append(("overspent", "has spent more than its lifetime budget"))
    if said is None and costs:
        wrong.append(("balances", "was charged, and the book has no balance of it"))
    elif said is not None and (said != spent or not costs):
        wrong.append(("balances", "has a balance that is not what its charges add up to"))
    return wrong


def _side_by_side(transaction: Transaction, which: str) -> Iterator[tuple[bytes, tuple[int, ...], int | None]]:
    """Every block once, in order: its charges, and the level of its balance if it has one."""
    charges = itertools.groupby(
        transaction.stream(f"SELECT block, sequence FROM l2dp_charges{which} ORDER BY block, sequence"),
        key=lambda row: row[0],
    )
    balances = transaction.stream(f"SELECT block, level FROM l2dp_balances{which} ORDER BY block")
    nothing: tuple[None, Iterator[Row]] = (None, iter(()))
    block, rows = next(charges, nothing)
    kept = next(balances, None)
    while block is not None or kept is not None:
        if kept is None or (block is not None and bytes(block) < bytes(kept[0])):
            assert block is not None
            yield bytes(block), tuple(row[1] for row in rows), None
            block, rows = next(charges, nothing)
        elif block is None or bytes(kept[0]) < bytes(block):
            yield bytes(kept[0]), (), kept[1]
            kept = next(balances, None)
        else:
            yield bytes(block), tuple(row[1] for row in rows), kept[1]
            block, rows = next(charges, nothing)
            kept = next(balances, None)


def _name(key: bytes) -> str:
    try:
        unit = unit_of(key)
    except (UnicodeDecodeError, ValueError):
        return key.hex()
    return unit.hex() if isinstance(unit, bytes) else repr(unit)
