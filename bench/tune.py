"""The search behind the settings in `l2dp.benchmarks`: on a validation split, never on test data.

The training part of a dataset is cut in two: the last sixth is held out as validation, the rest is learned.
Every combination of the options given is run on a shortened stream, and the average accuracy after the last
task on the *validation* records decides. See docs/tuning.md for the commands and what they found.

    python -m bench.tune permuted mnist --learner agem --tasks 6 --per-task 6000 \
        --try lr=0.01,0.03,0.1 --try batch_size=10,64 --out bench/out/tune-agem.json
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from pathlib import Path
from typing import Any

import torch

import l2dp
from l2dp import benchmarks, learners
from l2dp.durable import make_folder, write_json
from l2dp.learners.options import configure
from l2dp.streams import Dataset, Source, permuted, split


def validation(name: str, most: int | None = None) -> Dataset:
    """The training part alone: five sixths to learn from, the last sixth (at most `most` of it) to choose by."""
    data = Dataset.load(name)
    cut = len(data.train) * 5 // 6
    end = None if most is None else cut + most
    parts = [
        Source(data.train.x[rows], data.train.y[rows], f"{name} ({what})", data.train.low, data.train.high)
        for rows, what in ((slice(0, cut), "training"), (slice(cut, end), "validation"))
    ]
    return Dataset(data.name, data.space, parts[0], parts[1])


def search(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    cls = learners.find(arguments.learner)
    benchmark = benchmarks.find(f"{arguments.kind}-{arguments.dataset}")
    defaults = benchmark.for_learner(cls.NAME)
    grid = [choice.partition("=") for choice in arguments.choices]
    found: list[dict[str, Any]] = []
    for values in itertools.product(*(words.split(",") for _, _, words in grid)):
        words = dict(zip((name for name, _, _ in grid), values, strict=True))
        batch_size = int(words.pop("batch_size", defaults["batch_size"]))
        learner = configure(cls, defaults, words, arguments.epsilon, arguments.delta)
        data = [validation(name, arguments.validation) for name in benchmark.datasets]
        if arguments.kind == "permuted":
            stream = permuted(data[0], arguments.tasks, arguments.seed, arguments.per_task, arguments.disjoint)
        else:
            stream = split(*data, tasks=arguments.tasks, per_task=arguments.per_task, protocol=arguments.protocol)
        started = time.perf_counter()
        result = l2dp.run(
            stream,
            learner,
            schedule=l2dp.Schedule(batch_size, (arguments.epochs,)),
            seed=arguments.seed,
            evaluate_every=arguments.tasks,
        )
        row = {
            **words,
            "batch_size": batch_size,
            "accuracy": result.average_accuracy[-1],
            "row": result.accuracy_matrix[-1],
            "seconds": round(time.perf_counter() - started, 1),
        }
        found.append(row)
        print(row, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("permuted", "split"))
    parser.add_argument("dataset")
    parser.add_argument("--learner", required=True)
    parser.add_argument("--epsilon", type=float)
    parser.add_argument("--delta", type=float)
    parser.add_argument("--disjoint", action="store_true")
    parser.add_argument("--tasks", type=int, default=6)
    parser.add_argument("--per-task", type=int)
    parser.add_argument("--validation", type=int, help="Records held out to choose by; default: a sixth.")
    parser.add_argument("--protocol", default="class")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--try", dest="choices", action="append", default=[], metavar="NAME=V1,V2")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    found = search(arguments)
    if arguments.out is not None:
        make_folder(arguments.out.parent)
        shown = {key: value for key, value in vars(arguments).items() if key != "out"}
        write_json(arguments.out, {"asked": shown, "found": sorted(found, key=lambda row: -row["accuracy"])})


if __name__ == "__main__":
    main()
