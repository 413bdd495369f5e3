"""Whether a long stream stays as cheap as a short one: time of a step, and bytes kept, from 10 to 1,000 tasks.

Step times are compared between learners that already hold 10, 100 and 1,000 tasks and take turns learning one
more. Bytes and seconds per task come from one whole run of the longest stream, saved after every task.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import l2dp
from bench.timing import Spread, finite, shown, verdict
from l2dp.learners import Agem, L2dpMl, Plan, Setting
from l2dp.streams import permuted

FLAT = 1.2
"""What a step or a task's bytes may grow by."""
PER_TASK = 250
BATCH = {"agem": 10, "l2dp-ml": 125}


def _learner(name: str) -> Agem | L2dpMl:
    if name == "agem":
        return Agem(model="mlp-128-128", lr=0.1, memory_per_task=PER_TASK, reference_batch=256)
    return L2dpMl(model="mlp-128-128", lr=0.02, momentum=0.9)


def step_times(name: str, lengths: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Seconds for each step of one more task, opening and remembering included, by tasks already learned."""
    stream = permuted("digits", tasks=max(lengths) + rounds, seed=0, per_task=PER_TASK)
    batch, steps = BATCH[name], 20
    learners = []
    for length in lengths:
        learner = _learner(name)
        learner.begin(Setting(stream.space, batch))
        for task in stream[:length]:
            learner.learn(task, Plan(1, batch))
        learners.append(learner)
    taken: list[list[float]] = [[] for _ in lengths]
    for turn in range(-2, rounds):
        for place, (length, learner) in enumerate(zip(lengths, learners, strict=True)):
            start = time.perf_counter()
            learner.learn(stream[length + max(turn, 0)], Plan(steps, batch))
            if turn >= 0:
                taken[place].append((time.perf_counter() - start) / steps)
    return [
        {
            "tasks": length,
            "step_seconds": vars(Spread.of(mine)),
            "ratio_to_first": vars(Spread.of([now / first for now, first in zip(mine, taken[0], strict=True)])),
            "finite": finite(learner.network),
        }
        for length, learner, mine in zip(lengths, learners, taken, strict=True)
    ]


@dataclass
class _Watch:
    """A run's progress: notes when every task began, and what lay in the state's folder at some of them."""

    state: Path
    lengths: Sequence[int]
    began: list[float] = field(default_factory=list)
    evaluated_at: set[int] = field(default_factory=set)
    sizes: dict[int, dict[str, float]] = field(default_factory=dict)

    def start(self, tasks: int, steps: int) -> None: ...

    def task(self, index: int, name: str, steps: int) -> None:
        if index in self.lengths:
            state = (self.state / "learner.safetensors").stat().st_size
            folder = sum(path.stat().st_size for path in self.state.iterdir())
            episode = (self.state / f"episode-{index - 1:05d}.safetensors").stat().st_size
            # The mean over all tasks as well: accuracies lie with those tasks that were evaluated.
            self.sizes[index] = {"state": state, "episode": episode, "per_task": (folder - state) / index}
        self.began.append(time.perf_counter())

    def tick(self) -> None: ...

    def evaluated(self, index: int, average: float | None) -> None:
        if average is not None:
            self.evaluated_at.add(index)

    def finish(self) -> None: ...

    def task_seconds(self, length: int) -> Spread:
        """Learning and saving of the tasks just before `length`, without those that ended in an evaluation."""
        window = range(max(0, length - max(5, length // 10)), min(length, len(self.began) - 1))
        return Spread.of([self.began[i + 1] - self.began[i] for i in window if i not in self.evaluated_at])


def whole_run(name: str, lengths: Sequence[int]) -> dict[str, Any]:
    """One run with everything saved after every task; one task more than the longest, to see what that left."""
    tasks = max(lengths) + 1
    schedule, every = l2dp.Schedule(BATCH[name]), math.ceil(tasks / 20)
    stream = permuted("digits", tasks=tasks, seed=0, per_task=PER_TASK)
    learner = _learner(name)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        watch = _Watch(out / "state", lengths)
        start = time.perf_counter()
        l2dp.run(stream, learner, schedule=schedule, out=out, evaluate_every=every, progress=watch)
        seconds = time.perf_counter() - start
        state_tensors = sum(tensor.nbytes for tensor in learner.state().tensors.values())
    return {
        "tasks": tasks,
        "seconds": seconds,
        "seconds_per_task": seconds / tasks,
        "state_tensor_bytes": state_tensors,
        "at": [
            {"tasks": length, **watch.sizes[length], "task_seconds": vars(watch.task_seconds(length))}
            for length in lengths
        ],
    }


def _growth(rows: Sequence[dict[str, Any]], name: str) -> float:
    return float(rows[-1][name] / rows[0][name])


def measure(name: str, lengths: Sequence[int], rounds: int) -> dict[str, Any]:
    """Everything about one learner, with the growth from the shortest to the longest stream."""
    steps, run = step_times(name, lengths, rounds), whole_run(name, lengths)
    at = run["at"]
    grown = {
        "step": steps[-1]["ratio_to_first"]["median"],
        "state": _growth(at, "state"),
        "episode": _growth(at, "episode"),
        "per_task": _growth(at, "per_task"),
        "task": at[-1]["task_seconds"]["median"] / at[0]["task_seconds"]["median"],
    }
    passed = {key: grown[key] <= FLAT for key in ("step", "state", "episode", "per_task")}
    return {"learner": name, "steps": steps, "run": run, "growth": grown, "allowed": FLAT, "passed": passed}


def run(console: Console, quick: bool) -> dict[str, Any]:
    """Both learners at 10, 100 and 1,000 tasks; in quick form at 5, 10 and 20."""
    lengths = (5, 10, 20) if quick else (10, 100, 1000)
    rows = [measure(name, lengths, 4 if quick else 40) for name in BATCH]
    out = Table(title="As the stream grows", caption="medians, quartiles in brackets; growth: longest by shortest")
    for heading in ("", "", *(f"{length:,} tasks" for length in lengths), "growth", f"≤ {FLAT}"):
        out.add_column(heading, justify="right" if "tasks" in heading or heading == "growth" else "left")
    for row in rows:
        growth, at, passed = row["growth"], row["run"]["at"], row["passed"]
        name = row["learner"]
        times = [shown(step["step_seconds"], 2, 1e3) for step in row["steps"]]
        out.add_row(name, "step ms", *times, f"{growth['step']:.3f}", verdict(passed["step"]))
        kept = {"state": "state bytes", "episode": "episode bytes", "per_task": "kept bytes a task, mean"}
        for key, label in kept.items():
            sizes = [f"{place[key]:,.0f}" for place in at]
            out.add_row(name, label, *sizes, f"{growth[key]:.3f}", verdict(passed[key]))
        whole = [shown(place["task_seconds"], 1, 1e3) for place in at]
        out.add_row(name, "task ms, learned and saved", *whole, f"{growth['task']:.3f}", "", end_section=True)
    console.print(out)
    for row in rows:
        run = row["run"]
        console.print(
            f"{row['learner']}: a whole run of {run['tasks']:,} tasks took {run['seconds']:.1f} s, "
            f"{1e3 * run['seconds_per_task']:.1f} ms a task with saving and evaluation"
        )
    return {"rows": rows, "passed": all(all(row["passed"].values()) for row in rows)}
