"""What to expect of `private-replay` before anything is spent: noise against signal, accuracy, the smallest task.

Everything here runs on synthetic or public data, through the same `l2dp.run` and the same learner as a real run. No
private record is read, so a plan costs nothing. What it says of accuracy is an estimate, never a guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import torch
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from torch import Tensor

from l2dp.accounting import signal
from l2dp.budget import Budget, Guarantee, Unit
from l2dp.errors import BadInput
from l2dp.features import build
from l2dp.learners import PrivateReplay
from l2dp.learners.private_replay import LIFT_FROM
from l2dp.runs import Result, Schedule, check_seed, run
from l2dp.streams.dataset import Dataset
from l2dp.streams.records import Records, Sealed, Space, Stream, Task

NEAREST_MEAN = 0.95
"""Accuracy on the synthetic classes of whoever knows their true means: this declares how far apart they lie."""
DIRECTIONS = 30
"""In which synthetic records differ, or as many as there are classes: real inputs, too, vary in far fewer directions
than they have values. With 30 the embedded digits are a little easier than the synthetic data."""
SPREAD = 3.0
"""Standard deviations of a synthetic value that fit into [−1, 1]; the three in a thousand beyond are cut."""
SHARE = 0.9
"""The part of the accuracy without noise from which a task or a budget makes sense."""
TEST_RECORDS = 1000
ALMOST_NO_NOISE = (Budget(1e6), Budget(64.0, PrivateReplay.DELTA))
"""Class sums alone without any noise to speak of, and class sums and head at a large ε: the better one counts."""
LARGEST_EPSILON = 100.0
LARGEST_DELTA = 0.01
MOST_CLASSES, MOST_FEATURES = 1000, 20_000
WIDEST = PrivateReplay.lift or 0
LARGEST_TASK = 40_000_000
"""Numbers in the features of a simulated task; larger ones are simulated smaller."""
SECONDS = 1.5
"""For the repetitions of one measurement, on one core and roughly; at least some are made however long they take."""
LOWEST_POWER = -20


@dataclass(frozen=True)
class Question:
    """What is planned: one task of a size, and the budget of its units. All of it is public."""

    records: int
    classes: int
    features: int
    epsilon: float
    delta: float | None = None
    """None: what the learner takes when only ε is given."""
    unit: str = "record"
    per_user: int | None = None
    """The most records of one user in the task; the plan takes every user to have that many."""
    seed: int = 0
    """Of the synthetic data."""

    def __post_init__(self) -> None:
        if self.records < 1:
            raise BadInput(f"--records must be at least 1, not {self.records}")
        if not 2 <= self.classes <= self.records:
            raise BadInput(f"--classes must lie between 2 and the {self.records} records, not {self.classes}")
        if self.features < 1:
            raise BadInput(f"--features must be at least 1, not {self.features}")
        for name, value, most in (("classes", self.classes, MOST_CLASSES), ("features", self.features, MOST_FEATURES)):
            if value > most:
                raise BadInput(f"--{name} {value}: a plan simulates at most {most}; what it says there is near enough")
        if self.unit not in get_args(Unit):
            raise BadInput(f"unknown unit {self.unit!r}; choose from {', '.join(get_args(Unit))}")
        if (self.unit == "user") != (self.per_user is not None):
            raise BadInput("--unit user and --per-user go together: the most records of one user in the task")
        if self.per_user is not None and not 1 <= self.per_user <= self.records:
            raise BadInput(f"--per-user must lie between 1 and the {self.records} records, not {self.per_user}")
        check_seed("--seed", self.seed)
        if self.budget.delta > LARGEST_DELTA:
            raise BadInput(
                f"--delta {self.delta:g}: a plan takes at most {LARGEST_DELTA:g}; choose far below 1/records"
            )
        if self.budget.epsilon > LARGEST_EPSILON:
            raise BadInput(
                f"--epsilon {self.epsilon:g}: a plan takes at most {LARGEST_EPSILON:g}, where noise is little"
            )

    @property
    def budget(self) -> Budget:
        return Budget(self.epsilon, PrivateReplay.DELTA if self.delta is None else self.delta)

    def guarantee(self, epsilon: float) -> Guarantee:
        """What a run with this ε would state."""
        return Guarantee("proved", epsilon, self.budget.delta, "user" if self.unit == "user" else "record")

    def learner(self, budget: Budget) -> PrivateReplay:
        if self.per_user is None:
            return PrivateReplay(budget=budget, features="pixels")
        return PrivateReplay(budget=budget, features="pixels", protects="user", per_user=self.per_user)


# --- data -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Population:
    """Gaussian classes of equal spread around random means, from which tasks of any size are drawn.

    A record of class c is s·m_c + z, with m_c and z standard normal in d dimensions, set into those of the inputs by
    an orthonormal basis. The separation s is the one at which the nearest true mean is the right one for 95 % of the
    records. Values are scaled so that three standard deviations reach 1.
    """

    means: Tensor
    basis: Tensor
    separation: float
    seed: int

    @staticmethod
    def make(classes: int, features: int, seed: int) -> Population:
        generator = torch.Generator().manual_seed(seed)
        directions = _directions(classes, features)
        means = torch.randn(classes, directions, generator=generator)
        basis = torch.linalg.qr(torch.randn(features, directions, generator=generator)).Q
        return Population(means, basis, _separation(means, NEAREST_MEAN, generator), seed)

    @property
    def scale(self) -> float:
        features, directions = self.basis.shape
        return SPREAD * math.sqrt((1 + self.separation**2) * directions / features)

    @property
    def centres(self) -> Tensor:
        """The true mean of every class, as scaled."""
        return self.means @ self.basis.T * (self.separation / self.scale)

    def task(self, records: int, per_user: int | None) -> Task:
        """A task with evenly filled classes; the test part is the same at all sizes."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        test = self._draw(TEST_RECORDS, generator)
        train = self._draw(records, generator)
        return Task.from_tensors("synthetic", train, test, _users(records, per_user, generator))

    def _draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        classes, directions = self.means.shape
        # A shift of the labels, so that a test part smaller than the number of classes is no favour to the first.
        y = (torch.arange(count) + int(torch.randint(classes, (1,), generator=generator))) % classes
        z = torch.randn(count, directions, generator=generator)
        return (self.centres[y] + z @ self.basis.T / self.scale).clamp_(-1, 1), y


def _directions(classes: int, features: int) -> int:
    return min(features, max(DIRECTIONS, classes))


def _separation(means: Tensor, accuracy: float, generator: torch.Generator, count: int = 10_000) -> float:
    """The separation s at which a record s·m_y + z lies nearest to s·m_y with the probability asked for.

    It lies nearer to s·m_j exactly if s < 2 z·(m_j − m_y) / ‖m_j − m_y‖². The largest of these bounds over all j is
    the separation from which the record is right, and s is a quantile of it over many records.
    """
    classes = len(means)
    triangle = torch.linalg.qr(means.T, mode="r").R  # z·m_j depends on z within the span of the means alone
    along = torch.randn(count, len(triangle), generator=generator) @ triangle
    y = torch.arange(count) % classes
    apart = torch.cdist(means, means).square()[y]
    bounds = 2 * (along - along.gather(1, y.unsqueeze(1))) / apart
    bounds[torch.arange(count), y] = 0.0
    return float(bounds.amax(1).kthvalue(math.ceil(accuracy * count)).values)


def _users(records: int, per_user: int | None, generator: torch.Generator) -> Tensor | None:
    return None if per_user is None else torch.randperm(records, generator=generator) // per_user


def _stream(task: Task, shape: tuple[int, ...], classes: int) -> Stream:
    return Stream(task.name, Space(shape, tuple(map(str, range(classes)))), (task,))


def _learn(stream: Stream, learner: PrivateReplay, seed: int) -> tuple[float, Result]:
    result = run(stream, learner, schedule=Schedule(full_batch=True), seed=seed)
    found = result.accuracy_matrix[0][0]
    assert found is not None
    return found, result


# --- what a plan finds ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """One release of the task: the Euclidean norm of what is true in it and of the noise."""

    what: str
    multiplier: float
    signal: float
    bound: bool
    """Whether the signal is an upper bound rather than what is expected."""
    noise: float

    def to_json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "noise_multiplier": self.multiplier,
            "signal": self.signal,
            "signal_is": "at most" if self.bound else "about",
            "noise": self.noise,
            "signal_over_noise": self.signal / self.noise,
        }


@dataclass(frozen=True)
class Expected:
    """Accuracy over a few repetitions, each with its own data and noise."""

    data: str
    records: int
    budget: Guarantee
    almost_no_noise: bool
    accuracies: tuple[float, ...]

    @property
    def mean(self) -> float:
        return sum(self.accuracies) / len(self.accuracies)

    def to_json(self) -> dict[str, Any]:
        return {
            "data": self.data,
            "records": self.records,
            "guarantee": self.budget.to_json(),
            "almost_no_noise": self.almost_no_noise,
            "mean": self.mean,
            "lowest": min(self.accuracies),
            "highest": max(self.accuracies),
            "repetitions": len(self.accuracies),
        }


@dataclass(frozen=True)
class Advice:
    """The smallest task and the smallest ε that make sense, on a coarse grid; None: none was found."""

    target: float
    at_records: int
    """The size that was simulated, for which the smallest ε is."""
    records: int | None
    most_records: int
    """Where the search ends."""
    epsilon: Guarantee | None
    most_epsilon: Guarantee

    def to_json(self) -> dict[str, Any]:
        return {
            "share_of_almost_no_noise": SHARE,
            "target_accuracy": self.target,
            "smallest_records": self.records,
            "records_searched_up_to": self.most_records,
            "smallest_epsilon_at_records": self.at_records,
            "smallest_epsilon": None if self.epsilon is None else self.epsilon.to_json(),
            "epsilon_searched_up_to": self.most_epsilon.to_json(),
            "is": "an estimate on synthetic data, not a guarantee",
        }


@dataclass(frozen=True)
class Outlook:
    """All that a plan has found."""

    question: Question
    noise: tuple[Line, ...]
    expected: tuple[Expected, ...]
    advice: Advice | None
    """None: the learner does not learn such data even without noise."""
    notes: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        asked = self.question
        return {
            "learner": PrivateReplay.NAME,
            "records": asked.records,
            "classes": asked.classes,
            "features": asked.features,
            "per_user": asked.per_user,
            "seed": asked.seed,
            "guarantee": asked.guarantee(asked.epsilon).to_json(),
            "spent": "nothing",
            "noise": [line.to_json() for line in self.noise],
            "accuracy": [line.to_json() for line in self.expected],
            "synthetic_nearest_mean_accuracy": NEAREST_MEAN,
            "advice": None if self.advice is None else self.advice.to_json(),
            "notes": list(self.notes),
        }


# --- the plan ---------------------------------------------------------------------------------------------


def plan(question: Question) -> Outlook:
    """Simulates the task that is asked about; see `show` and `Outlook.to_json` for what comes of it."""
    planner = _Planner(question)
    asked, learner = planner.asked()
    ceiling = planner.ceiling()
    lines = _noise(question, learner, planner.populations[0])
    notes = _notes(question, planner.size)
    expected = [ceiling, asked]
    if (question.features, question.classes) == (64, 10):
        digits, note = _digits(question, len(planner.populations))
        expected += digits
        notes += note
    advice = planner.advice(asked.mean, ceiling.mean)
    if advice is None:
        notes.append("even without noise the learner is near chance on such data, so no size and no budget is advised")
    return Outlook(question, lines, tuple(expected), advice, tuple(notes))


def _notes(question: Question, simulated: int) -> list[str]:
    """What a reader has to know of the synthetic data and of the question itself."""
    directions = _directions(question.classes, question.features)
    notes = [
        f"synthetic: {question.classes} Gaussian classes, even in size, which vary in {directions} directions and lie "
        f"so far apart that the nearest true mean is right for {NEAREST_MEAN:.0%}; each repetition has its own data "
        "and noise"
    ]
    delta = question.budget.delta
    if delta * question.records >= 1:
        notes.append(f"δ={delta:g} is not below 1/records: so large a δ would allow a record to be published")
    if simulated < question.records:
        notes.append(f"simulated with {simulated:,} of {question.records:,} records to save time: expect at least this")
    return notes


class _Planner:
    """Simulates one question, as often and as large as time allows."""

    def __init__(self, question: Question) -> None:
        self.question = question
        most = LARGEST_TASK // (WIDEST + 5 * question.features)
        self.largest = max(most, 2 * question.classes, question.per_user or 1)
        self.size = min(question.records, self.largest)
        # One generator names the repetitions, so that those of two seeds have nothing in common.
        names = torch.Generator().manual_seed(question.seed)
        seeds = torch.randint(2**62, (self.repetitions(self.size, question.budget),), generator=names).tolist()
        self.populations = [Population.make(question.classes, question.features, seed) for seed in seeds]

    def repetitions(self, records: int, budget: Budget, least: int = 2, most: int = 5) -> int:
        """Fewer for what takes longer."""
        asked = self.question
        width = _head_width(asked, records, budget)
        steps = PrivateReplay.steps * min(records, PrivateReplay.sample_size) * width * asked.classes
        seconds = 0.1 + 5e-10 * (steps + records * asked.features * width)
        return max(least, min(most, int(SECONDS / seconds)))

    def simulate(self, population: Population, records: int, budget: Budget) -> tuple[float, Result, PrivateReplay]:
        asked = self.question
        learner = asked.learner(budget)
        stream = _stream(population.task(records, asked.per_user), (asked.features,), asked.classes)
        return *_learn(stream, learner, asked.seed), learner

    def asked(self) -> tuple[Expected, PrivateReplay]:
        """What is asked about, and a learner that has learned it."""
        accuracies = []
        for population in self.populations:
            accuracy, result, learner = self.simulate(population, self.size, self.question.budget)
            accuracies.append(accuracy)
        return Expected("synthetic", self.size, result.guarantee, False, tuple(accuracies)), learner

    def ceiling(self) -> Expected:
        """The same with almost no noise."""
        return _ceiling(
            self.question,
            "synthetic",
            self.size,
            lambda budget, index: self.simulate(self.populations[index], self.size, budget)[:2],
            0.95 * NEAREST_MEAN,
        )

    def mean(self, records: int, budget: Budget) -> float:
        """The mean accuracy at one point of a search; 0 where a run would be refused."""
        some = self.populations[: self.repetitions(records, budget, 1, 3)]
        try:
            return sum(self.simulate(population, records, budget)[0] for population in some) / len(some)
        except BadInput:
            return 0.0

    def advice(self, asked: float, ceiling: float) -> Advice | None:
        if ceiling < 1.5 / self.question.classes:
            return None
        target = SHARE * ceiling
        records = self._smallest_records(asked, target)
        # A task twice as large makes up for half the epsilon, more or less: where to look first.
        ratio = (self.largest * 2 if records is None else records) / self.size
        epsilon = self._smallest_epsilon(asked, target, math.ceil(math.log2(ratio) - 1e-9))
        state = self.question.guarantee
        return Advice(
            target,
            self.size,
            records,
            self.largest,
            None if epsilon is None else state(epsilon),
            state(self._epsilon(self._highest())),
        )

    def _smallest_records(self, asked: float, target: float) -> int | None:
        """The first size to reach the target, by factors of √2 down from the size asked about or up from it."""
        budget = self.question.budget
        least = max(self.question.classes, self.question.per_user or 1)
        if asked >= target:
            reached, power = self.size, 1
            while (size := _near(self.size / math.sqrt(2) ** power)) >= least:
                if self.mean(size, budget) < target:
                    break
                reached, power = size, power + 1
            return reached
        below = self.size
        while below < self.largest:
            size = min(_near(2 * below), self.largest)
            if self.mean(size, budget) >= target:
                between = _near(math.sqrt(below * size))
                return between if below < between < size and self.mean(between, budget) >= target else size
            below = size
        return None

    def _epsilon(self, power: int) -> float:
        return self.question.epsilon * 2.0**power

    def _highest(self) -> int:
        return int(math.log2(LARGEST_EPSILON / self.question.epsilon))

    def _smallest_epsilon(self, asked: float, target: float, first: int) -> float | None:
        """The first of ε times powers of 2 to reach the target. Each ε has its noise computed, which takes a while."""
        found = {0: asked >= target}

        def reaches(power: int) -> bool:
            if power not in found:
                budget = Budget(self._epsilon(power), self.question.budget.delta)
                found[power] = self.mean(self.size, budget) >= target
            return found[power]

        power = first_to_reach(reaches, first, LOWEST_POWER, self._highest())
        return None if power is None else self._epsilon(power)


def first_to_reach(reaches: Callable[[int], bool], guess: int, lowest: int, highest: int) -> int | None:
    """The first whole number from which on `reaches` holds, in few calls if the guess is near.

    >>> first_to_reach(lambda power: power >= 3, guess=0, lowest=-20, highest=7)
    3
    """
    high = max(lowest, min(guess, highest))
    low, stride = high - 1, 1
    while not reaches(high):
        if high == highest:
            return None
        low, high, stride = high, min(high + stride, highest), 2 * stride
    stride = 1
    while low >= lowest and reaches(low):
        high, low, stride = low, max(low - stride, lowest - 1), 2 * stride
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high


def _near(size: float) -> int:
    """A whole number of two digits and zeros."""
    return int(float(f"{size:.2g}")) if size >= 10 else math.ceil(size)


def _ceiling(
    question: Question,
    data: str,
    records: int,
    attempt: Callable[[Budget, int], tuple[float, Result]],
    enough: float = 1.0,
) -> Expected:
    """The best of the ways to learn with almost no noise, up to one that is good enough."""
    found: list[Expected] = []
    for budget in ALMOST_NO_NOISE[: 1 if question.budget.delta == 0 else 2]:
        chosen = replace(budget, epsilon=max(budget.epsilon, question.epsilon))
        # Without noise two repetitions differ little, and a head takes long.
        tries = [attempt(chosen, index) for index in range(2 if budget.delta == 0 else 1)]
        found.append(Expected(data, records, tries[0][1].guarantee, True, tuple(accuracy for accuracy, _ in tries)))
        if found[-1].mean >= enough:
            break
    return max(found, key=lambda one: one.mean)


def _digits(question: Question, repetitions: int) -> tuple[list[Expected], list[str]]:
    """The same on the embedded digits: public, real, and of this shape."""
    data = Dataset.load("digits")
    size = min(question.records, len(data.train))
    if question.per_user is not None and question.per_user > size:
        return [], []

    def attempt(budget: Budget, index: int) -> tuple[float, Result]:
        generator = torch.Generator().manual_seed((question.seed + index) % 2**63)
        rows = torch.randperm(len(data.train), generator=generator)[:size]
        users = _users(len(data.train), question.per_user, generator)
        source = replace(data.train, units=users)
        task = Task("digits", Sealed(Records(source, rows)), Records(data.test), tuple(range(data.space.classes)))
        return _learn(Stream("digits", data.space, (task,)), question.learner(budget), question.seed)

    ceiling = _ceiling(question, "digits", size, attempt)
    tries = [attempt(question.budget, index) for index in range(repetitions)]
    asked = Expected("digits", size, tries[0][1].guarantee, False, tuple(accuracy for accuracy, _ in tries))
    what = f"there are only {size:,}" if size < question.records else f"{size:,} drawn anew each time"
    return [ceiling, asked], [f"digits: real handwritten digits of 8x8 pixels (embedded, public); {what}"]


def _head_width(question: Question, records: int, budget: Budget) -> int:
    """Features of a head: random ones where the task is large enough for its budget."""
    if PrivateReplay.lift is None or budget.delta == 0:
        return question.features
    strength = records * signal(budget) / (question.per_user or 1)
    return PrivateReplay.lift if strength >= LIFT_FROM else question.features


def _noise(question: Question, learner: PrivateReplay, population: Population) -> tuple[Line, ...]:
    """The norms of what each release tells, and of its noise, at the number of records asked about."""
    multipliers, rate = learner.boundary.noise_for(question.records)
    rows = learner.boundary.protection.rows_per_unit
    each = question.records / question.classes
    encode = build("pixels", (question.features,))
    centres = encode(population.centres)
    x, y = population.task(question.classes, None).test.batch(slice(None))
    # Features of norm 1 that point in different directions partly cancel in a sum.
    along = each * float((encode(x) * centres[y]).sum(1).mean())
    spread = multipliers.sums * rows / math.sqrt(1 - learner.count_weight**2)
    if question.budget.delta == 0:
        spread *= math.sqrt(question.features + 2)  # a K-norm draw, as `boundary.statistics` makes it
    noise = spread * math.sqrt(question.features)
    apart = along * float((centres - centres.mean(0)).norm(dim=1).mean())
    lines = [
        Line(f"a class sum over {each:,.0f} records", multipliers.sums, along, False, noise),
        Line("of it, what tells the class from others", multipliers.sums, apart, False, noise),
    ]
    if multipliers.scatter is not None:
        unit = learner.residual_clip**2
        entries = question.features * (question.features + 1) / 2
        lines.append(
            Line(
                f"the scatter over {question.records:,} records",
                multipliers.scatter,
                unit * question.records,
                True,
                unit * multipliers.scatter * rows * math.sqrt(entries),
            )
        )
    if multipliers.head is not None:
        height = _head_width(question, question.records, question.budget)
        width = question.classes
        sample = rate * question.records / rows
        unit = learner.gradient_clip
        lines.append(
            Line(
                f"one of {learner.steps} head gradients, {height}x{width} weights, "
                f"over about {sample:,.0f} {question.unit}s",
                multipliers.head,
                unit * sample,
                True,
                unit * multipliers.head * math.sqrt(height * width),
            )
        )
    return tuple(lines)


# --- for people -------------------------------------------------------------------------------------------


def show(outlook: Outlook, console: Console) -> None:
    """Prints what a plan has found."""
    asked = outlook.question

    def say(text: str, indent: int = 0) -> None:
        console.print(Padding(Text(text), (0, 0, 0, indent), expand=False) if indent else Text(text))

    whose = "record" if asked.per_user is None else f"user with at most {asked.per_user} records"
    say(
        f"{PrivateReplay.NAME} on one task of {asked.records:,} records, classes: {asked.classes}, features: "
        f"{asked.features}.\nA run would state {asked.guarantee(asked.epsilon)} for each {whose}; a plan spends "
        "nothing."
    )
    say("\nNoise against signal (Euclidean norms)")
    console.print(
        _table(
            ("what leaves the boundary", "noise\nmultiplier", "signal", "noise", "signal\n/ noise"),
            [
                (
                    line.what,
                    _short(line.multiplier),
                    f"{'≤ ' if line.bound else ''}{_short(line.signal)}",
                    _short(line.noise),
                    f"{'≤ ' if line.bound else ''}{_short(line.signal / line.noise)}",
                )
                for line in outlook.noise
            ],
        )
    )
    say("\nExpected accuracy")
    console.print(
        _table(
            ("data", "records", "noise", "mean", "range", "repeated"),
            [
                (
                    line.data,
                    f"{line.records:,}",
                    "almost none" if line.almost_no_noise else str(line.budget),
                    f"{line.mean:.1%}",
                    f"{min(line.accuracies):.1%} – {max(line.accuracies):.1%}",
                    f"{len(line.accuracies)}",
                )
                for line in outlook.expected
            ],
        )
    )
    for note in outlook.notes:
        say(note, 2)
    if outlook.advice is not None:
        say("")
        head, *lines = _advice(asked, outlook.advice)
        say(head)
        for line in lines:
            say(line, 2)
    say("Estimates on synthetic and public data, not guarantees: your data may be easier or harder.")


def _advice(asked: Question, advice: Advice) -> list[str]:
    found = asked.guarantee(asked.epsilon)
    task = (
        f"none found up to {advice.most_records:,} records"
        if advice.records is None
        else f"about {advice.records:,} records"
    )
    budget = f"none found up to {advice.most_epsilon}" if advice.epsilon is None else f"about {advice.epsilon}"
    return [
        f"To reach {SHARE:.0%} of the synthetic accuracy with almost no noise ({advice.target:.1%}):",
        f"smallest task at {found}: {task}",
        f"smallest budget for {advice.at_records:,} records: {budget} (tried by factors of 2)",
    ]


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column(head[0], overflow="fold")
    for name in head[1:]:
        table.add_column(name, justify="right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _short(value: float) -> str:
    """Three digits, without an exponent where people do not need one."""
    return f"{value:,.0f}" if 100 <= value < 1e9 else f"{value:.3g}"
