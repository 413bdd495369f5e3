"""The durable book of what every block of units has been charged, on SQLite or PostgreSQL.

`Book` is the ledger of a lifelong home: append-only, hash-chained, and a charge is durable before the read it pays for.
It must not see records: blocks are task names or keyed fingerprints of users.
"""

from l2dp.book.book import Book, Levels, Reservation, Voucher
from l2dp.book.chain import Head
from l2dp.book.payment import Payment
from l2dp.book.places import open_book, shown, without_password

__all__ = [
    "Book",
    "Head",
    "Levels",
    "Payment",
    "Reservation",
    "Voucher",
    "open_book",
    "shown",
    "without_password",
]
