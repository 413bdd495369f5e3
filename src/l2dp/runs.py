"""One run: a learner over a stream, evaluated after every task, and the directory that survives a crash.

A run directory holds `run.json` (what was asked for), `state/` while unfinished, and in the end `result.json`,
`accuracy.png` and `model.safetensors` (the release). The state is saved after every task in one atomic step,
before the first task too, so that a draw of noise is durable before anything uses it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import resource
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from l2dp import metrics, parallel, report
from l2dp.boundary.admission import check_task
from l2dp.budget import Guarantee
from l2dp.durable import make_folder, read_json, read_tensors, write_json, write_tensors
from l2dp.errors import BadInput
from l2dp.learners import believed
from l2dp.learners.learner import Learner, Plan, Setting, State
from l2dp.noise import InsecureNoise, Noise, SystemNoise
from l2dp.streams.records import Records, Stream, Task

Matrix = list[list[float | None]]

LONG_STREAM = 50
TESTED_AT_ONCE = 250
"""Test records that pass a network together: of a thousand, the maps of a ResNet are new memory at every layer."""
UNSEEN_RECORDS = 1000
"""Tasks not learned yet are at chance; that many of their test records tell so, and evaluation stays cheap."""
RELEASED_RECORDS = 2000
"""Test records of a task for the second test of a method that has two, so that it costs little beside the first."""


class Progress(Protocol):
    """Who is told how a run gets on."""

    def start(self, tasks: int, steps: int) -> None: ...
    def task(self, index: int, name: str, steps: int) -> None: ...
    def tick(self) -> None: ...
    def evaluated(self, index: int, average: float | None) -> None: ...
    def finish(self) -> None: ...


class Silent:
    """Tells nobody."""

    def start(self, tasks: int, steps: int) -> None: ...
    def task(self, index: int, name: str, steps: int) -> None: ...
    def tick(self) -> None: ...
    def evaluated(self, index: int, average: float | None) -> None: ...
    def finish(self) -> None: ...


@dataclass(frozen=True)
class Schedule:
    """How long tasks are trained: epochs for all or for each, and in batches of which size."""

    batch_size: int = 64
    epochs: tuple[int, ...] = (1,)
    balanced: bool = False
    """Every task gets the number of steps that the largest one takes."""
    full_batch: bool = False
    """The whole task is one batch (Algorithm 1)."""

    def plans(self, sizes: Sequence[int]) -> list[Plan]:
        """The plan of every task, from their declared sizes."""
        if any(count < 1 for count in self.epochs):
            raise BadInput(f"--epochs must be 1 or more, not {','.join(map(str, self.epochs))}")
        if len(self.epochs) not in (1, len(sizes)):
            raise BadInput(f"--epochs names {len(self.epochs)} tasks, the stream has {len(sizes)}")
        if self.batch_size < 1:
            raise BadInput(f"--batch-size must be at least 1, not {self.batch_size}")
        smallest = min(sizes)
        if self.batch_size > smallest and not self.full_batch:
            raise BadInput(
                f"a batch of {self.batch_size} does not fit task {sizes.index(smallest) + 1}, which has "
                f"{smallest} records; lower --batch-size or use --full-batch"
            )
        epochs = self.epochs * len(sizes) if len(self.epochs) == 1 else self.epochs
        batch = [size if self.full_batch else self.batch_size for size in sizes]
        steps = [count * (size // lot) for count, size, lot in zip(epochs, sizes, batch, strict=True)]
        if self.balanced:
            steps = [max(steps)] * len(steps)
        return [Plan(count, lot) for count, lot in zip(steps, batch, strict=True)]


@dataclass
class Result:
    """What a run found; `to_json` is the `result.json` that others rely on."""

    stream: str
    learner: str
    seed: int
    protocol: str
    guarantee: Guarantee
    accuracy_matrix: Matrix
    released_matrix: Matrix | None
    seconds: float
    examples_per_second: float | None
    peak_memory_mb: float
    config: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def average_accuracy(self) -> list[float | None]:
        return metrics.average_accuracy(self.accuracy_matrix)

    @property
    def average_forgetting(self) -> list[float | None]:
        return metrics.average_forgetting(self.accuracy_matrix)

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "benchmark": self.stream,
            "learner": self.learner,
            "seed": self.seed,
            "tasks": len(self.accuracy_matrix),
            "protocol": self.protocol,
            "guarantee": self.guarantee.to_json(),
            "accuracy_matrix": self.accuracy_matrix,
            "average_accuracy": self.average_accuracy,
            "average_forgetting": self.average_forgetting,
        }
        if self.released_matrix is not None:
            out["released"] = {
                "accuracy_matrix": self.released_matrix,
                "average_accuracy": metrics.average_accuracy(self.released_matrix),
                "average_forgetting": metrics.average_forgetting(self.released_matrix),
            }
        return out | {
            "examples_per_second": self.examples_per_second,
            "seconds": self.seconds,
            "peak_memory_mb": self.peak_memory_mb,
            "config": self.config,
            **self.facts,
            "version": version("l2dp"),
        }


def accuracy(
    learner: Learner,
    records: Records,
    allowed: tuple[int, ...] | None,
    device: torch.device,
    released: bool = False,
    limit: int | None = None,
) -> float:
    """The fraction of records whose best allowed score is that of their label."""
    score = learner.released_scores if released else learner.scores
    closed: Tensor | None = None
    right = torch.zeros((), dtype=torch.int64, device=device)
    total = len(records) if limit is None else min(limit, len(records))
    for x, y in records.chunks(TESTED_AT_ONCE, total):
        scores = score(x.to(device))
        if allowed is not None:
            if closed is None:
                closed = torch.ones(scores.shape[1], dtype=torch.bool, device=device)
                closed[list(allowed)] = False
            scores = scores.masked_fill(closed, float("-inf"))
        right += (scores.argmax(dim=1) == y.to(device)).sum()
    return int(right) / total


def evaluate(
    learner: Learner,
    stream: Stream,
    learned: int,
    device: torch.device,
    released: bool = False,
    test_records: int | None = None,
) -> list[float]:
    """One row of the accuracy matrix: every task of the stream after learning the first `learned`."""
    most = RELEASED_RECORDS if released else None
    row = [
        accuracy(
            learner,
            task.test,
            stream.allowed(task),
            device,
            released,
            _least(UNSEEN_RECORDS, test_records) if index >= learned else _least(most, test_records),
        )
        if index % parallel.size() == parallel.rank()
        else 0.0
        for index, task in enumerate(stream)
    ]
    found: list[float] = parallel.add(torch.tensor(row, dtype=torch.float64)).tolist()
    return found


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def run(
    stream: Stream,
    learner: Learner,
    *,
    schedule: Schedule | None = None,
    seed: int = 0,
    out: Path | str | None = None,
    evaluate_every: int | None = None,
    test_records: int | None = None,
    device: str | torch.device = "cpu",
    insecure_noise_seed: int | None = None,
    progress: Progress | None = None,
    not_covered: Callable[[Guarantee], list[str]] | None = None,
) -> Result:
    """Learns the whole stream and returns what came of it; with `out`, durably and resumably.

    Guarantee
    ---------
    The learner's own, stated in `Result.guarantee`. With `insecure_noise_seed` there is none. `not_covered` says what
    such a guarantee leaves out on this stream; it is kept in `result.json` beside it.
    """
    schedule = schedule or Schedule()
    progress = progress or Silent()
    device = check_device(device)
    for task in stream:
        check_task(task, stream.space)
    plans = schedule.plans([task.train.declared_size for task in stream])
    every = default_interval(learner, len(stream)) if evaluate_every is None else evaluate_every
    if every < 1:
        raise BadInput(f"--evaluate-every must be at least 1, not {every}")
    if test_records is not None and test_records < 1:
        raise BadInput(f"--test-records must be at least 1, not {test_records}")
    check_seed("--seed", seed)
    check_seed("--insecure-noise-seed", insecure_noise_seed or 0)
    noise: Noise = SystemNoise() if insecure_noise_seed is None else InsecureNoise(insecure_noise_seed)
    if parallel.size() > 1:
        noise = parallel.SharedNoise(noise)
        if not vars(type(learner)).get("PARALLEL"):
            raise BadInput(f"{type(learner).NAME} cannot share a run with other processes; start it without torchrun")
        batches = [plan.batch_size for plan in plans] + [getattr(learner, "reference_batch", parallel.size())]
        if min(batches) < parallel.size():
            raise BadInput(
                f"a batch must have a record for each of {parallel.size()} processes; raise --batch-size, and "
                "-o reference_batch where there is one"
            )
    setting = Setting(
        stream.space,
        max(plan.batch_size for plan in plans),
        seed,
        stream.protocol == "task",
        device,
        noise,
    )
    config = {
        "stream": {"name": stream.name, "tasks": [task.name for task in stream], **stream.config},
        "learner": learner.config(),
        "schedule": {
            "batch_size": schedule.batch_size,
            "epochs": list(schedule.epochs),
            "balanced": schedule.balanced,
            "full_batch": schedule.full_batch,
        },
        "evaluate_every": every,
        "unseen_test_records": UNSEEN_RECORDS,
        "released_test_records": RELEASED_RECORDS,
        "device": str(device),
        "insecure_noise_seed": insecure_noise_seed,
        # Left out when all are used, as in results that are older than the choice.
        **({} if test_records is None else {"test_records": test_records}),
    }
    identity = {
        "benchmark": stream.name,
        "learner": type(learner).NAME,
        "seed": seed,
        "protocol": stream.protocol,
        "config": config,
    }
    sizes = [task.train.declared_size for task in stream]
    parallel.check_same(json.dumps([identity, sizes], sort_keys=True).encode(), "run")
    if out is None:
        learner.begin(setting)
        result = _Run(stream, learner, setting, plans, every, test_records, config, progress, None).finish()
        return _said(result, stream, not_covered)
    folder = Path(out)
    with run_folder(folder, identity) if parallel.rank() == 0 else nullcontext() as finished:
        if parallel.agreed(finished is not None):
            _check_same_files(folder, "result.json")
            result = from_json(finished if finished is not None else read_json(folder / "result.json"))
            result = _said(result, stream, not_covered)
            if parallel.rank() > 0:
                return result
            # A crash between the result and the end leaves secrets behind.
            shutil.rmtree(folder / "state", ignore_errors=True)
            return result
        learner.begin(setting)
        # Only now: a learner that refuses its setting leaves the folder free for another try.
        if parallel.rank() == 0:
            write_json(folder / "run.json", identity)
        result = _Run(stream, learner, setting, plans, every, test_records, config, progress, folder / "state").finish()
        result = _said(result, stream, not_covered)
        if parallel.rank() > 0:
            return result
        write_tensors(folder / "model.safetensors", learner.release(), {"learner": result.learner}, 0o644)
        report.curve_png([result.to_json()], folder / "accuracy.png", f"{stream.name}, seed {seed}")
        write_json(folder / "result.json", result.to_json())
        shutil.rmtree(folder / "state")
    return result


def _said(result: Result, stream: Stream, not_covered: Callable[[Guarantee], list[str]] | None) -> Result:
    """The result with what its guarantee leaves out, if it has one: of the stream's preparation, and in general."""
    if result.guarantee.epsilon is None:
        return result
    prepared: Any = stream.config.get("not_covered", ())
    left_out = [*prepared, *([] if not_covered is None else not_covered(result.guarantee))]
    return replace(result, facts=result.facts | {"not_covered": left_out}) if left_out else result


def from_json(found: dict[str, Any]) -> Result:
    """A finished run read back from its `result.json`."""
    try:
        return _from_json(found)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadInput(f"result.json is not in the format of a run ({error!r}); remove it to run again") from error


def _from_json(found: dict[str, Any]) -> Result:
    released = found.get("released")
    known = {
        "benchmark", "learner", "seed", "tasks", "protocol", "guarantee", "accuracy_matrix",
        "average_accuracy", "average_forgetting", "released", "examples_per_second", "seconds",
        "peak_memory_mb", "config", "version",
    }  # fmt: skip
    return Result(
        found["benchmark"],
        found["learner"],
        found["seed"],
        found["protocol"],
        Guarantee(**found["guarantee"]),
        found["accuracy_matrix"],
        None if released is None else released["accuracy_matrix"],
        found["seconds"],
        found["examples_per_second"],
        found["peak_memory_mb"],
        found["config"],
        {key: value for key, value in found.items() if key not in known},
    )


def check_seed(option: str, seed: int) -> None:
    """Refuses what some generator does not take."""
    if not 0 <= seed < 2**63:
        raise BadInput(f"{option} {seed}: choose a whole number from 0 to 2^63 - 1")


def check_seeds(seeds: Sequence[int]) -> None:
    """Several seeds, each once: a run that counts twice would make its deviation too small."""
    for seed in seeds:
        check_seed("--seeds", seed)
    if len(set(seeds)) < len(seeds):
        raise BadInput(f"--seeds {','.join(map(str, seeds))} names a seed twice")


def check_device(name: str | torch.device) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"--device {name} cannot be used here ({reason}); try --device cpu") from error
    return device


def default_interval(learner: Learner, tasks: int) -> int:
    """After how many tasks a learner is evaluated when nobody says."""
    if not learner.EVERY_TASK:
        return tasks
    return 1 if tasks <= LONG_STREAM else math.ceil(tasks / 20)


@contextmanager
def run_folder(folder: Path, identity: dict[str, Any]) -> Iterator[dict[str, Any] | None]:
    """Holds a run directory for one process; yields its result if the same run is finished there."""
    make_folder(folder)
    try:
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise BadInput(f"cannot write into {folder}: {error.strerror}; choose another --out") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadInput(f"another process is running in {folder}; wait for it or choose another --out") from None
        asked = folder / "run.json"
        if asked.exists():
            there = read_json(asked)
            if there != identity:
                raise BadInput(f"{folder} holds another run ({_difference(there, identity)}); choose another --out")
        elif any(path.name != ".lock" and not path.name.startswith(".run.json.") for path in folder.iterdir()):
            raise BadInput(f"{folder} is not empty and not a run of ours; choose another --out")
        # What a killed process was writing; nobody else writes while the lock is held.
        for name in ("run.json", "model.safetensors", "accuracy.png", "result.json"):
            for stale in folder.glob(f".{name}.*"):
                stale.unlink()
        result = folder / "result.json"
        yield read_json(result) if result.exists() else None


def _check_same_files(folder: Path, pattern: str) -> None:
    """Refuses where a process sees other files than the first: a machine with an old folder of its own would go on
    from another task, and all would wait for ever."""
    if parallel.size() == 1:
        return
    digest = hashlib.sha256()
    for path in sorted(folder.glob(pattern)):
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BadInput(f"{path} cannot be read ({error.strerror}); let every process read --out") from error
        digest.update(f"{path.name} {len(data)} ".encode())
        digest.update(data)
    parallel.check_same(digest.digest(), f"saved run in {folder}")


def _difference(there: Any, asked: Any, path: str = "") -> str:
    """The first place where two configurations differ, for a message."""
    if isinstance(there, dict) and isinstance(asked, dict):
        for key in sorted({*there, *asked}, key=lambda key: isinstance(asked.get(key), dict)):
            if there.get(key) != asked.get(key):
                return _difference(there.get(key), asked.get(key), f"{path}.{key}" if path else key)
    return f"{path}: {there!r} there, {asked!r} asked for"[:200]


@dataclass
class _Run:
    """The loop over tasks, with what it has found so far."""

    stream: Stream
    learner: Learner
    setting: Setting
    plans: list[Plan]
    every: int
    test_records: int | None
    config: dict[str, Any]
    progress: Progress
    folder: Path | None

    def _effort(self, index: int) -> tuple[int, int]:
        return self.learner.effort(self.stream[index], self.plans[index])

    def finish(self) -> Result:
        learner, stream = self.learner, self.stream
        self.started = time.perf_counter()
        self.rows: dict[int, list[float]] = {}
        self.released: dict[int, list[float]] = {}
        self.done, self.seconds, self.training, self.examples = 0, 0.0, 0.0, 0
        self._continue()
        has_secrets = type(learner).released_scores is not Learner.released_scores
        self.progress.start(len(stream), sum(self._effort(index)[0] for index in range(self.done, len(stream))))
        try:
            for index in range(self.done, len(stream)):
                self._learn(index, stream[index])
                due = (index + 1) % self.every == 0 or index + 1 == len(stream)
                average = None
                if due:
                    clock = time.perf_counter()
                    learner.settle(self.progress.tick)
                    self.training += time.perf_counter() - clock
                    row = evaluate(learner, stream, index + 1, self.setting.device, False, self.test_records)
                    self.rows[index] = row
                    average = sum(row[: index + 1]) / (index + 1)
                    if has_secrets:
                        again = evaluate(learner, stream, index + 1, self.setting.device, True, self.test_records)
                        self.released[index] = again
                self.done = index + 1
                self._save()  # before anything is shown: what was seen is never drawn again
                self.progress.evaluated(index, average)
        finally:
            self.progress.finish()
        return Result(
            stream.name,
            type(learner).NAME,
            self.setting.seed,
            stream.protocol,
            self._promised(),
            self._matrix(self.rows),
            self._matrix(self.released) if has_secrets else None,
            self.seconds + time.perf_counter() - self.started,
            self.examples / self.training if self.training > 0 else None,
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            self.config,
            learner.facts(),
        )

    def _promised(self) -> Guarantee:
        """What the learner promises, with what preparing the stream has cost.

        Only claimed if no proof of ours covers the preparation, or the learner, which may be somebody's own.
        """
        promised = self.learner.over_source(self.stream.source_overlap).after(*self.stream.spent)
        return believed(self.learner, promised if self.stream.covered else promised.unproved())

    def _matrix(self, rows: dict[int, list[float]]) -> Matrix:
        empty: list[float | None] = [None] * len(self.stream)
        return [[*rows[index]] if index in rows else empty for index in range(len(self.stream))]

    def _learn(self, index: int, task: Task) -> None:
        plan = self.plans[index]
        self.progress.task(index, task.name, self._effort(index)[0])
        clock = time.perf_counter()
        self.learner.learn(task, plan, self.progress.tick)
        self.training += time.perf_counter() - clock
        self.examples += self._effort(index)[1]

    def _continue(self) -> None:
        """Takes up the last saved state, or saves the first one."""
        if self.folder is None:
            return
        head = self.folder / "learner.safetensors"
        begun = parallel.agreed(head.exists())
        _check_same_files(self.folder, "*.safetensors")
        if not begun:
            if parallel.rank() > 0:
                return
            make_folder(self.folder)
            self.folder.chmod(0o700)
            self._save()
            return
        tensors, meta = read_tensors(head)
        self.done = meta["done"]
        self.seconds, self.training, self.examples = meta["seconds"], meta["training"], meta["examples"]
        episodes = []
        for index in range(self.done):
            kept, found = read_tensors(self._episode(index))
            episodes.append(kept)
            for rows, name in ((self.rows, "row"), (self.released, "released")):
                if found[name] is not None:
                    rows[index] = found[name]
        self.learner.restore(State(tensors, meta["learner"]), episodes, self.stream[: self.done])

    def _episode(self, index: int) -> Path:
        assert self.folder is not None
        return self.folder / f"episode-{index:05d}.safetensors"

    def _save(self) -> None:
        """What came of the last task first, then the learner in one file: a crash leaves the old state or the new.

        Accuracies go with the task's episode, so that neither file grows with the number of tasks.
        """
        if self.folder is None or parallel.rank() > 0:
            return
        if self.done > 0:
            last = self.done - 1
            found = {"row": self.rows.get(last), "released": self.released.get(last)}
            write_tensors(self._episode(last), self.learner.episode(last), found)
        state = self.learner.state()
        meta = {
            "learner": state.meta,
            "done": self.done,
            "seconds": self.seconds + time.perf_counter() - self.started,
            "training": self.training,
            "examples": self.examples,
        }
        write_tensors(self.folder / "learner.safetensors", state.tensors, meta)
