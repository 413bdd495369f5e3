"""What an experiment found: rows with mean and deviation over seeds beside the paper's, effects with their p values.

Pure functions of results; an outcome is JSON. A row of a quick form, and a row that was not run, says so and has no
verdict.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from l2dp import benchmarks, metrics
from l2dp.budget import Guarantee
from l2dp.experiments.declared import Effect, Experiment, Row
from l2dp.experiments.identity import configuration, digest
from l2dp.experiments.paper import printed, verdict
from l2dp.sweeps import Request

SIGNIFICANT = 0.05
Results = Mapping[str, dict[str, Any]]
Json = dict[str, Any]


def outcome(experiment: Experiment, results: Results) -> Json:
    """Everything a table, a figure or a page shows of an experiment."""
    rows = [_row(row, results) for row in experiment.rows]
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


def is_whole(request: Request) -> bool:
    """Whether all tasks and all records of a benchmark take part."""
    usual = benchmarks.find(request.benchmark).tasks
    return request.tasks in (None, usual) and request.per_task is None and request.test_records is None


def _state(row: Row, request: Request) -> str:
    if row.stands_in is not None:
        return "run on other data"
    return "run" if is_whole(request) else "run on a sub-sample"


def _row(row: Row, results: Results) -> Json:
    theirs = None if row.paper is None else printed(row.paper)
    found: Json = {
        "name": row.name,
        "label": row.label,
        "on": "–" if row.request is None else ran_on(row.request),
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
    tested = [one["released"] if row.released else one for one in some]
    curve, curve_sd = metrics.mean_and_sd([one["average_accuracy"] for one in tested])
    every = some[0]["config"]["evaluate_every"]
    # Over a few rows only, the paper's maximum over all earlier rows would come out too small.
    forgetting, forgetting_sd = (
        metrics.mean_and_sd([metrics.average_forgetting(one["accuracy_matrix"]) for one in tested])
        if every == 1
        else ([None] * len(curve), [None] * len(curve))
    )
    guarantee = Guarantee(**some[0]["guarantee"])
    found |= {
        "state": _state(row, request),
        "seeds": sorted(mine),
        "seeds_missing": [seed for seed in row.seeds if seed not in mine],
        "runs": sorted(hashes[seed] for seed in mine),
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
        "seconds": sum(one["seconds"] for one in some) / len(some),
    }
    if theirs is not None and found["state"] == "run":
        for measure in ("accuracy", "forgetting"):
            printed_one, ours = getattr(theirs, measure), found[measure]
            if printed_one is not None and ours is not None:
                found["verdict"][measure] = verdict(measure, ours, printed_one)
    return found


def _effect(effect: Effect, rows: Mapping[str, Json]) -> Json:
    found: Json = {
        "says": effect.says,
        "more": effect.more,
        "than": effect.than,
        "measure": effect.measure,
        "paper_p": effect.paper_p,
        "tasks": effect.tasks,
    }
    key = "curve" if effect.measure == "accuracy" else "forgetting_curve"
    more, than = (rows[name].get(key) for name in (effect.more, effect.than))
    if more is None or than is None:
        return found | {"verdict": "not run"}
    length = min(len(more), len(than), effect.tasks or len(more))
    pairs = [(a, b) for a, b in zip(more[:length], than[:length], strict=True) if a is not None and b is not None]
    if len(pairs) < 2:
        return found | {"verdict": "not evaluated often enough"}
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    found["seeds"] = min(len(rows[effect.more]["seeds"]), len(rows[effect.than]["seeds"]))
    gaps = [a - b for a, b in pairs]
    found["difference"] = gaps[-1]
    found["mean_difference"] = math.fsum(gaps) / len(gaps)
    if effect.gap is not None:
        found["p"] = trend(gaps)
        grew = abs(gaps[-1]) > abs(gaps[0])
        found["first_gap"] = gaps[0]
        return found | {"verdict": _judged(found["p"], grew == (effect.gap == "grows"))}
    found["p"] = metrics.p_value_curve(first, second)[-1]
    found["p_paired"] = metrics.p_value_curve(first, second, paired=True)[-1]
    return found | {"verdict": _judged(found["p"], found["mean_difference"] > 0)}


def _judged(p: float, as_said: bool) -> str:
    if p >= SIGNIFICANT:
        return "not told apart"
    return "confirmed" if as_said else "contradicted"


def trend(values: Sequence[float]) -> float:
    """The p value of a linear trend over the number of tasks; 1 where there is none to test."""
    from scipy import stats

    if len(values) < 3 or max(values) == min(values):
        return 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        p = float(stats.linregress(range(len(values)), [abs(value) for value in values]).pvalue)
    return 1.0 if math.isnan(p) else p


def p_value_curves(found: Json) -> list[tuple[str, list[float | None]]]:
    """For every effect that compares two curves: the p value after 1, 2, … tasks, as the paper plots it."""
    rows = {row["name"]: row for row in found["rows"]}
    curves = []
    for effect in found["effects"]:
        a, b = rows[effect["more"]].get("curve"), rows[effect["than"]].get("curve")
        if a is not None and b is not None and effect["measure"] == "accuracy":
            length = min(len(a), len(b))
            curves.append((effect["says"], metrics.p_value_curve(a[:length], b[:length])))
    return curves
