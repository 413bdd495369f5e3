"""Fixed public feature maps: functions of one input, chosen before any private record is seen.

`build` makes one from its name; `Encoder` applies it, with a cache on disk for the costly ones. A map learned
nothing from private data, so applying it costs no budget. What is proved about a boundary never rests on a
map: norms are bounded inside the boundary, whatever a map returns.
"""

from l2dp.features.cache import Encoder
from l2dp.features.maps import NAMES, FeatureMap, Projected, RandomLift, build

__all__ = ["NAMES", "Encoder", "FeatureMap", "Projected", "RandomLift", "build"]
