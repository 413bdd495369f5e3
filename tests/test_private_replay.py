"""The learner spends once a task and never more than it says; small and odd tasks are learned, forbidden ones not."""

from __future__ import annotations

import ast
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from l2dp import accounting
from l2dp.boundary.entry import Protection
from l2dp.boundary.private import PrivateTasks, Releases, Session
from l2dp.budget import Budget
from l2dp.errors import BadInput, Refused
from l2dp.learners import Plan, PrivateReplay, Setting
from l2dp.noise import InsecureNoise, Noise, SystemNoise
from l2dp.streams import Records, Sealed, Source, Space, Task

SPACE = Space((6,), tuple("abcd"))
PLAN = Plan(1, 10)
CPU = torch.device("cpu")
BUDGET = Budget(1.0, 1e-5)


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    """One thread, and noise from a coarser grid of losses: a little more noise, found sooner."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    accounting.calibrate.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accounting, "FINEST", 5e-3)
        yield
    accounting.calibrate.cache_clear()
    torch.set_num_threads(threads)


class Recording(SystemNoise):
    """Noise of the system that writes down how much of it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, float, tuple[int, ...]]] = []

    def fork(self, purpose: str) -> Recording:
        return self

    def gaussian(self, scale: float, shape: tuple[int, ...]) -> NDArray[np.float64]:
        self.asked.append(("gaussian", scale, shape))
        return super().gaussian(scale, shape)

    def k_norm(self, scale: float, rows: int, width: int) -> NDArray[np.float64]:
        self.asked.append(("k-norm", scale, (rows, width)))
        return super().k_norm(scale, rows, width)


def learner(noise: Noise | None = None, space: Space = SPACE, **how: Any) -> PrivateReplay:
    made = PrivateReplay(**{"budget": BUDGET, "lift": None, "steps": 3, **how})
    made.begin(Setting(space, 10, seed=1, noise=noise or SystemNoise()))
    return made


def task(
    name: str,
    labels: Sequence[int] = (0, 1, 2, 3) * 5,
    users: Sequence[int] | None = None,
    classes: tuple[int, ...] = (0, 1, 2, 3),
    seed: int = 0,
) -> Task:
    """Records around one corner of the cube for every label."""
    generator = torch.Generator().manual_seed(seed)
    corners = torch.randint(0, 2, (len(SPACE.labels), 6), generator=generator) * 1.6 - 0.8
    y = torch.tensor(labels)
    x = corners[y % 4] + 0.1 * (torch.rand(len(y), 6, generator=generator) - 0.5)
    source = Source(x, y, name, units=None if users is None else torch.tensor(users))
    return Task(name, Sealed(Records(source)), Records(source), classes)


def accuracy(made: PrivateReplay, given: Task) -> float:
    x, y = given.test.batch(slice(0, 1000))
    return float((made.scores(x).argmax(1) == y).float().mean())


PURE: dict[str, Any] = {"budget": Budget(1.0)}
SUMS: dict[str, Any] = {"head_share": 0.0}
HEAD: dict[str, Any] = {"head_share": 0.5}
ALL: dict[str, Any] = {"scatter_share": 0.3, "head_share": 0.3}
KINDS = {"pure": PURE, "sums": SUMS, "head": HEAD, "all": ALL}
kinds = pytest.mark.parametrize("how", KINDS.values(), ids=KINDS)


# --- what is promised -----------------------------------------------------------------------------------


def test_the_budget_does_not_grow_and_a_task_takes_as_long_as_the_first() -> None:
    made = learner(head_share=0.5, steps=2)
    tasks = [task(f"task {index}", seed=index % 7) for index in range(1000)]
    promised, facts, seconds = [], [], []
    for one in tasks:
        start = time.process_time()
        made.learn(one, PLAN)
        seconds.append(time.process_time() - start)
        promised.append(made.guarantee)
        facts.append(made.facts()["privacy"])
    assert set(promised) == {promised[0]}
    first = promised[0]
    assert (first.status, first.epsilon, first.delta, first.unit) == ("proved", 1.0, 1e-5, "record")
    assert all(fact == facts[0] for fact in facts)
    assert facts[0]["epsilon_of_one_task"] <= 1.0
    assert all(made.boundary._entry.ledger.spent(one.name) == BUDGET for one in tasks)
    early, late = statistics.median(seconds[:100]), statistics.median(seconds[-100:])
    assert late < 4 * early + 1e-3


def test_no_epsilon_of_a_task_without_its_status() -> None:
    for noise, status in ((SystemNoise(), "proved"), (InsecureNoise(1), "none")):
        made = learner(noise, **SUMS)
        made.learn(task("one"), PLAN)
        facts = made.facts()["privacy"]
        assert facts["status"] == status
        assert (facts["epsilon_of_one_task"] is None) == (facts["delta_of_one_task"] is None) == (status == "none")


def test_random_features_as_many_as_plain_ones_stay_random_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("l2dp.learners.private_replay.LIFT_FROM", 0.0)
    made = learner(InsecureNoise(1), lift=6, head_share=0.5)
    made.learn(task("one"), PLAN)
    x, _ = task("one").test.batch(slice(0, 5))
    known = made.memory.tasks[0]
    assert known.lifted
    lifted = made._head_features(made.encoder(x), made.memory.centres[0], True) @ known.head
    assert torch.allclose(made.scores(x), torch.log_softmax(lifted, dim=1), atol=1e-5)


def test_pure_epsilon_has_no_delta() -> None:
    noise = Recording()
    made = learner(noise, budget=Budget(0.7))
    made.learn(task("one"), PLAN)
    assert (made.guarantee.status, made.guarantee.epsilon, made.guarantee.delta) == ("proved", 0.7, 0.0)
    facts = made.facts()["privacy"]
    assert "K-norm" in facts["mechanism"]
    assert facts["delta_of_one_task"] == 0
    # One draw of each class in one dimension more than the features, and no other noise.
    (law, scale, shape), direction = noise.asked
    assert (law, shape) == ("k-norm", (4, 7))
    assert direction == ("gaussian", 1.0, (4, 7)), "of which the length is taken away"
    assert scale / 2**16 == pytest.approx(1 / 0.7, rel=1e-12)


def test_the_noise_that_is_drawn_costs_what_is_promised() -> None:
    """From the scales that were asked for back to ε, by dp-accounting, without the learner's own arithmetic."""
    noise = Recording()
    made = learner(noise, **ALL)
    made.learn(task("one"), PLAN)
    scales = {shape: scale for _, scale, shape in noise.asked}
    sums = scales[(4, 7)] / 2**16
    beside, diagonal = (scales[shape] / 4.0**16 / made.residual_clip**2 for shape in ((15,), (6,)))
    assert diagonal == pytest.approx(beside * math.sqrt(2), rel=1e-12)
    facts = made.facts()["privacy"]
    head = facts["noise_multipliers"]["head"]
    assert len([1 for _, _, shape in noise.asked if shape == (6, 4)]) == facts["steps"] == 3
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(dp_accounting.GaussianDpEvent(sums)).compose(dp_accounting.GaussianDpEvent(diagonal))
    step = dp_accounting.PoissonSampledDpEvent(facts["sampling_rate"], dp_accounting.GaussianDpEvent(head))
    accountant.compose(step, 3)
    assert 0.98 < accountant.get_epsilon(1e-5) <= 1.001


def test_a_user_of_several_rows_gets_several_times_the_noise() -> None:
    asked = []
    for rows in (1, 3):
        noise = Recording()
        learner(noise, protects="user", per_user=rows, **SUMS).learn(task("one", users=list(range(20))), PLAN)
        asked.append(noise.asked[0][1])
    assert asked[1] == pytest.approx(3 * asked[0], rel=1e-12)


@kinds
def test_under_noise_that_repeats_itself_nothing_is_promised(how: dict[str, Any]) -> None:
    made = learner(InsecureNoise(0), **how)
    made.learn(task("one"), PLAN)
    assert (made.guarantee.status, made.guarantee.epsilon) == ("none", None)
    made = learner(SystemNoise(), **how)
    made.learn(task("one"), PLAN)
    assert made.guarantee.status == "proved"


# --- users ----------------------------------------------------------------------------------------------


def by_user(**how: Any) -> PrivateReplay:
    return learner(**{"protects": "user", "per_user": 2, "per_task_epsilon": 0.5, **SUMS, **how})


def test_a_user_pays_in_every_task_and_is_refused_in_the_end() -> None:
    made = by_user()
    for name in ("one", "two"):
        made.learn(task(name, users=[1, 2] * 10), PLAN)
    assert made.boundary._entry.ledger.spent(1) == Budget(1.0, 1e-5)
    assert made.facts()["privacy"]["epsilon_of_one_task"] <= 0.5
    assert (made.guarantee.unit, made.guarantee.epsilon) == ("user", 1.0)
    before = made.release()
    with pytest.raises(Refused):
        made.learn(task("three", users=[1, 3] * 10), PLAN)
    assert made.boundary._entry.ledger.spent(3) is None
    after = made.release()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    made.learn(task("three", users=[3, 4] * 10), PLAN)
    assert len(made.memory.tasks) == 3


def test_a_task_is_learned_without_a_user_who_cannot_pay() -> None:
    """The counts that are released are those of the others."""
    made = by_user(exhausted="drop", per_user=20, budget=Budget(2e5), per_task_epsilon=1e5)
    for name in ("one", "two"):
        made.learn(task(name, users=[1] * 12 + [2] * 8), PLAN)
        assert float(made.memory.tasks[-1].counts.sum()) == pytest.approx(20, abs=1)
    made.learn(task("three", users=[1] * 12 + [3] * 8), PLAN)
    assert float(made.memory.tasks[-1].counts.sum()) == pytest.approx(8, abs=1)
    with pytest.raises(Refused, match="every user"):
        made.learn(task("four", users=[1, 2] * 10), PLAN)


def test_a_user_without_an_id_is_refused() -> None:
    made = by_user()
    with pytest.raises(BadInput, match="no unit ids"):
        made.learn(task("one"), PLAN)
    assert made.memory.tasks == []


@pytest.mark.parametrize("per_task", [1.5, 0.0, -0.1])
def test_a_price_above_the_budget_is_refused(per_task: float) -> None:
    with pytest.raises(BadInput, match="per_task_epsilon"):
        by_user(per_task_epsilon=per_task)
    with pytest.raises(BadInput, match="a record is in one task only"):
        learner(per_task_epsilon=0.5, **SUMS)


# --- small and odd tasks --------------------------------------------------------------------------------


@kinds
def test_an_empty_class_one_record_and_one_user_are_learned(how: dict[str, Any]) -> None:
    odd = {
        "an empty class": task("a", [0, 1, 2] * 4),
        "a class with one record": task("b", [0] * 9 + [3]),
        "a single record": task("c", [2], classes=(2,)),
        "a single record of many classes": task("d", [2]),
        "all records alike": task("e", [1] * 30),
    }
    made = learner(**how)
    for index, one in enumerate(odd.values()):
        made.learn(one, PLAN)
        x, _ = one.test.batch(slice(0, 5))
        scores = made.scores(x)
        assert scores.shape == (len(x), 4)
        assert bool(scores.isfinite().all())
        assert all(bool(t.isfinite().all()) for t in made.episode(index).values())
    users = learner(protects="user", per_user=3, **how)
    users.learn(task("one user", [0, 1, 2, 3] * 3, users=[5] * 12), PLAN)
    users.learn(task("one user, one record", [1], users=[6], classes=(1,)), PLAN)
    assert bool(users.scores(torch.zeros(2, 6)).isfinite().all())


@kinds
def test_a_bad_task_costs_nothing(how: dict[str, Any]) -> None:
    noise = Recording()
    made = learner(noise, **how)
    for labels, classes in (([0, 1, 4], (0, 1, 4)), ([0, 1, -1], (0, 1)), ([0, 1, 2], (0, 1))):
        with pytest.raises(BadInput):
            made.learn(task("one", labels, classes=classes), PLAN)
    assert noise.asked == []
    assert made.boundary._entry.ledger._spent == {}
    made.learn(task("one"), PLAN)
    with pytest.raises(Refused, match="learned before"):
        made.learn(task("one"), PLAN)
    assert len(made.memory.tasks) == 1


def test_a_feature_map_that_returns_garbage_breaks_nothing() -> None:
    """Inside the boundary nothing rests on the map: sums stay within what the records can weigh."""
    made = learner(budget=Budget(1000.0, 1e-5), **ALL)

    class Broken:
        width = 6

        def __call__(self, x: Tensor) -> Tensor:
            rows = x.clone() * 1e30
            rows[::3] = math.nan
            rows[1::3] = math.inf
            return rows

    made.encoder = Broken()  # type: ignore[assignment]
    made.learn(task("one"), PLAN)
    assert float(made.memory.tasks[0].sums.norm(dim=1).max()) < 6
    assert float(made.memory.tasks[0].counts.sum()) == pytest.approx(20, abs=3)


@pytest.mark.parametrize("how", [PURE, HEAD, ALL], ids=["pure", "head", "all"])
def test_with_much_budget_it_learns_and_does_not_forget(how: dict[str, Any]) -> None:
    made = learner(**{**how, "budget": Budget(1000.0, how.get("budget", BUDGET).delta), "steps": 20})
    tasks = [
        task(str(index), [2 * index, 2 * index + 1] * 50, classes=(2 * index, 2 * index + 1)) for index in range(2)
    ]
    for one in tasks:
        made.learn(one, PLAN)
    assert all(accuracy(made, one) > 0.95 for one in tasks)
    nothing = learner(**{**how, "budget": Budget(0.01, how.get("budget", BUDGET).delta)})
    for one in tasks:
        nothing.learn(one, PLAN)
    assert min(accuracy(nothing, one) for one in tasks) < 0.9, "with hardly any budget it cannot"


@kinds
def test_after_a_crash_it_finds_the_noise_that_it_would_have_found(how: dict[str, Any]) -> None:
    tasks = [task(str(index), seed=index) for index in range(4)]
    through = learner(InsecureNoise(7), **how)
    for one in tasks:
        through.learn(one, PLAN)
    before = learner(InsecureNoise(7), **how)
    for one in tasks[:2]:
        before.learn(one, PLAN)
    resumed = learner(InsecureNoise(7), **how)
    resumed.restore(before.state(), [before.episode(index) for index in range(2)], tasks[:2])
    with pytest.raises(Refused, match="learned before"):
        resumed.learn(tasks[0], PLAN)
    for one in tasks[2:]:
        resumed.learn(one, PLAN)
    one, other = through.release(), resumed.release()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    fresh = learner(InsecureNoise(8), **how)
    for some in tasks:
        fresh.learn(some, PLAN)
    assert not torch.equal(fresh.release()["task-3.sums"], one["task-3.sums"])


# --- a session ------------------------------------------------------------------------------------------


def session(budget: Budget = BUDGET, noise: Noise | None = None, **how: Any) -> Session:
    releases = Releases(**{"steps": 2, **how})
    return PrivateTasks(SPACE, Protection(budget), releases, noise or SystemNoise(), CPU).open(task("one"), 0)


def test_everything_is_released_once() -> None:
    noise = Recording()
    opened = session(noise=noise, scatter_share=0.3, head_share=0.3)
    opened.class_sums(lambda x: x, 6)
    opened.scatter(lambda x: x, torch.zeros(4, 6))
    gradient = opened.head(lambda x: x)
    for _ in range(2):
        gradient(torch.zeros(6, 4))
    drawn = len(noise.asked)
    with pytest.raises(BadInput, match="class sums of a task is released once"):
        opened.class_sums(lambda x: x, 6)
    with pytest.raises(BadInput, match="scatter of a task is released once"):
        opened.scatter(lambda x: x, torch.zeros(4, 6))
    with pytest.raises(BadInput, match="head of a task is released once"):
        opened.head(lambda x: x)
    with pytest.raises(Refused, match="used up"):
        gradient(torch.zeros(6, 4))
    assert len(noise.asked) == drawn


def test_what_has_no_share_is_not_released() -> None:
    for budget in (BUDGET, Budget(1.0)):
        opened = session(budget)
        with pytest.raises(BadInput, match="no share"):
            opened.scatter(lambda x: x, torch.zeros(4, 6))
        with pytest.raises(BadInput, match="no share"):
            opened.head(lambda x: x)
    with pytest.raises(BadInput, match="class sums alone"):
        session(Budget(1.0), head_share=0.5)


def test_the_rate_of_sampling_follows_the_declared_size() -> None:
    for protection, size, rate in (
        (Protection(BUDGET), 10, 1.0),
        (Protection(BUDGET), 21, 0.477),
        (Protection(BUDGET, "user", per_user=5), 105, 0.477),
    ):
        tasks = PrivateTasks(SPACE, protection, Releases(0.0, 0.5, sample_size=10, steps=20), SystemNoise(), CPU)
        found, used = tasks.noise_for(size)
        assert used == rate
        assert found.spent.epsilon <= 1.0


# --- rooms ----------------------------------------------------------------------------------------------

LEARNERS = Path(__file__).parent.parent / "src" / "l2dp" / "learners"
FORBIDDEN = ("l2dp.accounting", "l2dp.ledger", "dp_accounting", "opacus")


def accounting_imports(text: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return [name for name in found if any(name == bad or name.startswith(f"{bad}.") for bad in FORBIDDEN)]


def test_learners_do_no_accounting() -> None:
    files = sorted(LEARNERS.glob("*.py"))
    assert "private_replay.py" in {path.name for path in files}
    assert [(path.name, accounting_imports(path.read_text("utf-8"))) for path in files] == [
        (path.name, []) for path in files
    ]
    for text in (
        "import l2dp.accounting",
        "from l2dp import accounting",
        "def f():\n    from l2dp.accounting import calibrate",
        "import dp_accounting as d",
        "from l2dp.ledger import Ledger",
    ):
        assert accounting_imports(text)
    assert accounting_imports("from l2dp.boundary.private import PrivateTasks") == []
