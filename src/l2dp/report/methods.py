"""Runs that differ in their seed alone, taken together: means, deviations, and names that tell them apart.

A `Setting` holds the methods that may be compared with each other: same stream, same protocol.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from l2dp.budget import Guarantee
from l2dp.errors import BadInput
from l2dp.metrics import mean_and_sd
from l2dp.report import words
from l2dp.report.lines import Line, Matrix, Numbers


@dataclass(frozen=True)
class Method:
    """One way of testing one configuration of a learner, over all its runs."""

    name: str
    guarantee: Guarantee
    runs: int
    curve: Numbers
    curve_sd: Numbers | None
    """None for a single run, which has no deviation."""
    forgetting: Numbers
    forgetting_sd: Numbers | None
    matrix: Matrix
    seconds: float | None
    examples_per_second: float | None
    peak_memory_mb: float | None
    learner: str
    style: int
    released: bool

    @property
    def label(self) -> str:
        """The name beside its guarantee: no accuracy is shown without."""
        return f"{self.name} — {self.guarantee}"

    @property
    def accuracy(self) -> float | None:
        return self.curve[-1] if self.curve else None

    @property
    def accuracy_sd(self) -> float | None:
        return self.curve_sd[-1] if self.curve_sd else None


@dataclass(frozen=True)
class Setting:
    """A stream and a protocol, and the methods that were run on it."""

    title: str
    methods: list[Method]


def settings(lines: Iterable[list[Line]]) -> list[Setting]:
    """All runs, by what may be compared, in the order in which they came."""
    sorted_in: dict[tuple[tuple[str, str], ...], dict[object, list[Line]]] = {}
    for ways in lines:
        for line in ways:
            alike = (line.learner, line.way, line.guarantee, line.options, len(line.curve), len(line.matrix.rows))
            kept = sorted_in.setdefault(line.setting, {}).setdefault(alike, [])
            # The same run found in two folders is one run.
            if not any(line.seed == other.seed and line.curve == other.curve for other in kept):
                kept.append(line)
    return [Setting(_title(key), _methods(list(groups.values()))) for key, groups in sorted_in.items()]


def _title(setting: tuple[tuple[str, str], ...]) -> str:
    parts = []
    for key, value in setting:
        if value == "None":
            continue
        named = {"benchmark": value, "tasks": words.tasks(value), "protocol": f"protocol {value}"}
        parts.append(named.get(key, key if value == "True" else f"{key.replace('_', ' ')} {value}"))
    return words.short(", ".join(parts), 160)


def _methods(groups: list[list[Line]]) -> list[Method]:
    looks = [(lines[0].learner, lines[0].way, str(lines[0].guarantee)) for lines in groups]
    colours: dict[object, int] = {}
    made = []
    taken: Counter[tuple[str, str]] = Counter()
    for lines, look in zip(groups, looks, strict=True):
        first = lines[0]
        twins = [other[0] for other, theirs in zip(groups, looks, strict=True) if theirs == look]
        name = f"{first.learner}{first.way}{_telling_apart(first, twins)}"
        taken[name, str(first.guarantee)] += 1
        again = taken[name, str(first.guarantee)]
        # The two tests of one configuration share a colour.
        style = colours.setdefault((first.learner, first.guarantee, first.options), len(colours))
        made.append(_method(lines, name if again == 1 else f"{name} #{again}", style))
    return made


def _telling_apart(line: Line, twins: list[Line]) -> str:
    """Up to three options in which methods differ that otherwise look the same."""
    if len(twins) == 1:
        return ""
    named = [dict(twin.options) for twin in twins]
    differing = [key for key in named[0] if len({options.get(key) for options in named}) > 1]
    # How the learner was set says more than how the run was made.
    telling = [key for key in differing if key.startswith(("learner.", "schedule."))] or differing
    mine = dict(line.options)
    return "".join(f", {_option(key)} {mine.get(key, words.NOTHING)}" for key in telling[:3])


def _option(key: str) -> str:
    return key.rpartition(".")[2].replace("_", " ")


def _method(lines: list[Line], name: str, style: int) -> Method:
    first = lines[0]
    single = len(lines) == 1
    try:
        curve, curve_sd = mean_and_sd([line.curve for line in lines])
        forgetting, forgetting_sd = mean_and_sd([line.forgetting for line in lines])
        values, _ = mean_and_sd([line.matrix.values for line in lines])
    except BadInput as flaw:
        raise BadInput(f"runs of {first.learner} cannot be taken together: {flaw}") from None
    matrix = first.matrix
    return Method(
        name=name,
        guarantee=first.guarantee,
        runs=len(lines),
        # A single run is shown as it is, not as a mean that rounding may have touched.
        curve=first.curve if single else curve,
        curve_sd=None if single else curve_sd,
        forgetting=first.forgetting if single else forgetting,
        forgetting_sd=None if single else forgetting_sd,
        matrix=matrix if single else Matrix(matrix.rows, matrix.columns, values, matrix.evaluated, matrix.tasks),
        seconds=_mean([line.seconds for line in lines]),
        examples_per_second=_mean([line.examples_per_second for line in lines]),
        peak_memory_mb=_mean([line.peak_memory_mb for line in lines]),
        learner=first.learner,
        style=style,
        released=first.released,
    )


def _mean(values: Numbers) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None
