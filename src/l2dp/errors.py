"""The errors a user can cause, each with the exit code of the command line.

Their text is one line: what was wrong, where, and what to do. Anything else that is raised is a bug.
"""


class L2dpError(Exception):
    """A run failed (exit code 1)."""

    exit_code = 1


class BadInput(L2dpError):
    """Wrong usage or bad input (exit code 2). Nothing was spent, nothing was lost."""

    exit_code = 2


class Refused(L2dpError):
    """Refused for privacy: budget or overlap (exit code 3). Nothing was read."""

    exit_code = 3
