"""Attacks on everything that prints an ε, and lower bounds, each wrong with a chance of at most 5 %.

The audit calls the shipped boundaries and learners as black boxes. It must not use their helpers, samplers or
accountants: a mistake there would then be made twice. A bound is evidence against a guarantee, never for one.
"""

from l2dp.audit.engine import Audit, Finding, audit
from l2dp.audit.target import Target

__all__ = ["Audit", "Finding", "Target", "audit"]
