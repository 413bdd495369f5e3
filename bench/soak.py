"""`python -m bench.soak`: a thousand tasks learned one by one into one home; what a task costs must not grow.

Two homes: heads for every task (the default), and one network of fixed size, whose release must stay the same size. In
the end the index of the first is filled to ten million fingerprints and `l2dp status` is timed as a command.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.timing import machine
from l2dp.durable import make_folder, write_json
from l2dp.store import Home, init, open_home
from l2dp.streams.records import Task

PROGRAM = Path(sys.executable).parent / "l2dp"
WIDTH, ROWS = 16, 120
LABELS = ("a", "b", "c")
FIXED = {"head": "fixed", "width": "32", "replay_steps": "2", "replay_batch": "30"}


def task(number: int) -> Task:
    rng = np.random.default_rng(number)
    y = np.arange(ROWS) % len(LABELS)
    centre = np.random.default_rng(number % 7).uniform(-0.5, 0.5, (len(LABELS), WIDTH))
    x = np.clip(centre[y] + rng.normal(0, 0.2, (ROWS, WIDTH)), -1, 1).astype(np.float32)
    part = torch.from_numpy(x), torch.from_numpy(y)
    return Task.from_tensors(f"task {number:04d}", part, part)


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def resident() -> float:
    """Megabytes of memory in use now, not at most."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def learn(home: Home, tasks: int, every: int, releases: Path) -> list[dict[str, Any]]:
    """One line for every so many tasks: what the tasks since the last line cost each."""
    lines: list[dict[str, Any]] = []
    before, clock, cpu = size(home.path / "state"), time.perf_counter(), time.process_time()
    for number in range(tasks):
        home.learn(task(number))
        if (number + 1) % every == 0:
            wall, used = time.perf_counter() - clock, time.process_time() - cpu
            now = size(home.path / "state")
            made = home.release(releases / f"{number + 1}")
            lines.append(
                {
                    "tasks": number + 1,
                    "seconds_per_task": wall / every,
                    "cpu_seconds_per_task": used / every,
                    "state_bytes_per_task": (now - before) / every,
                    "memory_mb": resident(),
                    "release_bytes": (made.path / "model.safetensors").stat().st_size,
                }
            )
            shutil.rmtree(made.path)
            print(lines[-1], flush=True)
            before, clock, cpu = now, time.perf_counter(), time.process_time()
    return lines


def status_at(home: Home, fingerprints: int) -> dict[str, Any]:
    """How long `l2dp status` takes with that many fingerprints in the index."""
    index = home.index()
    rng = np.random.default_rng(0)
    part = min(fingerprints, 1_000_000)
    for number in range(fingerprints // part):
        index.add(f"filled {number}", np.frombuffer(rng.bytes(32 * part), dtype="V32"))
    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        clock = time.perf_counter()
        subprocess.run([PROGRAM, "status", home.path], check=True, stdout=subprocess.DEVNULL)
        wall = time.perf_counter() - clock
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        seconds.append({"seconds": wall, "cpu_seconds": cpu})
    found = home.status()
    return {
        "tasks": len(found["tasks"]),
        "fingerprints": found["fingerprints"]["known"],
        "runs": seconds,
        "least_seconds": min(one["seconds"] for one in seconds),
        "least_cpu_seconds": min(one["cpu_seconds"] for one in seconds),
    }


def figure(found: dict[str, Any], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = (
        ("cpu_seconds_per_task", "processor seconds a task"),
        ("state_bytes_per_task", "bytes added to the state a task"),
        ("memory_mb", "memory, MB"),
        ("release_bytes", "bytes of the released model"),
    )
    drawing = Figure(figsize=(11, 6), layout="constrained")
    FigureCanvasAgg(drawing)
    axes = drawing.subplots(2, 2).ravel()
    for axis, (key, title) in zip(axes, panels, strict=True):
        for name, lines in found["homes"].items():
            axis.plot([line["tasks"] for line in lines], [line[key] for line in lines], label=name)
        axis.set_ylim(bottom=0)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("tasks learned")
    axes[0].legend()
    drawing.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description="A thousand tasks in one home.")
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--fingerprints", type=int, default=10_000_000)
    parser.add_argument("--out", type=Path, default=Path("bench/out/soak"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    make_folder(arguments.out)
    work = arguments.out / "work"
    shutil.rmtree(work, ignore_errors=True)
    make_folder(work)
    found: dict[str, Any] = {"machine": machine(), "homes": {}}
    homes: dict[str, dict[str, str]] = {"a head for every task": {"steps": "10"}, "one network of fixed size": FIXED}
    for name, options in homes.items():
        place = work / name.replace(" ", "-")
        home = init(place, epsilon=2.0, delta=1e-5, labels=LABELS, features=WIDTH, task_size=ROWS, options=options)
        found["homes"][name] = learn(home, arguments.tasks, arguments.every, work)
        wrong = open_home(place).verify()
        if wrong:
            raise SystemExit(f"{place}: {wrong}")
        write_json(arguments.out / "soak.json", found)
    found["status"] = status_at(open_home(work / "a-head-for-every-task"), arguments.fingerprints)
    print(found["status"])
    write_json(arguments.out / "soak.json", found)
    figure(found, arguments.out / "soak.png")


if __name__ == "__main__":
    main()
