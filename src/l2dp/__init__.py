"""Lifelong learning under one fixed privacy budget: L2DP-ML, its baselines, and what holds.

>>> import l2dp
>>> stream = l2dp.streams.permuted("digits", tasks=2, seed=0)
>>> result = l2dp.run(stream, l2dp.learners.Agem(lr=0.1))
>>> str(result.guarantee)
'none (no privacy)'
"""

from l2dp import learners, streams
from l2dp.budget import Budget, Guarantee
from l2dp.errors import BadInput, L2dpError, Refused
from l2dp.runs import Result, Schedule, run

__all__ = [
    "BadInput",
    "Budget",
    "Guarantee",
    "L2dpError",
    "Refused",
    "Result",
    "Schedule",
    "learners",
    "run",
    "streams",
]
