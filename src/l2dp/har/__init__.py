"""Recordings of accelerometers → windows with labels: one file for each part of the way, in the paper's order.

Everything here works on raw recordings before any privacy; what it writes is as private as what it read. It knows
nothing of learners, budgets or noise.
"""
