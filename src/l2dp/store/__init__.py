"""A lifelong home on disk: what was declared, the ledger, the state after every task, and the releases made of it.

A home is a directory that lives for years. Whatever happens to the process, no task is lost and nothing is charged
twice. It holds no record: only fingerprints under a secret key, and what has left the boundary.
"""

from l2dp.store.home import Home, init, open_home
from l2dp.store.release import Release

__all__ = ["Home", "Release", "init", "open_home"]
