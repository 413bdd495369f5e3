"""The command line: whatever a user gets wrong is one line on standard error, with the right exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from l2dp import cli, sweeps
from l2dp.__main__ import start
from l2dp.benchmarks import BENCHMARKS
from l2dp.learners import LEARNERS

PROGRAM = str(Path(sys.executable).parent / "l2dp")


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Called:
    """One call of the program within this process."""

    def __init__(self, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        self.code = ended.value.code
        self.out, self.err = capsys.readouterr()


def run(*words: str, out: Path, learner: str = "agem", benchmark: str = "permuted-digits") -> list[str]:
    return ["run", benchmark, "--learner", learner, "--out", str(out), "--threads", "1", *words]


def npz(path: Path, **changed: Any) -> Path:
    x, y = np.zeros((30, 5), np.float32), np.arange(30) % 3
    parts: dict[str, Any] = {"x_train": x, "y_train": y, "x_test": x, "y_test": y}
    np.savez(path, **(parts | changed))
    return path


PRIVATE = {"learner": "l2dp-ml"}
BAD: list[tuple[list[str], dict[str, str], str]] = [
    ([], {"benchmark": "permuted-digit"}, "did you mean 'permuted-digits'"),
    ([], {"benchmark": "xyz"}, "unknown benchmark 'xyz'"),
    ([], {"learner": "agme"}, "did you mean 'agem'"),
    ([], {"learner": "l2dpml"}, "did you mean 'l2dp-ml'"),
    ([], {"learner": "zzz"}, "unknown learner 'zzz'"),
    ([], {"learner": "nowhere.py:Mine"}, "no learner at 'nowhere.py:Mine'"),
    ([], {"learner": "nowhere:Mine"}, "no learner at 'nowhere:Mine'"),
    ([], {"learner": ":Mine"}, "no learner at ':Mine'"),
    ([], {"learner": ".here:Mine"}, "no learner at '.here:Mine'"),
    ([], {"learner": "l2dp.learners:Nothing"}, "no learner at"),
    ([], {"learner": "json:loads"}, "is not a subclass"),
    ([], {"learner": "l2dp.learners:Learner"}, "lacks begin"),
    (["--epsilon", "0"], PRIVATE, "epsilon must be a positive finite number"),
    (["--epsilon", "-1"], PRIVATE, "epsilon must be a positive finite number"),
    (["--epsilon", "nan"], PRIVATE, "epsilon must be a positive finite number"),
    (["--epsilon", "inf"], PRIVATE, "epsilon must be a positive finite number"),
    (["--epsilon", "much"], PRIVATE, "--epsilon"),
    (["--epsilon", "1", "--delta", "1"], PRIVATE, "delta must be at least 0 and below 1"),
    (["--epsilon", "1", "--delta", "-0.1"], PRIVATE, "delta must be at least 0 and below 1"),
    (["--epsilon", "1", "--delta", "nan"], PRIVATE, "delta must be at least 0 and below 1"),
    (["--epsilon", "1", "--delta", "1e-5"], PRIVATE, "--delta must be left out or 0"),
    (["--delta", "1e-5"], PRIVATE, "--delta goes with --epsilon"),
    (["--epsilon", "1"], {}, "agem has no privacy budget"),
    (["--delta", "1e-5"], {}, "agem has no privacy budget"),
    (["--batch-size", "5000"], {}, "batch of 5000 does not fit task 1, which has 1437 records"),
    (["--batch-size", "0"], {}, "--batch-size must be at least 1"),
    (["--batch-size", "1", "--epsilon", "1"], PRIVATE, "batches of at least 2"),
    (["--per-task", "8"], {}, "batch of 10 does not fit"),
    (["--per-task", "0"], {}, "0 records a task"),
    (["--per-task", "1438"], {}, "1438 records a task"),
    (["--tasks", "0"], {}, "--tasks must be at least 1"),
    (["--tasks", "-3"], {}, "--tasks must be at least 1"),
    (["--tasks", "two"], {}, "--tasks"),
    (["--tasks", "11"], {"benchmark": "split-digits"}, "--tasks 11"),
    (["--tasks", "3", "--order", "1,2,2"], {}, "names task '2' twice"),
    (["--tasks", "3", "--order", "1,2"], {}, "names 2 of 3 tasks"),
    (["--tasks", "3", "--order", "1,2,4"], {}, "names task '4'"),
    (["--tasks", "3", "--order", "a,b,c"], {}, "names task 'a'"),
    (["--tasks", "3", "--order", ""], {}, "--order"),
    (["--protocol", "any"], {}, "unknown protocol 'any'; choose from class, task, domain"),
    (["--epochs", "0"], {}, "--epochs must be 1 or more"),
    (["--epochs", "-1"], {}, "--epochs must be 1 or more"),
    (["--epochs", "1.5"], {}, "--epochs '1.5'"),
    (["--epochs", "1,,2"], {}, "--epochs '1,,2'"),
    (["--epochs", ""], {}, "--epochs ''"),
    (["--epochs", "5,5,5,1"], {}, "--epochs names 4 tasks, the stream has 10"),
    (["-o", "memory"], {}, "write it as name=value"),
    (["-o", "memory_per_tsk=3"], {}, "did you mean 'memory_per_task'"),
    (["-o", "budget=3"], PRIVATE, "has no option 'budget'"),
    (["-o", "lr=fast"], {}, "option lr=fast: not float"),
    (["-o", "lr=-1"], {}, "must be a finite number"),
    (["-o", "lr=nan"], {}, "must be a finite number"),
    (["-o", "lr=inf"], {}, "must be a finite number"),
    (["-o", "memory_per_task=0"], {}, "must be at least 1"),
    (["-o", "memory_per_task=2.5"], {}, "not int"),
    (["-o", "projection=never"], {}, "choose from conflict, always"),
    (["-o", "optimiser=LBFGS"], {}, "unknown optimiser 'LBFGS'"),
    (["-o", "output_share=1"], PRIVATE, "output_share must lie between 0 and 1"),
    (["--model", "mnist-cov"], {}, "did you mean 'mnist-conv'"),
    (["--seeds", "1,2,1"], {}, "names a seed twice"),
    (["--seeds", "one"], {}, "--seeds 'one'"),
    (["--seed", "0", "--seeds", "1,2"], {}, "--seed and --seeds exclude each other"),
    (["--seed", "-1"], {}, "--seed -1"),
    (["--seed", str(2**64)], {}, f"--seed {2**64}"),
    (["--evaluate-every", "0"], {}, "--evaluate-every must be at least 1"),
    (["--device", "cuda:99"], {}, "--device cuda:99 cannot be used here"),
    (["--device", "toaster"], {}, "--device toaster cannot be used here"),
    (["--threads", "0"], {}, "--threads must be at least 1"),
    (["--nonsense"], {}, "--nonsense"),
    ([], {"benchmark": "permuted:/nowhere/data.npz"}, "/nowhere/data.npz"),
    ([], {"benchmark": "split:"}, "there is no dataset"),
]


@pytest.mark.parametrize(
    ("words", "where", "message"), BAD, ids=[" ".join([*w, *k.values()]) or "-" for w, k, _ in BAD]
)
def test_bad_usage_is_one_line_and_2(
    words: list[str], where: dict[str, str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    called = Called(run(*words, out=tmp_path / "out", **where), capsys)
    assert called.code == 2
    (line,) = called.err.splitlines()
    assert line.startswith("l2dp: ")
    assert message in line
    assert called.out == ""
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"]


def test_a_negative_noise_seed_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    called = Called(run("--insecure-noise-seed", "-1", "--epsilon", "1", out=tmp_path, learner="l2dp-ml"), capsys)
    assert called.code == 2
    assert "--insecure-noise-seed -1" in called.err.splitlines()[1]


@pytest.mark.parametrize(
    ("missing", "arguments"),
    [
        ("--out", ["run", "permuted-digits", "--learner", "agem"]),
        ("BENCHMARK", ["run", "--learner", "agem", "--out", "x"]),
        ("paint", ["paint"]),
    ],
)
def test_missing_words_are_one_line_and_2(
    missing: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    called = Called(arguments, capsys)
    assert called.code == 2
    (line,) = called.err.splitlines()
    assert missing.lower() in line.lower()


def test_clip_and_noise_scale_are_options_of_naive_gaussian(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--epsilon", "2", "--clip", "0.3", "--noise-scale", "9", "--tasks", "1", "-o", "steps=3"]
    assert Called(run(*words, out=tmp_path / "out", learner="naive-gaussian"), capsys).code == 0
    found = json.loads((tmp_path / "out" / "result.json").read_text())
    learner = found["config"]["learner"]
    assert (learner["clip"], learner["noise_scale"], learner["steps"]) == (0.3, 9.0, 3)
    assert found["accounting"]["tasks"][0]["steps"] == 3
    assert found["guarantee"]["status"] == "proved"
    refused = Called(run("--clip", "0.3", out=tmp_path / "no"), capsys)
    assert refused.code == 2
    assert "agem has no option 'clip'" in refused.err


def test_the_default_learner_is_the_proved_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    called = Called(["run", "permuted-digits", "--tasks", "2", "--out", str(tmp_path / "run")], capsys)
    assert called.code == 0
    found = json.loads((tmp_path / "run" / "result.json").read_text())
    assert found["learner"] == "private-replay"
    assert found["guarantee"]["status"] == "proved"
    assert "each source record appears in 2 tasks: ε=2, δ=2e-05 proved for the source" in called.out


@pytest.mark.parametrize(
    "changed",
    [
        {"x_train": np.full((30, 5), np.nan, np.float32)},
        {"x_test": np.full((30, 5), 3.0, np.float32)},
        {"y_train": np.arange(29)},
        {"x_train": np.zeros((0, 5), np.float32), "y_train": np.zeros(0, np.int64)},
        {"x_train": np.zeros((30, 6), np.float32)},
        {"x_train": np.array([{"a": 1}] * 30)},
        {"y_train": np.full(30, -1)},
    ],
)
def test_bad_data_is_one_line_and_2(
    changed: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = npz(tmp_path / "data.npz", **changed)
    called = Called(run(out=tmp_path / "out", benchmark=f"permuted:{path}"), capsys)
    assert called.code == 2
    assert called.err.count("\n") == 1
    assert not (tmp_path / "out" / "run.json").exists()


def test_a_cut_off_archive_is_one_line_and_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = npz(tmp_path / "data.npz")
    path.write_bytes(path.read_bytes()[:500])
    called = Called(run(out=tmp_path / "out", benchmark=f"permuted:{path}"), capsys)
    assert called.code == 2
    (line,) = called.err.splitlines()
    assert str(path) in line


def test_own_data_is_learned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = npz(tmp_path / "data.npz")
    for kind in ("permuted", "split"):
        arguments = run("--tasks", "3", out=tmp_path / kind, benchmark=f"{kind}:{path}")
        called = Called(arguments, capsys)
        assert (called.code, called.err) == (0, "")
        assert json.loads((tmp_path / kind / "result.json").read_text())["tasks"] == 3


def test_a_run_prints_a_table_and_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    called = Called(run("--tasks", "2", "--epsilon", "2", out=tmp_path / "out", learner="l2dp-ml"), capsys)
    assert (called.code, called.err) == (0, "")
    assert "ε=2 claimed, refuted" in called.out
    assert f"results in {tmp_path / 'out'}" in called.out
    stated = json.loads((tmp_path / "out" / "result.json").read_text())["guarantee"]
    assert (stated["status"], stated["epsilon"]) == ("refuted", 2.0)


@pytest.mark.parametrize("protocol", ["class", "task", "domain"])
def test_protocols_and_options_arrive(protocol: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--protocol", protocol, "-o", "memory-per-task=7", "-o", "projection=always", "--model", "mlp-9"]
    called = Called(run(*words, "--seed", "4", out=tmp_path, benchmark="split-digits"), capsys)
    assert (called.code, called.err) == (0, "")
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["protocol"], result["seed"]) == (protocol, 4)
    learner = result["config"]["learner"]
    assert (learner["memory_per_task"], learner["projection"], learner["model"]) == (7, "always", "mlp-9")


def test_insecure_noise_is_loud_and_protects_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--epsilon", "2", "--tasks", "2", "--insecure-noise-seed", "1"]
    called = Called(run(*words, out=tmp_path, learner="l2dp-ml"), capsys)
    assert called.code == 0
    (line,) = called.err.splitlines()
    assert "INSECURE" in line
    assert "protects nobody" in line
    assert "ε" not in called.out
    stated = json.loads((tmp_path / "result.json").read_text())["guarantee"]
    assert (stated["status"], stated["epsilon"], stated["source_epsilon"]) == ("none", None, None)


def test_list_shows_everything_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    called = Called(["list"], capsys)
    assert (called.code, called.err) == (0, "")
    for name in (*BENCHMARKS, *LEARNERS, "memory_per_task", "mnist", "permuted:PATH", "har/wisdm", "onnx", "ray "):
        assert name in called.out


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["demo", "--help"]])
def test_help_is_no_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    called = Called(arguments, capsys)
    assert (called.code, called.err) == (0, "")
    assert "Usage" in called.out


def test_it_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    called = Called(["--version"], capsys)
    assert (called.code, called.out, called.err) == (0, f"l2dp {version('l2dp')}\n", "")


def test_an_interrupt_while_loading_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        def __getattr__(self, name: str) -> Any:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "l2dp.cli", Slow())
    with pytest.raises(SystemExit) as ended:
        start()
    assert ended.value.code == 130


def test_no_arguments_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    called = Called([], capsys)
    assert called.code == 2
    assert "Usage" in called.out


def test_an_interrupt_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sweeps, "run_one", interrupt)
    called = Called(run(out=tmp_path), capsys)
    assert called.code == 130
    assert called.err.splitlines()[-1] == "l2dp: interrupted; run the same command again to continue"


def test_a_bug_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what a user can cause is cut down to a line."""

    def fail(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(sweeps, "run_one", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main(run(out=tmp_path))


def test_the_module_is_the_program() -> None:
    done = subprocess.run([sys.executable, "-m", "l2dp", "--help"], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert "l2dp [OPTIONS] COMMAND" in done.stdout


def test_the_installed_program_refuses_in_one_line(tmp_path: Path) -> None:
    arguments = run("--epsilon", "0", out=tmp_path / "out", learner="l2dp-ml")
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "l2dp: epsilon must be a positive finite number, not 0.0\n"


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    called = Called(["demo", "--out", str(tmp_path / "demo"), "--threads", "1"], capsys)
    assert (called.code, called.err) == (0, "")
    for name in LEARNERS:
        assert name in called.out
        assert (tmp_path / "demo" / name / "result.json").exists()
    assert (tmp_path / "demo" / "report.html").stat().st_size > 1000
