"""The only code that reads raw private records. What leaves it is private, or says plainly that it is not.

One file per way out: `unprotected` (no privacy, for the baselines), `perturbed` (the paper's objective, whose claim is
refuted), `statistics`, `gradients` and `scores` (noisy sums, gradients and counts, proved), `private_memory` (noisy
gradients of a task and of records kept of earlier ones, proved). `admission` checks a task before anything is read for
learning, `entry` bounds and charges its units as well, `private` is the door of `private-replay`.
"""

from l2dp.boundary.perturbed import PerturbedObjective
from l2dp.boundary.private import PrivateTasks
from l2dp.boundary.private_memory import PrivateMemory
from l2dp.boundary.unprotected import Unprotected

__all__ = ["PerturbedObjective", "PrivateMemory", "PrivateTasks", "Unprotected"]
