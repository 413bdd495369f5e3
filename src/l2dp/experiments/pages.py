"""The reproducibility page: docs/reproducibility.md and its figures, generated from the committed results alone."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from l2dp.durable import make_folder, write_bytes, write_json
from l2dp.errors import BadInput
from l2dp.experiments import figures, grid
from l2dp.experiments.declared import Experiment, load, names
from l2dp.experiments.functions import stored
from l2dp.experiments.outcome import SHORT, between_seeds, outcome
from l2dp.experiments.perform import page
from l2dp.experiments.runner import jobs_of, known_results

PAGE = "reproducibility.md"
HEAD = """# Reproducibility

Written by `l2dp experiment docs` from the files in `results/`; a test checks that the two agree. Do not edit.

Every table and figure of results in the paper, and ours. Ours is the mean over seeds (± standard deviation, where there
are several) after the last task; L2DP-ML is tested with its secret draws, as in its authors' earlier code (the paper
does not say), unless a row says *released*. **Reproduced** is within 2 points of accuracy or 0.03 of forgetting,
**better** and **worse** are beyond that; where the paper prints no more than the difference to another row of ours, the
difference is what is compared, and must come within half of it; a number not far from chance must come within half of
its distance from chance. With one seed a verdict says so, for seeds vary by about as much. What tasks had *at their
best* follows from accuracy and forgetting: where it is more than the paper's, there was more to forget. A row says what
it was run on; quick forms (`--quick`) never stand here. What was not run says so, seeds too: `l2dp experiment NAME
--known results` runs what is missing and `l2dp experiment docs` takes it up.

Beside an effect stand three p values of ours. *The paper's test* is its "2-tail t-tests" between two curves as we read
them (it does not say whether they are paired, nor what it tests of forgetting): the points count as independent
samples, so what both curves do, fall with every task say, hides how they differ. The *paired* one compares them task by
task, over the seeds that both rows have; the points of a curve share their tasks, so it is smaller than it should be.
*Over seeds* takes one number of each seed, its mean difference or slope, where there are three seeds: it asks the right
question, with three numbers, so it tells large differences only. An effect is *confirmed* or *contradicted* where the
paired p is below 0.05, that over seeds too where there are three, all seeds go the same way and so does the difference
after the last task; *not told apart* elsewhere. With one seed it says so, and is counted apart, for chance alone does
as much:
{between}
There are {effects} effects on this page, and none of the p values is corrected for that. On human activity there are
four tasks and few people: *not told apart* mostly says that a difference of the size shown could not have been told.
Where the paper states that nothing tells two curves apart, *not told apart, as stated* (neither the paired p nor that
over seeds does) is agreement, not proof; where it only draws them, ours is *higher* or *lower*. *Mean over tasks* is
the difference of the curves, *after the last* that of their ends, over the seeds that both rows have (a table has all
the seeds of each). A gap that grows or shrinks is tested by its slope over tasks, whose points are not independent
either. Every ε carries its status; L2DP-ML's claims are refuted (docs/l2dp-ml.md). `proved` is said of the code as it
is; runs of private-replay with trained heads (permuted MNIST, human activity) are partly older than its sums of
gradients in float64, and the argument does not cover the last digits of the sums that they made (docs/results.md)."""


def update(results: Path, out: Path, docs: Path) -> str:
    """Takes finished full runs from `out` into `results`, then writes the page and its figures."""
    if not results.is_dir():
        raise BadInput(f"--known {results} is not a folder; `docs` keeps the results of a checkout there")
    taken = collect(results, out)
    make_folder(docs / "figures")
    text, pictures = build(results)
    for name, (found, picture) in pictures.items():
        path = docs / "figures" / name
        if not path.exists() or stamped(path) != figures.data_hash(found, picture):
            figures.draw(found, picture, path)
    for path in (docs / "figures").glob("*.png"):
        if path.name not in pictures and stamped(path) is not None:
            path.unlink()  # of an experiment that is gone
    for name in names():
        for figure in _stored(results, name).get("figures", []):
            shutil.copyfile(results / "experiments" / figure, docs / "figures" / figure)
    write_bytes(docs / PAGE, text.encode())
    return f"{taken} results taken from {out}; wrote {docs / PAGE}"


def collect(results: Path, out: Path) -> int:
    """Copies what full forms need and `results` lacks: the result of each run, and the outcomes of functions.

    What `results` has already stays: to take another one, remove the old file first.
    """
    experiments = [load(name) for name in names()]
    there = known_results([results])
    fresh = known_results([out / "runs"]) if (out / "runs").is_dir() else {}
    taken = 0
    for job in jobs_of(experiments):
        if job.hash in fresh and job.hash not in there:
            make_folder(results / "runs")
            write_json(results / "runs" / f"{job.name}.json", fresh[job.hash])
            taken += 1
    for experiment in experiments:
        path = out / experiment.name / "outcome.json"
        if experiment.function and path.exists() and not _stored(results, experiment.name):
            make_folder(results / "experiments")
            found = stored(path)
            for index, figure in enumerate(found["figures"]):
                name = f"{experiment.name}-{figure}"
                shutil.copyfile(out / experiment.name / figure, results / "experiments" / name)
                found["figures"][index] = name
            write_json(results / "experiments" / f"{experiment.name}.json", found)
            taken += 1
    return taken


def build(results: Path) -> tuple[str, dict[str, tuple[dict[str, Any], str]]]:
    """The page, and the pictures it shows: by file name, the outcome and which picture of it."""
    finished = known_results([results])
    parts, pictures = [], {}
    outcomes = []
    for name in names():
        experiment = load(name)
        found = _stored(results, name) if experiment.function else outcome(experiment, finished)
        if experiment.kind == "grid":
            found["notes"] += grid.notes(found, finished)
        outcomes.append((experiment, found))
    parts += [_head(outcomes), _summary(outcomes)]
    for experiment, found in outcomes:
        parts.append(f"## {experiment.name}")
        if not found:
            parts.append(
                f"**{experiment.title}**\n\n{experiment.about}\n\nNot run: `l2dp experiment {experiment.name}`."
            )
            continue
        parts.append(page(found))
        for picture in figures.drawn(found) if "effects" in found else []:
            pictures[f"{experiment.name}-{picture}.png"] = found, picture
            parts.append(f"![{experiment.title}](figures/{experiment.name}-{picture}.png)")
        parts += [f"![{experiment.title}](figures/{figure})" for figure in found.get("figures", [])]
    return "\n\n".join(parts) + "\n", pictures


def stamped(path: Path) -> str | None:
    """The hash of the data that a picture was drawn from."""
    from PIL import Image

    with Image.open(path) as image:
        hash: str | None = image.info.get(figures.DATA)
    return hash


def _stored(results: Path, name: str) -> dict[str, Any]:
    """What a function found when it was last run in full; empty: never."""
    path = results / "experiments" / f"{name}.json"
    found: dict[str, Any] = stored(path) if path.exists() else {}
    return {} if found.get("quick") else found


def _head(outcomes: list[tuple[Experiment, dict[str, Any]]]) -> str:
    short, long = between_seeds([row for _, found in outcomes for row in found.get("rows", []) if "by_seed" in row])
    said = (
        f"two seeds of one and the same row are told apart by that p in {short.paired} of {short.pairs} pairs of "
        f"curves of up to {SHORT} tasks (most of them on human activity, where a seed also chooses who tests), and in "
        f"{long.paired} of {long.pairs} pairs of longer ones; by the p of a slope in {short.slope} and {long.slope}."
        if short.pairs + long.pairs
        else "another seed may say otherwise."
    )
    return HEAD.replace("{between}", said).replace("{effects}", str(len(_effects(outcomes))))


def _effects(outcomes: list[tuple[Experiment, dict[str, Any]]]) -> list[dict[str, Any]]:
    """The effects of the page, each comparison once: several experiments may show the same two rows."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for _, one in outcomes:
        rows = {row["name"]: _row_key(row) for row in one["rows"]} if "effects" in one else {}
        for effect in one.get("effects", []):
            key = rows[effect["more"]], rows[effect["than"]], *(effect[what] for what in ("measure", "tasks", "gap"))
            found.setdefault(key, effect)
    return list(found.values())


def _row_key(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["label"], row["on"], row["guarantee"]


def _summary(outcomes: list[tuple[Experiment, dict[str, Any]]]) -> str:
    """How many of the paper's rows and effects, and of our effects, came out how; each once, whoever repeats it."""
    counted: Counter[str] = Counter()
    seen: set[tuple[str, str, str]] = set()
    effects: dict[str, Counter[str]] = {"paper": Counter(), "drawn": Counter(), "ours": Counter()}
    for _, found in outcomes:
        if "effects" not in found:
            continue
        run = [row["paper"] for row in found["rows"] if row["seeds"]]
        for row in found["rows"]:
            if row["paper"] is None or _row_key(row) in seen:
                continue
            seen.add(_row_key(row))
            if row["state"] == "run":
                only = " (one seed)" if len(row["seeds"]) == 1 else ""
                counted.update(f"{measure} {judged}{only}" for measure, judged in row["verdict"].items())
            elif row["seeds"] or row["paper"] not in run:  # not the full form of what a sub-sample stands for
                counted[row["state"]] += 1
    for effect in _effects(outcomes):
        whose = "ours" if effect["ours"] else "drawn" if effect["stated"] == "nothing" else "paper"
        effects[whose][effect["verdict"]] += 1
    return (
        f"Numbers of the paper, row by row — {_told(counted)}. (A row of accuracy and forgetting counts twice where it "
        "was run on the paper's data, once elsewhere. The three rows of split MNIST stand beside three protocols each, "
        "for the paper does not say which is its own.)\n\n"
        f"Effects that the paper states or prints — {_told(effects['paper'])}.\n\n"
        f"Comparisons that it draws without a word — {_told(effects['drawn'])}.\n\n"
        f"Effects that we state — {_told(effects['ours'])}."
    )


def _told(counted: Counter[str]) -> str:
    return "; ".join(f"{word}: {count}" for word, count in sorted(counted.items())) or "none"
