"""Every learner passes the suite, and every kind of broken learner fails it for the right reason."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from l2dp.budget import Budget, Guarantee
from l2dp.conformance import check_learner
from l2dp.errors import BadInput
from l2dp.learners import (
    LEARNERS,
    Agem,
    Finetune,
    L2dpMl,
    Learner,
    NaiveGaussian,
    Plan,
    PrivateReplay,
    Setting,
    State,
    Tick,
)
from l2dp.models import Network
from l2dp.streams import Space, Task


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", LEARNERS)
def test_every_learner_conforms(name: str) -> None:
    check_learner(LEARNERS[name])


@pytest.mark.parametrize(
    "factory",
    [
        lambda: Agem(model="mlp-8", memory_per_task=5, optimiser="Adam", lr=0.01),
        lambda: Agem(model="mlp-8", normalisation="channel", momentum=0.9),
        lambda: L2dpMl(model="mlp-8", normalisation="none", optimiser="Adam"),
        lambda: L2dpMl(model="mlp-8-8", momentum=0.9, project_parts="separate", projection="always", chi3="vector"),
        lambda: L2dpMl(model="mlp-8", reconstruction="tied", series="literal", lr=1e-4),
        lambda: NaiveGaussian(model="mlp-8", momentum=0.9, horizon=3, memory_per_task=5),
        lambda: PrivateReplay(budget=Budget(2.0), project=8),
        lambda: PrivateReplay(budget=Budget(2.0, 1e-5), scatter_share=0.5, head_share=0.0),
        lambda: PrivateReplay(budget=Budget(100.0, 1e-5), scatter_share=0.3, head_share=0.3, lift=30, steps=3),
    ],
)
def test_options_that_change_the_state_conform(factory: Callable[[], Learner]) -> None:
    check_learner(factory)


@dataclass
class Small(Finetune):
    """A learner that passes, for others to break."""

    NAME: ClassVar[str] = "small"
    model: Any = "mlp-8"
    momentum: float = 0.5


@dataclass
class SmallReplay(Agem):
    NAME: ClassVar[str] = "small-replay"
    model: Any = "mlp-8"


@dataclass
class SmallPrivate(L2dpMl):
    NAME: ClassVar[str] = "small-private"
    model: Any = "mlp-8"


@pytest.mark.parametrize("cls", [Small, SmallReplay, SmallPrivate])
def test_what_the_broken_twins_are_made_of_conforms(cls: type[Learner]) -> None:
    check_learner(cls)


class ForgetsGenerator(Small):
    def state(self) -> State:
        state = super().state()
        del state.tensors["generator"]
        return state

    def restore(self, state: State, episodes: Sequence[dict[str, Tensor]], past: Sequence[Task]) -> None:
        fresh = {**state.tensors, "generator": self.generator.get_state()}
        super().restore(State(fresh, state.meta), episodes, past)


class ForgetsMomentum(Small):
    def restore(self, state: State, episodes: Sequence[dict[str, Tensor]], past: Sequence[Task]) -> None:
        kept = {name: tensor for name, tensor in state.tensors.items() if not name.startswith("optimiser")}
        super().restore(State(kept, state.meta), episodes, past)


class DrawsNoiseAgain(SmallPrivate):
    def restore(self, state: State, episodes: Sequence[dict[str, Tensor]], past: Sequence[Task]) -> None:
        fresh = {f"draw.{name}": draw for name, draw in self.boundary.draws.items()}
        super().restore(State({**state.tensors, **fresh}, state.meta), episodes, past)


class ForgetsMemory(SmallReplay):
    def restore(self, state: State, episodes: Sequence[dict[str, Tensor]], past: Sequence[Task]) -> None:
        super().restore(state, [], past)


class StateIsNotJson(Small):
    def state(self) -> State:
        state = super().state()
        state.meta["setting"] = self.setting
        return state


class KeepsThePast(Small):
    """Grows by a number for each task."""

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        self.history: list[int] = []

    def learn(self, task: Task, plan: Plan, tick: Tick = lambda: None) -> None:
        super().learn(task, plan, tick)
        self.history.append(plan.steps)

    def state(self) -> State:
        state = super().state()
        state.meta["history"] = list(self.history)
        return state

    def restore(self, state: State, episodes: Sequence[dict[str, Tensor]], past: Sequence[Task]) -> None:
        super().restore(state, episodes, past)
        self.history = list(state.meta["history"])


class KeepsThePastInTensors(KeepsThePast):
    def state(self) -> State:
        state = super().state()
        state.tensors["history"] = torch.tensor(state.meta.pop("history"))
        return state

    def restore(self, state: State, episodes: Sequence[dict[str, Tensor]], past: Sequence[Task]) -> None:
        history = state.tensors["history"].tolist()
        super().restore(State(state.tensors, {**state.meta, "history": history}), episodes, past)


class EpisodesGrow(SmallReplay):
    def episode(self, index: int) -> dict[str, Tensor]:
        return super().episode(index) | {"task": torch.zeros(index)}

    def restore(self, state: State, episodes: Sequence[dict[str, Tensor]], past: Sequence[Task]) -> None:
        super().restore(state, [{key: kept[key] for key in kept if key != "task"} for kept in episodes], past)


class EpisodesChange(SmallReplay):
    def episode(self, index: int) -> dict[str, Tensor]:
        kept = super().episode(index)
        age = len(self.boundary.memory) // len(kept["y"])
        return kept | {"x": kept["x"] / age}


class AcceptsBadTasks(Small):
    def learn(self, task: Task, plan: Plan, tick: Tick = lambda: None) -> None:
        try:
            super().learn(task, plan, tick)
        except BadInput:
            return


class RefusesWithAnotherError(Small):
    def learn(self, task: Task, plan: Plan, tick: Tick = lambda: None) -> None:
        try:
            super().learn(task, plan, tick)
        except BadInput as error:
            raise ValueError(*error.args) from error


class RefusesTooLate(Small):
    """Its order of data moves on with a task that it refuses."""

    def learn(self, task: Task, plan: Plan, tick: Tick = lambda: None) -> None:
        torch.rand(1, generator=self.generator)
        super().learn(task, plan, tick)


class CountsRefusals(Small):
    """Hides from its state that it was changed."""

    tried = 0

    def learn(self, task: Task, plan: Plan, tick: Tick = lambda: None) -> None:
        self.tried += 1
        super().learn(task, plan, tick)

    def scores(self, x: Tensor) -> Tensor:
        return super().scores(x) + (self.tried > 6)


class LearnsBeforeItRefuses(Small):
    def learn(self, task: Task, plan: Plan, tick: Tick = lambda: None) -> None:
        tick()
        super().learn(task, plan, tick)


class ReleasesRecords(SmallReplay):
    def release(self) -> dict[str, Tensor]:
        memory = [self.boundary.memory.episode(0)["x"][3]] if len(self.boundary.memory) else []
        return super().release() | {f"prototype-{at}": x.half() for at, x in enumerate(memory)}


class ReleasesRecordsSideways(SmallReplay):
    def release(self) -> dict[str, Tensor]:
        memory = [self.boundary.memory.episode(0)["x"].flatten(1).T] if len(self.boundary.memory) else []
        return super().release() | {f"prototype-{at}": x for at, x in enumerate(memory)}


class ReleasesNoise(SmallPrivate):
    def release(self) -> dict[str, Tensor]:
        return super().release() | {"shift": self.boundary.draws["chi1"].double()}


class ReleaseFollowsTheNetwork(Small):
    def release(self) -> dict[str, Tensor]:
        return {name: tensor.detach() for name, tensor in self.network.state_dict().items()}


class DisturbsTorch(Small):
    def learn(self, task: Task, plan: Plan, tick: Tick = lambda: None) -> None:
        super().learn(task, plan, tick)
        torch.rand(1)


class DisturbsNumpy(Small):
    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        np.random.seed(setting.seed)


class DisturbsRandom(Small):
    def learn(self, task: Task, plan: Plan, tick: Tick = lambda: None) -> None:
        super().learn(task, plan, tick)
        random.random()


class ModifiesRecords(Small):
    def learn(self, task: Task, plan: Plan, tick: Tick = lambda: None) -> None:
        super().learn(task, plan, tick)
        x = task.test.source.x
        x.mul_(0.5) if x.is_floating_point() else None


class ModifiesWhatItScores(Small):
    def scores(self, x: Tensor) -> Tensor:
        return super().scores(x.clamp_(-0.5, 0.5))


class ScoresTransposed(Small):
    def scores(self, x: Tensor) -> Tensor:
        return super().scores(x).T


class ScoresAreNotFinite(Small):
    def scores(self, x: Tensor) -> Tensor:
        return super().scores(x).log()


class ScoresTogether(Small):
    def scores(self, x: Tensor) -> Tensor:
        out = super().scores(x)
        return out - out.mean(0)


class ScoringDraws(Small):
    def scores(self, x: Tensor) -> Tensor:
        torch.rand(1, generator=self.generator)
        return super().scores(x)


class ClaimsWithInsecureNoise(Small):
    @property
    def guarantee(self) -> Guarantee:
        return Guarantee("claimed", 1.0, 0.0)


class UnknownStatus(Small):
    @property
    def guarantee(self) -> Guarantee:
        return Guarantee("certain", 1.0, 0.0)  # type: ignore[arg-type]


class ImpossibleEpsilon(SmallPrivate):
    @property
    def guarantee(self) -> Guarantee:
        stated = super().guarantee
        return stated if stated.epsilon is None else Guarantee("claimed", float("inf"), 0.0)


class ChangesTheStateItIsGiven(Small):
    def restore(self, state: State, episodes: Sequence[dict[str, Tensor]], past: Sequence[Task]) -> None:
        super().restore(state, episodes, past)
        state.tensors["network.encoder.weight"].zero_()


class FailsOnTheTaskProtocol(Small):
    def learn(self, task: Task, plan: Plan, tick: Tick = lambda: None) -> None:
        if self.setting.masked:
            raise RuntimeError("no masks here")
        super().learn(task, plan, tick)


def no_network(space: Space) -> Network:
    raise BadInput("this model fits nothing")


@dataclass
class FitsNothing(Small):
    model: Any = field(default=no_network)


@dataclass
class Nameless(Small):
    NAME: ClassVar[str] = ""


BROKEN = {
    ForgetsGenerator: "goes on with another",
    ForgetsMomentum: "goes on with another",
    DrawsNoiseAgain: "goes on with another",
    ForgetsMemory: "after restore",
    StateIsNotJson: "not JSON serializable",
    KeepsThePast: "state grows",
    KeepsThePastInTensors: "state grows",
    EpisodesGrow: "differ in size",
    EpisodesChange: "an episode changes",
    AcceptsBadTasks: "accepts an empty task",
    RefusesWithAnotherError: "not BadInput",
    RefusesTooLate: "refused but changes the state",
    CountsRefusals: "after a refusal it goes on with another",
    LearnsBeforeItRefuses: "before it refuses",
    ReleasesRecords: "training record in 'prototype-0'",
    ReleasesRecordsSideways: "training record in 'prototype-0'",
    ReleasesNoise: "draw of noise in 'shift'",
    ReleaseFollowsTheNetwork: "release changes",
    DisturbsTorch: "global generator of torch",
    DisturbsNumpy: "global generator of numpy",
    DisturbsRandom: "global generator of random",
    ModifiesRecords: "modifies the records",
    ModifiesWhatItScores: "modifies its input",
    ScoresTransposed: "have shape",
    ScoresAreNotFinite: "not finite",
    ScoresTogether: "depend on what else",
    ScoringDraws: "scoring changes the state",
    ClaimsWithInsecureNoise: "under insecure noise",
    UnknownStatus: "unknown status",
    ImpossibleEpsilon: "impossible",
    ChangesTheStateItIsGiven: "state or episodes it was given",
    FailsOnTheTaskProtocol: "learning split digits under the task protocol raises RuntimeError",
    FitsNothing: "refuses every stream",
    Nameless: "has no NAME",
}


@pytest.mark.parametrize(("cls", "reason"), BROKEN.items(), ids=lambda it: getattr(it, "__name__", ""))
def test_broken_learners_are_rejected(cls: type[Learner], reason: str) -> None:
    state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    with pytest.raises(AssertionError, match=f"^{cls.__name__}: .*{reason}"):
        check_learner(cls)
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.set_rng_state(state[2])


def test_a_factory_must_make_new_learners() -> None:
    learner = Small()
    with pytest.raises(AssertionError, match="same learner twice"):
        check_learner(lambda: learner)
