"""`python -m bench.faults`: kills `l2dp learn` at random points and looks whether anything was lost or charged twice.

The kills hit the installed command. Half of them come at a random durable operation (within the ledger's transaction,
between writing a file and renaming it, with what was not synced taken back as by a loss of power), half at a random
moment. After each one the home must verify, every block must be charged exactly once, and the answers that the next
attempt draws must be those of the last one. Homes with a noise seed must end with a release that is bit-identical to
that of an undisturbed run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from l2dp.durable import make_folder, write_json
from l2dp.store import init, open_home

SABOTAGE = Path(__file__).parent / "sabotage"
PROGRAM = Path(sys.executable).parent / "l2dp"
LABELS = ("a", "b", "c")
WIDTH = 8
EPSILON, DELTA = 2.0, 1e-5
OPTIONS = {"steps": "4"}
"""A short head: what is tested is not how well it learns."""


class Broken(Exception):
    """Something that must never happen did."""


def data(folder: Path, task: int, rows: int = 120) -> Path:
    """The records of a task, the same whenever they are asked for."""
    path = folder / f"task-{task}.npz"
    if not path.exists():
        rng = np.random.default_rng(task)
        y = np.arange(rows) % len(LABELS)
        x = np.clip(rng.normal(0, 0.2, (rows, WIDTH)) + 0.5 * np.eye(len(LABELS), WIDTH)[y], -1, 1)
        who = np.array([f"user {row % 40}" for row in range(rows)])
        np.savez(path, x=x.astype(np.float32), label=np.asarray(LABELS)[y], who=who)
    return path


class Process:
    """`l2dp` with some arguments: the installed program, or a fork of this process, which has imported it already."""

    def __init__(
        self,
        words: Sequence[Any],
        environment: Mapping[str, str],
        forked: bool,
        said: Path | None = None,
        largest_file: int | None = None,
    ) -> None:
        """`said`: a file for what it prints. `largest_file`: bytes beyond which writing fails, as on a full disk."""
        texts = [str(word) for word in words]
        said = Path(os.devnull) if said is None else said
        self._popen: subprocess.Popen[bytes] | None = None
        if not forked:
            limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (largest_file or 0, largest_file or 0))
            with said.open("wb") as out:
                self._popen = subprocess.Popen(
                    [PROGRAM, *texts],
                    env=dict(environment),
                    stdout=out,
                    stderr=out,
                    preexec_fn=None if largest_file is None else limit,
                )
            self.pid = self._popen.pid
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about threads: those of this process do nothing for the child
            self.pid = os.fork()
        if self.pid == 0:
            _become(texts, environment, said, largest_file)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """The exit code; negative: the signal."""
        if self._popen is not None:
            return self._popen.wait()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _become(words: list[str], environment: Mapping[str, str], said: Path, largest_file: int | None) -> NoReturn:
    """What a forked child does: the command, sabotaged as its environment says. Never returns."""
    code = 70
    try:
        out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(out, stream)
        os.environ.clear()
        os.environ.update(environment)
        spec = importlib.util.spec_from_file_location("sabotage", SABOTAGE / "sitecustomize.py")
        assert spec is not None
        assert spec.loader is not None
        sabotage = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sabotage)
        from l2dp import cli

        if largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
        try:
            cli.main(words)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        sys.stdout.flush()
        sys.stderr.flush()
        if "L2DP_POINTS" in environment:
            sabotage.count()
    finally:  # without the exit handlers of the process that forked
        os._exit(code)


@dataclass
class Trial:
    """One home that is disturbed until it has learned all its tasks."""

    home: Path
    work: Path
    rng: random.Random
    environment: Mapping[str, str]
    cost: float
    blocks: int
    """Blocks that one task charges: 1 (the task) or the number of its users."""
    forked: bool = False
    tasks: int = 0
    """Learned in the end."""
    kills: Counter[str] = field(default_factory=Counter)
    where: Counter[str] = field(default_factory=Counter)
    """In which state a kill left the task."""

    def run(self, kills: int) -> None:
        """Kills that many attempts, task after task, and lets the last task finish; all checks after every attempt."""
        seconds, points = self._undisturbed()
        task = 0
        while True:
            answers: list[str] = []
            state: bytes | None = None
            while sum(self.kills.values()) < kills and not self._learned(task):
                found = self._killed(task, seconds, points)
                answers = self._same_answers(answers, found, task)
                state = self._check(task, state)
            self._same_answers(answers, self._whole(task), task)
            self._check(task, state)
            if not self._learned(task):
                raise Broken(f"task {task} was not learned although nobody disturbed it")
            task += 1
            if sum(self.kills.values()) >= kills:
                break
        self.tasks = task

    def _learned(self, task: int) -> bool:
        found = open_home(self.home).status()["tasks"]
        return len(found) > task and found[task]["state"] == "learned"

    def learn(self, home: Path, task: int, **more: str) -> Process:
        words = ["learn", home, data(self.work, task), "--task", f"task {task}", "--threads", "1"]
        return Process(words, {**self.environment, **more}, self.forked)

    def _undisturbed(self) -> tuple[float, int]:
        """How long a task takes, and how many points it passes; on a copy."""
        copy, count = self.work / "measured", self.work / "points"
        shutil.copytree(self.home, copy)
        started = time.monotonic()
        if self.learn(copy, 0, L2DP_SABOTAGE="count", L2DP_POINTS=str(count)).wait() != 0:
            raise Broken("a task could not be learned at all")
        seconds = time.monotonic() - started
        shutil.rmtree(copy)
        return seconds, int(count.read_text())

    def _killed(self, task: int, seconds: float, points: int) -> list[str]:
        """One attempt, killed; the digests of the answers it got to."""
        log = self.work / "answers"
        log.unlink(missing_ok=True)
        how = self.rng.choice(["kill", "kill", "power", "time"])
        if how == "time":
            process = self.learn(self.home, task, L2DP_ANSWERS=str(log))
            time.sleep(seconds * self.rng.uniform(0.1 if self.forked else 0.4, 1.1))  # imports break nothing
            process.kill()
        else:
            at = f"{how}:{self.rng.randint(1, points)}"
            process = self.learn(self.home, task, L2DP_ANSWERS=str(log), L2DP_SABOTAGE=at)
        code = process.wait()
        if code not in (0, -signal.SIGKILL):
            raise Broken(f"task {task}: an attempt ended with {code}")
        if code != 0:  # else it was over before it could be killed
            self.kills[how] += 1
        return log.read_text().split() if log.exists() else []

    def _whole(self, task: int) -> list[str]:
        """One attempt that nobody disturbs."""
        log = self.work / "answers"
        log.unlink(missing_ok=True)
        code = self.learn(self.home, task, L2DP_ANSWERS=str(log)).wait()
        if code != 0:
            raise Broken(f"task {task}: `l2dp learn` ended with {code} after crashes")
        return log.read_text().split() if log.exists() else []

    def _same_answers(self, before: list[str], now: list[str], task: int) -> list[str]:
        """What is drawn again is what was drawn before: an attempt that got less far gave a beginning of it."""
        shorter = min(len(before), len(now))
        if before[:shorter] != now[:shorter]:
            raise Broken(f"task {task}: a second, different noisy answer about the same data")
        return now if len(now) > len(before) else before

    def _check(self, task: int, state: bytes | None) -> bytes | None:
        home = open_home(self.home)
        wrong = home.verify()
        if wrong:
            raise Broken(f"task {task}: verify says {wrong}")
        status = home.status()
        names = [found["task"] for found in status["tasks"]]
        if len(set(names)) != len(names) or names[:task] != [f"task {index}" for index in range(task)]:
            raise Broken(f"task {task}: a task was lost or charged twice: {names}")
        self._charged_once(status["budget"]["levels"], len(names))
        kept = self.home / "state" / f"task-{task:06d}.safetensors"
        now = kept.read_bytes() if kept.exists() else None
        if state is not None and now != state:
            raise Broken(f"task {task}: a durable answer was lost or changed")
        self.where["before the charge" if len(names) == task else "charged" if now is None else "durable"] += 1
        return now

    def _charged_once(self, levels: list[dict[str, Any]], tasks: int) -> None:
        spent = sum(level["blocks"] * level["epsilon"] for level in levels)
        if abs(spent - tasks * self.blocks * self.cost) > 1e-9:
            raise Broken(f"{tasks} tasks cost {spent} in all, not {self.cost} for each of {self.blocks} blocks")


def make(folder: Path, name: str, **changed: Any) -> Path:
    asked: dict[str, Any] = {
        "epsilon": EPSILON,
        "delta": DELTA,
        "labels": LABELS,
        "features": WIDTH,
        "task_size": 120,
        "options": OPTIONS,
    }
    return init(folder / name, **(asked | changed)).path


def release(home: Path, out: Path, environment: Mapping[str, str], forked: bool) -> dict[str, bytes]:
    if Process(["release", home, "--out", out], environment, forked).wait() != 0:
        raise Broken(f"{home} could not be released")
    return {path.name: path.read_bytes() for path in sorted(out.iterdir())}


def full_disk(trial: Trial, times: int) -> int:
    """Files that cannot grow beyond a random size, as on a full disk; nothing is lost, and it goes on with room."""
    refused = 0
    said = trial.work / "said"
    words = ["learn", trial.home, data(trial.work, 900), "--task", "full", "--threads", "1"]
    for _ in range(times):
        code = Process(words, trial.environment, trial.forked, said, trial.rng.randint(1, 60) * 1024).wait()
        lines = said.read_text().strip().splitlines()
        if code not in (0, 1, 2) or len(lines) > 1:
            raise Broken(f"a full disk ended with {code}: {lines[-3:]}")
        refused += code != 0
        wrong = open_home(trial.home).verify()
        if wrong:
            raise Broken(f"after a full disk verify says {wrong}")
    if Process(words, trial.environment, trial.forked, said).wait() != 0:
        raise Broken(f"with room again: {said.read_text()[-500:]}")
    return refused


def read_only(home: Path, work: Path, environment: Mapping[str, str]) -> str:
    """A home that cannot be written: `learn` is refused in one line, `status` answers."""
    words = [str(PROGRAM), "learn", str(home), str(data(work, 901)), "--task", "read only", "--threads", "1"]
    if os.geteuid() == 0:  # a superuser may write what is read-only for others: mount it so, for this command alone
        mount = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'
        prefix = ["unshare", "-m", "sh", "-c", mount, "sh", str(home)]
        if subprocess.run([*prefix, "true"], capture_output=True).returncode != 0:
            return "skipped: cannot mount here"
    else:
        prefix = []
        for path in (home, *home.rglob("*")):
            path.chmod(path.stat().st_mode & ~0o222)
    try:
        done = subprocess.run([*prefix, *words], env=environment, capture_output=True, text=True)
        if done.returncode not in (1, 2) or len(done.stderr.strip().splitlines()) != 1:
            raise Broken(f"a read-only home ended with {done.returncode}: {done.stderr[-500:]}")
        seen = subprocess.run(
            [*prefix, str(PROGRAM), "status", str(home), "--json"], env=environment, capture_output=True, text=True
        )
        if seen.returncode != 0:
            raise Broken(f"the status of a read-only home ended with {seen.returncode}: {seen.stderr[-500:]}")
        json.loads(seen.stdout)
    finally:
        if not prefix:
            for path in (home, *home.rglob("*")):
                path.chmod(path.stat().st_mode | 0o200)
    wrong = open_home(home).verify()
    if wrong:
        raise Broken(f"after a read-only disk verify says {wrong}")
    return done.stderr.strip().replace(str(home), "HOME")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.faults", description="Kills `l2dp learn` until it hurts.")
    parser.add_argument("--kills", type=int, default=210)
    parser.add_argument("--seed", type=int, default=0, help="of where to kill")
    parser.add_argument("--forked", action="store_true", help="kill forks of this process: the same code, much faster")
    parser.add_argument("--only", default="seed,entropy,users", help="which homes")
    parser.add_argument("--out", type=Path, default=Path("bench/out/faults"))
    arguments = parser.parse_args()
    make_folder(arguments.out)
    work = arguments.out / "work"
    shutil.rmtree(work, ignore_errors=True)
    make_folder(work)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SABOTAGE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        "OMP_NUM_THREADS": "1",
        "SOURCE_DATE_EPOCH": "1700000000",
    }
    rng = random.Random(arguments.seed)
    if arguments.forked:
        import l2dp.learners
        import l2dp.streams.tables  # noqa: F401 (what a child would otherwise import each time)
    started = time.monotonic()
    users = {"unit": "user", "unit_column": "who", "per_task_epsilon": EPSILON / 200, "per_user": 3}
    kinds: list[tuple[str, dict[str, Any], float, int]] = [
        ("seed", {"insecure_noise_seed": 1}, EPSILON, 1),
        ("entropy", {}, EPSILON, 1),
        ("users", users, EPSILON / 200, 40),
    ]
    kinds = [kind for kind in kinds if kind[0] in arguments.only.split(",")]
    found: dict[str, Any] = {"kills": 0, "forked": arguments.forked, "homes": {}}
    for place, (name, changed, cost, blocks) in enumerate(kinds):
        home = make(work, name, **changed)
        twin = work / f"{name}-undisturbed"
        shutil.copytree(home, twin)
        trial = Trial(home, work, rng, environment, cost, blocks, arguments.forked)
        share = arguments.kills // len(kinds) + (place < arguments.kills % len(kinds))
        trial.run(share)
        print(f"{name}: {sum(trial.kills.values())} kills in {time.monotonic() - started:.0f} s", flush=True)
        made = release(home, work / f"{name}-release", environment, arguments.forked)
        line: dict[str, Any] = {"kills": dict(trial.kills), "tasks": trial.tasks, "left": dict(trial.where)}
        if name == "seed":
            for task in range(trial.tasks):
                if trial.learn(twin, task).wait() != 0:
                    raise Broken("the undisturbed run failed")
            other = release(twin, work / "undisturbed-release", environment, arguments.forked)
            if made != other:
                raise Broken(f"releases differ in {[part for part in made if made[part] != other.get(part)]}")
            line["release"] = "bit-identical to the undisturbed run"
        line["full disk"] = f"{full_disk(trial, 6)} of 6 attempts refused, nothing lost"
        line["read-only"] = read_only(home, work, environment)
        found["homes"][name] = line
        found["kills"] += share
        print(f"{name}: {json.dumps(line)}", flush=True)
    found["seconds"] = round(time.monotonic() - started)
    write_json(arguments.out / "faults.json", found)
    print(f"{found['kills']} kills, nothing lost, nothing charged twice ({found['seconds']} s)")


if __name__ == "__main__":
    main()
