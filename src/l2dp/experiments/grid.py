"""A grid of settings as a heat map with the best one marked, and what choosing it on private data would cost.

Rows of a `grid` experiment are named budget-noise-clip, as in the paper's appendix: "4-2.2-0.01".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from l2dp.lifetime import Phase, Reading, curve_epsilon, kept_readings, reading_curve
from l2dp.selection import select

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Json = dict[str, Any]


class Cell(NamedTuple):
    """One setting: its budget, noise scale and clipping bound, as they are written, and the row behind it."""

    budget: str
    noise: str
    clip: str
    row: Json


def cells(found: Json) -> list[Cell]:
    found_cells = []
    for row in found["rows"]:
        budget, noise, clip = row["name"].split("-")
        found_cells.append(Cell(budget, noise, clip, row))
    return found_cells


def best(some: Sequence[Cell]) -> Cell | None:
    """The setting with the highest accuracy, of those that were run."""
    run = [cell for cell in some if cell.row.get("accuracy") is not None]
    return max(run, key=lambda cell: float(cell.row["accuracy"])) if run else None


def notes(found: Json, results: Mapping[str, Json]) -> list[str]:
    """The best setting of each budget, and the price of having chosen it."""
    said = [
        "Warning: choosing among these settings by looking at private data is not covered by the ε of any run. "
        "Choose them on public data, or pay for the choice as said here."
    ]
    together = cells(found)
    for budget in dict.fromkeys(cell.budget for cell in together):
        some = [cell for cell in together if cell.budget == budget]
        winner = best(some)
        if winner is None:
            continue
        row = winner.row
        chosen = f"z={winner.noise}, C={winner.clip} with {100 * row['accuracy']:.2f} %"
        theirs = [cell for cell in some if "accuracy" in (cell.row["paper"] or {})]
        if theirs:
            top = max(theirs, key=lambda cell: float(cell.row["paper"]["accuracy"]))
            chosen += f" (the paper's: z={top.noise}, C={top.clip}, {100 * top.row['paper']['accuracy']:.2f} %)"
        runs = [cell.row.get("runs", []) for cell in some]
        if all(runs):
            price = _overhead([results[run] for those in runs for run in those], len(some))
        else:  # the dearest setting may be among those that are missing
            price = f"{sum(map(bool, runs))} of {len(some)} settings were run: the price of choosing needs them all."
        said.append(f"{row['guarantee']}: the best of {sum(map(bool, runs))} is {chosen}. {price}")
    return said


def _overhead(runs: Sequence[Json], settings: int) -> str:
    if not all(run["guarantee"]["status"] == "proved" for run in runs):
        return "Not all of these runs have a proved guarantee, so their choice has no price."
    delta, epsilon = runs[0]["guarantee"]["delta"], runs[0]["guarantee"]["epsilon"]
    curves = [np.max([reading_curve(readings) for readings in kept_readings(phases_of(run))], axis=0) for run in runs]
    chosen, all_of_them = select(curves, delta, settings), curve_epsilon(np.sum(curves, axis=0), delta)
    return (
        f"If settings had been drawn at random, a random number of times ({chosen.law}, {settings} on average), and "
        f"only the best released: ε={chosen.epsilon:.3g}, δ={delta:g} proved, instead of ε={epsilon:g} proved "
        f"for one run. Whoever ran the {len(runs)} that were run here and keeps the best has paid for all of them: "
        f"ε={all_of_them:.3g}, δ={delta:g} proved."
    )


def phases_of(result: Json) -> list[Phase]:
    """How the tasks of a naive-gaussian run were read, from its result. Not for adaptive policies."""
    tasks = result["accounting"]["tasks"]
    found = []
    for number, task in enumerate(tasks):
        replayed = tuple(task["replayed_steps"].get(earlier["task"], 0) for earlier in tasks[:number])
        replay = None
        if task["replay_rate"] is not None:
            replay = Reading(task["replay_rate"], task["replay_noise_multiplier"], max(replayed, default=0))
        found.append(Phase(Reading(task["sampling_rate"], task["noise_multiplier"], task["steps"]), replay, replayed))
    return found


def paint(figure: Figure, found: Json) -> None:
    """One panel for each budget: noise down, clipping bound across, accuracy as colour and in words."""
    together = cells(found)
    budgets = list(dict.fromkeys(cell.budget for cell in together))
    known = [100 * cell.row["accuracy"] for cell in together if cell.row.get("accuracy") is not None]
    low, high = min(known, default=0.0), max(known, default=100.0)
    panels = figure.subplots(1, len(budgets), squeeze=False)[0]
    for axes, budget in zip(panels, budgets, strict=True):
        _panel(axes, [cell for cell in together if cell.budget == budget], low, high)


def _panel(axes: Axes, some: Sequence[Cell], low: float, high: float) -> None:
    noises = list(dict.fromkeys(cell.noise for cell in some))
    clips = list(dict.fromkeys(cell.clip for cell in some))
    values = [[float("nan")] * len(clips) for _ in noises]
    winner = best(some)
    for cell in some:
        accuracy = cell.row.get("accuracy")
        down, across = noises.index(cell.noise), clips.index(cell.clip)
        if accuracy is not None:
            values[down][across] = 100 * accuracy
        word = "not run" if accuracy is None else f"{100 * accuracy:.1f}{' ★' if cell is winner else ''}"
        dark = accuracy is not None and 100 * accuracy < (low + high) / 2
        axes.text(across, down, word, ha="center", va="center", fontsize=8, color="white" if dark else "black")
        if cell is winner:
            from matplotlib.patches import Rectangle

            axes.add_patch(Rectangle((across - 0.5, down - 0.5), 1, 1, fill=False, edgecolor="#d55e00", linewidth=3))
    axes.imshow(values, vmin=low, vmax=max(high, low + 1e-9), cmap="viridis", aspect="auto")
    axes.set_xticks(range(len(clips)), clips)
    axes.set_yticks(range(len(noises)), noises)
    axes.set_xlabel("clipping bound C")
    axes.set_ylabel("noise scale z")
    axes.set_title(some[0].row["guarantee"], fontsize=10, parse_math=False)
