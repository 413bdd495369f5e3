"""From words to runs: what `l2dp run`, `l2dp demo` and `l2dp list` do, callable from Python as well."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from rich.console import Console

from l2dp import benchmarks, learners, metrics, parallel, progress, report
from l2dp.durable import make_folder, write_json
from l2dp.errors import BadInput
from l2dp.features.efficientnet import PACKAGE
from l2dp.learners.options import configure, has_budget, option_types
from l2dp.runs import Result, Schedule, check_seed, check_seeds, run
from l2dp.streams.fetch import RECORDINGS, present, recordings_at
from l2dp.streams.records import Protocol


@dataclass(frozen=True)
class Request:
    """One run as it is asked for on the command line, seed and folder apart."""

    benchmark: str
    learner: str
    epsilon: float | None = None
    delta: float | None = None
    tasks: int | None = None
    per_task: int | None = None
    disjoint: bool = False
    protocol: str = "class"
    order: str | None = None
    epochs: tuple[int, ...] = (1,)
    balanced: bool = False
    full_batch: bool = False
    batch_size: int | None = None
    options: dict[str, str] = field(default_factory=dict)
    evaluate_every: int | None = None
    device: str = "cpu"
    insecure_noise_seed: int | None = None
    test_records: int | None = None


def run_one(request: Request, seed: int, out: Path, console: Console) -> Result:
    """One seed of a request, in its folder."""
    check_seed("--seed", seed)
    cls = learners.find(request.learner)
    benchmark = benchmarks.find(request.benchmark)
    defaults = benchmark.for_learner(cls.NAME)
    learner = configure(cls, defaults, request.options, request.epsilon, request.delta)
    if request.protocol not in get_args(Protocol):
        raise BadInput(f"unknown protocol {request.protocol!r}; choose from {', '.join(get_args(Protocol))}")
    stream = benchmarks.make(
        request.benchmark,
        request.tasks,
        request.per_task,
        request.disjoint,
        request.protocol,  # type: ignore[arg-type]  # checked above
        request.order,
        seed,
    )
    size = defaults["batch_size"] if request.batch_size is None else request.batch_size
    return run(
        stream,
        learner,
        schedule=Schedule(size, request.epochs, request.balanced, request.full_batch),
        seed=seed,
        out=out,
        evaluate_every=request.evaluate_every,
        test_records=request.test_records,
        device=request.device,
        insecure_noise_seed=request.insecure_noise_seed,
        progress=progress.for_console(console, f"{cls.NAME} on {request.benchmark}, seed {seed}"),
        not_covered=benchmark.not_covered,
    )


def run_seeds(request: Request, seeds: Sequence[int], out: Path, console: Console) -> list[Result]:
    """Several seeds, each in a folder of its own, and `summary.json` with mean and standard deviation.

    Its `guarantee` is that of each run; whoever publishes the models of all seeds promises what `together` says.
    """
    check_seeds(seeds)
    if (out / "run.json").exists():
        raise BadInput(f"{out} holds a run of a single seed; choose another --out")
    make_folder(out)
    results = [run_one(request, seed, out / f"seed-{seed}", console) for seed in seeds]
    found = [result.to_json() for result in results]
    summary: dict[str, Any] = {
        "benchmark": request.benchmark,
        "learner": results[0].learner,
        "protocol": request.protocol,
        "seeds": list(seeds),
        "guarantee": found[0]["guarantee"],
        "together": results[0].guarantee.times(len(results)).to_json(),
    }
    for key in ("average_accuracy", "average_forgetting"):
        mean, deviation = metrics.mean_and_sd([one[key] for one in found])
        summary[key] = {"mean": mean, "sd": deviation}
        if "released" in found[0]:
            mean, deviation = metrics.mean_and_sd([one["released"][key] for one in found])
            summary.setdefault("released", {})[key] = {"mean": mean, "sd": deviation}
    if parallel.rank() == 0:
        write_json(out / "summary.json", summary)
    return results


DEMO = Request("permuted-digits", "agem", tasks=10)


def demo(out: Path, console: Console) -> tuple[Path, list[report.Row]]:
    """Every learner on the embedded stream; the report page and the rows of the table."""
    make_folder(out)
    found = []
    for name, cls in learners.LEARNERS.items():
        request = replace(DEMO, learner=name, epsilon=DEMO_EPSILON if has_budget(cls) else None)
        found.append(run_one(request, 0, out / name, console).to_json())
    page = out / "report.html"
    report.html_page(found, page, "l2dp demo: ten permutations of 8x8 digits", DEMO_NOTES)
    return page, report.table_rows(found)


DEMO_EPSILON = 4.0
DEMO_NOTES = [
    "One seed on a small embedded dataset: a first look, not a benchmark result.",
    "Permuted streams show the same images in every task, so a source image pays once for each task.",
    "refuted: the paper claims this epsilon, and an attack beats it; the number protects nobody.",
]


EXTRAS = {
    "encoder": (PACKAGE, "features=efficientnet-lite0-SIZE"),
    "onnx": ("onnx", "release --onnx"),
    "postgres": ("psycopg", "init --ledger postgresql://…"),
    "ray": ("ray", "experiment --engine ray"),
}
"""Extras of the package: what tells that one is there, and what it is for."""


def overview() -> str:
    """What there is: benchmarks, learners with their options, datasets and optional parts found."""
    lines = ["benchmarks"]
    for name, benchmark in benchmarks.BENCHMARKS.items():
        lines.append(f"  {name:20s} {benchmark.tasks:3d} tasks  {benchmark.about}")
    lines += [
        "  permuted:PATH, split:PATH  the same streams from an idx folder or an NPZ",
        "  har-rates@5                one rate alone: @5, @10, @20 or @50",
        "  har:PATH                   one task for each sampling rate of a folder made by `l2dp har ingest`",
        "",
        "learners",
    ]
    for name, cls in learners.LEARNERS.items():
        about = (cls.__doc__ or "").strip().splitlines()[0]
        budget = " (--epsilon)" if has_budget(cls) else ""
        lines.append(f"  {name:20s} {about}{budget}")
        lines.append(f"  {'':20s} -o {', '.join(option_types(cls))}")
    lines += ["", "datasets"]
    where = os.environ.get("L2DP_DATA")
    lines.append(f"  $L2DP_DATA is {where or 'not set'}")
    for name in ("mnist", "cifar10", "cifar100"):
        found = present(name)
        lines.append(f"  {name:20s} {found or 'not here; downloaded on first use'}")
    for name in RECORDINGS:
        found = recordings_at(name)[0]
        lines.append(f"  {f'har/{name}':20s} {found or 'not here; never downloaded (docs/human-activity.md)'}")
    lines += ["", "optional parts"]
    for name, (package, use) in EXTRAS.items():
        missing = importlib.util.find_spec(package) is None
        said = f"not installed (pip install 'l2dp[{name}]')" if missing else "installed"
        lines.append(f"  {name:20s} {said}: {use}")
    return "\n".join(lines)
