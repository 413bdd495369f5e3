"""Scatter: the worst-case neighbour of the noisy scatter matrix, one canary in each direction."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch

from l2dp.audit.attack import Attack, Level, only_replay
from l2dp.audit.canaries import boundary, longer, rows_each, task, tossed
from l2dp.audit.decisions import Trials
from l2dp.audit.target import Target
from l2dp.streams.records import Space

WIDTH = 64
SHARE = 0.998
"""Of a task's budget, for the scatter; the class sums must have something."""


class ScatterCanaries(Attack):
    """Canary i lies along coordinate i, far too long: it adds clip² to the diagonal entry (i, i) and nothing else."""

    NAME: ClassVar[str] = "scatter"
    THREAT: ClassVar[str] = "the released scatter matrix; everything but the presence of one unit"
    RUNS: ClassVar[dict[Level, int]] = {"quick": 300_000, "thorough": 400_000}

    def refusal(self, target: Target) -> str | None:
        if only_replay(target) is None and target.option("budget").delta == 0:
            return "pure ε releases no scatter"
        return only_replay(target)

    def trials(self, target: Target, runs: int, rng: np.random.Generator) -> dict[str, Trials]:
        target = target.having(target.variant, scatter_share=SHARE, head_share=0.0, head="experts")
        clip = float(target.option("residual_clip"))
        allowed, brought = rows_each(target)
        if brought > 1:
            runs = max(40, runs // 3)  # the ledger books every user of every task, which takes its time
        door = boundary(target, Space((WIDTH,), ("0", "1")))
        seen, coins = [], []
        for call in range(math.ceil(runs / WIDTH)):
            members, ids = tossed(rng, WIDTH)
            who = ids.repeat_interleave(brought)
            x, y = torch.eye(WIDTH)[who], torch.zeros(len(who), dtype=torch.int64)
            session = door.open(task(f"{call}", x, y, who, 2, WIDTH * allowed, call * (WIDTH + 1)), call)
            found = session.scatter(longer, torch.zeros(2, WIDTH))
            seen.append(found.matrix.diagonal().double().numpy() / clip**2)
            coins.append(members)
        return {self.NAME: Trials(np.concatenate(seen), np.concatenate(coins))}
