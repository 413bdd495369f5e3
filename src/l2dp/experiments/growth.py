"""`budget-growth`: ε against the number of tasks, unequal sizes and the order of tasks, as figures and one table."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from l2dp.experiments.figures import marked, save
from l2dp.experiments.functions import Ask, Table
from l2dp.growth import CLAIM, FLAT, WAYS, Curve, Habits, Way, grow, orders, unequal
from l2dp.report.palette import LIGHT, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000)
SHOWN = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
SPREADS = (1, 3, 10, 30, 100)
STREAM = 10
RATES = {"5 Hz": 7553, "10 Hz": 621, "20 Hz": 881, "50 Hz": 156033}
"""Training windows of the paper's human-activity tasks, the most unequal of its streams."""


def measure(ask: Ask) -> Table:
    """The table, and three pictures in the folder of the experiment."""
    habits = Habits()
    marks = [mark for mark in MARKS if mark <= (20 if ask.quick else 1000)]
    ask.console.print(f"ε of streams of up to {marks[-1]} tasks", highlight=False, markup=False)
    grown = grow([habits.usual_size] * marks[-1], marks, habits, 3 if ask.quick else 10)
    spreads = SPREADS[::2] if ask.quick else SPREADS
    spread = _turned([_after(unequal(STREAM * habits.usual_size, STREAM, one), habits) for one in spreads])
    rates = dict(list(RATES.items())[:3]) if ask.quick else RATES
    ordered = orders(list(rates.values()), habits, 0 if ask.quick else len(rates))

    pictures = {
        "tasks.png": ("ε of a lifetime against its number of tasks", _against(marks, grown, "tasks")),
        "sizes.png": (
            f"ε of {STREAM} tasks against how unequal they are (the same number of records in all)",
            _against(spreads, spread, "largest task over smallest"),
        ),
        "orders.png": (f"ε in all orders of {', '.join(rates)}", _over_orders(ordered)),
    }
    for name, (title, paint) in pictures.items():
        _draw(ask.folder / name, marked(title, ask.quick), paint)

    rows = [
        _row(f"{mark} task{'s' if mark > 1 else ''}", grown, place)
        for place, mark in enumerate(marks)
        if mark in SHOWN or mark == marks[-1]
    ]
    rows += [
        _row(f"{STREAM} tasks, the largest {one} times the smallest", spread, place)
        for place, one in enumerate(spreads)
    ]
    for word, pick in (("least", min), ("most", max)):
        rows.append([f"{' '.join(rates)} in the order that costs {word}", *_extremes(ordered, pick)])
    return Table(["lifetime", *(way.label for way in WAYS)], rows, _notes(habits), list(pictures))


def _after(sizes: Sequence[int], habits: Habits) -> dict[Way, float | None]:
    return {way: values[0] for way, values in grow(sizes, [len(sizes)], habits, 0).items()}


def _turned(columns: Sequence[Mapping[Way, float | None]]) -> Curve:
    return {way: [column[way] for column in columns] for way in WAYS}


def _row(name: str, curve: Curve, place: int) -> list[str]:
    return [name, *(_written(curve[way][place]) for way in WAYS)]


def _extremes(
    ordered: Mapping[tuple[int, ...], Mapping[Way, float | None]], pick: Callable[[list[float]], float]
) -> list[str]:
    found = []
    for way in WAYS:
        known = [value for one in ordered.values() if (value := one[way]) is not None]
        found.append(_written(pick(known) if known else None))
    return found


def _written(epsilon: float | None) -> str:
    return "not computed" if epsilon is None else f"{epsilon:.3g}"


def _notes(habits: Habits) -> list[str]:
    own, budget = habits.own(habits.usual_size), habits.budget
    return [
        f"Each task is trained for {own.steps} steps on Poisson samples of {habits.batch} of {habits.usual_size} "
        f"records, with the noise ({own.multiplier:.3g} times the clip) at which this costs ε={budget.epsilon:g} at "
        f"δ={budget.delta:g} (proved); each step also reads {habits.reference_batch} records of a memory that holds "
        f"{habits.memory_per_task} a task.",
        "max over tasks is what the paper criticises: a record in memory is read again in every later task, so it "
        "bounds nothing. sum over tasks is a bound by basic composition.",
        "A fixed batch of a growing memory reads each record ever less often, so its ε levels off; at the same rate "
        "for each old task it grows without end, and so does everything under Definition 2.",
        f"filter with retirement: the book of naive-gaussian, {habits.own_share:.0%} of the budget for a record's own "
        f"task and the rest for the {habits.horizon - 1} that follow, then it is retired. It pays with noise: what "
        "stays flat is ε, not accuracy.",
        f"{FLAT.name} reads each task once. The flat line of {CLAIM.name} is a claim that an attack beats.",
        "One record in every task is counted by privacy loss distributions, which are tighter; the other figures of "
        "noisy gradients by Rényi divergences, as the paper's accountant does.",
        "Every figure is at δ = 1e-5, but for the sum, whose δ is 1e-5 for each task and each replay.",
    ]


Paint = Callable[["Axes"], None]


def _style(way: Way) -> dict[str, object]:
    turn, colour = divmod(WAYS.index(way), len(LIGHT))
    line = {"proved": "-", "claimed": "--", "refuted": ":", "none": ":"}[way.status]
    return {
        "color": LIGHT[(colour + turn) % len(LIGHT)],
        "marker": MARKERS[(colour + 3 * turn) % len(MARKERS)],
        "linestyle": line,
    }


def _against(places: Sequence[float], curve: Curve, what: str) -> Paint:
    def paint(axes: Axes) -> None:
        for way in WAYS:
            points = [(x, y) for x, y in zip(places, curve[way], strict=True) if y is not None]
            if points:
                axes.plot(*zip(*points, strict=True), label=way.label, markersize=4, linewidth=1.5, **_style(way))  # type: ignore[arg-type]
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(what)
        axes.set_ylabel("ε at δ = 1e-5, with its status")

    return paint


def _over_orders(ordered: Mapping[tuple[int, ...], Mapping[Way, float | None]]) -> Paint:
    def paint(axes: Axes) -> None:
        for way in WAYS:
            known = sorted(value for one in ordered.values() if (value := one[way]) is not None)
            if known:
                axes.plot(range(1, len(known) + 1), known, label=way.label, markersize=4, linewidth=1.5, **_style(way))  # type: ignore[arg-type]
        axes.set_yscale("log")
        axes.set_xlabel("orders of the tasks, from the least ε to the most, for each way of counting")
        axes.set_ylabel("ε at δ = 1e-5, with its status")

    return paint


def _draw(path: Path, title: str, paint: Paint) -> None:
    # Imported here: it takes longer than the accounting.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 6.4), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    paint(axes)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(textwrap.fill(title, 80), fontsize=12)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", fontsize=8, frameon=False, ncols=2)
    save(figure, path)
