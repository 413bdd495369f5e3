"""What makes two runs the same run: everything that was asked for, defaults filled in, the seed included.

Computed from a request without touching data, and from a finished `result.json`, so that results found anywhere can
be recognised. Timings, folders and numbers of threads are no part of it. Of a learner or data of somebody's own the
content is: two files with the same names in them are two methods, and a result cannot tell which one made it.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import re
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from l2dp import benchmarks, learners
from l2dp.errors import BadInput, L2dpError
from l2dp.learners.learner import Learner
from l2dp.learners.options import configure
from l2dp.runs import default_interval
from l2dp.sweeps import Request

NAMED = {
    *("benchmark", "learner", "epsilon", "delta", "tasks", "protocol", "epochs", "balanced", "full_batch"),
    *("batch_size", "options", "evaluate_every", "device", "insecure_noise_seed"),
}
"""Fields of a request that stand under a name of their own in a configuration; the others are the stream's or the
run's, under the name that they have in a result."""


def configuration(request: Request, seed: int) -> dict[str, Any]:
    """The whole configuration of one run."""
    cls = learners.find(request.learner)
    benchmark = benchmarks.find(request.benchmark)
    defaults = benchmark.for_learner(cls.NAME)
    learner = configure(cls, defaults, request.options, request.epsilon, request.delta)
    tasks = benchmark.tasks if request.tasks is None else request.tasks
    every = default_interval(learner, tasks) if request.evaluate_every is None else request.evaluate_every
    return {
        "benchmark": request.benchmark,
        "learner": cls.NAME,
        "seed": seed,
        "tasks": tasks,
        "protocol": request.protocol,
        "options": _options(learner.config()),
        "schedule": {
            "batch_size": defaults["batch_size"] if request.batch_size is None else request.batch_size,
            "epochs": list(request.epochs),
            "balanced": request.balanced,
            "full_batch": request.full_batch,
        },
        "evaluate_every": every,
        "device": request.device,
        "insecure_noise_seed": request.insecure_noise_seed,
        **{f.name: getattr(request, f.name) for f in _others()},
        **_own(cls, request.benchmark),
    }


def of_result(result: dict[str, Any]) -> dict[str, Any] | None:
    """The configuration behind a finished run; None if it cannot be told (a learner or data of somebody's own)."""
    try:
        if ":" in result["benchmark"]:
            return None
        config = result["config"]
        # Options younger than the result had no effect then: new ones keep what was as their default. What a file names
        # is looked up among ours and never imported: reading results runs no code.
        options = learners.LEARNERS[result["learner"]]().config() | config["learner"]
        return {
            "benchmark": result["benchmark"],
            "learner": result["learner"],
            "seed": result["seed"],
            "tasks": result["tasks"],
            "protocol": result["protocol"],
            "options": _options(options),
            "schedule": dict(config["schedule"]),
            "evaluate_every": config["evaluate_every"],
            "device": config["device"],
            "insecure_noise_seed": config["insecure_noise_seed"],
            **{f.name: config["stream"].get(f.name, config.get(f.name, _default(f))) for f in _others()},
        }
    except (AttributeError, KeyError, TypeError, ValueError, L2dpError):
        return None


def digest(configuration: dict[str, Any]) -> str:
    """The hash that a run goes by."""
    text = json.dumps(configuration, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _own(cls: type[Learner], benchmark: str) -> dict[str, str]:
    """What the names in a request stand for, where they are somebody's own: hashes of the code and of the data."""
    found = {}
    if cls not in learners.LEARNERS.values():
        if cls.NAME in learners.LEARNERS:
            raise BadInput(
                f"{cls.__name__} has the name {cls.NAME!r} of a learner of ours, so their results could not be told "
                "apart; give it a NAME of its own"
            )
        source = inspect.getsourcefile(cls)
        code = b"" if source is None else Path(source).read_bytes()
        found["own_learner"] = f"{cls.__qualname__} {hashlib.sha256(code).hexdigest()}"
    _, colon, path = benchmark.partition(":")
    if colon:
        files = sorted(one for one in [Path(path), *Path(path).rglob("*")] if one.is_file())
        found["own_data"] = _content(tuple((str(one), one.stat().st_size, one.stat().st_mtime_ns) for one in files))
    return found


@functools.cache
def _content(files: tuple[tuple[str, int, int], ...]) -> str:
    """One hash of some files' contents, each file read once as long as it stays as it is."""
    together = hashlib.sha256()
    for path, _, _ in files:
        with Path(path).open("rb") as file:
            together.update(hashlib.file_digest(file, "sha256").digest())
    return together.hexdigest()


def _others() -> list[Field[Any]]:
    return [f for f in fields(Request) if f.name not in NAMED]


def _default(field: Field[Any]) -> Any:
    if field.default is MISSING:
        raise BadInput(f"the field {field.name!r} of a request needs a default")
    return field.default


def _options(config: dict[str, Any]) -> dict[str, Any]:
    """Options with the budget in one form, whichever way a learner writes it down."""
    budget = config.get("budget")
    if isinstance(budget, str):
        epsilon, delta = re.findall(r"=([^,)]+)", budget)
        budget = {"epsilon": float(epsilon), "delta": float(delta)}
    if budget is None:
        return dict(config)
    return {**config, "budget": {key: float(value) for key, value in budget.items()}}
