"""What `l2dp experiment` does: runs experiments by name, writes and shows what they found, and lists them."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from l2dp.durable import make_folder, write_bytes, write_json
from l2dp.errors import BadInput, L2dpError
from l2dp.experiments import figures, grid, tables
from l2dp.experiments.declared import Experiment, load, names, with_seeds
from l2dp.experiments.functions import Ask, call, finished, stored
from l2dp.experiments.outcome import outcome
from l2dp.experiments.runner import Engine, Job, Local, alone, capped, divide, jobs_of, known_results, run_all
from l2dp.progress import clock
from l2dp.runs import check_seeds
from l2dp.streams.fetch import RECORDINGS, present, recordings_at
from l2dp.sweeps import EXTRAS

ENGINES = ("local", "ray")


def perform(
    wanted: Sequence[str],
    out: Path,
    console: Console,
    quick: bool = False,
    known: Sequence[Path] = (),
    engine: str = "local",
    workers: int | None = None,
    seeds: tuple[int, ...] | None = None,
) -> None:
    """Runs experiments to their end and shows them; fails at the end, if a run failed, and says which."""
    chosen = [load(name, quick) for name in (names() if list(wanted) == ["all"] else wanted)]
    if seeds is not None:
        check_seeds(seeds)
        fixed = [experiment.name for experiment in chosen if experiment.function]
        if fixed:
            raise BadInput(f"--seeds changes the runs of an experiment; {fixed[0]} has none, leave it out")
        chosen = [with_seeds(experiment, seeds) for experiment in chosen]
    _folders(known)
    for name in [one for one in wanted if one.endswith(".toml")]:
        if Path(name).stem in names() or sum(Path(other).stem == Path(name).stem for other in wanted) > 1:
            raise BadInput(f"{name}: another experiment has the name {Path(name).stem!r}; rename the file")
    jobs = jobs_of(chosen)
    make_folder(out)
    done = run_all(jobs, out, known, make_engine(engine, workers, len(jobs)), console)
    failed = [f"{failure.job.name}: {failure.reason}; see {failure.log}" for failure in done.failures]
    for experiment in chosen:
        folder = _folder(out, experiment)
        try:
            before = finished(experiment, folder, known) if experiment.function else None
            if before is not None:
                again = f"{experiment.name} was finished before; remove {before} to do it again"
                console.print(again, highlight=False, markup=False, soft_wrap=True)
                if before.parent != folder:  # what belongs to it stays where it is
                    show(stored(before), console)
                    continue
            make_folder(folder)
            if before is not None:
                found = stored(before)
            elif not experiment.function:
                found = outcome(experiment, done.results)
            else:
                with alone(out):
                    found = call(experiment, Ask(quick, folder, [*known, out / "runs", folder], console))
            if experiment.kind == "grid":
                found["notes"] += grid.notes(found, done.results)
            write(found, folder)
        except L2dpError as error:
            failed.append(f"{experiment.name}: {error}")
            continue
        except Exception as error:  # a mistake in one function must not stop the rest
            failed.append(f"{experiment.name}: {type(error).__name__}: {error}")
            continue
        show(found, console)
        console.print(f"in {folder}", highlight=False, markup=False, soft_wrap=True)
    if failed:
        lines = "\n".join(failed)
        console.print(f"\nfailed:\n{lines}", highlight=False, markup=False, soft_wrap=True)
        raise L2dpError(f"{len(failed)} failed, as listed; the rest is kept, and the same command tries these again")


def _folder(out: Path, experiment: Experiment) -> Path:
    return out / (f"{experiment.name}-quick" if experiment.quick else experiment.name)


def _folders(known: Sequence[Path]) -> None:
    for folder in known:
        if not folder.is_dir():
            raise BadInput(f"--known {folder} is not a folder")


def make_engine(name: str, workers: int | None, runs: int) -> Engine:
    if name not in ENGINES:
        raise BadInput(f"unknown engine {name!r}; choose from {', '.join(ENGINES)}")
    if name == "ray":
        from l2dp.experiments.cluster import OnRay

        return OnRay(workers, runs)
    at_once, threads = divide(len(os.sched_getaffinity(0)), workers, runs)
    return Local(at_once, capped(threads))


def write(found: dict[str, Any], folder: Path) -> None:
    """`outcome.json`, `table.md` and the pictures."""
    write_json(folder / "outcome.json", found)
    write_bytes(folder / "table.md", (page(found) + "\n").encode())
    if "effects" in found:
        for picture in figures.drawn(found):
            figures.draw(found, picture, folder / f"{picture}.png")


def page(found: dict[str, Any]) -> str:
    """An outcome in Markdown, without its pictures."""
    head = f"{found['title']}{' — QUICK FORM, not the data of the paper' if found['quick'] else ''}"
    parts = [f"**{head}**" + (f" ({found['place']})" if found["place"] else ""), found["about"]]
    if "effects" not in found:
        parts.append(tables.markdown(found["columns"], found["rows"]))
    else:
        if found["kind"] != "pvalues":  # whose rows stand in the figures that it compares
            rows = [tables.cells(row, found["quick"]) for row in found["rows"]]
            parts.append(tables.markdown(tables.COLUMNS, rows))
        if found["effects"]:
            parts.append(tables.markdown(*tables.effects(found)))
        parts += [f"- The paper's {label}: {note}" for label, note in _derived(found)]
        parts += [f"- {note}" for note in _sources(found)]
    parts += [f"- {note}" for note in found["notes"]]
    return "\n\n".join(parts)


def _derived(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Numbers of the paper that need a word: taken from differences, or printed in two ways."""
    if found["quick"] or found["kind"] == "pvalues":
        return []
    noted = [(row["label"], row["guarantee"], (row["paper"] or {}).get("note")) for row in found["rows"]]
    return list(
        dict.fromkeys((f"{label} ({about})" if "ε" in about else label, note) for label, about, note in noted if note)
    )


def _sources(found: dict[str, Any]) -> list[str]:
    """What guarantees of records mean where a source record is in several tasks, as it is in permuted streams."""
    told: dict[str, list[str]] = {}
    for row in found["rows"] if found["kind"] != "pvalues" else ():
        if row.get("source") and row["epsilon"] is not None and row["status"] == "proved":
            told.setdefault(row["source"], []).append(f"{row['label']} ({row['guarantee']} for a record)")
    return [f"{', '.join(dict.fromkeys(labels))}: {source}." for source, labels in told.items()]


def show(found: dict[str, Any], console: Console) -> None:
    """The same on the terminal."""
    head = f"\n{found['title']}{' — QUICK FORM, not the data of the paper' if found['quick'] else ''}"
    console.print(head, highlight=False, markup=False, soft_wrap=True)
    if "effects" not in found:
        tables.show(found["columns"], found["rows"], console)
    else:
        if found["kind"] != "pvalues":
            tables.show(*tables.narrow(found), console)
        if found["effects"]:
            tables.show(*tables.effects(found), console)
    for note in [*found["notes"], *(_sources(found) if "effects" in found else [])]:
        console.print(note, highlight=False, markup=False, soft_wrap=True)


def overview(out: Path, known: Sequence[Path]) -> str:
    """What there is: every experiment, what it needs, how long its two forms take here, what is finished."""
    _folders(known)
    results = known_results([*known, out / "runs"])
    lines = []
    for name in names():
        full, quick = load(name), load(name, quick=True)
        lines.append(f"{name:28s} {full.title}{f' ({full.place})' if full.place else ''}")
        lines.append(f"{'':28s} {full.about}")
        for form, one in (("full", full), ("quick", quick)):
            there = finished(one, _folder(out, one), known) is not None
            lines.append(f"{'':28s} {form}: needs {_needs(one)}; {_length(one, results, there)}")
    lines += ["", "l2dp experiment NAME [--quick] [--out DIR] [--engine local|ray] [--workers N]"]
    return "\n".join(lines)


def _needs(experiment: Experiment) -> str:
    if not experiment.needs:
        return "nothing"
    return ", ".join(f"{name} ({'here' if _here(name) else 'not here'})" for name in experiment.needs)


def _here(name: str) -> bool:
    if name in EXTRAS:
        return importlib.util.find_spec(EXTRAS[name][0]) is not None
    if name == "har":
        return all(recordings_at(dataset)[0] is not None for dataset in RECORDINGS)
    return present(name) is not None


def _length(experiment: Experiment, results: dict[str, Any], there: bool) -> str:
    """How long all of it and what is left take with the cores of this machine, from the minutes in the file."""
    cores = len(os.sched_getaffinity(0))
    if experiment.function:
        long = "time unknown" if experiment.minutes is None else f"about {clock(60 * experiment.minutes)}"
        return f"{long}, finished" if there else long
    jobs = jobs_of([experiment])
    left = [job for job in jobs if job.hash not in results]
    long = f"{len(jobs)} runs, {_minutes(jobs, cores)}"
    if len(left) == len(jobs):
        return long
    return f"{long}, {f'{len(jobs) - len(left)} finished, {_minutes(left, cores)} left' if left else 'all finished'}"


def _minutes(jobs: Sequence[Job], cores: int) -> str:
    stated = [job.minutes for job in jobs if job.minutes is not None]
    if len(stated) < len(jobs):
        return "time unknown"
    longest, together = max(stated), sum(stated) / min(cores, len(stated))
    return f"about {clock(60 * max(longest, together))} on {cores} cores"
