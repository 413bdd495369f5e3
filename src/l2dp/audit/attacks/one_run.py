"""One run: many canaries in a single training run, and the release that comes of it (Steinke, Nasr, Jagielski 2023)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch

from l2dp.audit.attack import Attack, Level, only_naive, only_replay
from l2dp.audit.attacks.gradient_canaries import BLOCK, block_inputs, blocks
from l2dp.audit.canaries import rows_each, task, tossed
from l2dp.audit.decisions import Trials
from l2dp.audit.target import Target
from l2dp.learners import Plan, Setting
from l2dp.streams.records import Space

CANARIES = 1000
STEPS = 20


class OneRun(Attack):
    """The whole learner, trained once with a thousand canaries, each in by a coin of its own.

    The score of a canary is how far the release leans towards it: the head's weight of its feature, or the network's
    weights of its inputs. One run chooses how many guesses to make, a second one is judged by the theorem for many
    canaries in one run, which needs no independence between them. Weak at small ε: a thousand guesses are few.
    """

    NAME: ClassVar[str] = "one run"
    THREAT: ClassVar[str] = "the release of one training run with 1,000 canaries"
    RUNS: ClassVar[dict[Level, int]] = {"quick": 2 * CANARIES, "thorough": 2 * CANARIES}
    ONE_RUN: ClassVar[bool] = True

    def refusal(self, target: Target) -> str | None:
        if only_naive(target) is None:
            return None
        if only_replay(target) is not None:
            return "against learners of noisy gradients only"
        budget, head = target.option("budget"), target.option("head_share")
        if budget.delta == 0 or head == 0 or target.option("head") != "experts":
            return "this setting releases no heads"
        return None

    def trials(self, target: Target, runs: int, rng: np.random.Generator) -> dict[str, Trials]:
        naive = only_naive(target) is None
        allowed, brought = rows_each(target)
        count = max(1, runs // 2)
        width = count * BLOCK if naive else count
        seen, coins = [], []
        for _ in range(2):
            members, ids = tossed(rng, count)
            learner = target.make(model=blocks(count)) if naive else target.make(features="pixels", project=None)
            learner.begin(Setting(Space((width,), ("0", "1")), count, seed=int(rng.integers(2**31))))
            who = ids.repeat_interleave(brought)
            # Pixels are moved from [−1, 1] to [0, 1] and brought to norm 1: one bright pixel is one feature.
            x = block_inputs(ids, count) if naive else 2 * torch.eye(count)[who] - 1
            y = torch.zeros(len(x), dtype=torch.int64)
            before = learner.release()
            learner.learn(task("canaries", x, y, who, 2, count * allowed), Plan(STEPS, count))
            after = learner.release()
            if naive:
                moved = after["encoder.weight"] - before["encoder.weight"]
                score = (moved[0] - moved[1]).view(count, BLOCK).sum(dim=1)
            else:
                head = after["task-0.head"]
                score = head[:, 0] - head[:, 1]
            seen.append(score.double().numpy())
            coins.append(members)
        return {self.NAME: Trials(np.concatenate(seen), np.concatenate(coins))}
