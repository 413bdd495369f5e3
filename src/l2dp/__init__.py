"""Lifelong learning under one fixed privacy budget: L2DP-ML, its baselines, and what holds.

>>> import l2dp
>>> stream = l2dp.streams.permuted("digits", tasks=2, seed=0)
>>> result = l2dp.run(stream, l2dp.learners.Agem(lr=0.1))
>>> str(result.guarantee)
'none (no privacy)'
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from l2dp import learners, streams
    from l2dp.budget import Budget, Guarantee
    from l2dp.errors import BadInput, L2dpError, Refused
    from l2dp.runs import Result, Schedule, run
    from l2dp.store import Home, Release, init
    from l2dp.store import open_home as open

__all__ = [
    "BadInput",
    "Budget",
    "Guarantee",
    "Home",
    "L2dpError",
    "Refused",
    "Release",
    "Result",
    "Schedule",
    "init",
    "learners",
    "open",
    "run",
    "streams",
]

_HOMES = {
    "BadInput": "l2dp.errors",
    "Budget": "l2dp.budget",
    "Guarantee": "l2dp.budget",
    "L2dpError": "l2dp.errors",
    "Refused": "l2dp.errors",
    "Result": "l2dp.runs",
    "Schedule": "l2dp.runs",
    "run": "l2dp.runs",
    "Home": "l2dp.store",
    "Release": "l2dp.store",
    "init": "l2dp.store",
}


def __getattr__(name: str) -> Any:
    """Names are imported when they are first used, so that the command line answers before torch is loaded."""
    if name in ("learners", "streams"):
        return importlib.import_module(f"l2dp.{name}")
    if name == "open":
        return importlib.import_module("l2dp.store").open_home
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'l2dp' has no attribute {name!r}")
