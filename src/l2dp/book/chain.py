"""Entries of the book as canonical JSON, each with the hash of the one before.

The hash of an entry is SHA-256 of its text; the text names the entry before, so that no entry can be changed, taken
out or put in without changing every hash after it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

from l2dp.errors import BadInput


class Head(NamedTuple):
    """Where a book stands: the number and the hash of its last entry. Every release carries one."""

    sequence: int
    hash: str


NOWHERE = Head(-1, "0" * 64)
"""Before the first entry."""


def json_of(value: Any) -> str:
    """One text for equal contents: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def key_of(unit: Hashable) -> bytes:
    """The key under which a block is booked: a task's name, a number, or the bytes of a fingerprint.

    The first byte says which, so that no two kinds meet.

    >>> key_of("2026-11"), key_of(7), key_of(b"\\x01")
    (b't2026-11', b'n7', b'f\\x01')
    """
    if isinstance(unit, str):
        try:
            return b"t" + unit.encode()
        except UnicodeEncodeError:
            raise BadInput(f"the block {unit!r} is not valid text; choose another name") from None
    if isinstance(unit, bool) or not isinstance(unit, int | bytes):
        raise BadInput(f"a block is a name, a whole number or bytes, not {type(unit).__name__}")
    return b"n%d" % unit if isinstance(unit, int) else b"f" + unit


def unit_of(key: bytes) -> str | int | bytes:
    """The unit that is booked under a key."""
    if key[:1] == b"t":
        return key[1:].decode()
    return int(key[1:]) if key[:1] == b"n" else key[1:]


class BlockDigest:
    """SHA-256 of blocks in ascending order of their keys, each with its length before it."""

    def __init__(self) -> None:
        self.count = 0
        self._total = hashlib.sha256()

    def update(self, ascending: Iterable[bytes]) -> None:
        for key in ascending:
            self.count += 1
            self._total.update(len(key).to_bytes(8, "big") + key)

    def hex(self) -> str:
        return self._total.hexdigest()
