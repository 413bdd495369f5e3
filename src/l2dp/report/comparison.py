"""From settings to sections: the headline table, curves, forgetting, p values, accuracy against ε, matrices, costs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from l2dp.budget import Guarantee
from l2dp.metrics import p_value_curve
from l2dp.report import words
from l2dp.report.document import Cell, Chart, Document, Heat, Point, Section, Series, Table
from l2dp.report.lines import Numbers
from l2dp.report.methods import Method, Setting

Taken = Callable[[Method], tuple[Numbers, Numbers | None]]
Text = Callable[[float | None], str]

SHOWN_AT_FIRST = 12
"""More lines than that in one picture are turned on by hand."""
MOST_COMPARED = 60
MOST_POINTS = 200
FEW_SERIES = 24
SMALLEST_P = 1e-300
SIGNIFICANT = 0.05


def document(
    title: str,
    about: str,
    found: Sequence[Setting],
    notes: Sequence[str],
    others: Sequence[Section] = (),
    baseline: str | None = None,
) -> Document:
    """The whole report over runs, with whatever other sections there are before the costs."""
    methods = [method for setting in found for method in setting.methods]
    sections = []
    if methods:
        sections.append(Section("Results", [_headline(found)]))
    sections += [_setting_section(place, setting, baseline) for place, setting in enumerate(found, start=1)]
    sections += others
    if methods:
        sections.append(Section("Time and memory", [_costs(found)]))
    statuses = tuple(
        status for status in words.STATUS_MEANS if any(method.guarantee.status == status for method in methods)
    )
    return Document(title, about, sections, list(notes), statuses)


def fine_print(guarantee: Guarantee) -> str:
    """For whom the guarantee holds, and what it becomes for a source record that is in several tasks."""
    if guarantee.epsilon is None:
        return ""
    text = f"per {guarantee.unit}, {guarantee.adjacency}"
    if guarantee.source_overlap > 1 and guarantee.source_epsilon is not None:
        source = Guarantee(guarantee.status, guarantee.source_epsilon, guarantee.source_delta)
        text += f"; a source record is in {guarantee.source_overlap} tasks: {source}"
    return text


def guarantee_cell(guarantee: Guarantee) -> Cell:
    # Sorted by ε; who has none protects less than any.
    key = math.inf if guarantee.epsilon is None else guarantee.epsilon
    return Cell(str(guarantee), key, guarantee.status, fine_print(guarantee))


def _headline(found: Sequence[Setting]) -> Table:
    several = len(found) > 1
    columns = ("method", "guarantee", "average accuracy", "forgetting", "runs", "seconds")
    rows = [
        (
            Cell(method.name),
            *((Cell(setting.title),) if several else ()),
            guarantee_cell(method.guarantee),
            Cell(accuracy_text(method), method.accuracy),
            Cell(forgetting_text(method), _last(method.forgetting)),
            Cell(str(method.runs), method.runs),
            Cell(words.decimal(method.seconds, 1), method.seconds),
        )
        for setting in found
        for method in setting.methods
    ]
    return Table(
        "results",
        "After the last task: every accuracy beside its privacy guarantee",
        (columns[0], "setting", *columns[1:]) if several else columns,
        rows,
        3 if several else 2,
    )


def accuracy_text(method: Method) -> str:
    """The average accuracy after the last task, with its deviation over several runs."""
    deviation = None if method.curve_sd is None else words.percent(method.curve_sd[-1])
    return words.spread(words.percent(method.accuracy), deviation)


def forgetting_text(method: Method) -> str:
    deviation = None if method.forgetting_sd is None else words.decimal(method.forgetting_sd[-1])
    return words.spread(words.decimal(_last(method.forgetting)), deviation)


def _costs(found: Sequence[Setting]) -> Table:
    several = len(found) > 1
    methods = [(setting, method) for setting in found for method in setting.methods if not method.released]

    def cells(values: list[float | None], digits: int) -> list[Cell]:
        most = max((value for value in values if value is not None), default=0.0)
        return [
            Cell(words.decimal(value, digits), value, share=None if not most or value is None else value / most)
            for value in values
        ]

    seconds = cells([method.seconds for _, method in methods], 1)
    speeds = cells([method.examples_per_second for _, method in methods], 0)
    memories = cells([method.peak_memory_mb for _, method in methods], 0)
    rows = [
        (
            Cell(method.name),
            *((Cell(setting.title),) if several else ()),
            guarantee_cell(method.guarantee),
            *costs,
        )
        for (setting, method), *costs in zip(methods, seconds, speeds, memories, strict=True)
    ]
    columns = ("method", "guarantee", "seconds", "examples per second", "peak memory, MB")
    return Table(
        "costs",
        "What the runs took, on the machine they ran on; means over runs",
        (columns[0], "setting", *columns[1:]) if several else columns,
        rows,
        3 if several else 2,
    )


def accuracy_chart(name: str, methods: Sequence[Method]) -> Chart:
    """Average accuracy against the number of tasks."""
    return Chart(
        name,
        "Average accuracy",
        "number of tasks",
        "average accuracy",
        _curves(methods, _shown(methods), lambda method: (method.curve, method.curve_sd), words.percent),
        "percent",
        "Mean accuracy over the tasks learned so far."
        + (" Bands: one standard deviation over runs." if any(method.curve_sd for method in methods) else ""),
    )


def _setting_section(place: int, setting: Setting, baseline: str | None) -> Section:
    methods = setting.methods
    shown = _shown(methods)
    slug = f"{place}-{re.sub(r'[^a-z0-9]+', '-', setting.title.lower())[:40].strip('-')}"
    parts: list[Table | Chart | Heat | str] = [accuracy_chart(f"accuracy-{slug}", methods)]
    if any(value is not None for method in methods for value in method.forgetting):
        parts.append(
            Chart(
                f"forgetting-{slug}",
                "Forgetting",
                "number of tasks",
                "average forgetting",
                _curves(methods, shown, lambda method: (method.forgetting, method.forgetting_sd), words.decimal),
                "decimal",
                "How far the accuracy on earlier tasks has fallen below its best; lower is better.",
            )
        )
    parts += _p_values(slug, methods, shown, baseline)
    parts += _against_epsilon(slug, methods)
    parts += [
        Heat(f"matrix-{slug}-{index}", method.label, method.matrix) for index, method in enumerate(methods, start=1)
    ]
    return Section(setting.title, parts)


def _shown(methods: Sequence[Method]) -> set[int]:
    """Which methods a picture starts with: the best of each learner and status, then the best of the rest."""
    if len(methods) <= SHOWN_AT_FIRST:
        return set(range(len(methods)))

    def accuracy(index: int) -> float:
        value = methods[index].accuracy
        return -1.0 if value is None else value

    order = sorted(range(len(methods)), key=accuracy, reverse=True)
    first: dict[object, int] = {}
    for index in order:
        method = methods[index]
        first.setdefault((method.learner, method.guarantee.status, method.released), index)
    return set([*first.values(), *(index for index in order if index not in first.values())][:SHOWN_AT_FIRST])


def _curves(methods: Sequence[Method], shown: set[int], of: Taken, text: Text) -> list[Series]:
    most = MOST_POINTS if len(methods) <= FEW_SERIES else MOST_POINTS // 2
    return [
        Series(method.label, _points(*of(method), text, most), method.style, method.released, index in shown)
        for index, method in enumerate(methods)
    ]


def _points(curve: Numbers, deviation: Numbers | None, text: Text, most: int) -> list[Point]:
    evaluated = [index for index, value in enumerate(curve) if value is not None]
    made = []
    for index in words.evenly(evaluated, most):
        value = curve[index]
        assert value is not None
        spread = None if deviation is None else deviation[index]
        made.append(
            Point(
                index + 1,
                value,
                f"after {words.tasks(index + 1)}",
                words.spread(text(value), None if spread is None else text(spread)),
                None if spread is None else value - spread,
                None if spread is None else value + spread,
            )
        )
    return made


def _p_values(slug: str, methods: list[Method], shown: set[int], baseline: str | None) -> Iterator[Chart | str]:
    """The paper's test: each curve of average accuracies against that of one method, over tasks 1 to τ."""
    base = _baseline(methods, baseline)
    if base is None or len(methods) < 2:
        return
    series: list[Series] = []
    most = MOST_POINTS if len(methods) <= FEW_SERIES else MOST_POINTS // 4
    # Those that are shown come first, should there be too many to test.
    order = sorted(range(len(methods)), key=lambda index: (index not in shown, index))
    for index in order:
        method = methods[index]
        if method is base or len(method.curve) != len(base.curve) or len(series) == MOST_COMPARED:
            continue
        pairs = zip(method.curve, base.curve, strict=True)
        both = [place for place, (x, y) in enumerate(pairs) if x is not None and y is not None]
        places = words.evenly(both[1:], most)
        tested = p_value_curve(method.curve, base.curve, at=set(places))
        points = []
        for place in places:
            p = tested[place]
            assert p is not None
            points.append(Point(place + 1, max(p, SMALLEST_P), f"tasks 1 to {place + 1}", f"p {words.p_value(p)}"))
        if points:
            series.append(Series(method.label, points, method.style, method.released, index in shown))
    if series:
        yield Chart(
            f"p-values-{slug}",
            "Significance",
            "number of tasks",
            "p value",
            series,
            "log",
            f"Two-tailed t-test of each curve of average accuracies, up to so many tasks, against {base.label}. "
            f"Below the dashed line: p < {SIGNIFICANT}. The entries of a curve are not independent; "
            "this is the paper's test, not a strong one.",
            line_at=SIGNIFICANT,
        )


def _baseline(methods: list[Method], wanted: str | None) -> Method | None:
    """The method that others are tested against: the one named, or the paper's at its least ε, or the first."""
    if wanted is not None:
        return next((method for method in methods if wanted in method.label), None)
    paper = [method for method in methods if method.learner == "l2dp-ml" and not method.released]
    return min(paper, key=lambda method: method.guarantee.epsilon or math.inf) if paper else methods[0]


def _against_epsilon(slug: str, methods: list[Method]) -> Iterator[Chart]:
    if not any(method.guarantee.epsilon for method in methods):
        return
    by_name: dict[str, Series] = {}
    shown = _shown(methods)
    for index, method in sorted(enumerate(methods), key=lambda item: item[1].guarantee.epsilon or math.inf):
        if method.accuracy is None:
            continue
        epsilon = method.guarantee.epsilon
        point = Point(
            math.inf if epsilon is None else epsilon,
            method.accuracy,
            "no privacy" if epsilon is None else f"ε = {epsilon:g}",
            f"{accuracy_text(method)} ({method.guarantee})",
            None if method.accuracy_sd is None else method.accuracy - method.accuracy_sd,
            None if method.accuracy_sd is None else method.accuracy + method.accuracy_sd,
            method.guarantee.status,
        )
        before = by_name.get(method.name) or Series(method.name, [], len(by_name), method.released, False)
        by_name[method.name] = replace(before, points=[*before.points, point], shown=before.shown or index in shown)
    yield Chart(
        f"epsilon-{slug}",
        "Accuracy against ε",
        "ε (logarithmic)",
        "average accuracy after the last task",
        list(by_name.values()),
        "percent",
        "Shape and colour tell what the ε is worth; a line joins the same method at several ε.",
        x_log=True,
        marks="status",
        apart="no privacy",
    )


def _last(values: Numbers) -> float | None:
    return values[-1] if values else None
