"""The Ray engine computes what local processes compute, bit for bit where the noise has a seed."""

from __future__ import annotations

import importlib.util
import json
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

from l2dp import cli
from l2dp.experiments import declared, perform
from l2dp.experiments.cluster import execute
from l2dp.experiments.runner import jobs_of
from l2dp.experiments.worker import to_line

HERE = importlib.util.find_spec("ray") is not None
SILENT = Console(quiet=True)
SMALL = """
title = "repeatable"
about = "noise with a seed, so that two runs can be compared to the last bit"
[common]
benchmark = "permuted-digits"
tasks = 2
insecure_noise_seed = 5
[[row]]
name = "p"
label = "private-replay"
learner = "private-replay"
epsilon = 4
[[row]]
name = "bad"
label = "finetune"
learner = "finetune"
batch_size = 9999
"""


def write(folder: Path) -> str:
    path = folder / "small.toml"
    path.write_text(SMALL, "utf-8")
    return str(path)


def bare(path: Path) -> dict[str, Any]:
    result = json.loads(path.read_text())
    return {key: result[key] for key in result if key not in ("seconds", "examples_per_second", "peak_memory_mb")}


def test_without_ray_one_line_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    with pytest.raises(SystemExit) as ended:
        cli.main(["experiment", write(tmp_path), "--engine", "ray", "--out", str(tmp_path / "out")])
    assert ended.value.code == 2
    assert "pip install 'l2dp[ray]'" in capsys.readouterr().err


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_cluster_that_does_not_answer_is_one_line_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    with socket.socket() as taken:  # bound and not listening: whoever calls is refused
        taken.bind(("127.0.0.1", 0))
        address = f"{scheme}127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))  # never asked: with Ray or without, it is the same
        with pytest.raises(SystemExit) as ended:
            cli.main(["experiment", write(tmp_path), "--engine", "ray", "--out", str(tmp_path / "out")])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"cannot reach {address}: " in said


def test_what_a_machine_of_the_cluster_does(tmp_path: Path) -> None:
    """The function that Ray calls there, called here: a result comes back as text, a failure with its reason."""
    found = {}
    for job in jobs_of([declared.load(write(tmp_path))]):
        folder = tmp_path / job.name
        found[job.request.learner] = json.loads(execute(to_line(job.request, job.seed, folder, 1), str(folder), 1))
    assert found["private-replay"]["code"] == 0
    assert found["private-replay"]["result"]["learner"] == "private-replay"
    assert found["finetune"]["code"] == 2
    assert found["finetune"]["result"] is None
    assert "does not fit" in found["finetune"]["said"]


@pytest.mark.skipif(not HERE, reason="needs Ray: pip install 'l2dp[ray]'")
@pytest.mark.filterwarnings("ignore")
def test_ray_gives_the_results_of_local_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = write(tmp_path)
    for engine in ("local", "ray"):
        words = ["experiment", name, "--engine", engine, "--workers", "2", "--out", str(tmp_path / engine)]
        with pytest.raises(SystemExit) as ended:
            cli.main(words)
        said = capsys.readouterr()
        if engine == "ray" and "cannot reach a cluster here" in said.err:
            pytest.skip(f"Ray does not start on this machine: {said.err}")
        assert ended.value.code == 1
        assert "a batch of 9999 does not fit" in said.out.partition("\nfailed:\n")[2]
    (local,) = (tmp_path / "local").glob("runs/*/result.json")
    (ray,) = (tmp_path / "ray").glob("runs/*/result.json")
    assert local.parent.name == ray.parent.name
    assert bare(local) == bare(ray)
    # Finished by one engine is finished for the other.
    before = ray.stat().st_mtime_ns
    with pytest.raises(Exception, match="1 failed"):
        perform.perform([name], tmp_path / "ray", SILENT, workers=1)
    assert ray.stat().st_mtime_ns == before
