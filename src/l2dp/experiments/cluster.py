"""The Ray engine: the same processes as `runner.Local` starts, on whichever machine of a cluster has room.

Ray moves strings of JSON between machines; each run is a process of its own there, so it computes what it would
compute here.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from l2dp.durable import make_folder, write_json
from l2dp.errors import BadInput
from l2dp.experiments import worker
from l2dp.experiments.runner import Job, capped, divide, reason

PASSED_ON = ("L2DP_DATA", "L2DP_FEATURES", "PYTHONPATH")
TAIL = 2000
REACHED_WITHIN = 10.0
"""Seconds to wait for an answer from the address of a cluster; Ray itself would try for minutes."""


def execute(line: str, folder: str, threads: int) -> str:
    """One run on a machine of the cluster: its exit code, the end of what it said, and its result."""
    process = subprocess.Popen(
        [sys.executable, "-m", "l2dp.experiments.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    # Its input stays open until it ends: a task that Ray kills takes the run with it.
    process.stdin.write(line)
    process.stdin.flush()
    said = process.stdout.read()
    code = process.wait()
    process.stdin.close()
    process.stdout.close()
    path = Path(folder) / "result.json"
    result = path.read_text("utf-8") if code == 0 else "null"
    return json.dumps({"code": code, "said": said[-TAIL:], "result": json.loads(result)})


def _reach(address: str) -> None:
    """Refuses the address of a cluster where nobody answers; words such as `auto` are Ray's own to understand."""
    host, colon, port = address.rpartition("//")[2].rpartition(":")
    if not (colon and port.isdecimal()):
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACHED_WITHIN).close()
    except (OSError, OverflowError) as error:
        raise BadInput(
            f"--engine ray cannot reach {address}: {error}; see `ray status`, or unset RAY_ADDRESS for a cluster here"
        ) from None


class OnRay:
    """Runs on a Ray cluster: the one of `ray start` or RAY_ADDRESS if there is one, else one started here."""

    def __init__(self, workers: int | None, runs: int) -> None:
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError:
            raise BadInput("--engine ray needs Ray, which is not installed; pip install 'l2dp[ray]'") from None
        self._ray = ray
        _reach(os.environ.get("RAY_ADDRESS", ""))
        passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        try:
            ray.init(log_to_driver=False, logging_level="ERROR", runtime_env={"env_vars": passed_on})
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = os.environ.get("RAY_ADDRESS", "a cluster here")
            reason = " ".join(str(error).split())[:200]
            raise BadInput(f"--engine ray cannot reach {where}: {reason}; see `ray status`, RAY_ADDRESS") from None
        cores = int(ray.cluster_resources().get("CPU", 1))
        self.slots, threads = divide(cores, workers, runs)
        # A run takes place on one machine: one that asks for more cores than any has would wait for ever.
        largest = max((int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]), default=1)
        self._threads = capped(max(1, min(threads, largest)))
        self._execute = ray.remote(num_cpus=self._threads, max_retries=0)(execute)
        self._running: dict[Any, tuple[Job, Path, Path]] = {}

    def start(self, job: Job, folder: Path, log: Path) -> None:
        line = worker.to_line(job.request, job.seed, folder.absolute(), self._threads)
        task = self._execute.remote(line, str(folder.absolute()), self._threads)
        self._running[task] = job, folder, log

    def finished(self) -> Iterator[tuple[Job, str | None]]:
        ready, _ = self._ray.wait(list(self._running), timeout=0) if self._running else ([], [])
        for task in ready:
            job, folder, log = self._running.pop(task)
            try:
                found = json.loads(self._ray.get(task))
            except self._ray.exceptions.RayError as error:
                yield job, f"Ray: {str(error).strip().splitlines()[0]}"
                continue
            with log.open("a", encoding="utf-8") as said:
                said.write(found["said"])
            if found["code"] != 0:
                yield job, reason(found["code"], log)
                continue
            if not (folder / "result.json").exists():  # a machine that does not share our files
                make_folder(folder)
                write_json(folder / "result.json", found["result"])
            yield job, None

    def stop(self) -> None:
        for task in self._running:
            self._ray.cancel(task, force=True)
        self._running.clear()
        self._ray.shutdown()
