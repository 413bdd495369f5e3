"""How a run tells people how it gets on: a live bar on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

REFRESH_SECONDS = 0.2


def clock(seconds: float) -> str:
    """A duration for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Lines:
    """One line per evaluated task, and one a minute within long ones."""

    def __init__(self, console: Console, label: str) -> None:
        self._console = console
        self._label = label

    def start(self, tasks: int, steps: int) -> None:
        self._tasks, self._steps, self._done = tasks, steps, 0
        self._began = self._said = time.perf_counter()
        self._name = ""

    def task(self, index: int, name: str, steps: int) -> None:
        self._name = f"task {index + 1}/{self._tasks} {name}"

    def tick(self) -> None:
        self._done += 1
        now = time.perf_counter()
        if now - self._said > 60:
            self._say(now, "")

    def evaluated(self, index: int, average: float | None) -> None:
        if average is not None:
            self._say(time.perf_counter(), f", average accuracy {average:.4f}")

    def _say(self, now: float, extra: str) -> None:
        self._said = now
        rate = self._done / max(now - self._began, 1e-9)
        left = max(0, self._steps - self._done) / rate if rate > 0 else 0.0
        self._console.print(
            f"{self._label}: {self._name}{extra}, {rate:,.0f} steps/s, {clock(left)} left",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )

    def finish(self) -> None: ...


class Bar:
    """A live bar: task, steps per second, accuracy so far, time left."""

    def __init__(self, console: Console, label: str) -> None:
        self._label = label
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[rate]} steps/s"),
            TextColumn("accuracy {task.fields[accuracy]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )

    def start(self, tasks: int, steps: int) -> None:
        self._tasks, self._done, self._shown = tasks, 0, 0
        self._began = self._said = time.perf_counter()
        self._id = self._bar.add_task(self._label, total=max(steps, 1), rate="-", accuracy="-")
        self._bar.start()

    def task(self, index: int, name: str, steps: int) -> None:
        self._bar.update(self._id, description=f"{self._label}: task {index + 1}/{self._tasks} {name[:24]}")

    def tick(self) -> None:
        self._done += 1
        now = time.perf_counter()
        if now - self._said > REFRESH_SECONDS:
            self._said = now
            rate = f"{self._done / (now - self._began):,.0f}"
            self._bar.update(self._id, completed=self._done, rate=rate)

    def evaluated(self, index: int, average: float | None) -> None:
        if average is not None:
            self._bar.update(self._id, completed=self._done, accuracy=f"{average:.3f}")

    def finish(self) -> None:
        self._bar.stop()


def for_console(console: Console, label: str) -> Bar | Lines:
    return Bar(console, label) if console.is_terminal else Lines(console, label)
