"""The pages of docs/ tell the truth: their examples run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from l2dp import Budget, Guarantee, learners
from l2dp.budget import NO_PRIVACY
from l2dp.conformance import check_learner

PAGE = Path(__file__).parent.parent / "docs" / "add-a-learner.md"


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture
def example(tmp_path: Path) -> Iterator[Path]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    path = tmp_path / "my_learner.py"
    path.write_text(blocks()[0], "utf-8")
    yield path
    sys.modules.pop("my_learner", None)
    torch.set_num_threads(threads)


def test_the_example_is_short() -> None:
    assert len(blocks()[0].splitlines()) < 60


def test_the_example_conforms(example: Path) -> None:
    replay = learners.find(f"{example}:Replay")
    check_learner(replay)


def test_a_claim_as_on_the_page_conforms(example: Path) -> None:
    names = {"Guarantee": Guarantee, "NO_PRIVACY": NO_PRIVACY}
    exec(blocks()[1], names)
    replay = learners.find(f"{example}:Replay")

    @dataclass
    class Claimed(replay):  # type: ignore[misc, valid-type]
        budget: Budget = field(default_factory=lambda: Budget(0.5, 1e-6))
        guarantee = names["guarantee"]

    check_learner(Claimed)


def test_the_commands_of_the_page_work(example: Path) -> None:
    (command,) = re.findall(r"^    l2dp (run .*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    program = Path(sys.executable).parent / "l2dp"
    done = subprocess.run(
        [program, *command.split(), "--tasks", "2", "--threads", "1", "-o", "replay_batch=20"],
        cwd=example.parent,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads((example.parent / "runs" / "replay" / "result.json").read_text())
    assert result["learner"] == "replay"
    assert result["config"]["learner"]["replay_batch"] == 20
    assert result["guarantee"]["status"] == "none"
    assert result["average_accuracy"][1] > 0.7


def test_the_attacks_on_the_page_are_the_recorded_ones() -> None:
    root = PAGE.parent.parent
    page = (root / "docs" / "is-l2dp-ml-private.md").read_text("utf-8")
    found = json.loads((root / "results" / "audit" / "l2dp-ml" / "audit.json").read_text("utf-8"))
    tried = [one for one in found["findings"] if one["verdict"] != "not applicable"]
    assert len(tried) == 12
    for one in tried:
        guesses = f"{one['right']} / {one['decided']} / {one['bounded_on']}"
        bounds = f"{one['lower_bound']:.2f} | {one['ceiling']:.2f}"
        assert f"| {one['attack']} | {one['threat_model']} | {guesses} | {bounds} | {one['verdict']} |" in page


@pytest.mark.parametrize("name", ["private-replay-quick", "private-replay-thorough", "naive-gaussian"])
def test_the_audits_on_the_page_are_the_recorded_ones(name: str) -> None:
    root = PAGE.parent.parent
    page = (root / "docs" / "audit.md").read_text("utf-8")
    path = f"results/audit/{name}/audit.json"
    found = json.loads((root / path).read_text("utf-8"))
    tried = [one for one in found["findings"] if one["verdict"] != "not applicable"]
    best = max((one for one in tried if one["lower_bound"] is not None), key=lambda one: one["lower_bound"])
    assert found["verdict"] == "holds so far"
    said = f"`{path}`) | {found['seconds']:.0f} s | {len(tried)} | {best['lower_bound']:.2f}, {best['attack']}"
    assert said in page


def test_the_series_on_the_page_is_the_recorded_one() -> None:
    root = PAGE.parent.parent
    page = (root / "docs" / "audit.md").read_text("utf-8")
    series = {
        name: json.loads((root / "results" / "audit" / f"{name}.json").read_text("utf-8"))
        for name in ("private-replay", "naive-gaussian")
    }
    for name, found in series.items():
        audits = found["audits"]
        bounds = [one for audit in audits for one in audit["findings"] if one[4] is None]
        above = sum(one[2] > found["epsilon"] for one in bounds)
        refuted = sum(audit["verdict"] == "refuted" for audit in audits)
        closest = max(one[3] for one in bounds)
        said = f"| `{name}` | {len(audits)} | {refuted} | {len(bounds):,} | {above} | {closest:.2f} |"
        assert (found["level"], refuted, said in page) == ("thorough", 0, True), said
    for attack in dict.fromkeys([*series["private-replay"]["highest"], *series["naive-gaussian"]["highest"]]):
        cells = (found["highest"].get(attack) for found in series.values())
        said = " | ".join("–" if cell is None else f"{cell:.2f}" for cell in cells)
        assert f"| {attack} | {said} |" in page


def test_the_soak_on_the_page_is_the_recorded_one() -> None:
    root = PAGE.parent.parent
    page = (root / "docs" / "home.md").read_text("utf-8")
    homes = json.loads((root / "results" / "home" / "soak.json").read_text("utf-8"))["homes"]
    cells = []
    for lines in (homes["a head for every task"], homes["one network of fixed size"]):
        spent = [1000 * line["cpu_seconds_per_task"] for line in lines]
        cells.append(f"{sum(spent[:5]) / 5:.0f} ms, {sum(spent[-5:]) / 5:.0f} ms")
        assert f"{lines[0]['memory_mb']:.0f} MB, {lines[-1]['memory_mb']:.0f} MB" in page
        assert f"{lines[0]['state_bytes_per_task']:,.0f}, {lines[-1]['state_bytes_per_task']:,.0f}" in page
    assert f"first and last 250 tasks | {cells[0]} | {cells[1]} |" in page
