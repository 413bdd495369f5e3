"""Plans: what is said of noise and accuracy is what the shipped learner does; no bare ε, no traceback."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from dp_accounting import ComposedDpEvent
from rich.console import Console

from l2dp import cli, planning
from l2dp.accounting import epsilon, gaussian, sampled_gaussian
from l2dp.learners import PrivateReplay
from l2dp.planning import Outlook, Population, Question, first_to_reach, plan, show

PURE = {"records": 600, "classes": 4, "features": 12, "epsilon": 1.0, "delta": 0.0}
"""Pure ε needs no search for its noise, so it is fast."""
# An ε followed by a number must be followed by its status.
STATED = re.compile(r"ε=[^ ,]+(, δ=\S+)? proved")


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def digits() -> Outlook:
    """The plan for tasks of the embedded digits' shape."""
    return plan(Question(500, 10, 64, 1.0))


def text(outlook: Outlook, width: int = 200) -> str:
    console = Console(width=width)
    with console.capture() as printed:
        show(outlook, console)
    return printed.get()


def call(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[Any, str, str]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main(["plan", *arguments])
    return ended.value.code, *capsys.readouterr()


def words(**changed: object) -> list[str]:
    named = {**PURE, **changed}
    return [word for name, value in named.items() for word in (f"--{name.replace('_', '-')}", str(value))]


BAD: list[tuple[dict[str, object], str]] = [
    ({"records": 0}, "--records must be at least 1"),
    ({"records": -5}, "--records must be at least 1"),
    ({"records": "many"}, "--records"),
    ({"classes": 1}, "--classes must lie between 2 and the 600 records"),
    ({"classes": 601}, "--classes must lie between 2 and the 600 records"),
    ({"classes": 1001, "records": 5000}, "at most 1000"),
    ({"features": 0}, "--features must be at least 1"),
    ({"features": 20_001}, "at most 20000"),
    ({"epsilon": 0}, "epsilon must be a positive finite number"),
    ({"epsilon": -1}, "epsilon must be a positive finite number"),
    ({"epsilon": "nan"}, "epsilon must be a positive finite number"),
    ({"epsilon": "inf"}, "epsilon must be a positive finite number"),
    ({"epsilon": 1000}, "at most 100"),
    ({"delta": 1}, "delta must be at least 0 and below 1"),
    ({"delta": -0.1}, "delta must be at least 0 and below 1"),
    ({"delta": "nan"}, "delta must be at least 0 and below 1"),
    ({"delta": 0.5}, "choose far below 1/records"),
    ({"unit": "family"}, "unknown unit 'family'"),
    ({"unit": "user"}, "--unit user and --per-user go together"),
    ({"per_user": 3}, "--unit user and --per-user go together"),
    ({"unit": "user", "per_user": 0}, "--per-user must lie between 1 and the 600 records"),
    ({"unit": "user", "per_user": 601}, "--per-user must lie between 1 and the 600 records"),
    ({"seed": -1}, "--seed -1"),
    ({"seed": 2**63}, f"--seed {2**63}"),
]


@pytest.mark.parametrize(("changed", "message"), BAD, ids=[str(changed) for changed, _ in BAD])
def test_bad_values_are_one_line_and_2(
    changed: dict[str, object], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(words(**changed), capsys)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("l2dp: ")
    assert message in line


def test_missing_words_are_one_line_and_2(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(["--records", "10"], capsys)
    assert code == 2
    assert err.count("\n") == 1


def test_the_command_prints_a_plan_with_every_epsilon_stated(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(words(), capsys)
    assert (code, err) == (0, "")
    for expected in (
        "A run would state ε=1 proved",
        "spends nothing",
        "almost none",
        "smallest task",
        "not guarantees",
    ):
        assert expected in " ".join(out.split())
    assert out.count("ε=") == len(STATED.findall(" ".join(out.split())))


def test_json_holds_the_same_facts(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call([*words(), "--json"], capsys)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["guarantee"]["status"] == "proved"
    assert found["spent"] == "nothing"
    assert [line["data"] for line in found["accuracy"]] == ["synthetic", "synthetic"]
    assert all(0 <= line["lowest"] <= line["mean"] <= line["highest"] <= 1 for line in found["accuracy"])
    assert all(line["guarantee"]["status"] == "proved" for line in found["accuracy"])
    assert found["advice"]["smallest_epsilon"]["status"] == "proved"
    assert "not a guarantee" in found["advice"]["is"]


def test_help_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(["--help"], capsys)
    assert (code, err) == (0, "")
    assert "before anything is spent" in out


def test_the_command_line_loads_no_torch() -> None:
    code = "import sys, l2dp.cli; sys.exit('torch' in sys.modules or 'l2dp.planning' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- noise ------------------------------------------------------------------------------------------------


def test_the_multipliers_spend_the_budget_and_no_more(digits: Outlook) -> None:
    sums, apart, head = digits.noise
    learner = PrivateReplay()
    assert learner.sample_size > 500, "a task this small is sampled whole"
    parts = [gaussian(sums.multiplier), sampled_gaussian(1.0, head.multiplier, learner.steps)]
    assert 0.98 < epsilon(ComposedDpEvent(parts), 1e-5) <= 1.001
    assert apart.multiplier == sums.multiplier
    assert head.bound
    assert not sums.bound
    assert head.signal == pytest.approx(learner.gradient_clip * 500)
    assert head.noise == pytest.approx(learner.gradient_clip * head.multiplier * math.sqrt(640), rel=1e-6)


@pytest.mark.parametrize("per_user", [None, 5])
@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_the_noise_of_class_sums_is_what_the_boundary_adds(delta: float, per_user: int | None) -> None:
    unit = "record" if per_user is None else "user"
    question = Question(600, 4, 12, 1.0, delta, unit, per_user)
    planner = planning._Planner(question)
    _, learner = planner.asked()
    line = planning._noise(question, learner, planner.populations[0])[0]
    assert line.noise == pytest.approx(learner.memory.tasks[0].deviation * math.sqrt(12), rel=1e-6)
    sums = learner.memory.tasks[0].sums
    assert line.signal <= 150
    # Four sums of twelve coordinates: their length is signal and noise together, within a wide margin.
    assert 0.3 < float(sums.norm(dim=1).mean()) / math.hypot(line.signal, line.noise) < 2


@pytest.mark.parametrize(("records", "lifted"), [(300, False), (3000, True)])
def test_the_head_is_as_wide_as_the_learner_makes_it(records: int, lifted: bool) -> None:
    question = Question(records, 2, 5, 4.0)
    _, learner = planning._Planner(question).asked()
    (head,) = (kept for name, kept in learner.release().items() if name.endswith(".head"))
    assert (len(head) > 5) == lifted
    assert planning._head_width(question, records, question.budget) == len(head)


# --- data and accuracy ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("classes", "features"), [(2, 3), (10, 64), (40, 20)])
def test_synthetic_classes_lie_as_far_apart_as_declared(classes: int, features: int) -> None:
    population = Population.make(classes, features, 3)
    x, y = population._draw(20_000, torch.Generator().manual_seed(5))
    assert float(x.abs().max()) <= 1
    nearest = torch.cdist(x, population.centres).argmin(dim=1)
    assert float((nearest == y).float().mean()) == pytest.approx(planning.NEAREST_MEAN, abs=0.015)


def test_synthetic_data_follow_the_seed() -> None:
    one, same, other = (Population.make(3, 5, seed).task(30, 4) for seed in (1, 1, 2))
    assert torch.equal(one.test.source.x, same.test.source.x)
    assert not torch.equal(one.test.source.x, other.test.source.x)
    assert torch.equal(one.test.source.x, Population.make(3, 5, 1).task(60, 4).test.source.x)
    assert one.train.declared_size == 30


def test_accuracy_lies_between_chance_and_that_without_noise(digits: Outlook) -> None:
    ceiling, asked, real_ceiling, real = digits.expected
    assert [line.data for line in digits.expected] == ["synthetic", "synthetic", "digits", "digits"]
    assert all(line.records == 500 for line in digits.expected)
    assert ceiling.almost_no_noise
    assert not asked.almost_no_noise
    assert ceiling.mean > 0.85
    assert real_ceiling.mean > 0.85
    assert 0.2 < asked.mean < ceiling.mean
    assert 0.2 < real.mean < real_ceiling.mean
    assert asked.budget.status == "proved"


def test_the_advice_makes_up_for_too_few_records(digits: Outlook) -> None:
    advice = digits.advice
    assert advice is not None
    assert advice.target == pytest.approx(planning.SHARE * digits.expected[0].mean)
    assert advice.records is not None
    assert advice.epsilon is not None
    assert advice.epsilon.epsilon is not None
    assert advice.records > 500
    assert advice.epsilon.epsilon > 1
    printed = text(digits)
    assert f"about {advice.records:,} records" in printed
    assert f"about {advice.epsilon}" in printed
    assert printed.count("ε=") == len(STATED.findall(printed))


def test_more_budget_than_needed_is_said_to_be() -> None:
    outlook = plan(Question(600, 4, 12, 50.0, 0.0))
    assert outlook.advice is not None
    assert outlook.advice.records is not None
    assert outlook.advice.epsilon is not None
    assert outlook.advice.records < 600
    assert outlook.advice.epsilon.epsilon is not None
    assert outlook.advice.epsilon.epsilon < 50


def test_too_large_a_task_is_simulated_smaller_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "LARGEST_TASK", 2_000_000)
    outlook = plan(Question(10**12, 3, 20, 1.0, 0.0))
    assert outlook.expected[0].records < 1000
    assert any("of 1,000,000,000,000 records" in note for note in outlook.notes)
    assert outlook.noise[0].signal > 1e11


def test_what_cannot_be_learned_gets_no_advice() -> None:
    """One feature at norm 1 is a constant."""
    outlook = plan(Question(50, 3, 1, 1.0, 0.0))
    assert outlook.advice is None
    assert any("near chance" in note for note in outlook.notes)
    assert "smallest" not in text(outlook)
    assert outlook.to_json()["advice"] is None


def test_a_delta_of_one_record_is_remarked_on() -> None:
    assert any("not below 1/records" in note for note in planning._notes(Question(200, 2, 3, 1.0, 0.005), 200))
    assert len(planning._notes(Question(200, 2, 3, 1.0, 0.004), 200)) == 1


# --- searches ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guess", [-30, -3, 0, 2, 7, 50])
def test_the_first_power_that_reaches_is_found_from_any_guess(guess: int) -> None:
    for first in range(-20, 8):
        assert first_to_reach(lambda power, first=first: power >= first, guess, -20, 7) == first  # type: ignore[misc]
    assert first_to_reach(lambda power: False, guess, -20, 7) is None
    assert first_to_reach(lambda power: True, guess, -20, 7) == -20


def test_a_good_guess_takes_two_calls() -> None:
    called: list[int] = []

    def reaches(power: int) -> bool:
        called.append(power)
        return power >= 2

    assert first_to_reach(reaches, 2, -20, 7) == 2
    assert called == [2, 1]
