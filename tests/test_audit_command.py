"""`l2dp audit`: table, figure, JSON, exit codes; learners, runs and homes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from l2dp import cli
from l2dp.audit import Target, attacks, engine, settings
from l2dp.audit.attacks.difference import Difference
from l2dp.audit.attacks.each_class import EachClass
from l2dp.audit.attacks.label_set import LabelSet
from l2dp.audit.attacks.rank import Rank
from l2dp.boundary.private import PrivateTasks
from l2dp.durable import read_json, write_json
from l2dp.store import init


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def few_attacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command runs them all; that takes a minute, and their own tests run each."""
    monkeypatch.setattr(attacks, "ATTACKS", (Rank(), Difference(), EachClass(), LabelSet()))


class Called:
    def __init__(self, *arguments: object, capsys: pytest.CaptureFixture[str]) -> None:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(["audit", *map(str, arguments), "--workers", "1"])
        self.code = ended.value.code
        self.out, self.err = capsys.readouterr()


def test_the_paper_s_learner_is_refuted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    called = Called("l2dp-ml", "--epsilon", "0.5", "--runs", "60", "--out", tmp_path / "a", capsys=capsys)
    assert called.code == 0  # nobody called it proved
    assert "refuted" in called.out
    assert "ε=0.5 claimed, refuted" in called.out
    assert "not applicable: each class" in called.out
    found = json.loads((tmp_path / "a" / "audit.json").read_text())
    assert found["verdict"] == "refuted"
    assert found["family_error"] == 1e-6
    rank = found["findings"][0]
    assert (rank["attack"], rank["verdict"], rank["trials"]) == ("rank", "refuted", 60)
    assert 0.5 < rank["verdict_bound"] <= rank["lower_bound"] <= rank["ceiling"]
    assert rank["stated"]["status"] == "refuted"
    assert len(rank["curve"]["false_positive_rate"]) == len(rank["curve"]["false_negative_rate"]) > 1
    assert (tmp_path / "a" / "audit.png").read_bytes().startswith(b"\x89PNG")


def test_json_is_all_there_is_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    called = Called(
        "private-replay",
        "-o",
        "head=experts",
        "--delta",
        "0",
        "--epsilon",
        "1",
        "--runs",
        "80",
        "--json",
        capsys=capsys,
    )
    assert called.code == 0
    found = json.loads(called.out)
    assert found["verdict"] == "holds so far"
    assert {finding["verdict"] for finding in found["findings"]} == {"holds so far", "not applicable"}
    assert all(finding["stated"]["status"] == "proved" for finding in found["findings"])


def test_a_beaten_proof_is_exit_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Almost no noise, while the guarantee says proved."""
    original = PrivateTasks.noise_for

    def twin(self: PrivateTasks, declared_size: int) -> Any:
        from dataclasses import replace

        found, rate = original(self, declared_size)
        return replace(found, sums=1e-3), rate

    monkeypatch.setattr(PrivateTasks, "noise_for", twin)
    called = Called(
        "private-replay",
        "-o",
        "head=experts",
        "--delta",
        "0",
        "--attack",
        "each class",
        "--epsilon",
        "1",
        "--runs",
        "2000",
        capsys=capsys,
    )
    assert called.code == 1
    assert "refuted" in called.out
    assert called.err.splitlines()[-1].startswith("l2dp: a guarantee with the status proved is beaten")


def test_a_run_is_audited_as_it_was_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "permuted-digits", "--learner", "l2dp-ml", "--epsilon", "2", "--tasks", "1", "--threads", "1"]
    with pytest.raises(SystemExit):
        cli.main([*words, "-o", "chi3=vector", "--out", str(tmp_path / "run")])
    (target,) = settings.from_folder(tmp_path / "run")
    assert (target.learner, target.epsilon, target.delta) == ("l2dp-ml", 2.0, 0.0)
    assert target.option("chi3") == "vector"
    called = Called(tmp_path / "run", "--runs", "60", capsys=capsys)
    assert called.code == 0
    assert "ε=2 claimed, refuted" in called.out


def test_a_run_of_private_replay_keeps_its_options(tmp_path: Path) -> None:
    words = ["run", "split-digits", "--epsilon", "2", "--tasks", "2", "--threads", "1", "--out", str(tmp_path)]
    with pytest.raises(SystemExit):
        cli.main([*words, "-o", "steps=7", "-o", "lift=none"])
    (target,) = settings.from_folder(tmp_path)
    made: Any = target.make()
    assert (made.steps, made.lift, made.budget.epsilon, made.budget.delta) == (7, None, 2.0, 1e-5)


def home(folder: Path) -> Path:
    asked: dict[str, Any] = {
        "labels": ["a", "b"],
        "features": 3,
        "low": -1.0,
        "high": 1.0,
        "task_size": 100,
        "unit": "user",
        "unit_column": "who",
        "epsilon": 1.5,
        "delta": 0.0,
        "per_user": 4,
        "per_task_epsilon": 0.5,
        "options": {"count_weight": "0.4"},
    }
    return init(folder / "home", **asked).path


def test_a_home_is_audited_as_it_was_declared(tmp_path: Path) -> None:
    (target,) = settings.from_folder(home(tmp_path))
    made: Any = target.make()
    assert (made.budget.epsilon, made.budget.delta, made.protects, made.per_user) == (1.5, 0.0, "user", 4)
    assert (made.per_task_epsilon, made.count_weight) == (0.5, 0.4)
    stated = engine.promised(target)
    assert stated is not None
    assert (stated.epsilon, stated.guarantee.status, stated.guarantee.unit) == (1.5, "proved", "user")


def test_all_settings_of_private_replay_are_audited() -> None:
    found = settings.targets("private-replay", 0.5, None, {})
    assert len(found) == 8
    stated = [engine.promised(target) for target in found if target.delta == 0]
    assert {(one.delta, one.guarantee.unit) for one in stated if one} == {(0.0, "record"), (0.0, "user")}
    assert settings.targets("naive-gaussian", None, None, {}) == [Target("naive-gaussian")]


BAD: list[tuple[list[str], str]] = [
    (["nothing-like-it"], "unknown learner"),
    (["l2dp-ml", "--level", "fast"], "--level fast"),
    (["l2dp-ml", "--attack", "ranks"], "did you mean 'rank'"),
    (["l2dp-ml", "--runs", "3"], "--runs must be at least 40"),
    (["l2dp-ml", "--epsilon", "0"], "epsilon must be a positive finite number"),
    (["l2dp-ml", "--epsilon", "1", "--delta", "1e-5"], "--delta must be left out or 0"),
    (["agem", "--epsilon", "1"], "agem has no privacy budget"),
    (["private-replay", "-o", "heads=experts"], "did you mean 'head'"),
    (["."], "holds neither a run"),
    ([".", "--epsilon", "1"], "settings of its own"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[" ".join(arguments) for arguments, _ in BAD])
def test_bad_usage_is_one_line_and_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    called = Called(*arguments, capsys=capsys)
    assert called.code == 2
    assert message in called.err.splitlines()[-1]
    assert called.out == ""


DAMAGED: list[dict[str, object]] = [
    {"insecure_noise_seed": 3},
    {"options": 5},
    {"options": {"head": 3}},
    {"epsilon": "much"},
    {"epsilon": 10**400},
    {"per_task_epsilon": "much"},
    {"per_task_epsilon": [1]},
    {"learner": 3},
]


@pytest.mark.parametrize("changed", DAMAGED, ids=[next(iter(changed)) for changed in DAMAGED])
def test_a_home_that_states_nothing_or_is_damaged_is_refused(
    changed: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = home(tmp_path)
    write_json(folder / "home.json", read_json(folder / "home.json") | changed)
    called = Called(folder, capsys=capsys)
    assert called.code == 2
    assert called.err.splitlines()[-1].startswith("l2dp: ")


def test_no_privacy_is_nothing_to_audit(capsys: pytest.CaptureFixture[str]) -> None:
    called = Called("agem", capsys=capsys)
    assert called.code == 0
    assert "not applicable" in called.out
