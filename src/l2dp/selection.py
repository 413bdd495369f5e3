"""What choosing a setting by looking at private data costs, if it is done in a way that can be counted.

Whoever tries all settings and keeps the best has no bound below basic composition. Whoever tries settings drawn at
random, a random number of times, pays far less: Liu and Talwar 2019 for a geometric number of tries, Papernot and
Steinke 2022 for others. The formulas are dp-accounting's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from dp_accounting.rdp import rdp_privacy_accountant
from numpy.typing import NDArray

from l2dp.errors import BadInput
from l2dp.lifetime import MANY, curve_epsilon

LAWS = {"geometric": 1.0, "logarithmic": 0.0, "Poisson": math.inf}
"""Of the number of tries; by dp-accounting's shape."""


@dataclass(frozen=True)
class Selection:
    """ε of trying settings at random and keeping the best, with the law of the number of tries that costs least."""

    epsilon: float
    law: str
    tries: float


def select(curves: Sequence[NDArray[np.float64]], delta: float, tries: float) -> Selection:
    """The cost of choosing among settings, each with its Rényi divergences at `lifetime.MANY` orders.

    Guarantee
    ---------
    If a number is drawn from the law, that many settings are drawn from the list, each is run with fresh noise, and the
    best run is all that anybody sees of them, that is (ε, δ)-private. Every setting is counted as the dearest at each
    order; the law is chosen by public numbers.
    """
    if not curves or not tries >= 1:
        raise BadInput(f"a choice is made among at least one setting with at least one try, not {tries}")
    dearest = np.max(np.stack(curves), axis=0)
    found = []
    for law, shape in LAWS.items():
        repeated = rdp_privacy_accountant._compute_rdp_repeat_and_select(MANY, dearest, tries, shape)
        found.append(Selection(curve_epsilon(np.asarray(repeated), delta), law, tries))
    return min(found, key=lambda one: one.epsilon)
