"""The named benchmarks: how each makes its stream, and the settings found for each learner on it.

Settings are data. They were found by the search that docs/tuning.md describes, on a validation split or on
another dataset, never on test data.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from l2dp.budget import Guarantee
from l2dp.errors import BadInput
from l2dp.streams.permuted import permuted
from l2dp.streams.records import Protocol, Stream
from l2dp.streams.split import split

Settings = dict[str, dict[str, Any]]
PROTOCOLS: tuple[Protocol, ...] = ("class", "task", "domain")


UNDECLARED = {
    "har": "how many windows a task has counts as public; a home has sizes declared",
    "other": "how many records a task has and which labels occur in it count as public; a home has them declared",
}


@dataclass(frozen=True)
class Benchmark:
    """A stream by name, with a default number of tasks, a model, and settings for each learner.

    `settings[learner]` holds the learner's options and `batch_size`; "*" holds what all of them share.
    """

    kind: str
    datasets: tuple[str, ...]
    tasks: int
    about: str
    settings: Settings = field(default_factory=dict)
    caution: str | None = None
    """What a guarantee for single records of this stream does not say."""
    own: bool = False
    """Whether it is a stream over somebody's own data, whose sizes and labels were never declared."""

    def not_covered(self, promised: Guarantee) -> list[str]:
        """What must be said next to a guarantee on this stream."""
        if promised.epsilon is None:
            return []
        said = [self.caution] if self.caution is not None and promised.unit == "record" else []
        return [*said, UNDECLARED.get(self.kind, UNDECLARED["other"])] if self.own else said

    def for_learner(self, learner: str) -> dict[str, Any]:
        return {**self.settings.get("*", {}), **self.settings.get(learner, {})}


_PIXELS = {"features": "pixels", "residual_clip": 0.7}
_DIGITS: Settings = {
    "*": {"model": "mlp-128-128", "lr": 0.1, "batch_size": 10},
    "agem": {"memory_per_task": 250, "reference_batch": 256},
    "naive-gaussian": {"batch_size": 100, "lr": 0.5, "clip": 1.0, "horizon": 10},
    "l2dp-ml": {"model": "mnist-conv", "batch_size": 64, "lr": 0.03, "encoder_lr": 1e-7},
    "private-replay": _PIXELS,
}
_MNIST: Settings = {
    "*": {"model": "mnist-conv", "normalisation": "group", "lr": 0.01, "batch_size": 500},
    "agem": {"memory_per_task": 1000, "reference_batch": 500, "inputs": "unit", "lr": 0.003},
    "finetune": {"inputs": "unit", "lr": 0.003},
    "joint": {"inputs": "unit"},
    "naive-gaussian": {
        "model": "mlp-64",
        "normalisation": "none",
        "batch_size": 1000,
        "inputs": "unit",
        "lr": 12.0,
        "clip": 0.1,
        "horizon": 20,
        "memory_per_task": 1000,
        "reference_batch": 1000,
    },
    "l2dp-ml": {"batch_size": 2500, "lr": 0.03, "encoder_lr": 1e-7, "normalisation": "neuron"},
    "private-replay": _PIXELS,
}
_SPLIT_MNIST: Settings = {
    "*": {"model": "mnist-conv", "normalisation": "group", "lr": 0.01, "batch_size": 100},
    "agem": {"memory_per_task": 1000, "reference_batch": 100},
    "naive-gaussian": {"batch_size": 500, "lr": 2.0, "clip": 0.1, "horizon": 5, "memory_per_task": 1000},
    "l2dp-ml": {"batch_size": 500, "lr": 0.01, "encoder_lr": 1e-7, "normalisation": "neuron"},
    "private-replay": {
        "features": "hog",
        "head_share": 0.0,
        "scatter_share": 0.8,
        "residual_clip": 0.35,
        "ridge": 0.35,
    },
}
_CIFAR: Settings = {
    "*": {"model": "cifar-resnet", "lr": 0.05, "batch_size": 64, "normalisation": "group"},
    "naive-gaussian": {"batch_size": 1000, "lr": 2.0, "clip": 0.1, "horizon": 17, "memory_per_task": 1000},
    "l2dp-ml": {"batch_size": 1250, "lr": 0.03, "encoder_lr": 1e-7, "normalisation": "neuron"},
    "private-replay": _PIXELS,
}
_SPLIT_CIFAR: Settings = {
    **_CIFAR,
    "private-replay": {
        "features": "efficientnet-lite0-128",
        "project": 512,
        "head_share": 0.0,
        "scatter_share": 0.25,
        "residual_clip": 0.6,
        "ridge": 1.0,
    },
}

_HAR: Settings = {
    "*": {"model": "har-conv", "normalisation": "group", "lr": 0.03, "batch_size": 64},
    "agem": {"memory_per_task": 250, "reference_batch": 64},
    "l2dp-ml": {"batch_size": 64, "lr": 0.03, "encoder_lr": 1e-7, "normalisation": "neuron"},
    "naive-gaussian": {"batch_size": 256, "lr": 0.3, "clip": 0.5, "horizon": 4},
    # Windows overlap, so what is protected is a person; `-o protects=record` is the paper's reading.
    "private-replay": {
        "features": "motion",
        "lift": None,
        "head_share": 0.8,
        "rate": 0.15,
        "protects": "user",
        "per_user": 50,
    },
}
_HAR_SPLITS: dict[str, Literal["user", "window", "development"]] = {
    "har-rates": "user",
    "har-rates-window": "window",
    "har-rates-dev": "development",
}
HAR_RATES = ("5", "10", "20", "50")
_OVERLAPPING = (
    "windows overlap: a guarantee for one record holds for one window, not for a second of a recording, let alone for "
    "the person; -o protects=user protects people"
)

BENCHMARKS: dict[str, Benchmark] = {
    "permuted-digits": Benchmark("permuted", ("digits",), 10, "8x8 digits, permuted (embedded)", _DIGITS),
    "split-digits": Benchmark("split", ("digits",), 5, "8x8 digits, two a task (embedded)", _DIGITS),
    "permuted-mnist": Benchmark("permuted", ("mnist",), 20, "MNIST, permuted pixels", _MNIST),
    "split-mnist": Benchmark("split", ("mnist",), 5, "MNIST, two digits a task", _SPLIT_MNIST),
    "permuted-cifar10": Benchmark("permuted", ("cifar10",), 17, "CIFAR-10, pixels and channels permuted", _CIFAR),
    "split-cifar10-100": Benchmark(
        "split", ("cifar10", "cifar100"), 11, "CIFAR-10, then CIFAR-100 ten classes at a time", _SPLIT_CIFAR
    ),
    "har-rates": Benchmark(
        "har", ("har-rates",), 4, "phones' accelerometers: 5, 10, 20, 50 Hz, five activities", _HAR, _OVERLAPPING
    ),
    "har-rates-window": Benchmark(
        "har", ("har-rates-window",), 4, "the same, split by overlapping windows (the paper's way)", _HAR, _OVERLAPPING
    ),
    "har-rates-dev": Benchmark(
        "har", ("har-rates-dev",), 4, "the same for tuning, tested on other people", _HAR, _OVERLAPPING
    ),
}

_OWN: Settings = {
    "*": {"model": "mlp", "lr": 0.1, "batch_size": 10},
    "naive-gaussian": {"batch_size": 100, "lr": 2.0, "clip": 0.1},
    "l2dp-ml": {"batch_size": 100, "lr": 0.01},
    "private-replay": _PIXELS,
}


def find(name: str) -> Benchmark:
    """The benchmark of a name, or `permuted:PATH`, `split:PATH` over anybody's data."""
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    kind, colon, path = name.partition(":")
    if colon and kind in ("permuted", "split"):
        tasks = 20 if kind == "permuted" else 5
        return Benchmark(kind, (path,), tasks, f"{kind} stream of {path}", _OWN, own=True)
    if colon and kind == "har":
        from l2dp.har.folder import Folder  # Polars is slow to import, and only this needs it

        settings, described = _HAR, Folder.open(Path(path)).described
        if described["unit"] == "window":
            settings = {**_HAR, "private-replay": {**_HAR["private-replay"], "protects": "record"}}
        return Benchmark(
            kind, (path,), len(described["rates"]), f"the sampling rates of {path}", settings, _OVERLAPPING, own=True
        )
    base, at, rate = name.partition("@")
    if at and base in _HAR_SPLITS and rate in HAR_RATES:
        return replace(BENCHMARKS[base], datasets=(name,), tasks=1, about=f"{rate} Hz of {base} alone")
    near = difflib.get_close_matches(name, BENCHMARKS, 1, 0.5)
    hint = f"did you mean {near[0]!r}?" if near else "see `l2dp list`, or use permuted:PATH, split:PATH or har:PATH"
    raise BadInput(f"unknown benchmark {name!r}; {hint}")


def make(
    name: str,
    tasks: int | None = None,
    per_task: int | None = None,
    disjoint: bool = False,
    protocol: Protocol = "class",
    order: str | None = None,
    seed: int = 0,
) -> Stream:
    """The stream of a benchmark."""
    benchmark = find(name)
    if protocol not in PROTOCOLS:
        raise BadInput(f"unknown protocol {protocol!r}; choose from {', '.join(PROTOCOLS)}")
    count = benchmark.tasks if tasks is None else tasks
    if benchmark.kind == "permuted":
        stream = permuted(benchmark.datasets[0], count, seed, per_task, disjoint)
        # All tasks of a permuted stream share their labels, so the three protocols are the same test.
        stream = replace(stream, protocol=protocol)
    elif benchmark.kind == "har":
        stream = _har(benchmark.datasets[0], tasks, per_task, seed)
        stream = replace(stream, protocol=protocol)  # all rates share their labels, too
    else:
        stream = split(*benchmark.datasets, tasks=count, seed=seed, per_task=per_task, protocol=protocol)
    if order is not None:
        stream = stream.reordered(parse_order(order, [task.name for task in stream]))
    config = {**stream.config, "per_task": per_task, "disjoint": disjoint, "order": order}
    return replace(stream, name=name, config=config)


def _har(source: str, tasks: int | None, per_task: int | None, seed: int) -> Stream:
    from l2dp.streams.har import from_folder, har_rates  # Polars is slow to import, and only this needs it

    if source.startswith("har-rates"):
        base, _, rate = source.partition("@")
        stream = har_rates(seed, _HAR_SPLITS[base], per_task, float(rate) if rate else None)
    elif per_task is not None:
        raise BadInput("--per-task goes with har-rates; an ingested folder is learned as it is")
    else:
        stream = from_folder(source)
    if tasks is not None and tasks != len(stream):
        raise BadInput(f"--tasks {tasks}: {source} has {len(stream)} rates; leave it out")
    return stream


def parse_order(order: str, names: Sequence[str]) -> list[int]:
    """Positions of tasks from "3,1,2" (counted from 1, or from 0 if a 0 occurs), "reverse", or task names.

    >>> parse_order("3,1,2", ["a", "b", "c"]), parse_order("reverse", ["a", "b"]), parse_order("b;a", ["a", "b"])
    ([2, 0, 1], [1, 0], [1, 0])
    """
    count = len(names)
    if order == "reverse":
        return list(range(count))[::-1]
    words = [word.strip() for word in order.split(";" if ";" in order else ",")]
    if all(word.isdigit() for word in words):
        numbers = [int(word) for word in words]
        positions = numbers if 0 in numbers else [number - 1 for number in numbers]
        unknown = [word for word, at in zip(words, positions, strict=True) if not 0 <= at < count]
    else:
        unknown = [word for word in words if word not in names]
        positions = [names.index(word) for word in words if word in names]
    if unknown:
        raise BadInput(f"--order names task {unknown[0]!r}, the stream has tasks 1 to {count}")
    if len(set(positions)) < len(positions):
        twice = next(word for at, word in enumerate(words) if positions[at] in positions[:at])
        raise BadInput(f"--order names task {twice!r} twice; name every task once")
    if len(positions) != count:
        raise BadInput(f"--order names {len(positions)} of {count} tasks; name every task once")
    return positions
