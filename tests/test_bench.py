"""The quick form of the benchmarks runs and says what it should; no test here depends on how fast the machine is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("bench") / "new"
    done = bench("--quick", "--only", "flat,steps", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "One step" in done.stdout
    assert "As the stream grows" in done.stdout
    read: dict[str, Any] = json.loads((out / "bench.json").read_text(encoding="utf-8"))
    # Said aloud exactly where a requirement is not met.
    rows_above = any(row["limit_holds"] and not row["passed"] for row in read["steps"]["rows"])
    assert ("ABOVE LIMIT" in done.stdout) == (rows_above or not all(read["requirements"].values()))
    return read


def sane(spread: dict[str, float]) -> bool:
    return 0 < spread["q1"] <= spread["median"] <= spread["q3"] and spread["low"] <= spread["median"] <= spread["high"]


def test_what_it_was_measured_on(found: dict[str, Any]) -> None:
    machine = found["machine"]
    assert machine["torch_threads"] == machine["cores"] >= 1
    assert machine["torch"]
    assert found["quick"] is True
    assert set(found["requirements"]) == {"steps", "flat"}
    assert "avalanche" not in found


def test_steps(found: dict[str, Any]) -> None:
    rows = found["steps"]["rows"]
    assert {row["learner"] for row in rows} == {"agem", "l2dp-ml"}
    for row in rows:
        assert all(sane(row[name]) for name in ("step_seconds", "limit_seconds", "ratio"))
        assert row["ratio"]["count"] == row["steps"] - 1
        assert row["finite"]
        assert row["allowed"] == 1.1
        assert row["passed"] == (0.95 <= row["ratio"]["median"] <= 1.1)
    assert found["requirements"]["steps"] == all(row["passed"] for row in rows)


def test_flat(found: dict[str, Any]) -> None:
    rows = found["flat"]["rows"]
    assert [row["learner"] for row in rows] == ["agem", "l2dp-ml"]
    for row in rows:
        assert [step["tasks"] for step in row["steps"]] == [at["tasks"] for at in row["run"]["at"]] == [5, 10, 20]
        assert all(sane(step["step_seconds"]) and step["finite"] for step in row["steps"])
        assert all(sane(at["task_seconds"]) for at in row["run"]["at"])
        # Bytes are no matter of timing: what is kept does not grow, but for the accuracies of an evaluated task.
        assert 0.9 < row["growth"]["episode"] < 1.1
        assert 0.9 < row["growth"]["state"] < 1.1
        assert row["run"]["state_tensor_bytes"] < row["run"]["at"][0]["state"]


def test_fingerprints_and_ledger(tmp_path: Path) -> None:
    done = bench("--quick", "--only", "fingerprints,ledger", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    read = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    index, ledger = read["fingerprints"], read["ledger"]
    assert index["overlap_found"] == index["overlap_true"] == 5000
    assert index["bytes_each"] < 21
    assert (ledger["blocks"], ledger["task"]) == (100_000, 10_000)
    assert 0 < ledger["bytes_each"] < 200


def test_an_unknown_section_is_refused() -> None:
    done = bench("--only", "steps,nothing")
    assert done.returncode == 2
    assert "unknown section 'nothing'" in done.stderr
    assert "Traceback" not in done.stderr
