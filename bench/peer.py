"""Avalanche's A-GEM beside ours, on the same data and model; runs inside `.venv-avalanche` and prints JSON.

Every line times one of the two with the limit taking turns, in one process. Avalanche gets its data as float
tensors that are already scaled and permuted, and logs and evaluates nothing.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from bench.steps import DISTINCT, Case, agem_ready, measure, tasks_for
from bench.timing import Turns, cross_entropy_passes, finite, how_many
from l2dp.boundary import Unprotected

CASES = (
    Case("agem", "mnist-conv", 64, 64),
    Case("agem", "mnist-conv", 256, 256),
    Case("agem", "mlp-256-256", 10, 256),
)
MEMORY_PER_TASK = 256


def declare_missing_operators() -> bool:
    """Lets torchvision be imported beside a torch without CUDA; True if it was necessary.

    PyPI's torchvision has its compiled part built for CUDA, which a CPU build of torch cannot load. Importing it
    then fails over two operators for object detection that A-GEM never calls; naming them is enough.
    """
    try:
        import torchvision  # noqa: F401

        return False
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    for name in [module for module in sys.modules if module.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return True


def measure_avalanche(case: Case, budget: float, least: int) -> dict[str, Any]:
    """Times Avalanche's strategy from the end of one step to the end of the next, as ours is timed."""
    from avalanche.benchmarks.scenarios.dataset_scenario import benchmark_from_datasets
    from avalanche.benchmarks.utils import as_classification_dataset
    from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
    from avalanche.training.supervised import AGEM

    setting, tasks = tasks_for(case.batch)
    boundary = Unprotected(setting.space, setting.device)
    generator = torch.Generator().manual_seed(1)
    parts = []
    for task in tasks:
        size = task.train.declared_size
        batch = next(boundary.batches(task, size, 1, generator))
        parts.append((batch.x, batch.y))
    *past, (x, y) = parts
    learner, _, _ = agem_ready(case)
    # Avalanche flattens gradients with `view`, which needs the plain layout; so does its limit here, to be fair.
    network = copy.deepcopy(learner.network).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    batches = []
    for index in range(DISTINCT):
        own = slice(index * case.batch, (index + 1) * case.batch)
        reference = learner.boundary.memory.sample(case.reference, generator)
        batches.append(((x[own], y[own]), (reference.x, reference.y)))
    limit = cross_entropy_passes(copy.deepcopy(network), batches)
    count = how_many(limit, budget, least)

    class Ticks(SupervisedPlugin):  # type: ignore[misc]
        """Avalanche's own place for what happens after a step; the last of the plugins."""

        def __init__(self) -> None:
            super().__init__()
            self.tick: Callable[[], None] = lambda: None

        def after_training_iteration(self, strategy: Any, **_: Any) -> None:
            self.tick()

    ticks = Ticks()
    strategy = AGEM(
        model=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=learner.lr),
        criterion=nn.CrossEntropyLoss(),
        patterns_per_exp=MEMORY_PER_TASK,
        sample_size=case.reference,
        train_mb_size=case.batch,
        train_epochs=1,
        device="cpu",
        plugins=[ticks],
        evaluator=EvaluationPlugin(),
    )

    def dataset(x: torch.Tensor, y: torch.Tensor) -> Any:
        made = TensorDataset(x, y)
        made.targets = y.tolist()  # type: ignore[attr-defined]
        return as_classification_dataset(made)

    few = 2 * case.batch
    repeats = -(-count * case.batch // len(x))
    chosen = torch.arange(len(x)).repeat(repeats)[: count * case.batch]
    learned = [*((px[: max(few, MEMORY_PER_TASK)], py[: max(few, MEMORY_PER_TASK)]) for px, py in past)]
    stream = benchmark_from_datasets(train=[dataset(*part) for part in (*learned, (x[chosen], y[chosen]))]).train_stream
    for experience in stream[:-1]:
        strategy.train(experience)
    turns = Turns(limit)
    ticks.tick = turns
    turns.start()
    strategy.train(stream[-1])
    turns.stop()
    row = {**vars(case), **turns.to_json(), "finite": finite(network)}
    return {**row, "learner": "Avalanche A-GEM"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peer", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    warnings.simplefilter("ignore")
    stand_in = declare_missing_operators()
    from importlib.metadata import version

    budget, least = (1.5, 6) if quick else (30.0, 25)
    rows = []
    for case in (CASES[0], CASES[2]) if quick else CASES:
        rows.append(measure(case, budget, least))
        rows.append(measure_avalanche(case, budget, least))
    versions = {name: version(name) for name in ("avalanche-lib", "torch", "torchvision")}
    print(json.dumps({"rows": rows, "versions": versions, "torchvision_operators_declared": stand_in}))


if __name__ == "__main__":
    main()
