"""Runs what experiments ask for: each configuration once, interrupted ones from where they stopped.

`OUT/runs/` holds one run folder for each configuration, shared by all experiments; `OUT/logs/` what each run said.
Engines differ in where a run takes place (processes here, or a Ray cluster), never in what it computes.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from l2dp.budget import Guarantee
from l2dp.durable import make_folder, read_json
from l2dp.errors import BadInput
from l2dp.experiments import worker
from l2dp.experiments.declared import Experiment
from l2dp.experiments.identity import configuration, digest, of_result
from l2dp.progress import clock
from l2dp.sweeps import Request

POLL_SECONDS = 0.05
SAY_SECONDS = 30.0
PATIENCE = 30.0
"""Seconds to wait for the last runs of a runner that was killed to notice it."""


@dataclass(frozen=True, eq=False)
class Job:
    """One run: a request, a seed, and the hash of the two."""

    request: Request
    seed: int
    hash: str
    minutes: float | None = None

    @property
    def name(self) -> str:
        benchmark = "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in self.request.benchmark)
        learner = self.request.learner.rpartition(":")[2]
        return f"{benchmark[-40:]}_{learner}_{self.seed}_{self.hash}"


@dataclass(frozen=True)
class Failure:
    job: Job
    reason: str
    log: Path


@dataclass
class Done:
    """What became of a sweep."""

    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)


class Engine(Protocol):
    """Where runs take place. `start` begins one; `finished` gives those that have ended, with what went wrong."""

    slots: int

    def start(self, job: Job, folder: Path, log: Path) -> None: ...
    def finished(self) -> Iterator[tuple[Job, str | None]]: ...
    def stop(self) -> None: ...


def jobs_of(experiments: Iterable[Experiment]) -> list[Job]:
    """The runs behind some experiments, each once, the cheapest first."""
    found: dict[str, Job] = {}
    for experiment in experiments:
        for row in experiment.rows:
            if row.request is None:
                continue
            for seed in row.seeds:
                key = digest(configuration(row.request, seed))
                found.setdefault(key, Job(row.request, seed, key, row.minutes))
    return sorted(found.values(), key=lambda job: (job.minutes or 0.0, job.seed))


def known_results(folders: Iterable[Path], places: dict[str, list[Path]] | None = None) -> dict[str, dict[str, Any]]:
    """Finished results below some folders, by the hash of their configuration; other JSON is passed over.

    Of several with one hash the first counts, by folder and then by name; `places` is told where it is, and of those
    that say otherwise: a copy is no other result.
    """
    found: dict[str, dict[str, Any]] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*.json")):
            if "state" in path.relative_to(folder).parts or path.name == "run.json":
                continue
            try:
                result = read_json(path)
            except BadInput:
                continue
            if _is_result(result):
                asked = of_result(result)
                key = _named(path) if asked is None else digest(asked)
                if key is not None:
                    first = found.setdefault(key, result)
                    if places is not None and (first is result or first != result):
                        places.setdefault(key, []).append(path)
    return found


def _named(path: Path) -> str | None:
    """The hash in the name that a runner gave to a run, or `docs` to its result."""
    hash = re.search(r"_([0-9a-f]{16})$", path.parent.name if path.name == "result.json" else path.stem)
    return None if hash is None else hash[1]


def _is_result(found: Any) -> bool:
    """Whether it is a finished run: a guarantee, a time, and as many points of its curve as rows of its matrix."""
    if not isinstance(found, dict) or not isinstance(found.get("config"), dict) or not _number(found.get("seconds")):
        return False
    try:
        Guarantee(**found["guarantee"])
    except (KeyError, TypeError, ValueError):
        return False
    return _tested(found) and ("released" not in found or _tested(found["released"]))


def _tested(found: Any) -> bool:
    if not isinstance(found, dict):
        return False
    matrix, curve = found.get("accuracy_matrix"), found.get("average_accuracy")
    if not (isinstance(matrix, list) and isinstance(curve, list) and len(matrix) == len(curve) > 0):
        return False
    lines = [curve, *(line for line in matrix if line is not None)]
    return all(isinstance(line, list) and all(one is None or _number(one) for one in line) for line in lines)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def run_all(jobs: Sequence[Job], out: Path, known: Sequence[Path], engine: Engine, console: Console) -> Done:
    """Runs what is not finished yet; whoever kills it and calls it again loses nothing and repeats nothing."""
    make_folder(out / "logs")
    done = Done()
    with alone(out):
        places: dict[str, list[Path]] = {}
        finished = known_results([*known, out / "runs"], places)
        done.results = {job.hash: finished[job.hash] for job in jobs if job.hash in finished}
        waiting = [job for job in jobs if job.hash not in done.results]
        if done.results:
            _say(console, f"{len(done.results)} of {len(jobs)} runs were finished before")
        for first, *others in (places[hash] for hash in done.results):
            if others:
                passed_over = ", ".join(str(path) for path in others)
                _say(console, f"{first} counts; the same configuration has other results: {passed_over}")
        tally = _Tally(console, len(waiting), engine.slots)
        try:
            running = 0
            while waiting or running:
                while waiting and running < engine.slots:
                    job = waiting.pop(0)
                    tally.started(job)
                    try:
                        engine.start(job, out / "runs" / job.name, out / "logs" / f"{job.name}.log")
                        running += 1
                    except OSError as error:  # no room for its log, no process to be had
                        wrong = f"it could not be started: {error.strerror or error}"
                        tally.ended(job, wrong, waiting)
                        done.failures.append(Failure(job, wrong, out / "logs" / f"{job.name}.log"))
                for job, ended in engine.finished():
                    running -= 1
                    try:
                        if ended is None:
                            done.results[job.hash] = read_json(out / "runs" / job.name / "result.json")
                    except BadInput as error:
                        ended = str(error)
                    tally.ended(job, ended, waiting)
                    if ended is not None:
                        done.failures.append(Failure(job, ended, out / "logs" / f"{job.name}.log"))
                tally.now_and_then(waiting)
                time.sleep(POLL_SECONDS)
        finally:
            engine.stop()
    return done


class Local:
    """Processes on this machine, as many as `workers`, with the cores divided among them."""

    def __init__(self, workers: int, threads: int) -> None:
        self.slots, self._threads = workers, threads
        self._running: dict[Job, tuple[subprocess.Popen[bytes], Path]] = {}

    def start(self, job: Job, folder: Path, log: Path) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": str(self._threads), "PYTHONUNBUFFERED": "1"}
        with log.open("ab") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "l2dp.experiments.worker"],
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=said,
                env=environment,
                # An interrupt is for the runner; its runs end with their input. The lock of the whole sweep goes with
                # them (close_fds would close it): it is free when the last of them has ended.
                start_new_session=True,
                close_fds=False,
            )
        assert process.stdin is not None
        process.stdin.write(worker.to_line(job.request, job.seed, folder, self._threads).encode())
        process.stdin.flush()
        self._running[job] = process, log

    def finished(self) -> Iterator[tuple[Job, str | None]]:
        for job, (process, log) in list(self._running.items()):
            code = process.poll()
            if code is not None:
                assert process.stdin is not None
                process.stdin.close()
                del self._running[job]
                yield job, None if code == 0 else reason(code, log)

    def stop(self) -> None:
        for process, _ in self._running.values():
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
        self._running.clear()


def reason(code: int, log: Path) -> str:
    """Why a run failed: the last line it said."""
    lines = log.read_text("utf-8", errors="replace").strip().splitlines()
    ended = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return f"{lines[-1].strip()[:300]} ({ended})" if lines and code > 0 else ended


def divide(cores: int, workers: int | None, runs: int) -> tuple[int, int]:
    """How many runs at once, and threads for each: whole runs side by side beat threads that wait for each other.

    >>> divide(8, None, 20), divide(8, None, 2), divide(8, 3, 20), divide(2, 5, 9)
    ((8, 1), (2, 4), (3, 2), (5, 1))
    """
    if workers is not None and workers < 1:
        raise BadInput(f"--workers must be at least 1, not {workers}")
    at_once = max(1, min(cores, runs)) if workers is None else workers
    return at_once, max(1, cores // at_once)


def capped(threads: int) -> int:
    """No more threads for a run than OMP_NUM_THREADS allows."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(threads, int(asked)) if asked.isdecimal() and int(asked) else threads


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Holds a folder of runs for one runner and its processes."""
    make_folder(out / "runs")
    until = time.monotonic() + PATIENCE
    try:
        held = (out / ".lock").open("w")
    except OSError as error:
        raise BadInput(f"{out / '.lock'} cannot be written ({error.strerror}); choose another --out") from None
    with held as lock:
        os.set_inheritable(lock.fileno(), True)
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > until:
                    raise BadInput(f"another runner works in {out}; wait for it or choose another --out") from None
                time.sleep(0.1)
        yield


class _Tally:
    """Progress of the whole sweep: done, running, left, time left."""

    def __init__(self, console: Console, total: int, slots: int) -> None:
        self._console, self._total, self._slots = console, total, slots
        self._done = self._failed = 0
        self._began: dict[Job, float] = {}
        self._took: list[tuple[float, float | None]] = []
        self._said = time.monotonic()

    def started(self, job: Job) -> None:
        self._began[job] = time.monotonic()

    def ended(self, job: Job, wrong: str | None, waiting: Sequence[Job]) -> None:
        seconds = time.monotonic() - self._began.pop(job)
        if wrong is None:
            self._done += 1
            self._took.append((seconds, job.minutes))
        else:
            self._failed += 1
        outcome = f"finished in {clock(seconds)}" if wrong is None else f"FAILED: {wrong}"
        _say(self._console, f"{job.name} {outcome}")
        self._report(waiting)

    def now_and_then(self, waiting: Sequence[Job]) -> None:
        if time.monotonic() - self._said > SAY_SECONDS:
            self._report(waiting)

    def _report(self, waiting: Sequence[Job]) -> None:
        self._said = time.monotonic()
        failed = f", {self._failed} failed" if self._failed else ""
        left = self._left(waiting)
        about = "" if left is None or not (waiting or self._began) else f", about {clock(left)} left"
        _say(
            self._console,
            f"{self._done} of {self._total} done{failed}, {len(self._began)} running, {len(waiting)} waiting{about}",
        )

    def _left(self, waiting: Sequence[Job]) -> float | None:
        """From the minutes that files state, corrected by how long finished runs took; else from their mean."""
        stated = [(took, 60 * minutes) for took, minutes in self._took if minutes]
        speed = sum(took for took, _ in stated) / sum(said for _, said in stated) if stated else 1.0
        usual = sum(took for took, _ in self._took) / len(self._took) if self._took else None

        def length(job: Job) -> float | None:
            return 60 * job.minutes * speed if job.minutes else usual

        now = time.monotonic()
        lengths = [length(job) for job in (*waiting, *self._began)]
        if any(one is None for one in lengths):
            return None
        gone = sum(min(length(job) or 0.0, now - began) for job, began in self._began.items())
        return max(0.0, sum(one for one in lengths if one is not None) - gone) / max(1, min(self._slots, len(lengths)))


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)
