"""One gradient: the worst-case neighbour of a single noisy gradient over a whole task, with all of the budget in it."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch

from l2dp.audit.attack import Attack, Level, only_naive, only_replay
from l2dp.audit.attacks.gradient_canaries import BLOCK, CANARIES, WRONG, block_inputs, blocks, read
from l2dp.audit.canaries import boundary, longer, rows_each, task, tossed
from l2dp.audit.decisions import Trials
from l2dp.audit.target import Target
from l2dp.streams.records import Space

MOST = 0.998
"""The share of the budget that goes into the gradient; other releases must have something."""


class OneGradient(Attack):
    """One step over all records, so neither sampling nor composition blurs it: this is where too little noise shows.

    Canary i has inputs of its own and is predicted wrongly for sure, so its gradient is as long as gradients get and
    lies where no other does. The score is the released gradient along it, the optimal test for Gaussian noise.
    """

    NAME: ClassVar[str] = "one gradient"
    THREAT: ClassVar[str] = "one noisy gradient of a whole task, at weights of the attacker's choice"
    RUNS: ClassVar[dict[Level, int]] = {"quick": 800_000, "thorough": 1_500_000}

    def refusal(self, target: Target) -> str | None:
        if only_naive(target) is None:
            return None
        if only_replay(target) is not None:
            return only_replay(target)
        budget, head = target.option("budget"), target.option("head_share")
        return "this setting releases no gradients" if budget.delta == 0 or head == 0 else None

    def trials(self, target: Target, runs: int, rng: np.random.Generator) -> dict[str, Trials]:
        if rows_each(target)[1] > 1:
            runs = max(40, runs // 4)  # a user's gradient is held whole, which takes its time
        count = min(CANARIES, runs)
        seen, coins = [], []
        calls = _of_network(target, count) if only_naive(target) is None else _of_head(target, count)
        for call in range(math.ceil(runs / count)):
            members, ids = tossed(rng, count)
            seen.append(calls(call, ids).double().numpy())
            coins.append(members)
        return {self.NAME: Trials(np.concatenate(seen), np.concatenate(coins))}


def _of_head(target: Target, count: int) -> Any:
    allowed, brought = rows_each(target)
    target = target.having(target.variant, head="experts", steps=1, scatter_share=0.0, head_share=MOST)
    door = boundary(target, Space((count,), ("0", "1")))
    weight = torch.tensor([-WRONG, WRONG]).expand(count, 2).contiguous()

    def call(index: int, ids: torch.Tensor) -> torch.Tensor:
        who = ids.repeat_interleave(brought)
        x, y = torch.eye(count)[who], torch.zeros(len(who), dtype=torch.int64)
        given = task(f"{index}", x, y, who, 2, count * allowed, index * (count + 1))
        gradient: torch.Tensor = door.open(given, index).head(longer)(weight)
        return gradient[:, 1] - gradient[:, 0]

    return call


def _of_network(target: Target, count: int) -> Any:
    target = target.having(target.variant, policy="uniform", horizon=1, own_share=MOST)

    def call(index: int, ids: torch.Tensor) -> torch.Tensor:
        door = boundary(target, Space((count * BLOCK,), ("0", "1")), model=blocks(count))
        x, y = block_inputs(ids, count), torch.zeros(len(ids), dtype=torch.int64)
        return read(door.open(task(f"{index}", x, y, ids, 2, count), 1, count).gradient(), count)

    return call
