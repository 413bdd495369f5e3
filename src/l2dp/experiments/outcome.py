"""What an experiment found: rows with mean and deviation over seeds beside the paper's, effects with their p values.

Pure functions of results; an outcome is JSON. A row of a quick form, and a row that was not run, says so and has no
verdict.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from l2dp import benchmarks, metrics
from l2dp.budget import Guarantee
from l2dp.errors import BadInput
from l2dp.experiments.declared import Effect, Experiment, Row
from l2dp.experiments.identity import configuration, digest
from l2dp.experiments.paper import printed, verdict
from l2dp.sweeps import Request

SIGNIFICANT = 0.05
Results = Mapping[str, dict[str, Any]]
Json = dict[str, Any]
Pairs = list[tuple[int, float, float]]
"""After how many tasks, and what two rows have there."""


def outcome(experiment: Experiment, results: Results) -> Json:
    """Everything a table, a figure or a page shows of an experiment."""
    rows = [_row(row, results) for row in experiment.rows]
    for row in rows:
        _judge_improvement(row, experiment.rows, rows)
    by_name = {row["name"]: row for row in rows}
    return {
        "experiment": experiment.name,
        "title": experiment.title,
        "about": experiment.about,
        "place": experiment.place,
        "kind": experiment.kind,
        "quick": experiment.quick,
        "notes": list(experiment.notes),
        "rows": rows,
        "effects": [_effect(effect, by_name) for effect in experiment.effects],
    }


def ran_on(request: Request) -> str:
    """What a row was run on, in words: a sub-sample never passes for the whole."""
    usual = benchmarks.find(request.benchmark).tasks
    tasks = usual if request.tasks is None else request.tasks
    parts = [request.benchmark, f"{tasks} tasks" if tasks == usual else f"{tasks} of {usual} tasks"]
    parts.append("all records" if request.per_task is None else f"{request.per_task:,} records a task")
    if request.disjoint:
        parts.append("each in one task")
    if request.test_records is not None:
        parts.append(f"{request.test_records:,} test records a task")
    if request.protocol != "class":
        parts.append(f"protocol {request.protocol}")
    if request.order is not None:
        parts.append(f"order {request.order}")
    return ", ".join(parts)


def _stream(request: Request) -> str:
    """The tasks and what is asked of them: accuracies on one stream can be compared."""
    asked = "" if request.protocol == "class" else f", protocol {request.protocol}"
    return f"{request.benchmark}{asked}"


def is_whole(request: Request) -> bool:
    """Whether all tasks and all records of a benchmark take part."""
    usual = benchmarks.find(request.benchmark).tasks
    return request.tasks in (None, usual) and request.per_task is None and request.test_records is None


def _state(row: Row, request: Request) -> str:
    if row.stands_in is not None:
        return "run on other data"
    return "run" if is_whole(request) else "run on a sub-sample"


def _curves(result: Json) -> Json:
    """Average accuracy and forgetting after every task."""
    curve = result["average_accuracy"]
    # Over a few rows only, the paper's maximum over all earlier rows would come out too small.
    whole = all(value is not None for value in curve)
    return {
        "accuracy": curve,
        "forgetting": metrics.average_forgetting(result["accuracy_matrix"]) if whole else [None] * len(curve),
    }


def _row(row: Row, results: Results) -> Json:
    theirs = None if row.paper is None else printed(row.paper)
    found: Json = {
        "name": row.name,
        "label": row.label,
        "on": "–" if row.request is None else ran_on(row.request),
        "stream": "–" if row.request is None else _stream(row.request),
        "paper": None if theirs is None else {key: value for key, value in vars(theirs).items() if value is not None},
        "why": row.impossible or row.why,
        "unrun": row.unrun,
        "stands_in": row.stands_in,
        "seeds": [],
        "verdict": {},
    }
    if row.request is None:
        return found | {"state": "not possible", "guarantee": "–"}
    request = row.request
    hashes = {seed: digest(configuration(request, seed)) for seed in row.seeds}
    mine = {seed: results[hash] for seed, hash in hashes.items() if hash in results}
    if not mine:
        asked = "–" if request.epsilon is None else f"asks for ε={request.epsilon:g}, not run: no status"
        return found | {"state": "not run", "guarantee": asked}
    some = list(mine.values())
    if row.released and not all("released" in one for one in some):
        raise BadInput(f"row {row.name!r}: {request.learner} has no test of its release apart; leave out `released`")
    tested = [one["released"] if row.released else one for one in some]
    by_seed = {str(seed): _curves(one) for seed, one in zip(mine, tested, strict=True)}
    curve, curve_sd = metrics.mean_and_sd([one["accuracy"] for one in by_seed.values()])
    forgetting, forgetting_sd = metrics.mean_and_sd([one["forgetting"] for one in by_seed.values()])
    guarantee = Guarantee(**some[0]["guarantee"])
    found |= {
        "state": _state(row, request),
        "seeds": sorted(mine),
        "seeds_missing": [seed for seed in row.seeds if seed not in mine],
        "runs": sorted(hashes[seed] for seed in mine),
        "by_seed_runs": [f"{hashes[seed]}{' released' if row.released else ''}" for seed in mine],
        "guarantee": str(guarantee),
        "status": guarantee.status,
        "epsilon": guarantee.epsilon,
        "source": guarantee.about_the_source(),
        "accuracy": curve[-1],
        "accuracy_sd": curve_sd[-1],
        "forgetting": forgetting[-1],
        "forgetting_sd": forgetting_sd[-1],
        "curve": curve,
        "curve_sd": curve_sd,
        "forgetting_curve": forgetting,
        "by_seed": by_seed,
        "seconds": sum(one["seconds"] for one in some) / len(some),
    }
    if row.released and (few := some[0]["config"].get("released_test_records")) is not None:
        found["on"] += f", {few:,} test records a task"
    if theirs is not None and found["state"] == "run":
        for measure in ("accuracy", "forgetting"):
            printed_one, ours = getattr(theirs, measure), found[measure]
            if printed_one is not None and ours is not None:
                # Two points beside a number that is three above chance would be most of what it shows.
                shown = math.inf if measure == "forgetting" or theirs.chance is None else printed_one - theirs.chance
                found["verdict"][measure] = verdict(measure, ours, printed_one, near=abs(shown) / 2)
        if len(found["verdict"]) == 2:
            found["best"] = {
                "ours": at_best(found["accuracy"], found["forgetting"], len(curve)),
                "paper": at_best(theirs.accuracy or 0.0, theirs.forgetting or 0.0, len(curve)),
            }
    return found


def at_best(accuracy: float, forgetting: float, tasks: int) -> float:
    """What tasks had on average when each was at its best before the last one, from what was left and what was lost.

    Forgetting is a mean over all tasks but the last, of which nothing can have been forgotten yet.

    >>> round(at_best((0.2 + 0.5 + 0.9) / 3, ((0.8 - 0.2) + (0.6 - 0.5)) / 2, 3) - (0.8 + 0.6 + 0.9) / 3, 12)
    0.0
    """
    return accuracy + forgetting * (tasks - 1) / tasks


def _judge_improvement(row: Json, declared: Sequence[Row], rows: Sequence[Json]) -> None:
    """Where the paper prints a difference to another row, that is what is reproduced or not."""
    over = (row["paper"] or {}).get("over")
    if over is None or "accuracy" not in row["verdict"]:
        return
    for other, found in zip(declared, rows, strict=True):
        both = set(row["by_seed"]) & set(found.get("by_seed", {}))
        if other.paper == over and found["state"] == "run" and both:
            gains = [row["by_seed"][seed]["accuracy"][-1] - found["by_seed"][seed]["accuracy"][-1] for seed in both]
            ours = math.fsum(gains) / len(gains)
            theirs = row["paper"]["accuracy"] - found["paper"]["accuracy"]
            row["improvement"] = {"ours": ours, "paper": theirs, "over": f"{found['label']} ({found['guarantee']})"}
            # Half of what is printed, or nothing, is no reproduction of it, however few points that is.
            row["verdict"]["accuracy"] = verdict("accuracy", ours, theirs, near=abs(theirs) / 2)


def _effect(effect: Effect, rows: Mapping[str, Json]) -> Json:
    found: Json = {
        "says": effect.says,
        "more": effect.more,
        "than": effect.than,
        "measure": effect.measure,
        "paper_p": effect.paper_p,
        "tasks": effect.tasks,
        "gap": effect.gap,
        "ours": effect.ours,
        "stated": effect.stated,
    }
    more, than = rows[effect.more], rows[effect.than]
    if not (more["seeds"] and than["seeds"]):
        return found | {"verdict": "not run"}
    # A seed decides order, weights and sometimes who tests: only what both rows were run with can be compared.
    seeds = [seed for seed in more["seeds"] if seed in than["seeds"]]
    if not seeds:
        return found | {"verdict": "no seed in common"}
    found["seeds"] = len(seeds)
    each = [_pairs(effect, more["by_seed"][str(seed)], than["by_seed"][str(seed)]) for seed in seeds]
    if any(len(pairs) < (2 if len(seeds) < 3 or effect.gap else 1) for pairs in each):
        return found | {"verdict": "not evaluated often enough"}
    mean: Pairs = metrics.mean_and_sd(each)[0]
    gaps = [a - b for _, a, b in mean]
    found["difference"] = gaps[-1]
    found["mean_difference"] = math.fsum(gaps) / len(gaps)
    if effect.gap is not None:
        slope, found["p"] = trend(mean)
        found["first_gap"] = gaps[0]
        grows = slope > 0
        agree = all((trend(pairs)[0] > 0) == grows for pairs in each)
        found["p_seeds"] = _p_over([trend(pairs)[0] for pairs in each])
        tests = [found["p"], found["p_seeds"]]
        return found | {"verdict": _judged(effect, tests, agree, grows == (effect.gap == "grows"), len(seeds))}
    first, second = [a for _, a, _ in mean], [b for _, _, b in mean]
    found["p"] = metrics.p_value_curve(first, second)[-1]
    found["p_paired"] = metrics.p_value_curve(first, second, paired=True)[-1]
    found["p_seeds"] = _p_over([math.fsum(a - b for _, a, b in pairs) / len(pairs) for pairs in each])
    higher = found["mean_difference"] > 0
    # What the curves say must hold where they end, too: that is what a table shows.
    agree = (gaps[-1] > 0) == higher and all((math.fsum(a - b for _, a, b in pairs) > 0) == higher for pairs in each)
    return found | {"verdict": _judged(effect, [found["p_paired"], found["p_seeds"]], agree, higher, len(seeds))}


def _pairs(effect: Effect, more: Json, than: Json) -> Pairs:
    both = list(zip(more[effect.measure], than[effect.measure], strict=False))[: effect.tasks]
    return [(task, a, b) for task, (a, b) in enumerate(both, 1) if a is not None and b is not None]


def _judged(effect: Effect, tests: Sequence[float | None], agree: bool, as_said: bool, seeds: int) -> str:
    """The verdict in words; of one seed or two it says so, for another seed may well say otherwise.

    A difference needs all p values that there are, that of the curves and where there are three seeds theirs too; that
    nothing tells two curves apart, as stated, needs that none of them does.
    """
    told = [p < SIGNIFICANT for p in tests if p is not None]
    if not all(told) or not told:
        return "not told apart" + (", as stated" if effect.stated == "no difference" and not any(told) else "")
    if not agree:
        return "not told apart" if effect.stated != "no difference" else "they differ, in no one direction"
    if effect.stated == "nothing":
        word = "higher" if as_said else "lower"
    else:
        word = "confirmed" if as_said and effect.stated == "more" else "contradicted"
    few = {1: " (one seed)", 2: " (two seeds)"}
    return f"{word}{few.get(seeds, '')}"


def _p_over(seeds: Sequence[float]) -> float | None:
    """The p value that numbers of some seeds, one each, are zero on the whole; None for fewer than three."""
    from scipy import stats

    if len(seeds) < 3 or max(seeds) == min(seeds):
        return None
    return float(stats.ttest_1samp(seeds, 0.0).pvalue)


SHORT = 5
"""Points of a short curve: human activity has four tasks, split MNIST five."""


class Told(NamedTuple):
    """Of so many pairs of curves, how many were told apart by the paired p and by that of the slope."""

    pairs: int
    paired: int
    slope: int


def between_seeds(rows: Sequence[Json]) -> tuple[Told, Told]:
    """How often our p values of accuracies tell two seeds of one row apart, where nothing differs but chance.

    Of curves with up to `SHORT` points, and of longer ones.
    """
    curves: dict[str, list[float | None]] = {}
    pairs: set[tuple[str, str]] = set()
    for row in rows:
        mine = [f"{row['on']} {run}" for run in row["by_seed_runs"]]
        curves |= zip(mine, (one["accuracy"] for one in row["by_seed"].values()), strict=True)
        pairs |= set(itertools.combinations(mine, 2))
    found = {True: Told(0, 0, 0), False: Told(0, 0, 0)}
    for first, second in sorted(pairs):
        points = list(enumerate(zip(curves[first], curves[second], strict=True), 1))
        both: Pairs = [(task, a, b) for task, (a, b) in points if a is not None and b is not None]
        if len(both) > 1:
            _, a, b = zip(*both, strict=True)
            # A p of exactly 0 tells them apart as well.
            paired = metrics.p_value_curve(list(a), list(b), paired=True)[-1]
            kind = len(both) <= SHORT
            so_far = found[kind]
            found[kind] = Told(
                so_far.pairs + 1,
                so_far.paired + (paired is not None and paired < SIGNIFICANT),
                so_far.slope + (trend(both)[1] < SIGNIFICANT),
            )
    return found[True], found[False]


def trend(pairs: Pairs) -> tuple[float, float]:
    """By how much the first row's lead changes with every task, and the p value of that; (0, 1) where none shows."""
    from scipy import stats

    gaps = [a - b for _, a, b in pairs]
    if len(gaps) < 3 or max(gaps) == min(gaps):
        return 0.0, 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found = stats.linregress([task for task, _, _ in pairs], gaps)
    return (0.0, 1.0) if math.isnan(found.pvalue) else (float(found.slope), float(found.pvalue))


def p_value_curves(found: Json) -> list[tuple[str, list[float | None]]]:
    """For every effect that compares two curves: the p value after 1, 2, … tasks, as the paper plots it."""
    rows = {row["name"]: row for row in found["rows"]}
    curves = []
    for effect in found["effects"]:
        more, than = rows[effect["more"]].get("by_seed", {}), rows[effect["than"]].get("by_seed", {})
        seeds = [seed for seed in more if seed in than]
        if seeds and effect["measure"] == "accuracy" and effect["gap"] is None:
            a, b = (metrics.mean_and_sd([row[seed]["accuracy"] for seed in seeds])[0] for row in (more, than))
            length = min(len(a), len(b), effect["tasks"] or len(a))
            curves.append((effect["says"], metrics.p_value_curve(a[:length], b[:length])))
    return curves
