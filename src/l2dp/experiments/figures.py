"""Figures of outcomes. Every line's label carries the guarantee with its status, every picture the hash of its data."""

from __future__ import annotations

import hashlib
import io
import json
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from l2dp import durable
from l2dp.experiments import grid
from l2dp.experiments.outcome import Json, p_value_curves
from l2dp.report.palette import LIGHT, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEAST_P = 1e-20
DATA = "l2dp data"
"""Under this name a PNG holds the hash of what it shows, so that a test can tell a stale picture."""


def drawn(found: Json) -> list[str]:
    """The pictures that an outcome has: accuracy against tasks, p values, accuracy against ε, a heat map."""
    curves = any(len(row.get("curve", [])) > 1 for row in found["rows"])
    pictures = ["accuracy"] if curves and found["kind"] == "figure" else []
    if found["kind"] == "pvalues" and p_value_curves(found):
        pictures.append("pvalues")
    if found["kind"] == "epsilon" and any(row.get("epsilon") is not None for row in found["rows"]):
        pictures.append("epsilon")
    if found["kind"] == "grid" and any("curve" in row for row in found["rows"]):
        pictures.append("grid")
    return pictures


def data_hash(found: Json, picture: str) -> str:
    """Of what a picture shows, to three digits: the last ones of a mean differ between machines."""
    rows = [
        [
            *(row["label"], row["guarantee"], row.get("epsilon"), row.get("seeds")),
            *(_digits(row.get(curve, [])) for curve in ("curve", "curve_sd")),
        ]
        for row in found["rows"]
    ]
    tests = [[label, _digits(curve)] for label, curve in p_value_curves(found)]
    text = json.dumps([picture, _title(found), rows, tests, *(_panels(found) if picture == "epsilon" else ())])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _digits(curve: Sequence[float | None]) -> list[str]:
    return ["–" if value is None else f"{value:.3g}" for value in curve]


def draw(found: Json, picture: str, path: Path) -> None:
    """One picture of an outcome, as a PNG."""
    # Imported here: it takes longer than everything else, and tables need none of it.
    from matplotlib.figure import Figure

    title = _title(found)
    if picture == "grid":
        figure = Figure(figsize=(9.0, 4.2), dpi=120, layout="constrained")
        grid.paint(figure, found)
        figure.suptitle(textwrap.fill(title, 90), fontsize=12, parse_math=False)
    elif picture == "pvalues":
        figure = _p_values(found)
        figure.suptitle(textwrap.fill(title, 90), fontsize=12, parse_math=False)
    elif picture == "epsilon" and len(_panels(found)) > 1:
        figure = _epsilon_panels(found)
        figure.suptitle(textwrap.fill(title, 90), fontsize=12, parse_math=False)
    else:
        figure = Figure(figsize=(8.0, 4.0 + 0.2 * len(found["rows"])), dpi=120, layout="constrained")
        axes = figure.add_subplot()
        {"accuracy": _accuracy, "epsilon": _against_epsilon}[picture](axes, found)
        _plain(axes)
        axes.set_title(textwrap.fill(title, 80), fontsize=12, parse_math=False)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", fontsize=9, frameon=False)
    save(figure, path, data_hash(found, picture))


def save(figure: Figure, path: Path, hash: str | None = None) -> None:
    """As a PNG that is the same whenever it shows the same, with the hash of its data if there is one."""
    png = io.BytesIO()
    figure.savefig(png, format="png", metadata={"Software": None} | ({} if hash is None else {DATA: hash}))
    durable.write_bytes(path, png.getvalue())


def marked(title: str, quick: bool) -> str:
    """A title that tells a quick form from what stands beside the paper."""
    return f"QUICK FORM, not the paper's data: {title}" if quick else title


def _title(found: Json) -> str:
    """What a picture shows, and of which data if they are not the paper's."""
    if found["quick"]:
        return marked(found["title"], True)
    states = {row["state"] for row in found["rows"] if "curve" in row}
    words = {"run on a sub-sample": "sub-sampled", "run on other data": "other data stand in"}
    said = [f"{'partly ' if 'run' in states else ''}{word}" for state, word in words.items() if state in states]
    return f"{found['title']} ({', '.join(said)})" if said else str(found["title"])


def _plain(axes: Axes) -> None:
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _style(index: int) -> dict[str, Any]:
    turn, colour = divmod(index, len(LIGHT))
    # A line of one point shows neither dashes nor dots: another turn has other pairs of colour and marker, too.
    marker = MARKERS[(colour + turn) % len(MARKERS)]
    return {"color": LIGHT[colour], "marker": marker, "linestyle": ("-", "--", ":")[turn % 3], "markersize": 5}


def _accuracy(axes: Axes, found: Json) -> None:
    for index, row in enumerate(row for row in found["rows"] if "curve" in row):
        points = [
            (tasks, 100 * mean, 100 * sd)
            for tasks, (mean, sd) in enumerate(zip(row["curve"], row["curve_sd"], strict=True), 1)
            if mean is not None
        ]
        tasks, means, deviations = zip(*points, strict=True)
        bars = deviations if len(row["seeds"]) > 1 else None
        label = f"{row['label']} — {row['guarantee']}"
        axes.errorbar(tasks, means, yerr=bars, label=label, capsize=2, linewidth=1.6, **_style(index))
    highest = max(
        (100 * value for row in found["rows"] for value in row.get("curve", []) if value is not None), default=100
    )
    axes.set_ylim(0, 100 if highest > 50 else 10 * math.ceil(highest / 10 + 0.5))
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel("number of tasks")
    axes.set_ylabel("average accuracy (%)")


def _p_values(found: Json) -> Figure:
    """One panel for each stream, which the words before a colon name, as in the paper."""
    from matplotlib.figure import Figure

    panels: dict[str, list[tuple[str, list[float | None]]]] = {}
    for label, curve in p_value_curves(found):
        stream, colon, rest = label.partition(": ")
        panels.setdefault(stream if colon else "", []).append((rest if colon else label, curve))
    across = min(2, len(panels))
    down = math.ceil(len(panels) / across)
    figure = Figure(figsize=(6.0 * across if across > 1 else 8.0, 4.8 * down), dpi=120, layout="constrained")
    for place, (stream, curves) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(down, across, place)
        for index, (label, curve) in enumerate(curves):
            points = [(tasks, max(p, LEAST_P)) for tasks, p in enumerate(curve, 1) if p is not None]
            if points:
                axes.plot(*zip(*points, strict=True), label=label, linewidth=1.6, **_style(index))
        axes.axhline(0.05, color="black", linewidth=0.8, linestyle=":")
        axes.set_yscale("log")
        axes.locator_params(axis="x", integer=True)
        axes.set_xlabel("number of tasks")
        axes.set_ylabel("p value (two-tailed t-test of the curves)")
        _plain(axes)
        axes.set_title(stream, fontsize=10, parse_math=False)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize=8, frameon=False)
    return figure


def _panels(found: Json) -> list[str]:
    """The streams that rows were run on, in their order; accuracies on different ones share no axes."""
    return list(dict.fromkeys(row["stream"] for row in found["rows"] if row.get("accuracy") is not None))


def _epsilon_panels(found: Json) -> Figure:
    from matplotlib.figure import Figure

    streams = _panels(found)
    down = math.ceil(len(streams) / 2)
    most = max(sum(row["stream"] == stream for row in found["rows"]) for stream in streams)
    figure = Figure(figsize=(13.0, (3.6 + 0.14 * most) * down), dpi=120, layout="constrained")
    for place, stream in enumerate(streams, 1):
        axes = figure.add_subplot(down, 2, place)
        _against_epsilon(axes, found | {"rows": [row for row in found["rows"] if row["stream"] == stream]})
        _plain(axes)
        axes.set_title(stream, fontsize=10, parse_math=False)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), fontsize=8, frameon=False)
    return figure


def _against_epsilon(axes: Axes, found: Json) -> None:
    lines: dict[str, list[tuple[float | None, float]]] = {}
    for row in found["rows"]:
        if row.get("accuracy") is not None:
            word = row["guarantee"] if row["epsilon"] is None else f"ε {row['guarantee'].split(' ', 1)[1]}"
            lines.setdefault(f"{row['label']} — {word}", []).append((row["epsilon"], 100 * row["accuracy"]))
    budgets = sorted({epsilon for points in lines.values() for epsilon, _ in points if epsilon is not None}) or [1.0]
    for index, (label, points) in enumerate(lines.items()):
        if points[0][0] is None:  # no budget: the same whatever ε
            points = [(epsilon, points[0][1]) for epsilon in (budgets[0], budgets[-1])]
        epsilons, accuracies = zip(*sorted(points), strict=True)
        axes.plot(epsilons, accuracies, label=label, **_style(index))
    axes.set_xscale("log")
    axes.set_xticks(budgets, [f"{epsilon:g}" for epsilon in budgets])
    axes.set_xticks([], minor=True)
    axes.set_ylim(0, 100)
    axes.set_xlabel("ε (with the status that the legend says)")
    axes.set_ylabel("average accuracy after the last task (%)")
