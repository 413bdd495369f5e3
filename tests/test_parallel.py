"""Two processes and one compute the same: noise is drawn once, every record is in one part, sums are shared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from safetensors.torch import load_file

import l2dp
import two_processes
from l2dp import parallel, sweeps
from l2dp.experiments.worker import request_from
from l2dp.learners import LEARNERS, Agem
from l2dp.models import build
from l2dp.sweeps import Request
from two_processes import learn_users, users

SILENT = Console(quiet=True)
BASE = Request("permuted-digits", "agem", tasks=2, insecure_noise_seed=3)
STEPS = replace(BASE, batch_size=99, per_task=99)
POOLED = {"scatter_share": "0.5", "head_share": "0"}
FIXED = {"head": "fixed", "width": "64", "replay_steps": "50", "replay_batch": "64", "steps": "20"}
REQUESTS = {
    "private-replay": replace(BASE, learner="private-replay", epsilon=4.0),
    "pooled": replace(BASE, benchmark="split-digits", learner="private-replay", epsilon=8.0, options=POOLED),
    "agem": replace(BASE, batch_size=21),
    "channel": replace(STEPS, options={"normalisation": "channel", "model": "mnist-conv", "lr": "0.01"}),
    "l2dp-ml": replace(STEPS, learner="l2dp-ml", epsilon=4.0),
    "tied": replace(STEPS, learner="l2dp-ml", epsilon=4.0, options={"reconstruction": "tied", "encoder_lr": "1e-4"}),
    "chaotic": replace(BASE, learner="l2dp-ml", epsilon=4.0),
    "finetune": replace(BASE, learner="finetune", batch_size=21),
    "joint": replace(BASE, learner="joint", batch_size=21),
    "task": replace(BASE, benchmark="split-digits", protocol="task", batch_size=21),
    "fixed": replace(BASE, learner="private-replay", epsilon=8.0, options=FIXED),
    "naive-gaussian": replace(BASE, learner="naive-gaussian", epsilon=8.0, options={"lr": "0.1"}),
    "proved": replace(BASE, learner="private-replay", epsilon=4.0, tasks=1, insecure_noise_seed=None),
}
NORMALISED = [("channel", "channel", False), ("l2dp-ml", "neuron", True), ("tied", "neuron", True)]


def launch(words: list[str]) -> subprocess.Popen[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*torchrun, *words], stdout=pipe, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """One start of two processes for all tests, for starting is most of the time."""
    out = tmp_path_factory.mktemp("two")
    asked = json.dumps({name: asdict(request) for name, request in REQUESTS.items()})
    process = launch([two_processes.__file__, str(out), asked])
    said, _ = process.communicate(timeout=400)
    assert process.returncode == 0, said
    return out, [json.loads((out / f"rank-{rank}.json").read_text()) for rank in (0, 1)]


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())  # type: ignore[no-any-return]


@pytest.mark.parametrize(("name", "normalisation", "bounded"), NORMALISED)
def test_whole_batches_are_normalised(
    name: str, normalisation: Any, bounded: bool, both: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    """Batch normalisation makes a long run chaotic; the first steps, g_ref among them, are those of one process."""
    sweeps.run_one(request_from(asdict(REQUESTS[name])), 0, tmp_path / "one", SILENT)
    alone, together = tensors(tmp_path / "one"), tensors(both[0] / name)
    network = build("mnist-conv", l2dp.streams.permuted("digits", tasks=1).space, 0, normalisation, bounded)
    start = {key: one.detach() for key, one in network.named_parameters()}
    # The last layer by itself: χ3 moves it, and its steps are too short to be seen among those of the classifier.
    head = next(key for key, one in network.named_parameters() if one is network.head.weight)
    # Now and then a neuron crosses a kink on one side only: the steps agree as a whole, not to the last digit.
    for part in ("encoder.", "hidden.", "classifier.", head):
        step, off = (
            torch.cat([(one[key] - other[key]).flatten() for key in start if key.startswith(part)]).norm()
            for one, other in ((alone, start), (together, alone))
        )
        assert off < 0.05 * step, part
    for key in alone:
        if "running" in key:
            torch.testing.assert_close(together[key], alone[key], rtol=2e-3, atol=2e-3, msg=key)


def test_chaos_leaves_the_accuracy(both: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    """Forty-four steps of L2DP-ML: one process, its first weights moved by 1e-7, ends between 0.797 and 0.828 (six
    tries, s = 0.01; other seeds as far apart). Eight such deviations never happen by rounding."""
    one = sweeps.run_one(REQUESTS["chaotic"], 0, tmp_path / "one", SILENT).to_json()
    two = result(both[0] / "chaotic")
    assert two["average_accuracy"] == pytest.approx(one["average_accuracy"], abs=0.08)
    assert two["guarantee"] == one["guarantee"]
    assert two["claim"] == one["claim"]


def assert_equal(folder: Path, both: Path) -> None:
    """What one process left behind and what two did."""
    alone, together = tensors(folder), tensors(both)
    assert alone.keys() == together.keys()
    for key, tensor in alone.items():
        # Sums of whole numbers are exact in any order; gradients are float32 and add up in another one.
        if key.endswith((".sums", ".counts", ".classes")):
            assert torch.equal(tensor, together[key]), key
        else:
            torch.testing.assert_close(together[key], tensor, rtol=2e-3, atol=2e-3, msg=key)
    one, two = result(folder), result(both)
    assert two["average_accuracy"][-1] == pytest.approx(one["average_accuracy"][-1], abs=0.02)
    assert two["guarantee"] == one["guarantee"]
    assert two.get("privacy") == one.get("privacy")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As in each of the two processes: more threads add up in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


EQUAL = [name for name in REQUESTS if name not in ("proved", "chaotic", *(name for name, _, _ in NORMALISED))]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", EQUAL)
def test_two_processes_equal_one(name: str, both: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    sweeps.run_one(request_from(asdict(REQUESTS[name])), 0, tmp_path / "one", SILENT)
    assert_equal(tmp_path / "one", both[0] / name)


@pytest.mark.usefixtures("one_thread")
def test_users_are_protected_by_two_processes_as_by_one(
    both: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    learn_users(tmp_path / "one")
    assert_equal(tmp_path / "one", both[0] / "users")


def test_the_guarantee_is_that_of_one_process(both: tuple[Path, list[dict[str, Any]]]) -> None:
    stated = result(both[0] / "proved")["guarantee"]
    assert (stated["status"], stated["epsilon"], stated["delta"]) == ("proved", 4.0, 1e-5)


def test_noise_is_drawn_once_by_the_first_process(both: tuple[Path, list[dict[str, Any]]]) -> None:
    first, second = both[1]
    assert first["words"] == second["words"]
    assert (first["drawn"], second["drawn"]) == (3, 0)
    assert first["secure"] is second["secure"] is True


def test_what_cannot_be_shared_is_refused(both: tuple[Path, list[dict[str, Any]]]) -> None:
    for found in both[1]:
        assert "cannot share a run" in found["refused"][0]
        assert "a record for each of 2 processes" in found["refused"][1]
        assert "batch normalisation of its own" in found["refused"][2]
        # By both of them: one that went on would charge a task, or write.
        assert "process 1 has another run than the first" in found["same"]


def test_other_records_are_refused_before_they_are_learned(both: tuple[Path, list[dict[str, Any]]]) -> None:
    for found in both[1]:
        assert {name.split()[0] for name in found["records"]} == set(LEARNERS)
        for asked, said in found["records"].items():
            turned = "process 1 has another task 'task-0' than the first" in said
            assert turned if asked.endswith("True") else said == "accepted", asked
        assert len(found["past"]) == 3
        for name, said in found["past"].items():
            assert "process 1 has another task 'task-0' than the first" in said, name


def test_another_folder_is_refused(both: tuple[Path, list[dict[str, Any]]]) -> None:
    undisturbed = l2dp.run(users(3), Agem(model="mlp-8"), schedule=two_processes.SCHEDULE).accuracy_matrix
    for found in (one["folder"] for one in both[1]):
        for said in (found["none"], found["old"], found["no result"]):
            assert "process 1 has another saved run in" in said
        assert found["continued"] == found["again"]
        assert torch.allclose(torch.tensor(found["continued"]), torch.tensor(undisturbed), atol=0.02)


def test_every_process_takes_the_scores_of_the_first(both: tuple[Path, list[dict[str, Any]]]) -> None:
    """Of 33 records with labels in turn, nine have the first label, and eight the second."""
    assert both[1][0]["scores"] == both[1][1]["scores"] == [9, 24]


def test_a_finished_run_is_given_to_every_process(both: tuple[Path, list[dict[str, Any]]]) -> None:
    assert both[1][0]["again"] == both[1][1]["again"] == result(both[0] / "agem")["average_accuracy"]


@given(st.integers(0, 5000), st.integers(1, 9), st.sampled_from([1, 7, 1000]))
def test_every_row_is_in_one_part(count: int, processes: int, block: int) -> None:
    seen: list[int] = []
    for rank in range(processes):
        with patch.object(parallel, "size", lambda: processes), patch.object(parallel, "rank", lambda rank=rank: rank):
            part = parallel.part(count, block)
        assert part.start % block == 0 or part.start == count
        seen += range(count)[part]
    assert seen == list(range(count))


def test_alone_nothing_is_shared() -> None:
    tensor = torch.ones(3)
    with parallel.joined():
        assert parallel.add(tensor) is tensor
        assert (parallel.size(), parallel.rank(), parallel.agreed(7)) == (1, 0, 7)
        assert parallel.total(tensor) is tensor
        assert parallel.together([tensor])[0] is tensor


@pytest.mark.slow
def test_the_command_survives_being_killed(tmp_path: Path) -> None:
    """`torchrun -m l2dp run`, killed after a task and given again, equals one that was left alone."""
    words = ["-m", "l2dp", "run", "permuted-digits", "--epsilon", "4", "--tasks", "9", "--insecure-noise-seed", "1"]
    undisturbed = launch([*words, "--out", str(tmp_path / "a")])
    said, _ = undisturbed.communicate(timeout=600)
    assert undisturbed.returncode == 0, said
    process = launch([*words, "--out", str(tmp_path / "b")])
    while not (tmp_path / "b" / "state" / "episode-00001.safetensors").exists():
        time.sleep(0.02)
    # The processes that torchrun starts have sessions of their own: they are killed one by one, as a machine would be.
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in (process.pid, *map(int, children)):
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "b" / "result.json").exists()
    again = launch([*words, "--out", str(tmp_path / "b")])
    said, _ = again.communicate(timeout=600)
    assert again.returncode == 0, said
    alone, continued = tensors(tmp_path / "a"), tensors(tmp_path / "b")
    assert all(torch.equal(alone[key], continued[key]) for key in alone)
    assert result(tmp_path / "a")["accuracy_matrix"] == result(tmp_path / "b")["accuracy_matrix"]
