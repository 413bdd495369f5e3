"""Where a book is: a file, or a database on a PostgreSQL server.

A password in an address never reaches a message or a file; keep it in PGPASSWORD or in the password file of libpq.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from l2dp.book.book import Book
from l2dp.book.store import Store
from l2dp.budget import Budget
from l2dp.errors import BadInput

SERVERS = ("postgresql://", "postgres://")


def is_server(place: str | Path) -> bool:
    return str(place).startswith(SERVERS)


def without_password(place: str) -> str:
    """The address of a server as it may be stored.

    >>> without_password("postgresql://ann:secret@db.example/clinic?password=secret&sslmode=require")
    'postgresql://ann@db.example/clinic?sslmode=require'
    """
    if not is_server(place):
        return place
    parts = urlsplit(place)
    user, at, host = parts.netloc.rpartition("@")
    query = "&".join(word for word in parts.query.split("&") if not re.match(r"(?i)(ssl)?password=", word))
    # By hand: urlunsplit loses the slashes of an address without a host.
    return f"{parts.scheme}://{user.partition(':')[0]}{at}{host}{parts.path}{'?' if query else ''}{query}"


def shown(place: str | Path) -> str:
    """A place as messages name it: a server without user, password and options.

    >>> shown("postgresql://ann:secret@db.example:5433/clinic?sslmode=require")
    'postgresql://db.example:5433/clinic'
    """
    if not is_server(place):
        return str(place)
    parts = urlsplit(str(place))
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def open_book(place: str | Path, lifetime: Budget | None = None, readonly: bool = False) -> Book:
    """Opens the book at a path or a `postgresql://` address; with a lifetime, makes it if there is none yet.

    `readonly` is for looking only, for example on a disk that cannot be written.
    """
    if "://" in str(place) and not is_server(place):
        scheme = str(place).partition("://")[0]
        raise BadInput(f"a ledger cannot be kept at {scheme}://…; give a file, or postgresql://HOST/DATABASE")
    store: Store
    if is_server(place):
        from l2dp.book.postgres import PostgresStore

        store = PostgresStore(str(place))
    else:
        from l2dp.book.sqlite import SqliteStore

        store = SqliteStore(Path(place), create=lifetime is not None, readonly=readonly)
    return Book(store, lifetime)
