"""The reproducibility page: docs/reproducibility.md and its figures, generated from the committed results alone."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from l2dp.durable import make_folder, read_json, write_bytes, write_json
from l2dp.errors import BadInput
from l2dp.experiments import figures
from l2dp.experiments.declared import Experiment, load, names
from l2dp.experiments.outcome import outcome
from l2dp.experiments.perform import page
from l2dp.experiments.runner import jobs_of, known_results

PAGE = "reproducibility.md"
HEAD = """# Reproducibility

Written by `l2dp experiment docs` from the files in `results/`; a test checks that the two agree. Do not edit.

Every table and figure of the paper, and ours. Ours is the mean over seeds (± standard deviation, where there are
several) after the last task; L2DP-ML is tested with its secret draws, as its authors do, unless a row says *released*.
**Reproduced** is within 2 points of accuracy or 0.03 of forgetting, **better** and **worse** are beyond that. A row
says what it was run on; quick forms (`--quick`) never stand here. What was not run says so: `l2dp experiment NAME
--known results` runs what is missing and `l2dp experiment docs` takes it up.

p values are the paper's: a two-tailed t-test between two average-accuracy curves. The points of a curve are not
independent, so such p values are smaller than they should be; they say which way a difference goes more than how sure
it is. An effect is *confirmed* or *contradicted* below 0.05 and *not told apart* above. Every ε carries its status;
L2DP-ML's claims are refuted (docs/l2dp-ml.md)."""


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
    """Copies what full forms need and `results` lacks: the result of each run, and the outcomes of functions."""
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
        if experiment.function and path.exists():
            make_folder(results / "experiments")
            found = read_json(path)
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
    parts, pictures = [HEAD], {}
    outcomes = []
    for name in names():
        experiment = load(name)
        found = _stored(results, name) if experiment.function else outcome(experiment, finished)
        outcomes.append((experiment, found))
    parts.append(_summary(outcomes))
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
    found: dict[str, Any] = read_json(path) if path.exists() else {}
    return {} if found.get("quick") else found


def _summary(outcomes: list[tuple[Experiment, dict[str, Any]]]) -> str:
    """How many of the paper's rows and effects came out how."""
    counted: Counter[str] = Counter()
    seen: set[tuple[str, str, str]] = set()  # tables repeat rows of figures
    effects: Counter[str] = Counter()
    for _, found in outcomes:
        for row in found.get("rows", []) if "effects" in found else []:
            key = row["label"], row["on"], row["guarantee"]
            if row["paper"] is None or key in seen:
                continue
            seen.add(key)
            if row["state"] == "run":
                counted.update(f"{measure} {judged}" for measure, judged in row["verdict"].items())
            else:
                counted[row["state"]] += 1
        effects.update(effect["verdict"] for effect in found.get("effects", []))
    rows = "; ".join(f"{word}: {count}" for word, count in sorted(counted.items()))
    directions = "; ".join(f"{word}: {count}" for word, count in sorted(effects.items()))
    return f"Numbers of the paper, row by row — {rows}.\n\nEffects — {directions}."
