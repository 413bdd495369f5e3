"""The only code that reads raw private records. What leaves it is private, or says plainly that it is not.

One file per way out: `unprotected` (no privacy, for the baselines) and `perturbed` (the paper's objective,
whose claim is refuted). `admission` checks a task before anything is read for learning.
"""

from l2dp.boundary.perturbed import PerturbedObjective
from l2dp.boundary.unprotected import Unprotected

__all__ = ["PerturbedObjective", "Unprotected"]
