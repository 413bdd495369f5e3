"""Runs keep what they promise: the format of their result, and that no crash, kill or full disk changes it."""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from rich.console import Console

import l2dp
from l2dp import cli, metrics, sweeps
from l2dp.durable import read_tensors, write_tensors
from l2dp.errors import BadInput
from l2dp.learners import LEARNERS, Agem, Finetune, Joint, L2dpMl, Learner, NaiveGaussian, PrivateReplay
from l2dp.learners.gradient import GradientLearner
from l2dp.runs import Result, Schedule, Silent, run
from l2dp.streams import Space, Stream, Task, permuted, split

PROGRAM = str(Path(sys.executable).parent / "l2dp")
TIMINGS = ("seconds", "examples_per_second", "peak_memory_mb")
KEYS = {
    "benchmark": str,
    "learner": str,
    "seed": int,
    "tasks": int,
    "protocol": str,
    "guarantee": dict,
    "accuracy_matrix": list,
    "average_accuracy": list,
    "average_forgetting": list,
    "examples_per_second": float,
    "seconds": float,
    "peak_memory_mb": float,
    "config": dict,
    "version": str,
}
GUARANTEE = {
    *("status", "epsilon", "delta", "unit", "adjacency"),
    *("source_overlap", "source_epsilon", "source_delta"),
}
SMALL = Schedule(batch_size=20)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def small(name: str) -> Learner:
    cls = LEARNERS[name]
    return cls(model="mlp-16") if issubclass(cls, GradientLearner) else cls()


def stream(tasks: int = 3, **options: Any) -> Stream:
    return permuted("digits", tasks=tasks, per_task=60, **options)


def read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def outcome(folder: Path) -> tuple[dict[str, Any], bytes]:
    """All that must not depend on how often a run was interrupted."""
    result = read(folder)
    return {key: value for key, value in result.items() if key not in TIMINGS}, (
        folder / "model.safetensors"
    ).read_bytes()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def done(out: Path) -> int:
    """Tasks in the saved state; -1 without one."""
    head = out / "state" / "learner.safetensors"
    return int(read_tensors(head)[1]["done"]) if head.exists() else -1


class Crash(Exception):
    pass


class Crashing(Silent):
    """Stops a run within the task at `index`, as a crash would."""

    def __init__(self, index: int, early: bool = False) -> None:
        """`early` is for learners that take no step of their own in a task."""
        self.index, self.current, self.early = index, -1, early

    def task(self, index: int, name: str, steps: int) -> None:
        self.current = index
        if self.early:
            self.tick()

    def tick(self) -> None:
        if self.current == self.index:
            raise Crash


def interrupted(out: Path, name: str = "agem", after: int = 1, **options: Any) -> None:
    with pytest.raises(Crash):
        run(stream(), small(name), schedule=SMALL, out=out, progress=Crashing(after), **options)
    assert done(out) == after


# --- result.json ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LEARNERS)
def test_result_has_the_documented_keys(name: str, tmp_path: Path) -> None:
    returned = run(stream(), small(name), schedule=SMALL, out=tmp_path / "out", seed=5)
    result = read(tmp_path / "out")
    own = {
        "l2dp-ml": {"released": dict, "claim": dict},
        "naive-gaussian": {"accounting": dict},
        "private-replay": {"privacy": dict},
    }.get(name, {})
    assert {key: type(value) for key, value in result.items()} == KEYS | own
    assert result["guarantee"].keys() == GUARANTEE
    assert (result["learner"], result["seed"], result["tasks"], result["protocol"]) == (name, 5, 3, "class")
    assert returned.to_json() == result
    assert result["version"]
    assert result["examples_per_second"] > 0
    assert result["seconds"] > 0
    assert result["peak_memory_mb"] > 10


def assert_consistent(found: dict[str, Any], tasks: int, rows: list[int], records: int) -> None:
    """A matrix of fractions with the given rows, and the averages that belong to it."""
    matrix = found["accuracy_matrix"]
    assert [len(row) for row in matrix] == [tasks] * tasks
    assert [at for at, row in enumerate(matrix) if row != [None] * tasks] == rows
    for row in rows:
        counts = np.array(matrix[row], dtype=float) * records
        assert np.allclose(counts, counts.round())
        assert np.all((counts >= 0) & (counts <= records))
        assert found["average_accuracy"][row] == pytest.approx(np.mean(matrix[row][: row + 1]))
    assert found["average_accuracy"] == metrics.average_accuracy(matrix)
    assert found["average_forgetting"] == metrics.average_forgetting(matrix)
    assert found["average_forgetting"][0] is None


@pytest.mark.parametrize("name", LEARNERS)
def test_matrix_and_averages_agree(name: str) -> None:
    found = run(stream(), small(name), schedule=SMALL).to_json()
    assert_consistent(found, 3, [2] if name == "joint" else [0, 1, 2], 360)
    if name == "l2dp-ml":
        assert_consistent(found["released"], 3, [0, 1, 2], 360)
        assert found["released"]["accuracy_matrix"] != found["accuracy_matrix"]


def test_evaluation_can_be_sampled() -> None:
    found = run(stream(5), small("agem"), schedule=SMALL, evaluate_every=2).to_json()
    assert_consistent(found, 5, [1, 3, 4], 360)
    found = run(stream(3), small("joint"), schedule=SMALL, evaluate_every=1).to_json()
    assert_consistent(found, 3, [0, 1, 2], 360)


def test_learning_pays() -> None:
    """The numbers are those of the model, not of chance."""
    result = run(permuted("digits", tasks=2), Joint(model="mlp-64"), schedule=Schedule(10))
    assert (result.average_accuracy[-1] or 0) > 0.85
    floor = run(split("digits", tasks=5), Finetune(model="mlp-64"), schedule=Schedule(10))
    assert floor.accuracy_matrix[4][4] == pytest.approx(1.0, abs=0.1)
    assert max(accuracy or 0 for accuracy in floor.accuracy_matrix[4][:3]) < 0.2


def test_source_overlap_multiplies_the_claim() -> None:
    learner = L2dpMl(model="mlp-16", budget=l2dp.Budget(0.5))
    shared = run(stream(3), learner, schedule=SMALL).guarantee
    assert (shared.status, shared.epsilon, shared.source_overlap, shared.source_epsilon) == ("refuted", 0.5, 3, 1.5)
    apart = run(stream(3, disjoint=True), learner, schedule=SMALL).guarantee
    assert (apart.epsilon, apart.source_overlap, apart.source_epsilon) == (0.5, 1, 0.5)
    classes = run(split("digits", tasks=3, per_task=60), learner, schedule=SMALL).guarantee
    assert classes.source_overlap == 1
    insecure = run(stream(3), learner, schedule=SMALL, insecure_noise_seed=1).guarantee
    assert (insecure.status, insecure.epsilon, insecure.source_epsilon) == ("none", None, None)


def test_copies_that_are_read_together_are_counted_together() -> None:
    """naive-gaussian sums records of all tasks in one noisy answer: k copies cost more than k times one."""
    learner = NaiveGaussian(model="mlp-8", budget=l2dp.Budget(8.0, 1e-5))
    promised = run(stream(3), learner, schedule=SMALL).guarantee
    counted = learner.facts()["accounting"]["counted"]["one-record-per-task"]["modes"]["per-record"]
    assert (promised.source_epsilon, promised.source_delta) == (counted["epsilon"], 1e-5)
    assert promised.epsilon == 8.0
    assert counted["epsilon"] > 8.0
    some = learner.over_source(2)
    assert (some.source_overlap, some.source_epsilon) == (2, None), "in some of the tasks: not known"
    assert learner.over_source(1).source_epsilon == 8.0


def test_the_models_of_all_seeds_cost_as_many_times_as_much(tmp_path: Path) -> None:
    request = sweeps.Request("permuted-digits", "private-replay", tasks=1, per_task=100, epsilon=2.0)
    sweeps.run_seeds(request, [0, 1, 2], tmp_path / "out", Console(quiet=True))
    found = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (found["guarantee"]["epsilon"], found["together"]["epsilon"]) == (2.0, 6.0)
    assert found["together"]["status"] == "proved"


# --- crash and continue -----------------------------------------------------------------------------------


def test_what_was_shown_is_never_drawn_again(tmp_path: Path) -> None:
    class Shows(Silent):
        seen: ClassVar[list[float | None]] = []

        def evaluated(self, index: int, average: float | None) -> None:
            Shows.seen.append(average)
            raise KeyboardInterrupt

    learner = PrivateReplay(budget=l2dp.Budget(0.5, 1e-5))
    with pytest.raises(KeyboardInterrupt):
        run(stream(1), learner, schedule=SMALL, out=tmp_path / "run", progress=Shows())
    again = run(stream(1), learner, schedule=SMALL, out=tmp_path / "run")
    assert again.average_accuracy == Shows.seen


@pytest.mark.parametrize("name", LEARNERS)
def test_a_crash_in_any_task_changes_nothing(name: str, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    run(stream(), small(name), schedule=SMALL, out=one, insecure_noise_seed=1)
    for index in range(3):
        with pytest.raises(Crash):
            run(
                stream(),
                small(name),
                schedule=SMALL,
                out=other,
                insecure_noise_seed=1,
                progress=Crashing(index, name == "joint"),
            )
        assert done(other) == index
    run(stream(), small(name), schedule=SMALL, out=other, insecure_noise_seed=1)
    assert outcome(one) == outcome(other)
    assert sorted(contents(other)) == [".lock", "accuracy.png", "model.safetensors", "result.json", "run.json"]
    assert outcome(one)[0] == {
        key: value
        for key, value in run(stream(), small(name), schedule=SMALL, insecure_noise_seed=1).to_json().items()
        if key not in TIMINGS
    }


def start(arguments: list[str], **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [PROGRAM, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options
    )


def wait(process: subprocess.Popen[str], until: Callable[[], bool]) -> None:
    """Waits for something that a program does; fails if it ends without doing it."""
    limit = time.monotonic() + 120
    while not until():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < limit
        time.sleep(0.005)


def begun(out: Path) -> Callable[[], bool]:
    """Tells when the process that is started next has got to its first task: it states its run anew."""
    asked = out / "run.json"

    def stamp() -> int:
        return asked.stat().st_mtime_ns if asked.exists() else 0

    before = stamp()
    return lambda: stamp() != before


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()
    assert process.returncode == -9


KILLED = {
    "l2dp-ml": (2, ["--epsilon", "4", "--epochs", "8"]),
    "agem": (1, ["--batch-size", "20", "--epochs", "2"]),
    "joint": (1, ["--batch-size", "20", "--epochs", "2"]),
}


def command(name: str, *options: str) -> list[str]:
    run_of = ("run", "permuted-digits", "--learner", name, "--tasks", "6", "--model", "mlp-64", "--threads", "1")
    return [*run_of, *KILLED[name][1], *options]


@pytest.mark.parametrize("name", KILLED)
def test_killed_at_random_moments_and_continued(name: str, tmp_path: Path) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    with pytest.raises(SystemExit, match="0"):
        cli.main(command(name, "--insecure-noise-seed", "1", "--out", str(whole)))
    arguments = command(name, "--insecure-noise-seed", "1", "--out", str(out))
    # Well within the time that the whole run took; a machine that has become faster since may finish it all the same.
    latest = read(whole)["seconds"] * 0.8 / KILLED[name][0]
    kills = 0
    for _ in range(20):
        has_begun = begun(out)
        process = start(arguments)
        wait(process, has_begun)
        time.sleep(random.uniform(0.0, latest))
        kill(process)
        if (out / "result.json").exists():
            shutil.rmtree(out)
            kills, latest = 0, latest / 2
            continue
        kills += 1
        if kills == KILLED[name][0]:
            break
    assert kills == KILLED[name][0]
    with pytest.raises(SystemExit, match="0"):
        cli.main(arguments)
    assert outcome(out) == outcome(whole)
    assert not (out / "state").exists()


def test_two_processes_and_noise_that_is_never_drawn_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    head = out / "state" / "learner.safetensors"
    arguments = command("l2dp-ml", "--out", str(out))

    def draws() -> dict[str, bytes]:
        tensors, _ = read_tensors(head)
        return {name: tensor.numpy().tobytes() for name, tensor in tensors.items() if name.startswith("draw.")}

    process = start(arguments)
    wait(process, head.exists)
    first = draws()
    assert first.keys() == {"draw.chi1", "draw.chi2", "draw.chi3"}
    wait(process, lambda: done(out) >= 1)
    kill(process)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (out / "state").iterdir()}
    assert modes.keys() >= {"learner.safetensors", "episode-00000.safetensors"}
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE((out / "state").stat().st_mode) == 0o700
    reached = done(out)

    has_begun = begun(out)
    process = start(arguments)
    wait(process, has_begun)
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments)
    (refusal,) = capsys.readouterr().err.splitlines()
    assert "another process is running" in refusal
    wait(process, lambda: done(out) > reached)
    assert draws() == first
    assert process.communicate()[1] == ""
    assert process.returncode == 0
    assert not (out / "state").exists()
    assert not any(draw in content for draw in first.values() for content in contents(out).values())


def test_what_a_kill_leaves_half_written_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / ".run.json.abcd1234").write_text("{")
    (tmp_path / ".run.json.efgh5678").touch()
    run(stream(), small("finetune"), schedule=SMALL, out=tmp_path)
    assert sorted(contents(tmp_path)) == [".lock", "accuracy.png", "model.safetensors", "result.json", "run.json"]


def test_secrets_left_by_a_kill_after_the_result_are_removed(tmp_path: Path) -> None:
    interrupted(tmp_path / "out", "l2dp-ml")
    shutil.copytree(tmp_path / "out" / "state", tmp_path / "kept")
    run(stream(), small("l2dp-ml"), schedule=SMALL, out=tmp_path / "out")
    shutil.copytree(tmp_path / "kept", tmp_path / "out" / "state")
    run(stream(), small("l2dp-ml"), schedule=SMALL, out=tmp_path / "out")
    assert not (tmp_path / "out" / "state").exists()


def test_a_finished_run_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(stream(), small("agem"), schedule=SMALL, out=tmp_path)
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir() if path.name != ".lock"}

    def never(*_: Any) -> None:
        raise AssertionError("learns again")

    monkeypatch.setattr(Agem, "learn", never)
    monkeypatch.setattr(Agem, "begin", never)
    again = run(stream(), small("agem"), schedule=SMALL, out=tmp_path)
    assert again.to_json() == first.to_json()
    assert stamps == {path: path.stat().st_mtime_ns for path in tmp_path.iterdir() if path.name != ".lock"}


# --- directories ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("finished", [True, False])
def test_the_directory_of_another_run_is_refused(finished: bool, tmp_path: Path) -> None:
    if finished:
        run(stream(), small("agem"), schedule=SMALL, out=tmp_path)
    else:
        interrupted(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(BadInput, match=r"another run.*seed: 0 there, 1 asked for"):
        run(stream(), small("agem"), schedule=SMALL, out=tmp_path, seed=1)
    with pytest.raises(BadInput, match="another run"):
        run(stream(), Agem(model="mlp-16", lr=0.2), schedule=SMALL, out=tmp_path)
    with pytest.raises(BadInput, match="another run"):
        run(stream(), small("agem"), schedule=Schedule(20, (2,)), out=tmp_path)
    with pytest.raises(BadInput, match="another run"):
        run(stream().reordered([2, 0, 1]), small("agem"), schedule=SMALL, out=tmp_path)
    assert contents(tmp_path) == before


def test_a_directory_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("ten years of work")
    with pytest.raises(BadInput, match="not empty"):
        run(stream(), small("agem"), schedule=SMALL, out=tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "ten years of work"
    assert not (tmp_path / "run.json").exists()


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(BadInput, match=r"cannot make the folder.*choose another --out"):
            run(stream(), small("agem"), schedule=SMALL, out=out)


def test_a_learner_that_refuses_leaves_the_directory_free(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="pure epsilon"):
        run(stream(), L2dpMl(model="mlp-16", budget=l2dp.Budget(1, 1e-5)), schedule=SMALL, out=tmp_path)
    run(stream(), L2dpMl(model="mlp-16", budget=l2dp.Budget(1)), schedule=SMALL, out=tmp_path)
    assert read(tmp_path)["guarantee"]["epsilon"] == 1


def test_a_bad_task_is_refused_before_anything_is_learned(tmp_path: Path) -> None:
    x, y = torch.zeros(40, 4), torch.arange(40) % 2
    bad = x.clone()
    bad[39, 3] = torch.nan
    tasks = tuple(Task.from_tensors(name, (data, y), (x, y)) for name, data in (("good", x), ("bad", bad)))
    with pytest.raises(BadInput, match="'bad', training part, row 39"):
        run(Stream("own", Space((4,), ("a", "b")), tasks), small("agem"), schedule=SMALL, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- damage -----------------------------------------------------------------------------------------------


def truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def emptied(data: bytes) -> bytes:
    return b""


def flipped(data: bytes) -> bytes:
    """One bit of the last tensor, which no format notices by itself."""
    return data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]


def renumbered(data: bytes) -> bytes:
    """The header claims another task."""
    changed = data.replace(rb"\"done\": 2", rb"\"done\": 1")
    assert changed != data
    return changed


def strange(data: bytes) -> bytes:
    return b"\x80\x04" + data


@pytest.mark.parametrize("file", ["learner.safetensors", "episode-00001.safetensors"])
@pytest.mark.parametrize("damage", [truncated, emptied, flipped, renumbered, strange])
def test_a_damaged_state_is_refused_and_kept(file: str, damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    if damage is renumbered and file != "learner.safetensors":
        return
    interrupted(tmp_path, "agem", after=2)
    path = tmp_path / "state" / file
    path.write_bytes(damage(path.read_bytes()))
    before = contents(tmp_path)
    with pytest.raises(BadInput, match=f"{file} is damaged.*start over"):
        run(stream(), small("agem"), schedule=SMALL, out=tmp_path)
    assert contents(tmp_path) == before


def test_a_lost_episode_is_refused(tmp_path: Path) -> None:
    interrupted(tmp_path)
    (tmp_path / "state" / "episode-00000.safetensors").unlink()
    with pytest.raises(BadInput, match=r"episode-00000\.safetensors is damaged"):
        run(stream(), small("agem"), schedule=SMALL, out=tmp_path)


@pytest.mark.parametrize("file", ["run.json", "result.json"])
@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', "\udcff"])
def test_damaged_json_is_refused_and_the_state_is_kept(file: str, text: str, tmp_path: Path) -> None:
    interrupted(tmp_path)
    (tmp_path / file).write_bytes(text.encode("utf-8", "surrogateescape"))
    before = contents(tmp_path)
    with pytest.raises(BadInput) as caught:
        run(stream(), small("agem"), schedule=SMALL, out=tmp_path)
    assert "\n" not in str(caught.value)
    assert contents(tmp_path) == before


def test_tensors_come_back_as_they_were(tmp_path: Path) -> None:
    tensors = {
        "float": torch.randn(3, 4, generator=torch.Generator().manual_seed(0)),
        "strided": torch.arange(6.0).view(2, 3).T,
        "scalar": torch.tensor(7),
        "flags": torch.tensor([True, False]),
        "half": torch.ones(2, dtype=torch.bfloat16),
        "empty": torch.zeros(0, 3),
    }
    write_tensors(tmp_path / "file", tensors, {"list": [1, None, "ü"]})
    back, meta = read_tensors(tmp_path / "file")
    assert meta == {"list": [1, None, "ü"]}
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back[name].dtype is tensor.dtype
        assert torch.equal(back[name], tensor)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


# --- a full disk ------------------------------------------------------------------------------------------


def test_a_disk_that_is_full_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails at the first write, continued at the second, and so on, until there was none that did not fail."""
    one, other = tmp_path / "one", tmp_path / "other"
    arguments = [
        "run",
        "permuted-digits",
        "--learner",
        "l2dp-ml",
        "--epsilon",
        "1",
        "--tasks",
        "3",
        "--model",
        "mlp-16",
    ]
    arguments += ["--insecure-noise-seed", "1", "--threads", "1", "--out"]
    with pytest.raises(SystemExit, match="0"):
        cli.main([*arguments, str(one)])
    really = os.fsync
    reached, attempts = -1, 0
    while True:
        left = [attempts]

        def fsync(handle: int, left: list[int] = left) -> None:
            if not left[0]:
                # What a full disk leaves of a file: its beginning.
                if stat.S_ISREG(os.fstat(handle).st_mode):
                    os.ftruncate(handle, os.fstat(handle).st_size // 2)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            left[0] -= 1
            really(handle)

        monkeypatch.setattr(os, "fsync", fsync)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main([*arguments, str(other)])
        if ended.value.code == 0:
            break
        assert ended.value.code == 1
        _, message = capsys.readouterr().err.splitlines()
        assert "No space left on device" in message
        assert "run the same command again" in message
        assert done(other) >= reached
        reached = done(other)
        assert not [name for name in contents(other) if Path(name).name.startswith(".") and name != ".lock"]
        attempts += 1
    assert attempts > 5
    assert outcome(one) == outcome(other)


def test_a_file_size_limit_ends_in_one_line(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    arguments = ["run", "permuted-digits", "--learner", "agem", "--tasks", "2", "--batch-size", "50", "--threads", "1"]
    done_whole = [*arguments, "--out", str(one)]
    with pytest.raises(SystemExit, match="0"):
        cli.main(done_whole)
    limit = 8000  # enough for run.json, not for a state
    process = start(
        [*arguments, "--out", str(other)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 1
    assert stderr.count("\n") == 1
    assert "could not write" in stderr
    with pytest.raises(SystemExit, match="0"):
        cli.main([*arguments, "--out", str(other)])
    assert outcome(one) == outcome(other)


# --- seeds and schedules ----------------------------------------------------------------------------------


def test_seeds_are_summarised(tmp_path: Path) -> None:
    arguments = [
        *("run", "split-digits", "--learner", "l2dp-ml", "--epsilon", "2", "--tasks", "2", "--model", "mlp-16"),
        *("--threads", "1", "--out", str(tmp_path), "--seeds"),
    ]
    with pytest.raises(SystemExit, match="0"):
        cli.main([*arguments, "3,1"])
    first = (tmp_path / "seed-3" / "result.json").stat().st_mtime_ns
    with pytest.raises(SystemExit, match="0"):
        cli.main([*arguments, "3,1,7"])
    assert (tmp_path / "seed-3" / "result.json").stat().st_mtime_ns == first
    results = [read(tmp_path / f"seed-{seed}") for seed in (3, 1, 7)]
    assert [result["seed"] for result in results] == [3, 1, 7]
    assert results[0]["accuracy_matrix"] != results[1]["accuracy_matrix"]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["seeds"] == [3, 1, 7]
    assert summary["guarantee"] == results[0]["guarantee"]
    for found, source in ((summary, results), (summary["released"], [result["released"] for result in results])):
        curves = np.array([result["average_accuracy"] for result in source])
        assert found["average_accuracy"]["mean"] == pytest.approx(curves.mean(axis=0))
        assert found["average_accuracy"]["sd"] == pytest.approx(curves.std(axis=0, ddof=1))
        last = np.array([result["average_forgetting"][1] for result in source])
        assert found["average_forgetting"]["mean"] == [None, pytest.approx(last.mean())]
        assert found["average_forgetting"]["sd"] == [None, pytest.approx(last.std(ddof=1))]


class Counting(Silent):
    def __init__(self) -> None:
        self.ticks: list[int] = []

    def task(self, index: int, name: str, steps: int) -> None:
        self.ticks.append(0)

    def tick(self) -> None:
        self.ticks[-1] += 1


def uneven() -> Stream:
    generator = torch.Generator().manual_seed(0)
    tasks = []
    for size in (40, 20, 65, 47):
        x = torch.rand(size + 10, 6, generator=generator) * 2 - 1
        y = torch.arange(size + 10) % 3
        tasks.append(Task.from_tensors(f"of-{size}", (x[:size], y[:size]), (x[size:], y[size:])))
    return Stream("uneven", Space((6,), ("a", "b", "c")), tuple(tasks))


@pytest.mark.parametrize("name", [name for name, cls in LEARNERS.items() if issubclass(cls, GradientLearner)])
@pytest.mark.parametrize(
    ("schedule", "order", "steps"),
    [
        (Schedule(10), None, [4, 2, 6, 4]),
        (Schedule(10, (3,)), None, [12, 6, 18, 12]),
        (Schedule(10, (5, 5, 5, 1)), None, [20, 10, 30, 4]),
        (Schedule(10, balanced=True), None, [6, 6, 6, 6]),
        (Schedule(10, (1, 4, 1, 1), balanced=True), None, [8, 8, 8, 8]),
        (Schedule(10, (3,), full_batch=True), None, [3, 3, 3, 3]),
        (Schedule(10, (5, 5, 5, 1)), [3, 2, 1, 0], [20, 30, 10, 4]),
    ],
)
def test_every_learner_follows_the_schedule(
    name: str, schedule: Schedule, order: list[int] | None, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    learned = uneven() if order is None else uneven().reordered(order)
    descents, counting = [0], Counting()
    descend = GradientLearner.descend

    def counted(self: GradientLearner, g: Any) -> None:
        descents[0] += 1
        descend(self, g)

    monkeypatch.setattr(GradientLearner, "descend", counted)
    result: Result = run(learned, small(name), schedule=schedule, progress=counting)
    assert descents == [sum(steps)]
    # `joint` only collects its tasks; it trains on all of them when it is asked for scores.
    assert counting.ticks == ([0, 0, 0, sum(steps)] if name == "joint" else steps)
    assert result.config["stream"]["tasks"] == [task.name for task in learned]
    assert len(result.accuracy_matrix) == 4


@pytest.mark.parametrize(("options", "steps"), [({}, 50), ({"head": "fixed", "replay_steps": 7, "steps": 3}, 10)])
def test_private_replay_takes_steps_of_its_own(options: dict[str, Any], steps: int) -> None:
    counting = Counting()
    run(uneven(), PrivateReplay(**options), schedule=Schedule(10, (3,)), progress=counting)
    assert counting.ticks == [steps] * 4


def test_a_full_batch_is_the_whole_task() -> None:
    assert [plan.batch_size for plan in Schedule(10, full_batch=True).plans([40, 20, 65])] == [40, 20, 65]


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (Schedule(21), "batch of 21 does not fit task 2, which has 20 records"),
        (Schedule(0), "--batch-size must be at least 1"),
        (Schedule(10, (0,)), "--epochs must be 1 or more"),
        (Schedule(10, (1, 2)), "--epochs names 2 tasks, the stream has 4"),
    ],
)
def test_schedules_that_do_not_fit_are_refused(schedule: Schedule, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        run(uneven(), small("agem"), schedule=schedule)


def test_the_order_of_tasks_is_that_of_the_matrix(tmp_path: Path) -> None:
    arguments = ["run", "split-digits", "--learner", "finetune", "--threads", "1"]
    with pytest.raises(SystemExit, match="0"):
        cli.main([*arguments, "--order", "5,4,3,2,1", "--out", str(tmp_path / "numbers")])
    with pytest.raises(SystemExit, match="0"):
        cli.main([*arguments, "--order", "reverse", "--out", str(tmp_path / "word")])
    numbers, word = read(tmp_path / "numbers"), read(tmp_path / "word")
    assert numbers["accuracy_matrix"] == word["accuracy_matrix"]
    assert numbers["config"]["stream"]["tasks"] == ["8,9", "6,7", "4,5", "2,3", "0,1"]
    assert [row[at] > 0.8 for at, row in enumerate(numbers["accuracy_matrix"])] == [True] * 5


def test_what_was_never_declared_is_said_beside_the_guarantee(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).uniform(-1, 1, (80, 6)).astype(np.float32), np.arange(80) % 4
    np.savez(tmp_path / "mine.npz", x_train=x[:60], y_train=y[:60], x_test=x[60:], y_test=y[60:])
    asked = sweeps.Request(f"split:{tmp_path / 'mine.npz'}", "private-replay", tasks=2, epsilon=2.0)
    sweeps.run_one(asked, 0, tmp_path / "out", Console(quiet=True))
    assert "count as public" in read(tmp_path / "out")["not_covered"][0]
    older = {key: value for key, value in read(tmp_path / "out").items() if key != "not_covered"}
    (tmp_path / "out" / "result.json").write_text(json.dumps(older))
    again = sweeps.run_one(asked, 0, tmp_path / "out", Console(quiet=True))
    assert "count as public" in again.facts["not_covered"][0]
    public = sweeps.Request("permuted-digits", "private-replay", tasks=1, per_task=60, epsilon=2.0)
    sweeps.run_one(public, 0, tmp_path / "public", Console(quiet=True))
    assert "not_covered" not in read(tmp_path / "public")
