"""One short file per attack. `ATTACKS` is all of them, in the order of the table."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from l2dp.audit.attack import Attack
from l2dp.audit.attacks.batch_statistics import BatchStatistics
from l2dp.audit.attacks.cancellation import Cancellation
from l2dp.audit.attacks.clipped_search import ClippedSearch
from l2dp.audit.attacks.difference import Difference
from l2dp.audit.attacks.each_class import EachClass
from l2dp.audit.attacks.floating_point import FloatingPoint
from l2dp.audit.attacks.gradient_canaries import GradientCanaries, ReplayedCanaries
from l2dp.audit.attacks.label_set import LabelSet
from l2dp.audit.attacks.membership import Membership
from l2dp.audit.attacks.one_gradient import OneGradient
from l2dp.audit.attacks.one_run import OneRun
from l2dp.audit.attacks.output_noise import OutputNoise
from l2dp.audit.attacks.projection import Projection
from l2dp.audit.attacks.quiet_layers import QuietLayers
from l2dp.audit.attacks.rank import Rank
from l2dp.audit.attacks.restarts import Restarts
from l2dp.audit.attacks.returning import ReturningUser
from l2dp.audit.attacks.sampler import Sampler
from l2dp.audit.attacks.scatter import ScatterCanaries
from l2dp.audit.attacks.two_batches import TwoBatches
from l2dp.audit.attacks.worst_case import WorstCase
from l2dp.errors import BadInput

ATTACKS: tuple[Attack, ...] = (
    Rank(),
    ClippedSearch(),
    Projection(),
    Difference(),
    TwoBatches(),
    OutputNoise(),
    BatchStatistics(),
    QuietLayers(),
    WorstCase(),
    EachClass(),
    Cancellation(),
    ReturningUser(),
    ScatterCanaries(),
    OneGradient(),
    GradientCanaries(),
    ReplayedCanaries(),
    OneRun(),
    Sampler(),
    FloatingPoint(),
    Restarts(),
    LabelSet(),
    Membership(),
)


def named(names: Sequence[str]) -> tuple[Attack, ...]:
    """The attacks of these names; no names: all of them."""
    known = {attack.NAME: attack for attack in ATTACKS}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known)}"
            raise BadInput(f"unknown attack {name!r}; {hint}")
    return tuple(known[name] for name in names) if names else ATTACKS
