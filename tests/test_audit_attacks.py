"""The attacks against the shipped code: the paper's mechanism falls, the proved ones stand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

from l2dp.audit import Target, audit, page
from l2dp.audit.attack import Attack
from l2dp.audit.attacks import ATTACKS
from l2dp.audit.attacks.floating_point import lowest_bit
from l2dp.audit.attacks.membership import clusters, neighbour, replaces
from l2dp.audit.attacks.rank import Rank
from l2dp.audit.attacks.worst_case import WorstCase
from l2dp.audit.decisions import Trials, bound

PAPER = Target("l2dp-ml", 0.5)
BY_NAME = {attack.NAME: attack for attack in ATTACKS}
ERROR = 1e-8
"""What a verdict needs when a hundred attacks are made."""


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def only(attack: Attack, target: Target, runs: int) -> Trials:
    (trials,) = attack.trials(target, runs, rng()).values()
    return trials


def test_rank_decides_rightly_and_bounds_above_5() -> None:
    """Algorithm 1, one step, claimed ε = 0.5; the threshold is fixed in advance."""
    found = bound(only(Rank(), PAPER, 460), 0.0, 0.05)
    assert found.trials == 460
    assert found.right >= 0.99 * found.trials
    assert found.epsilon >= 5


@pytest.mark.parametrize(
    "name", ["projection", "difference", "two batches", "output noise", "batch statistics", "quiet layers"]
)
def test_the_paper_s_claim_falls(name: str) -> None:
    """After projection, through D̄, over batches and tasks with clipping, over two steps, for the conv encoder."""
    found = bound(only(BY_NAME[name], PAPER, 60), 0.0, ERROR)
    assert found.right >= 0.95 * found.decided
    assert found.epsilon > 0.5


def test_clipping_hides_some_targets_but_not_all() -> None:
    found = bound(only(BY_NAME["clipped search"], PAPER, 200), 0.0, ERROR)
    assert found.right == found.decided
    assert 20 < found.decided < 150
    assert found.epsilon > 0.5


def test_more_noise_does_not_help() -> None:
    found = bound(only(Rank(), Target("l2dp-ml", 0.1), 60), 0.0, 0.05)
    assert found.right >= 48
    assert found.epsilon > 0.1


REPLAY = Target("private-replay", 1.0, 1e-5)
PURE = Target("private-replay", 1.0, 0.0)
USER = Target("private-replay", 1.0, 1e-5).having(protects="user", per_user=3)
PURE_USER = Target("private-replay", 1.0, 0.0).having(protects="user", per_user=3)
FIXED = replace(Target("private-replay", 1.0, 1e-5).having(head="fixed"), same_boundary=True)
NAIVE = Target("naive-gaussian", 1.0, 1e-5)
CHEAP = {"worst-case neighbour": 20_000, "each class": 800, "scatter": 2_000, "floating point": 5_000}
CHEAP |= {"gradient canaries": 2_000, "replayed canaries": 2_000, "one run": 400, "sampler": 50}
CHEAP |= {"cancellation": 100, "one gradient": 4_000, "returning user": 2_000}


@pytest.mark.parametrize(
    "target", [REPLAY, PURE, USER, PURE_USER, FIXED, NAIVE], ids=lambda t: f"{t.learner}{t.options}"
)
def test_proved_guarantees_stand(target: Target) -> None:
    """Every attack that applies runs against the shipped code, at a small number of trials."""
    for attack in ATTACKS:
        if attack.refusal(target) is not None:
            continue
        for name, trials in attack.trials(target, CHEAP.get(attack.NAME, 40), rng()).items():
            p_value = attack.p_value(trials)
            if p_value is not None:
                assert p_value > 1e-7, name
            else:
                assert bound(trials, target.delta or 0.0, ERROR, one_run=attack.ONE_RUN).epsilon <= 1.0, name


@pytest.mark.parametrize("target", [PAPER, REPLAY], ids=["replace", "add-remove"])
def test_neighbours_differ_as_the_guarantee_says(target: Target) -> None:
    """Where a record is replaced, both worlds have as many; where it is added, one has one more."""
    data = clusters(rng())
    with_it, without, same = (neighbour(target, 0, data, member).train.unseal() for member in (True, False, None))
    assert replaces(target) == (target is PAPER)
    assert (len(with_it), len(without), len(same)) == (25, 25 if target is PAPER else 24, 24)
    inside = with_it.source.x[:24], without.source.x[:24], same.source.x
    assert all(torch.equal(one, data[0]) for one in inside)


def test_so_few_trials_that_nothing_can_be_refuted_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    found = audit([Target("private-replay", 3.0, 0.0)], runs=40, attacks=[BY_NAME["label set"]])
    (finding,) = found.findings
    assert finding.verdict_ceiling is not None
    assert finding.verdict_ceiling < 3.0
    assert not finding.could_refute
    page.show(found, Console(width=200))
    assert "* so few trials cannot refute" in capsys.readouterr().out
    assert found.to_json()["targets"][0]["epsilon"] == 3.0
    assert found.to_json()["attacks"] == ["label set"]
    assert found.to_json()["runs"] == 40


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (Target("private-replay", 40.0, 1e-5).having(steps=1), "next to nothing to test"),
        (Target("naive-gaussian", 1.0, 1e-5).having(noise_scale=0.5), "a variance needs 30"),
        (Target("naive-gaussian", 1.0, 1e-5).having(policy="adaptive"), "holds records back"),
    ],
)
def test_a_sampler_that_shows_nothing_is_not_applicable(target: Target, why: str) -> None:
    (finding,) = audit([target], runs=40, attacks=[BY_NAME["sampler"]]).findings
    assert finding.verdict == "not applicable"
    assert why in finding.why


def test_the_audit_of_a_pure_class_sum_gets_close() -> None:
    """An audit that never gets near proves nothing."""
    assert bound(only(WorstCase(), Target("private-replay", 2.0, 0.0), 200_000), 0.0, 0.05).epsilon > 0.75 * 2.0


def test_porous_noise_is_found() -> None:
    """Laplace noise in floating point, added without rounding: its lowest bits tell a sum of 0 from one of 1."""
    generator = rng()
    members = generator.integers(0, 2, 20_000).astype(bool)
    noisy = members + generator.laplace(scale=2.0, size=20_000)
    assert bound(Trials(lowest_bit(noisy), members), 0.0, ERROR).epsilon > 2
    rounded = np.round(2**16 * noisy) / 2**16
    assert bound(Trials(lowest_bit(rounded), members), 0.0, ERROR).epsilon <= 0.5


@pytest.mark.parametrize(
    ("value", "exponent"), [(1.0, 0), (3.0, 0), (0.75, -2), (-6.0, 1), (2.0**-80, -80), (0.0, 1024)]
)
def test_the_lowest_bit(value: float, exponent: int) -> None:
    assert lowest_bit(np.array([value]))[0] == exponent


def test_every_attack_explains_itself() -> None:
    for attack in ATTACKS:
        assert type(attack).__doc__
        assert len(type(attack).__doc__ or "") > 100
        assert attack.THREAT
        assert attack.RUNS["quick"] <= attack.RUNS["thorough"]


def test_an_audit_divides_its_error_and_names_what_it_left_out() -> None:
    attacks = [BY_NAME["rank"], BY_NAME["difference"], BY_NAME["worst-case neighbour"]]
    found = audit([PAPER], runs=60, attacks=attacks)
    assert found.verdict == "refuted"
    assert found.error_of_each == pytest.approx(5e-7)
    assert [finding.verdict for finding in found.findings] == ["refuted", "refuted", "not applicable"]
    assert found.beaten == []  # its status is refuted already; only a proved guarantee can be beaten
    first = found.to_json()["findings"][0]
    assert first["stated"]["status"] == "refuted"
    assert first["lower_bound"] <= first["ceiling"]
    assert first["right"] >= 59


def test_processes_give_what_one_gives() -> None:
    found = audit([PAPER], runs=60, workers=2, attacks=[BY_NAME["difference"]])
    assert found.verdict == "refuted"
    assert found.findings[0].trials == 60
    assert found.findings[0].right == 60


def test_a_learner_without_a_guarantee_has_nothing_to_audit() -> None:
    found = audit([Target("agem")], runs=60)
    assert found.verdict == "not applicable"
    assert {finding.why for finding in found.findings} == {"no guarantee is stated"}


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "part"), [(0.5, 0.6), (2.0, 0.75)])
@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_a_million_draws_of_class_sums_get_close(epsilon: float, part: float, delta: float) -> None:
    """A million draws bound, after another million has chosen the threshold."""
    found = bound(only(WorstCase(), Target("private-replay", epsilon, delta), 2_000_000), delta, 0.05)
    assert found.trials == 1_000_000
    assert part * epsilon <= found.epsilon <= 1.1 * epsilon


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "part"), [(0.5, 0.6), (2.0, 0.75)])
@pytest.mark.parametrize("name", ["scatter", "gradient canaries"])
def test_a_million_draws_of_scatter_and_of_one_full_batch_gradient_get_close(
    name: str, epsilon: float, part: float
) -> None:
    target = Target("private-replay", epsilon, 1e-5)
    if name == "gradient canaries":
        target = target.having(steps=1, scatter_share=0.0, head_share=0.998)
    found = bound(only(BY_NAME[name], target, 2_000_000), 1e-5, 0.05)
    assert found.trials >= 1_000_000
    assert part * epsilon <= found.epsilon <= 1.1 * epsilon
