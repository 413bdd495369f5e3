"""What the book asks of a database: transactions that are durable when they return, and a few plain statements.

Statements are written once, with `?` for values; `sqlite` and `postgres` run them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

Row = tuple[Any, ...]
T = TypeVar("T")

FORMAT = 1
"""The version of the tables. A book of an older one is migrated when it is opened, one of a newer one is refused."""
TABLES = ("l2dp_book", "l2dp_entries", "l2dp_charges", "l2dp_levels", "l2dp_balances")
GUARDED = ("l2dp_entries", "l2dp_charges")
"""Append-only: triggers refuse every change of a row and every removal."""


class Transaction(Protocol):
    """One transaction; reads see one state of the book."""

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """Runs a statement and gives all its rows."""

    def stream(self, statement: str) -> Iterator[Row]:
        """Runs a query and gives its rows one after the other, in bounded memory."""

    def incoming(self, keys: Sequence[bytes]) -> None:
        """Fills the temporary table `incoming` with these blocks, in place of what it held."""

    def moves(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Fills the temporary table `moves` with pairs (old level, new level)."""


class Store(ABC):
    """A database that holds one book.

    Guarantee
    ---------
    `write` runs its work as if nobody else wrote (serialisable), and when it returns the change is on the disk as a
    whole. When it raises, nothing was changed; the one exception is a connection to a server that broke in the very
    moment of the commit, and the error says so.
    """

    place: str
    """Where it is, for messages: never with a password."""

    @abstractmethod
    def write(self, work: Callable[[Transaction], T]) -> T: ...

    @abstractmethod
    def read(self, work: Callable[[Transaction], T]) -> T: ...

    @abstractmethod
    def tables(self, transaction: Transaction) -> set[str]:
        """The tables of ours that are there."""

    @abstractmethod
    def create(self, transaction: Transaction) -> None:
        """Makes the tables and their guards."""

    @abstractmethod
    def faults(self, transaction: Transaction) -> list[str]:
        """What is wrong with the database itself: damaged pages, missing guards."""

    @abstractmethod
    def close(self) -> None: ...
