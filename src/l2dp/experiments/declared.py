"""An experiment as it is declared: a TOML file with the runs behind every row of a table or every line of a figure.

Every experiment has a full form and a quick form; the quick form changes the requests as its file says and never
stands beside a number of the paper.
"""

from __future__ import annotations

import difflib
import itertools
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from l2dp.errors import BadInput
from l2dp.experiments.paper import printed
from l2dp.sweeps import Request

CATALOGUE = Path(str(files("l2dp.experiments").joinpath("catalogue")))
REQUEST = {f.name for f in fields(Request)}
ROW = {
    *("name", "label", "paper", "seeds", "minutes", "released", "sweep", "quick"),
    *("why", "unrun", "impossible", "stands_in"),
}
TOP = {
    *("title", "about", "place", "kind", "needs", "minutes", "notes"),
    *("common", "quick", "row", "rows_of", "effect", "function"),
}
MEASURES, GAPS = ("accuracy", "forgetting"), (None, "grows", "shrinks")
STATED = ("more", "no difference", "nothing")
NUMBERS = ("tasks", "per_task", "test_records", "batch_size", "evaluate_every")
KINDS = ("table", "figure", "pvalues", "epsilon", "grid")


@dataclass(frozen=True)
class Row:
    """One row of a table, one line of a figure: a request for each of some seeds, or why there is none."""

    name: str
    label: str
    request: Request | None
    seeds: tuple[int, ...] = (0,)
    paper: str | None = None
    """Where `paper.toml` has this row."""
    minutes: float | None = None
    """About what one run takes on one core."""
    why: str | None = None
    """Why it comes out worse than in the paper."""
    unrun: str | None = None
    """Why it was not run, while it was not."""
    impossible: str | None = None
    """Why there can be no run at all."""
    stands_in: str | None = None
    """Why the paper's data cannot be had; the run is on other data, and is no reproduction whatever comes out."""
    released: bool = False
    """Shows θ alone, without the secret draws, where a method has both tests."""


@dataclass(frozen=True)
class Effect:
    """A direction that the paper (or we) state: the curve of row `more` lies above that of row `than`.

    With `tasks` only the first so many tasks count. With `gap` the lead of `more` over `than` is said to shrink or to
    grow with the number of tasks.
    """

    says: str
    more: str
    than: str
    measure: str = "accuracy"
    paper_p: float | None = None
    tasks: int | None = None
    gap: str | None = None
    ours: bool = False
    """Whether we say it, and not the paper."""
    stated: str = "more"
    """What is said: that `more` is higher, that nothing tells the two apart, or nothing (the paper draws them only)."""


EFFECT = {f.name for f in fields(Effect)}


@dataclass(frozen=True)
class Experiment:
    """One table or figure, in its full or its quick form."""

    name: str
    title: str
    about: str
    kind: str
    quick: bool
    place: str = ""
    needs: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    effects: tuple[Effect, ...] = ()
    notes: tuple[str, ...] = ()
    function: str | None = None
    minutes: float | None = None
    """Of a function, which has no rows to add up."""


def names() -> list[str]:
    """The experiments that ship with the library."""
    return sorted(path.stem for path in CATALOGUE.glob("*.toml"))


def load(name: str, quick: bool = False, within: tuple[str, ...] = ()) -> Experiment:
    """An experiment by name, or from a file of one's own; `within` those whose rows it is to give."""
    path = Path(name) if name.endswith(".toml") else CATALOGUE / f"{name}.toml"
    if not path.is_file():
        near = difflib.get_close_matches(name, names(), 1, 0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(names())}, or give a .toml file"
        if name.endswith(".toml"):
            raise BadInput(f"there is no file {name}; give the path of one, or a name from `l2dp experiment list`")
        raise BadInput(f"unknown experiment {name!r}; {hint}")
    try:
        text = path.read_text("utf-8")
        return _experiment(path, tomllib.loads(text), quick, within)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"{path} is not a TOML file that can be read: {error}") from None
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{path} is not an experiment ({error!r}); docs/experiments.md shows one") from None


def _experiment(path: Path, found: dict[str, Any], quick: bool, within: tuple[str, ...]) -> Experiment:
    _known(found, TOP, path, "the file")
    if found.get("kind", "table") not in KINDS:
        raise BadInput(f"{path}: kind {found['kind']!r}; choose from {', '.join(KINDS)}")
    common = found.get("common", {})
    smaller = found.get("quick", {})
    for block in (found, smaller):
        for key in ("needs", "notes", "rows_of"):
            if not isinstance(block.get(key, []), list) or not all(isinstance(one, str) for one in block.get(key, [])):
                raise BadInput(f"{path}: {key} = {block[key]!r}; it must be a list of words in quotes")
    changed = {key: value for key, value in smaller.items() if key not in ("needs", "notes")} if quick else {}
    rows = tuple(row for block in found.get("row", []) for row in _rows(path, common, block, changed, quick))
    for other in found.get("rows_of", []):
        if other in (path.stem, str(path), *within):
            raise BadInput(f"{path}: rows_of comes back to {other!r}; an experiment cannot hold its own rows")
        inner = load(other, quick, (*within, path.stem, str(path)))
        rows += tuple(replace(row, name=f"{other}/{row.name}") for row in inner.rows)
    names_there = [row.name for row in rows]
    for name in names_there if found.get("kind") == "grid" else ():
        if len(name.split("-")) != 3:
            raise BadInput(f"{path}: the rows of a grid are named budget-noise-clip, {name!r} is not")
    if len(set(names_there)) < len(names_there):
        raise BadInput(f"{path}: two rows have the same name; {', '.join(names_there)}")
    effects = []
    for block in found.get("effect", []):
        _known(block, EFFECT, path, "an effect")
        effect = Effect(**block)
        if effect.measure not in MEASURES or effect.gap not in GAPS:
            raise BadInput(
                f"{path}: the effect {effect.says!r} must measure accuracy or forgetting, and a gap grows or shrinks"
            )
        if effect.stated not in STATED:
            choices = ", ".join(STATED)
            raise BadInput(f"{path}: the effect {effect.says!r} has stated = {effect.stated!r}; choose from {choices}")
        if effect.paper_p is not None:
            _positive(effect.paper_p, path, f"the effect {effect.says!r}", "paper_p")
        if effect.tasks is not None:
            _whole(effect.tasks, path, f"the effect {effect.says!r}", "tasks")
        if effect.more == effect.than:
            raise BadInput(f"{path}: the effect {effect.says!r} compares the row {effect.more!r} with itself")
        for row in (effect.more, effect.than):
            if row not in names_there:
                raise BadInput(f"{path}: the effect {effect.says!r} names the row {row!r}, which is not there")
        effects.append(effect)
    for block in (found, smaller):
        if block.get("minutes") is not None:
            _positive(block["minutes"], path, "the file", "minutes")
    if not isinstance(found.get("function", ""), str):
        raise BadInput(f'{path}: function = {found["function"]!r}; it must be "module:name"')
    if bool(rows) == bool(found.get("function")):
        raise BadInput(f"{path}: an experiment has rows or a function, one of the two")
    return Experiment(
        path.stem,
        found["title"],
        found["about"],
        found.get("kind", "table"),
        quick,
        found.get("place", ""),
        tuple((smaller if quick else found).get("needs", found.get("needs", ()))),
        rows,
        tuple(effects),
        tuple((smaller if quick else found).get("notes", ())),
        found.get("function"),
        (smaller if quick else found).get("minutes"),
    )


def _known(found: dict[str, Any], known: set[str], path: Path, where: str) -> None:
    for key in found:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known))}"
            raise BadInput(f"{path}: {where} has no {key!r}; {hint}")


def _rows(
    path: Path, common: dict[str, Any], block: dict[str, Any], changed: dict[str, Any], quick: bool
) -> Iterator[Row]:
    """The row of a block, or one for every combination of the values it sweeps over."""
    sweep = block.get("sweep", {})
    for values in itertools.product(*sweep.values()):
        chosen = dict(zip(sweep, values, strict=True))
        # The last part of `options.noise` names it in templates: "{noise}".
        words = {key.rpartition(".")[2]: value for key, value in chosen.items()}
        given = common | {key: value for key, value in block.items() if key not in ("sweep", "quick")}
        for key, value in chosen.items():
            place, dot, option = key.partition(".")
            given = given | ({place: given.get(place, {}) | {option: value}} if dot else {key: value})
        given |= changed | (block.get("quick", {}) if quick else {})
        swept = {key.partition(".")[2]: value for key, value in chosen.items() if key.startswith("options.")}
        if swept:  # the quick form may change other options, never what is swept over
            given["options"] = given["options"] | swept
        for key in ("name", "label", "paper", "why"):
            if isinstance(given.get(key), str):
                given[key] = given[key].format(**words)
        yield _row(path, given, quick)


def _row(path: Path, given: dict[str, Any], quick: bool) -> Row:
    _known(given, REQUEST | ROW, path, f"row {given.get('name')!r}")
    about = {key: value for key, value in given.items() if key in ROW}
    about["seeds"] = about.get("seeds", [0])
    if not isinstance(about["seeds"], list) or not 0 < len(about["seeds"]) == len(set(map(str, about["seeds"]))):
        raise BadInput(f"{path}: seeds of row {given.get('name')!r} must be a list, each once, [0, 1, 2] say")
    about["seeds"] = tuple(_whole(seed, path, f"row {given.get('name')!r}", "seeds", 0) for seed in about["seeds"])
    for key in NUMBERS:
        if key in given:
            _whole(given[key], path, f"row {given.get('name')!r}", key)
    for key in ("balanced", "disjoint", "full_batch", "released"):
        if not isinstance(given.get(key, False), bool):
            raise BadInput(f"{path}: row {given.get('name')!r} has {key} = {given[key]!r}; it must be true or false")
    for key in ("name", "label", "paper", "why", "unrun", "impossible", "stands_in", "order", "benchmark", "learner"):
        if not isinstance(given.get(key, ""), str):
            raise BadInput(f"{path}: row {given.get('name')!r} has {key} = {given[key]!r}; it must be words in quotes")
    if given.get("minutes") is not None:
        _positive(given["minutes"], path, f"row {given.get('name')!r}", "minutes")
    if about.get("paper") is not None:
        printed(about["paper"])  # refuses what is not there before anything is run
    if quick:
        about["paper"] = None
    if given.get("impossible"):
        return Row(request=None, **about)
    asked = {key: value for key, value in given.items() if key in REQUEST}
    asked |= {key: float(asked[key]) for key in ("epsilon", "delta") if key in asked}
    asked["epochs"] = _epochs(asked.get("epochs", 1), path, given.get("name"))
    asked["options"] = {key: _word(value) for key, value in asked.get("options", {}).items()}
    return Row(request=Request(**asked), **about)


def _epochs(given: Any, path: Path, name: Any) -> tuple[int, ...]:
    return tuple(
        _whole(one, path, f"row {name!r}", "epochs") for one in (given if isinstance(given, list) else [given])
    )


def _whole(value: Any, path: Path, where: str, key: str, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise BadInput(f"{path}: {where} has {key} = {value!r}; it must be a whole number, at least {least}")
    return value


def _positive(value: Any, path: Path, where: str, key: str) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise BadInput(f"{path}: {where} has {key} = {value!r}; it must be a number above 0")


def _word(value: object) -> str:
    """An option as it would be written on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def with_seeds(experiment: Experiment, seeds: tuple[int, ...]) -> Experiment:
    """The same experiment with other seeds in every row."""
    return replace(experiment, rows=tuple(replace(row, seeds=seeds) for row in experiment.rows))
