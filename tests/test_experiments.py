"""Experiments: what is declared runs, finished runs are never repeated, failures are listed."""

from __future__ import annotations

import io
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from l2dp import benchmarks, cli, learners, sweeps
from l2dp.audit import Target
from l2dp.audit.attacks import ATTACKS
from l2dp.errors import BadInput, L2dpError
from l2dp.experiments import declared, figures, pages, perform, tables
from l2dp.experiments.functions import Ask, Table
from l2dp.experiments.identity import configuration, digest, of_result
from l2dp.experiments.outcome import outcome, trend
from l2dp.experiments.paper import printed, verdict
from l2dp.experiments.runner import Local, divide, jobs_of, known_results, run_all
from l2dp.runs import Schedule
from l2dp.sweeps import Request

ROOT = Path(__file__).parent.parent
SILENT = Console(quiet=True)
SMALL = """
title = "two methods"
about = "a small one"
kind = "figure"
[common]
benchmark = "permuted-digits"
tasks = 3
per_task = 200
seeds = [0, 1]
[quick]
tasks = 2
seeds = [0]
[[row]]
name = "finetune"
label = "finetune"
learner = "finetune"
[[row]]
name = "agem"
label = "A-GEM"
learner = "agem"
[[effect]]
says = "memory helps"
more = "agem"
than = "finetune"
"""


def write(folder: Path, text: str = SMALL) -> str:
    path = folder / "small.toml"
    path.write_text(text, "utf-8")
    return str(path)


def stamps(out: Path) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in out.glob("runs/*/result.json")}


# --- what is declared ---------------------------------------------------------------------------------


def test_every_experiment_of_the_catalogue_is_sound() -> None:
    for name in declared.names():
        for quick in (False, True):
            experiment = declared.load(name, quick)
            assert experiment.title
            assert experiment.about
            assert jobs_of([experiment]) or experiment.function or all(row.impossible for row in experiment.rows)
            for row in experiment.rows:
                if row.paper is not None:
                    assert not quick
                    printed(row.paper)


def test_no_run_of_a_quick_form_is_a_run_of_a_full_form() -> None:
    full = {job.hash for job in jobs_of([declared.load(name) for name in declared.names()])}
    quick = {job.hash: job.name for job in jobs_of([declared.load(name, quick=True) for name in declared.names()])}
    assert not [name for hash, name in quick.items() if hash in full]


def test_quick_forms_on_embedded_data_fit_it() -> None:
    """Batches fit tasks and options are known: what would fail is known before anything runs."""
    streams: dict[tuple[Any, ...], list[int]] = {}
    for job in jobs_of([declared.load(name, quick=True) for name in declared.names()]):
        request = job.request
        if not request.benchmark.endswith("-digits"):
            continue
        key = request.benchmark, request.tasks, request.per_task, request.disjoint, request.order
        if key not in streams:
            stream = benchmarks.make(*key[:4], order=request.order)
            streams[key] = [task.train.declared_size for task in stream]
        defaults = benchmarks.find(request.benchmark).for_learner(learners.find(request.learner).NAME)
        size = defaults["batch_size"] if request.batch_size is None else request.batch_size
        Schedule(size, request.epochs, request.balanced, request.full_batch).plans(streams[key])
    assert streams


def test_no_label_holds_a_bare_epsilon() -> None:
    for name in declared.names():
        for row in declared.load(name).rows:
            assert "ε" not in row.label
            assert "epsilon" not in row.label


def test_the_example_of_the_page_is_an_experiment(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "experiments.md").read_text("utf-8")
    (block,) = re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    experiment = declared.load(write(tmp_path, block))
    assert [row.name for row in experiment.rows] == ["agem", "private-replay-1", "private-replay-4"]
    assert len(jobs_of([experiment])) == 6
    assert [job.request.tasks for job in jobs_of([declared.load(write(tmp_path, block), quick=True)])] == [2] * 3


BROKEN = [
    (SMALL.replace("kind =", "kinds ="), "did you mean 'kind'"),
    (SMALL.replace('kind = "figure"', 'kind = "picture"'), "choose from table, figure"),
    (SMALL.replace("per_task", "pertask"), "did you mean 'per_task'"),
    (SMALL.replace('more = "agem"', 'more = "gem"'), "names the row 'gem'"),
    (SMALL.replace('name = "agem"', 'name = "finetune"'), "the same name"),
    (SMALL.replace("title = ", "title "), "not a TOML file"),
    (SMALL.replace('title = "two methods"', ""), "not an experiment"),
    (SMALL.replace('learner = "agem"', 'learner = "agme"'), "did you mean 'agem'"),
    (SMALL.replace('benchmark = "permuted-digits"', 'benchmark = "permuted-digit"'), "did you mean"),
    (SMALL.replace("seeds = [0, 1]", 'seeds = [0, 1]\nfunction = "x:y"'), "has no 'function'"),
    ('title = "t"\nabout = "a"\n', "rows or a function"),
    ('title = "t"\nabout = "a"\nfunction = "l2dp.nowhere:f"\n', "no function"),
]


@pytest.mark.parametrize(("text", "says"), BROKEN)
def test_a_broken_file_is_one_line(text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["experiment", write(tmp_path, text), "--out", str(tmp_path / "out")])
    error = capsys.readouterr()
    assert ended.value.code == (1 if "no function" in says else 2)
    assert says in error.err + error.out
    assert error.err.count("\n") == 1


def test_unknown_names_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, says in (
        (["fig-split-mnits"], "did you mean 'fig-split-mnist'"),
        (["fig-split-mnist", "--engine", "slurm"], "choose from local, ray"),
        (["fig-split-mnist", "--workers", "0"], "--workers must be at least 1"),
        (["fig-split-mnist", "--known", str(tmp_path / "none")], "is not a folder"),
        (["docs", "--known", str(tmp_path / "none")], "is not a folder"),
        (["list", "--known", str(tmp_path / "none")], "is not a folder"),
        (["fig-split-mnist", "--seeds", "-1"], "choose a whole number from 0"),
        (["fig-split-mnist", "--seeds", "0,0"], "names a seed twice"),
        (["budget-growth", "--seeds", "1"], "budget-growth has none"),
        ([str(tmp_path / "none.toml")], "there is no file"),
    ):
        with pytest.raises(SystemExit) as ended:
            cli.main(["experiment", *words, "--quick", "--out", str(tmp_path / "out")])
        assert ended.value.code == 2
        assert says in capsys.readouterr().err


def test_list_names_every_experiment(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["experiment", "list", "--out", str(tmp_path)])
    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(name in said for name in declared.names())
    mine = said[said.index("\nfig-split-mnist ") : said.index("\nprivate-replay-vs-paper ")]
    assert "full: needs mnist" in mine
    assert "quick: needs nothing" in mine
    # How long all of it takes is said also where all of it is finished.
    some, most = declared.load("fig-split-mnist"), declared.load("speed")
    there = {job.hash: {} for job in jobs_of([some])}
    whole = perform._length(some, {}, there=False)
    assert re.fullmatch(r"\d+ runs, about .* on \d+ cores", whole)
    assert perform._length(some, there, there=False) == f"{whole}, all finished"
    last = there.popitem()
    assert re.fullmatch(rf"{whole}, \d+ finished, about .* left", perform._length(some, there, there=False)), last
    assert perform._length(most, {}, there=True) == f"{perform._length(most, {}, there=False)}, finished"


def test_a_result_that_names_a_file_of_code_runs_nothing(tmp_path: Path) -> None:
    good = json.loads(sorted((ROOT / "results" / "runs").glob("*.json"))[0].read_text("utf-8"))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    (tmp_path / "known").mkdir()
    (tmp_path / "known" / "a.json").write_text(json.dumps(good | {"learner": f"{tmp_path / 'evil.py'}:X"}), "utf-8")
    assert known_results([tmp_path / "known"]) == {}
    assert not (tmp_path / "ran").exists()


# --- identity -----------------------------------------------------------------------------------------


def test_a_result_has_the_identity_of_its_request(tmp_path: Path) -> None:
    requests = [
        Request("permuted-digits", "finetune", tasks=2, per_task=100),
        Request("split-digits", "private-replay", 4.0, tasks=2, protocol="task", evaluate_every=2, test_records=50),
        Request("split-digits", "l2dp-ml", 4.0, tasks=2, order="reverse", epochs=(1, 2), batch_size=60),
    ]
    for index, request in enumerate(requests):
        result = sweeps.run_one(request, 7, tmp_path / str(index), SILENT)
        assert of_result(json.loads(json.dumps(result.to_json()))) == configuration(request, 7)
    assert len(known_results([tmp_path])) == len(requests)


BASE = Request("permuted-digits", "agem")
OTHERS = {
    "benchmark": "split-digits",
    "learner": "finetune",
    "tasks": 4,
    "per_task": 100,
    "disjoint": True,
    "protocol": "task",
    "order": "reverse",
    "epochs": (2,),
    "balanced": True,
    "full_batch": True,
    "batch_size": 20,
    "options": {"lr": "0.2"},
    "evaluate_every": 3,
    "device": "cuda",
    "insecure_noise_seed": 1,
    "test_records": 10,
}


def test_everything_that_is_asked_for_is_part_of_the_identity() -> None:
    hashes = {digest(configuration(replace(BASE, **{key: value}), 0)) for key, value in OTHERS.items()}
    hashes |= {digest(configuration(BASE, 0)), digest(configuration(BASE, 1))}
    assert len(hashes) == len(OTHERS) + 2
    private = Request("permuted-digits", "private-replay", 1.0)
    assert digest(configuration(private, 0)) != digest(configuration(replace(private, epsilon=2.0), 0))
    assert digest(configuration(private, 0)) != digest(configuration(replace(private, delta=1e-6), 0))


OWN = """
from l2dp.learners import {base}


class Mine({base}):
    NAME = "{name}"
    LENGTH = {length}
"""


def test_two_learners_of_the_same_name_are_two(tmp_path: Path) -> None:
    hashes = set()
    for index, length in enumerate((1, 2, 2)):
        path = tmp_path / f"own{index}.py"
        path.write_text(OWN.format(base="Agem", name="mine", length=length))
        hashes.add(digest(configuration(Request("permuted-digits", f"{path}:Mine"), 0)))
    assert len(hashes) == 2, "the code decides, not the name and not the file's place"
    # It would pass for ours, with our guarantee, wherever results are looked up.
    path.write_text(OWN.format(base="PrivateReplay", name="private-replay", length=1))
    with pytest.raises(BadInput, match="a NAME of its own"):
        configuration(Request("permuted-digits", f"{path}:Mine", 1.0), 0)


def test_own_data_are_known_by_their_content(tmp_path: Path) -> None:
    part = {"x_train": (40, 4), "y_train": (40,), "x_test": (20, 4), "y_test": (20,)}
    path, hashes = tmp_path / "own.npz", []
    for low in (0, 1, 0):
        arrays = {key: (np.arange(math.prod(shape)).reshape(shape) + low) % 2 for key, shape in part.items()}
        np.savez(path, **arrays)
        os.utime(path, ns=(time.time_ns(), 1_000_000_000 * (len(hashes) + 1)))
        hashes.append(digest(configuration(Request(f"permuted:{path}", "finetune"), 0)))
    assert hashes[0] == hashes[2] != hashes[1]


def test_a_run_of_ones_own_learner_and_data_is_not_repeated(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", **{f"x_{part}": np.eye(20, 4, dtype=np.float32) for part in ("train", "test")},
             **{f"y_{part}": np.arange(20) % 2 for part in ("train", "test")})  # fmt: skip
    (tmp_path / "own.py").write_text(OWN.format(base="Finetune", name="mine", length=1))
    text = SMALL.replace("permuted-digits", f"permuted:{tmp_path / 'own.npz'}").replace(
        "per_task = 200", "per_task = 20"
    )
    text = text.replace('learner = "finetune"', f'learner = "{tmp_path / "own.py"}:Mine"').replace("seeds = [0, 1]", "")
    name = write(tmp_path, text)
    perform.perform([name], tmp_path / "first", SILENT, workers=1)
    assert len(stamps(tmp_path / "first")) == 2
    perform.perform([name], tmp_path / "second", SILENT, known=[tmp_path / "first"], workers=1)
    assert stamps(tmp_path / "second") == {}


def test_two_files_of_one_name_do_not_share_a_folder(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    files = [write(tmp_path / "a"), write(tmp_path / "b")]
    speed = tmp_path / "speed.toml"
    speed.write_text(SMALL)
    for wanted in (files, [str(speed)]):
        with pytest.raises(BadInput, match="rename the file"):
            perform.perform(wanted, tmp_path / "out", SILENT)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_locked_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "out" / ".lock").mkdir(parents=True)
    with pytest.raises(BadInput, match="cannot be written"):
        perform.perform([write(tmp_path)], tmp_path / "out", SILENT)


def test_saying_a_default_changes_nothing() -> None:
    assert configuration(replace(BASE, tasks=10, options={"lr": "0.1"}, batch_size=10), 0) == configuration(BASE, 0)


# --- running ------------------------------------------------------------------------------------------


def test_runs_are_made_once_and_a_failure_stops_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = SMALL.replace('learner = "finetune"', 'learner = "finetune"\nbatch_size = 999')
    name, out = write(tmp_path, text), tmp_path / "out"
    made = []
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            cli.main(["experiment", name, "--quick", "--out", str(out), "--workers", "1"])
        assert ended.value.code == 1
        said = capsys.readouterr()
        assert "a batch of 999 does not fit" in said.out.partition("\nfailed:\n")[2]
        assert said.err.count("\n") == 1
        made.append(stamps(out))
    assert len(made[0]) == 1
    assert made[1] == made[0]
    assert "1 of 2 runs were finished before" in said.out
    folder = out / "small-quick"
    found = json.loads((folder / "outcome.json").read_text())
    assert [row["state"] for row in found["rows"]] == ["not run", "run on a sub-sample"]
    assert found["effects"][0]["verdict"] == "not run"
    assert (folder / "accuracy.png").stat().st_size > 1000
    assert "QUICK FORM" in (folder / "table.md").read_text()
    # Another experiment with the same row, elsewhere, knows the run.
    text = re.sub(r"\[\[row\]\]\nname = .finetune.*?(?=\[\[row)", "", SMALL, flags=re.DOTALL).partition("[[effect]]")[0]
    perform.perform([write(tmp_path, text)], tmp_path / "other", SILENT, quick=True, known=[out])
    assert stamps(tmp_path / "other") == {}


def runner(name: str, out: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "l2dp", "experiment", name, "--out", str(out), "--workers", "2"]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


SEEDED = """
title = "repeatable"
about = "noise with a seed, so that two runs can be compared to the last bit"
[common]
benchmark = "permuted-digits"
insecure_noise_seed = 5
[[row]]
name = "p"
label = "private-replay"
learner = "private-replay"
epsilon = 4
tasks = 10
[[row]]
name = "f"
label = "finetune"
learner = "finetune"
tasks = 4
"""


def bare(result: dict[str, Any]) -> dict[str, Any]:
    """A result without its timings."""
    return {key: result[key] for key in result if key not in ("seconds", "examples_per_second", "peak_memory_mb")}


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a run takes a while to notice that its runner is gone."""
    monkeypatch.setattr("l2dp.experiments.runner.PATIENCE", 300.0)


def killed(name: str, out: Path, when: Callable[[], bool]) -> None:
    """Starts a runner, kills it when asked to, and checks that nothing of what was finished has changed."""
    before = stamps(out)
    process = runner(name, out)
    until = time.monotonic() + 600
    while not when() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    # The runs end with their runner: this refuses while anybody is at work there.
    run_all([], out, [], Local(1, 1), SILENT)
    after = stamps(out)
    assert {key: after[key] for key in before} == before


def check_like_undisturbed(name: str, out: Path) -> None:
    before = stamps(out)
    perform.perform([name], out, SILENT, workers=2)
    after = stamps(out)
    assert {key: after[key] for key in before} == before
    jobs = jobs_of([declared.load(name)])
    assert set(after) == {job.name for job in jobs}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for job in jobs:
        undisturbed = sweeps.run_one(job.request, job.seed, out / "twins" / job.name, SILENT).to_json()
        found = json.loads((out / "runs" / job.name / "result.json").read_text())
        assert bare(found) == bare(json.loads(json.dumps(undisturbed)))
    torch.set_num_threads(threads)


def test_a_killed_runner_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    name, out = write(tmp_path, SEEDED.rpartition("[[row]]")[0]), tmp_path / "out"
    killed(name, out, lambda: any(out.glob("runs/*/state/episode-00001*")))
    kept = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/state/episode-*")}
    assert kept
    # What is killed again a task later has continued: what it had learned before was not learned anew.
    killed(name, out, lambda: not kept.keys() >= set(out.glob("runs/*/state/episode-*")))
    again = {path: path.stat().st_mtime_ns for path in kept}
    assert again == kept
    check_like_undisturbed(name, out)


@pytest.mark.slow
def test_a_runner_killed_at_random_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    name, out = write(tmp_path, SEEDED), tmp_path / "out"
    times = random.Random(0)
    for _ in range(8):
        end = time.monotonic() + times.uniform(0.5, 8.0)
        killed(name, out, lambda end=end: time.monotonic() > end)  # type: ignore[misc]
    check_like_undisturbed(name, out)


def test_two_runners_do_not_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    monkeypatch.setattr("l2dp.experiments.runner.PATIENCE", 0.3)
    (tmp_path / "out").mkdir()
    with (tmp_path / "out" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(BadInput, match="another runner"):
            run_all([], tmp_path / "out", [], Local(1, 1), SILENT)


@given(st.integers(1, 64), st.none() | st.integers(1, 64), st.integers(0, 200))
def test_cores_are_divided_sensibly(cores: int, workers: int | None, runs: int) -> None:
    at_once, threads = divide(cores, workers, runs)
    assert at_once >= 1
    assert threads >= 1
    if workers is None:
        assert at_once * threads <= cores
    else:
        assert at_once == workers


# --- functions ----------------------------------------------------------------------------------------


def measure(ask: Ask) -> Table:
    if not ask.quick:
        raise L2dpError("only quick")
    (ask.folder / "mine.txt").write_text("here")
    return Table(["what", "value"], [["seconds", 1.5]], ["a note"])


def test_an_experiment_may_be_a_function(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f'title = "mine"\nabout = "a"\nfunction = "{__name__}:measure"\n'
    perform.perform([write(tmp_path, text)], tmp_path / "out", SILENT, quick=True)
    found = json.loads((tmp_path / "out" / "small-quick" / "outcome.json").read_text())
    assert (found["rows"], found["version"]) == ([["seconds", 1.5]], version("l2dp"))
    assert (tmp_path / "out" / "small-quick" / "mine.txt").exists()
    with pytest.raises(L2dpError, match="1 failed"):
        perform.perform([write(tmp_path, text)], tmp_path / "out", SILENT)


CALLS: list[str] = []


def mistaken(ask: Ask) -> Table:
    CALLS.append("mistaken")
    raise TypeError("a mistake of mine")


def counted(ask: Ask) -> Table:
    CALLS.append("counted")
    return Table(["what"], [["done"]], [])


def test_a_mistaken_function_stops_nothing_and_a_finished_one_is_not_called_again(tmp_path: Path) -> None:
    CALLS.clear()
    files = []
    for name in ("mistaken", "counted"):
        files.append(str(tmp_path / f"{name}.toml"))
        Path(files[-1]).write_text(f'title = "mine"\nabout = "a"\nfunction = "{__name__}:{name}"\n')
    for _ in range(2):
        with pytest.raises(L2dpError, match="1 failed"):
            perform.perform(files, tmp_path / "out", SILENT)
    assert CALLS == ["mistaken", "counted", "mistaken"]


def test_what_a_function_found_is_known_too(tmp_path: Path) -> None:
    CALLS.clear()
    text = f'title = "mine"\nabout = "a"\nfunction = "{__name__}:counted"\n'
    name, known = write(tmp_path, text), tmp_path / "known"
    perform.perform([name], tmp_path / "first", SILENT)
    (known / "experiments").mkdir(parents=True)
    shutil.copyfile(tmp_path / "first" / "small" / "outcome.json", known / "experiments" / "small.json")
    said = io.StringIO()
    perform.perform([name], tmp_path / "second", Console(file=said, width=10_000), known=[known])
    assert CALLS == ["counted"]
    assert f"remove {known / 'experiments' / 'small.json'} to do it again" in said.getvalue()
    assert "done" in said.getvalue()
    perform.perform([name], tmp_path / "second", SILENT, known=[known], quick=True)  # which is another experiment
    assert CALLS == ["counted", "counted"]


@pytest.mark.parametrize("damaged", ["{}", "[]", '{"quick": false}', "{", None])
def test_what_a_function_found_is_read_with_care(tmp_path: Path, damaged: str | None) -> None:
    """None: a row that is longer than the table."""
    name = write(tmp_path, f'title = "mine"\nabout = "a"\nfunction = "{__name__}:counted"\n')
    perform.perform([name], tmp_path / "out", SILENT)
    path = tmp_path / "out" / "small" / "outcome.json"
    found = json.loads(path.read_text())
    path.write_text(json.dumps(found | {"rows": [["done", "twice"]]}) if damaged is None else damaged)
    said = io.StringIO()
    with pytest.raises(L2dpError, match="1 failed"):
        perform.perform([name], tmp_path / "out", Console(file=said, width=10_000))
    assert str(path) in said.getvalue()
    assert "Error:" not in said.getvalue()


# --- comparison ---------------------------------------------------------------------------------------


def result(request: Request, seed: int, matrix: list[list[float]], epsilon: float | None = None) -> dict[str, Any]:
    from l2dp.budget import NO_PRIVACY, Guarantee
    from l2dp.runs import Result

    guarantee = NO_PRIVACY if epsilon is None else Guarantee("refuted", epsilon, 0.0)
    made = Result(
        request.benchmark, request.learner, seed, request.protocol, guarantee, [*matrix], None, 1.0, None, 1.0
    )
    return made.to_json() | {"config": {"evaluate_every": 1}}


def test_rows_stand_beside_the_paper(tmp_path: Path) -> None:
    experiment = declared.load("fig-split-mnist")
    rows = {row.name: row for row in experiment.rows}
    found: dict[str, dict[str, Any]] = {}
    for seed, value in ((0, 0.80), (1, 0.82)):
        request = rows["agem-domain"].request
        assert request is not None
        matrix = [[value] * 5 for _ in range(5)]
        found[digest(configuration(request, seed))] = result(request, seed, matrix)
    made = {row["name"]: row for row in outcome(experiment, found)["rows"]}
    agem = made["agem-domain"]
    assert agem["seeds"] == [0, 1]
    assert agem["seeds_missing"] == [2]
    assert agem["verdict"] == {"accuracy": "reproduced", "forgetting": "better"}
    cells = tables.cells(agem, quick=False)
    assert cells[2:5] == ["81.0 ± 1.4", "79.71", "+1.3"]
    assert made["l2dp-ml-1-domain"]["state"] == "not run"
    assert "no status" in made["l2dp-ml-1-domain"]["guarantee"]
    assert tables.cells(made["l2dp-ml-1-domain"], quick=False)[9] == "not run"


def test_accuracies_on_other_streams_have_axes_of_their_own(tmp_path: Path) -> None:
    experiment = declared.load("private-replay-vs-paper")
    chosen = ("split-agem", "split-0.5", "cifar-agem", "cifar-ten-agem", "cifar-ten-4")
    found = {}
    for row in experiment.rows:
        if row.name in chosen:
            assert row.request is not None
            request = row.request
            made = result(request, 0, [[0.5]], request.epsilon)
            found[digest(configuration(request, 0))] = made
    seen = outcome(experiment, found)
    panels = {axes.get_title(): len(axes.get_lines()) for axes in figures._epsilon_panels(seen).axes}
    assert panels == {"split-mnist": 2, "split-cifar10-100": 1, "split-cifar10-100, protocol domain": 2}
    path = tmp_path / "e.png"
    figures.draw(seen, "epsilon", path)
    assert pages.stamped(path) == figures.data_hash(seen, "epsilon")
    # Where a line stands is part of what a picture shows: an old one of the same numbers is drawn again.
    moved = seen | {"rows": [row | {"stream": "one"} for row in seen["rows"]]}
    assert figures.data_hash(moved, "epsilon") != figures.data_hash(seen, "epsilon")


def test_a_sub_sample_never_fills_a_row_of_the_paper(tmp_path: Path) -> None:
    experiment = declared.load("fig-split-mnist")
    row = next(row for row in experiment.rows if row.name == "agem-domain")
    assert row.request is not None
    for change in ({"per_task": 100}, {"test_records": 100}, {"tasks": 4}):
        request = replace(row.request, **change)  # type: ignore[arg-type]
        small = replace(experiment, rows=(replace(row, request=request),), effects=())
        found = {digest(configuration(request, 0)): result(request, 0, [[0.8] * 4] * 4)}
        (made,) = outcome(small, found)["rows"]
        assert made["state"] == "run on a sub-sample"
        assert made["verdict"] == {}
        assert tables.word(made).startswith("sub-sampled")


def test_other_data_reproduce_nothing() -> None:
    experiment = declared.load("fig-split-mnist")
    row = next(row for row in experiment.rows if row.name == "agem-domain")
    assert row.request is not None
    found = {digest(configuration(row.request, 0)): result(row.request, 0, [[0.8] * 5] * 5)}
    other = replace(experiment, rows=(replace(row, stands_in="lost"),), effects=())
    (made,) = outcome(other, found)["rows"]
    assert made["verdict"] == {}
    assert tables.cells(made, quick=False)[2:5] == ["80.0", "79.71", "+0.3"]
    assert tables.word(made) == "not possible: lost; other data stand in"


def curves(a: list[float], b: list[float], extra: str = "", tasks: int = 4) -> dict[str, Any]:
    text = SMALL.replace("tasks = 3", f"tasks = {tasks}").replace("seeds = [0, 1]", "seeds = [0]") + extra
    folder = Path(os.environ["PYTEST_TMP"])
    experiment = declared.load(write(folder, text))
    found = {}
    for row, curve in zip(experiment.rows, (b, a), strict=True):
        assert row.request is not None
        found[digest(configuration(row.request, 0))] = result(row.request, 0, [[value] * tasks for value in curve])
    return outcome(experiment, found)["effects"][0]  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_TMP", str(tmp_path))


def test_effects_are_confirmed_contradicted_or_left_open() -> None:
    low, high = [0.50, 0.51, 0.50, 0.49], [0.80, 0.81, 0.80, 0.79]
    assert curves(high, low)["verdict"] == "confirmed (one seed)"
    assert curves(low, high)["verdict"] == "contradicted (one seed)"
    assert curves(low, [0.49, 0.52, 0.50, 0.50])["verdict"] == "not told apart"
    assert curves(high, low)["mean_difference"] == pytest.approx(0.3)
    few = curves([0.9, 0.91, 0.1, 0.1], [0.5, 0.51, 0.9, 0.9], "tasks = 2\n")
    assert few["verdict"] == "confirmed (one seed)"
    gap = curves([0.9, 0.8, 0.7, 0.6], [0.5, 0.5, 0.5, 0.5], 'gap = "shrinks"\n')
    assert (gap["verdict"], gap["first_gap"]) == ("confirmed (one seed)", pytest.approx(0.4))
    assert curves([0.9, 0.8, 0.7, 0.6], [0.5] * 4, 'gap = "grows"\n')["verdict"] == "contradicted (one seed)"
    assert trend([(1, 0.1, 0.0), (2, 0.1, 0.0), (3, 0.1, 0.0)]) == (0.0, 1.0)
    # A lead that shrinks, vanishes and turns has shrunk.
    turned = curves([0.6, 0.55, 0.45, 0.4], [0.5] * 4, 'gap = "shrinks"\n')
    assert turned["verdict"] == "confirmed (one seed)"
    # What both curves do does not hide that one is above the other.
    falling = [0.9, 0.7, 0.5, 0.3], [0.88, 0.69, 0.48, 0.29]
    assert curves(*falling)["verdict"] == "confirmed (one seed)"
    assert curves(*falling)["p"] > 0.5
    # Higher on the whole, lower where the curves end: neither is told.
    crossed = curves([0.9, 0.91, 0.9, 0.49], [0.5, 0.51, 0.50, 0.50])
    assert crossed["mean_difference"] > 0 > crossed["difference"]
    assert crossed["verdict"] == "not told apart"


def test_effects_that_state_no_direction() -> None:
    low, high = [0.50, 0.51, 0.50, 0.49], [0.80, 0.81, 0.80, 0.79]
    alike = 'stated = "no difference"\n'
    assert curves(low, [0.49, 0.52, 0.50, 0.50], alike)["verdict"] == "not told apart, as stated"
    crossed = curves([0.9, 0.91, 0.9, 0.9, 0.49], [0.5, 0.51, 0.5, 0.5, 0.5], alike, tasks=5)
    assert (crossed["p_paired"] < 0.05, crossed["verdict"]) == (True, "they differ, in no one direction")
    assert curves(high, low, alike)["verdict"] == "contradicted (one seed)"
    assert curves(low, high, alike)["verdict"] == "contradicted (one seed)"
    drawn = 'stated = "nothing"\n'
    assert curves(high, low, drawn)["verdict"] == "higher (one seed)"
    assert curves(low, high, drawn)["verdict"] == "lower (one seed)"


def test_a_quick_form_says_nothing_of_the_paper(tmp_path: Path) -> None:
    text = SMALL.replace("[common]", 'notes = ["of the full form"]\n[common]') + "paper_p = 0.0123\n"
    text = text.replace("[quick]", '[quick]\nnotes = ["of the quick form"]')
    for quick in (False, True):
        experiment = declared.load(write(tmp_path, text), quick)
        found = {}
        for row, value in zip(experiment.rows, (0.5, 0.9), strict=True):
            assert row.request is not None
            for seed in row.seeds:
                tasks = row.request.tasks or 0
                matrix = [[value + index / 1000] * tasks for index in range(tasks)]
                found[digest(configuration(row.request, seed))] = result(row.request, seed, matrix)
        page = perform.page(outcome(experiment, found))
        assert ("0.012" in page, "confirmed" in page) == (not quick, not quick)
        assert ("of the full form" in page, "of the quick form" in page) == (not quick, quick)
        console = Console(width=200, file=io.StringIO())
        perform.show(outcome(experiment, found), console)
        assert ("0.012" in console.file.getvalue()) == (not quick)  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [40, 80, 120, 300])
def test_nothing_on_the_terminal_is_cut_off(width: int) -> None:
    columns = ["method", "guarantee", "accuracy %", *(f"column{index}" for index in range(6)), "verdict"]
    row = ["A-GEM\n  on all records", "ε=0.5 claimed, refuted", "73.2 ± 0.4 (paper 79.71, -6.5)"]
    row += [f"value{index}" for index in range(6)] + ["contradicted"]
    console = Console(width=width, file=io.StringIO())
    tables.show(columns, [row, row], console)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    for word in " ".join([*columns[1:], *row]).split():
        assert word.strip(",;") in said, word


def test_an_improvement_is_judged_as_an_improvement() -> None:
    experiment = declared.load("fig-permuted-mnist")
    rows = {row.name: row for row in experiment.rows}
    some = [rows["l2dp-ml-0.5"], rows["l2dp-ml-2"]]
    some_more = [rows["l2dp-ml-0.5"], rows["l2dp-ml-0.5-2-epochs"]]
    for first, second, judged in ((0.40, 0.409, "worse"), (0.40, 0.43, "reproduced")):  # the paper prints +2.81
        found = {}
        for row, value in zip(some_more, (first, second), strict=True):
            assert row.request is not None
            found[digest(configuration(row.request, 0))] = result(row.request, 0, [[value] * 20] * 20, 0.5)
        made = outcome(replace(experiment, rows=tuple(some_more), effects=()), found)["rows"][1]
        assert made["verdict"]["accuracy"] == judged
        assert ("more of it is forgotten" in tables.word(made)) == (judged == "worse")
    for first, second, judged in ((0.55, 0.57, "worse"), (0.40, 0.50, "reproduced"), (0.40, 0.55, "better")):
        found = {}
        for row, value in zip(some, (first, second), strict=True):
            assert row.request is not None
            found[digest(configuration(row.request, 0))] = result(row.request, 0, [[value] * 20] * 20, 0.5)
        made = outcome(replace(experiment, rows=tuple(some), effects=()), found)["rows"][1]
        assert made["verdict"]["accuracy"] == judged
        over = "points over L2DP-ML (ε=0.5 claimed, refuted), the paper prints +9.92"
        assert f"{100 * (second - first):+.1f} {over}" in tables.word(made)
    # The paper states A-GEM's lead and not its accuracy: the lead is what is judged, however near the sum of both is.
    some = [rows["l2dp-ml-0.5"], rows["agem"]]
    found = {}
    for row, value, epsilon in zip(some, (0.55, 0.71), (0.5, None), strict=True):
        assert row.request is not None
        found[digest(configuration(row.request, 0))] = result(row.request, 0, [[value] * 20] * 20, epsilon)
    made = outcome(replace(experiment, rows=tuple(some), effects=()), found)["rows"][1]
    assert made["verdict"]["accuracy"] == "worse"
    assert "+16.0 points over L2DP-ML (ε=0.5 claimed, refuted), the paper prints +23.30" in tables.word(made)


def test_beside_a_number_near_chance_less_is_the_same() -> None:
    experiment = declared.load("fig-split-cifar")
    row = next(row for row in experiment.rows if row.name == "agem")  # the paper has 13.44 of which 10 are chance
    assert row.request is not None
    for value, judged in ((0.130, "reproduced"), (0.153, "better"), (0.115, "worse")):
        found = {digest(configuration(row.request, 0)): result(row.request, 0, [[value] * 11] * 11)}
        (made,) = outcome(replace(experiment, rows=(row,), effects=()), found)["rows"]
        assert made["verdict"]["accuracy"] == judged
        assert "(one seed)" in tables.word(made)


def test_seeds_that_were_not_run_are_named(tmp_path: Path) -> None:
    experiment = declared.load(write(tmp_path))
    request = experiment.rows[0].request
    assert request is not None
    found = {digest(configuration(request, 1)): result(request, 1, [[0.5] * 3] * 3)}
    assert "1 (0 not run)" in tables.cells(outcome(experiment, found)["rows"][0], quick=False)


def test_an_effect_is_that_of_seeds_which_both_rows_have(tmp_path: Path) -> None:
    experiment = declared.load(write(tmp_path, SMALL.replace("tasks = 3", "tasks = 4")))
    low, high = [0.50, 0.51, 0.50, 0.49], [0.80, 0.81, 0.80, 0.79]

    def found(*given: tuple[int, int, list[float]]) -> dict[str, Any]:
        results = {}
        for place, seed, curve in given:
            request = experiment.rows[place].request
            assert request is not None
            results[digest(configuration(request, seed))] = result(request, seed, [[value] * 4 for value in curve])
        return outcome(experiment, results)["effects"][0]  # type: ignore[no-any-return]

    than, more = [row.name for row in experiment.rows]
    assert (experiment.effects[0].more, experiment.effects[0].than) == (more, than)
    both = found((0, 0, low), (0, 1, low), (1, 0, high), (1, 1, high))
    assert (both["verdict"], both["seeds"], both["p_seeds"]) == ("confirmed (two seeds)", 2, None)
    one = found((0, 0, low), (1, 0, high), (1, 1, [0.0] * 4))
    assert (one["verdict"], one["seeds"], one["mean_difference"]) == ("confirmed (one seed)", 1, pytest.approx(0.3))
    assert found((0, 0, low), (1, 1, high))["verdict"] == "no seed in common"
    # One seed shows much, the other a little the other way: their mean alone would confirm it.
    split = found((0, 0, low), (0, 1, high), (1, 0, high), (1, 1, [0.79, 0.80, 0.79, 0.78]))
    assert (split["verdict"], split["mean_difference"] > 0.1) == ("not told apart", True)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("[[effect]]", '[[effect]]\ngap = "grow"', "a gap grows or shrinks"),
        ("[[effect]]", '[[effect]]\nmeasure = "acuracy"', "must measure accuracy or forgetting"),
        ("[[effect]]", "[[effect]]\ntasks = 0", "must be a whole number"),
        ("seeds = [0, 1]", 'seeds = "012"', "must be a list"),
        ("seeds = [0, 1]", "seeds = []", "must be a list, each once"),
        ("seeds = [0, 1]", "seeds = [1, 1]", "must be a list, each once"),
        ('more = "agem"', 'more = "finetune"', "with itself"),
        ('kind = "figure"', 'kind = "figure"\nfunction = 3', 'it must be "module:name"'),
        ("seeds = [0, 1]", 'seeds = ["0"]', "must be a whole number"),
        ("tasks = 3", 'tasks = "two"', "must be a whole number"),
        ("tasks = 3", 'tasks = 3\nepochs = "12"', "must be a whole number"),
        ("tasks = 3", 'tasks = 3\nminutes = "ten"', "must be a number above 0"),
        ("tasks = 3", "tasks = 3\nminutes = -1", "must be a number above 0"),
        ("tasks = 3", 'tasks = 3\nbalanced = "yes"', "must be true or false"),
        ("tasks = 3", "tasks = 3\norder = 5", "must be words in quotes"),
        ("tasks = 3", 'tasks = 3\npaper = "split-mnist/nobody"', r"paper\.toml has no"),
        ("[[effect]]", '[[effect]]\npaper_p = "small"', "must be a number above 0"),
        ("[[effect]]", '[[effect]]\nstated = "less"', "choose from more, no difference, nothing"),
        ('kind = "figure"', 'kind = "grid"', "named budget-noise-clip"),
        ('kind = "figure"', 'kind = "figure"\nnotes = "one"', "a list of words in quotes"),
        ("[quick]", "[quick]\nneeds = [1]", "a list of words in quotes"),
    ],
)
def test_a_mistake_in_a_file_is_one_line(tmp_path: Path, old: str, new: str, what: str) -> None:
    assert old in SMALL
    with pytest.raises(BadInput, match=what):
        declared.load(write(tmp_path, SMALL.replace(old, new, 1)))


def test_an_experiment_does_not_hold_itself(tmp_path: Path) -> None:
    path = write(tmp_path, SMALL)
    Path(path).write_text(f'rows_of = ["{path}"]\n' + Path(path).read_text("utf-8"), "utf-8")
    with pytest.raises(BadInput, match="rows_of comes back to"):
        declared.load(path)


def test_other_json_among_known_results_is_passed_over(tmp_path: Path) -> None:
    good = json.loads(sorted((ROOT / "results" / "runs").glob("*.json"))[0].read_text("utf-8"))
    asked = of_result(good)
    assert asked is not None
    folder = tmp_path / "state" / "known"  # a name above the folder says nothing about what is in it
    folder.mkdir(parents=True)
    bad = [good | {"accuracy_matrix": None}, good | {"config": good["config"] | {"schedule": "none"}}, [], 3, {}]
    bad += [
        good | {"guarantee": one} for one in ({"status": "proved"}, {"epsilon": 1.0}, {"status": "none", "x": 1}, [])
    ]
    bad += [good | {"average_accuracy": ["high"]}, good | {"seconds": "few"}, good | {"released": {}}]
    bad += [good | {"learner": one} for one in ("nobody", 3, [])]
    for index, one in enumerate([*bad, good]):
        (folder / f"{index}.json").write_text(json.dumps(one))
    (folder / "deep.json").write_text("[" * 100_000)
    assert list(known_results([folder])) == [digest(asked)]


def test_of_two_results_of_one_configuration_the_first_counts_and_the_other_is_named(tmp_path: Path) -> None:
    experiment = declared.load(write(tmp_path, SMALL.replace("seeds = [0, 1]", "seeds = [0]")))
    out = tmp_path / "out"
    run_all(jobs_of([experiment]), out, [], Local(2, 1), SILENT)
    first = sorted(out.glob("runs/*/result.json"))[0]
    other = json.loads(first.read_text("utf-8")) | {"seconds": 1e9}
    (tmp_path / "known").mkdir()
    (tmp_path / "known" / "b.json").write_text(json.dumps(other), "utf-8")
    copied = sorted(out.glob("runs/*/result.json"))[1]  # the same in two places: nothing to say
    (tmp_path / "known" / "c.json").write_bytes(copied.read_bytes())
    said = io.StringIO()
    done = run_all(jobs_of([experiment]), out, [tmp_path / "known"], Local(2, 1), Console(file=said, width=10_000))
    assert [one["seconds"] for one in done.results.values()].count(1e9) == 1
    lines = [line for line in said.getvalue().splitlines() if "other results" in line]
    assert lines == [f"{tmp_path / 'known' / 'b.json'} counts; the same configuration has other results: {first}"]


def test_three_seeds_are_three_numbers() -> None:
    text = SMALL.replace("tasks = 3", "tasks = 4").replace("seeds = [0, 1]", "seeds = [0, 1, 2]")
    experiment = declared.load(write(Path(os.environ["PYTEST_TMP"]), text))
    results = {}
    for place, apart in enumerate(((0.0, 0.0, 0.0), (0.1, 0.2, 0.3))):
        request = experiment.rows[place].request
        assert request is not None
        for seed, more in enumerate(apart):
            made = result(request, seed, [[0.5 + more + task / 100] * 4 for task in range(4)])
            results[digest(configuration(request, seed))] = made
    (effect,) = outcome(experiment, results)["effects"]
    # t = 0.2 / (0.1 / √3) on two degrees of freedom: p = 1 − t / √(2 + t²).
    t = 2 * math.sqrt(3)
    assert effect["p_seeds"] == pytest.approx(1 - t / math.sqrt(2 + t * t))
    # Task by task there is no doubt; another seed might well say otherwise, and the seeds have the last word.
    assert effect["p_paired"] < 1e-6
    assert effect["p_seeds"] > 0.05
    assert effect["verdict"] == "not told apart"
    # Nor is it agreement with who states that there is no difference: one of the two tells them apart.
    same = replace(experiment, effects=(replace(experiment.effects[0], stated="no difference"),))
    assert outcome(same, results)["effects"][0]["verdict"] == "not told apart"


@pytest.mark.parametrize(("apart", "judged"), [((0.1, 0.11, 0.12), "confirmed"), ((0.0, 0.1, 0.3), "not told apart")])
def test_of_one_task_the_seeds_are_asked(apart: tuple[float, ...], judged: str) -> None:
    text = SMALL.replace("tasks = 3", "tasks = 1").replace("seeds = [0, 1]", "seeds = [0, 1, 2]")
    experiment = declared.load(write(Path(os.environ["PYTEST_TMP"]), text))
    results = {}
    for row, sizes in zip(experiment.rows, ((0.0, 0.0, 0.0), apart), strict=True):
        assert row.request is not None
        for seed, more in enumerate(sizes):
            results[digest(configuration(row.request, seed))] = result(row.request, seed, [[0.5 + more]])
    (effect,) = outcome(experiment, results)["effects"]
    assert (effect["verdict"], effect["p"], effect["p_paired"]) == (judged, None, None)
    assert tables.effect_cells(effect)[3] == "–"
    one_seed = outcome(replace(experiment, rows=tuple(replace(row, seeds=(0,)) for row in experiment.rows)), results)
    assert one_seed["effects"][0]["verdict"] == "not evaluated often enough"


def test_verdicts() -> None:
    assert verdict("accuracy", 0.70, 0.79) == "worse"
    assert verdict("accuracy", 0.78, 0.79) == "reproduced"
    assert verdict("forgetting", 0.30, 0.20) == "worse"
    assert verdict("forgetting", 0.10, 0.20) == "better"
    with pytest.raises(BadInput, match=r"paper\.toml has no"):
        printed("split-mnist/nobody")


# --- the audit in one table ---------------------------------------------------------------------------


def finding(attack: str, verdict: str, bound: float | None, **stated: Any) -> dict[str, Any]:
    guarantee = {"status": "refuted", "epsilon": 0.5, "delta": 0.0} | stated
    return {
        "attack": attack,
        "variant": "",
        "stated": guarantee,
        "verdict": verdict,
        "lower_bound": bound,
        "ceiling": None if bound is None else bound + 1,
    }


def test_the_audit_summary_takes_thorough_audits_that_are_known(tmp_path: Path, monkeypatch: Any) -> None:
    from l2dp.experiments import audits

    monkeypatch.setattr(audits, "STATED", {"l2dp-ml": 0.5})
    tried = [finding("rank", "refuted", 5.6), finding("membership", "holds so far", 0.1)]
    tried.append(finding("sampler", "not applicable", None))
    whole = {
        "learner": "l2dp-ml",
        "level": "thorough",
        "runs": None,
        "attacks": [attack.NAME for attack in ATTACKS],
        "targets": [Target("l2dp-ml", 0.5).to_json()],
        "findings": tried,
    }
    less: list[dict[str, Any]] = [{"level": "quick"}, {"runs": 40}, {"attacks": ["rank"]}]
    less.append({"targets": [Target("l2dp-ml", 0.5, None, (("projection", "always"),)).to_json()]})
    less.append({"targets": [Target("l2dp-ml", 0.4).to_json()]})
    for index, changed in enumerate(less):
        (tmp_path / f"{index}.json").write_text(json.dumps(whole | changed), "utf-8")

    def none(*_: Any, **__: Any) -> None:
        raise BadInput("an audit is made")

    monkeypatch.setattr(audits, "audit", none)
    with pytest.raises(BadInput, match="an audit is made"):
        audits.summary(Ask(False, tmp_path, [tmp_path], SILENT))
    # What a call that was stopped had finished lies in its own folder.
    (tmp_path / "l2dp-ml.json").write_text(json.dumps(whole), "utf-8")
    table = audits.summary(Ask(False, tmp_path, [tmp_path], SILENT))
    assert table.rows == [["l2dp-ml", "–", "ε=0.5 claimed, refuted", 2, "rank", "5.60", "6.60", "refuted"]]


@pytest.mark.parametrize(("asked", "most"), [("1", 1), ("", 64), ("0", 64), ("many", 64)])
def test_threads_that_were_asked_for_are_not_exceeded(monkeypatch: pytest.MonkeyPatch, asked: str, most: int) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    engine = perform.make_engine("local", 1, 5)
    assert isinstance(engine, Local)
    assert (engine.slots, engine._threads) == (1, most)
