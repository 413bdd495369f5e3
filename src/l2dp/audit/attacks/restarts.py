"""Restarts: a learner that is taken up twice from one saved state must not use the same noise for other data."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from torch import Tensor

from l2dp.audit.attack import Attack, Level, elsewhere
from l2dp.audit.attacks.membership import RECORDS, STEPS, begun, clusters, neighbour
from l2dp.audit.decisions import Trials
from l2dp.audit.target import Target
from l2dp.learners import Plan, State

LOOKED_AT = 24


class Restarts(Attack):
    """One task is learned and saved. Two learners go on from there: one with the target in its next task or not, one
    with data that are known. Noise that is repeated after a restart cancels between their releases.

    The released numbers of both make the score, weighted by a likelihood ratio that is fitted on the first half.
    """

    NAME: ClassVar[str] = "restarts"
    THREAT: ClassVar[str] = "two releases that continue one saved state with different data"
    RUNS: ClassVar[dict[Level, int]] = {"quick": 200, "thorough": 400}

    def refusal(self, target: Target) -> str | None:
        # A network of fixed size is saved and restored by other code; once is enough, for each trial trains it thrice.
        if target.same_boundary and (target.option("protects") == "user" or target.option("budget").delta == 0):
            return elsewhere(target)
        return None

    def trials(self, target: Target, runs: int, rng: np.random.Generator) -> dict[str, Trials]:
        coins = rng.integers(0, 2, runs).astype(bool)
        fixed = [clusters(np.random.default_rng(index)) for index in range(2)]
        seen = [self._both(target, bool(member), fixed) for member in coins]
        return {self.NAME: Trials(np.stack(seen), coins)}

    def _both(self, target: Target, member: bool, data: list[tuple[Tensor, Tensor]]) -> np.ndarray:
        first, saved = begun(target), neighbour(target, 0, data[0], None)
        first.learn(saved, Plan(STEPS, RECORDS // 2))
        state, episode = first.state(), first.episode(0)
        shown = []
        for present in (member, None):
            again = begun(target)
            tensors = {name: tensor.clone() for name, tensor in state.tensors.items()}
            again.restore(State(tensors, state.meta), [episode], [saved])
            before = _numbers(again.release())
            again.learn(neighbour(target, 1, data[1], present), Plan(STEPS, RECORDS // 2))
            after = _numbers(again.release())
            shown.append(after[len(before) :] if len(after) > len(before) else after)
        numbers = [part[np.linspace(0, len(part) - 1, min(LOOKED_AT, len(part))).astype(int)] for part in shown]
        return np.concatenate(numbers)


def _numbers(release: dict[str, Tensor]) -> np.ndarray:
    """All released floats, those of the latest task last."""
    return np.concatenate([t.double().flatten().numpy() for t in release.values() if t.is_floating_point()])
