"""L2DP-ML, the paper's method (Algorithms 1 and 2). Its privacy claim is refuted; see docs/l2dp-ml.md.

The paper's words: *episodic memory* of fixed perturbed batches, *updated gradient* g, *episodic gradient*
g_ref, *projected gradient* g̃; θ1 is the encoder and θ2 the rest. Noise and budget live in the boundary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from l2dp.boundary import PerturbedObjective
from l2dp.boundary.perturbed import Perturbation
from l2dp.budget import Budget, Guarantee
from l2dp.errors import BadInput
from l2dp.learners.gradient import GradientLearner
from l2dp.learners.learner import Plan, Setting, State, Tick
from l2dp.learners.projection import When, project
from l2dp.models import Network, Normalisation, build
from l2dp.streams.records import Task


@dataclass
class L2dpMl(GradientLearner):
    """Algorithm 2 with batches; Algorithm 1 when the batch is the whole task (`--full-batch`)."""

    NAME: ClassVar[str] = "l2dp-ml"
    PARALLEL: ClassVar[bool] = True

    normalisation: Normalisation = "neuron"
    budget: Budget = field(default_factory=lambda: Budget(0.5))
    encoder_lr: float = 1e-4
    """Learning rate of θ1, which learns from reconstruction alone."""
    head_lr: float = 1e-5
    """Learning rate of the last layer Wπ, whose gradient carries χ3."""
    projection: When = "conflict"
    """`conflict`: A-GEM's condition g·g_ref < 0; `always`: as the paper prints it."""
    project_parts: Literal["joint", "separate"] = "joint"
    """One projection for all parameters, or one for θ1 and one for θ2."""
    output_share: float = 0.5
    sensitivity: Literal["patch", "literal"] = "patch"
    chi3: Literal["matrix", "vector"] = "matrix"
    series: Literal["true", "literal"] = "true"
    reconstruction: Literal["constant", "tied"] = "constant"
    encoder_norm: float | None = None

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        perturbation = Perturbation(
            self.budget,
            self.output_share,
            self.sensitivity,
            self.chi3,
            self.series,
            self.reconstruction,
            self.encoder_norm,
        )
        self.boundary = PerturbedObjective(
            perturbation,
            self.network,
            setting.space,
            setting.batch_size,
            setting.device,
            setting.masked,
            setting.noise,
        )

    def _build(self, setting: Setting) -> Network:
        if self.inputs != "signed":
            raise BadInput("l2dp-ml takes inputs in [-1, 1], as its sensitivities assume; leave out -o inputs")
        return build(self.model, setting.space, setting.seed, self.normalisation, bounded=True)

    def _groups(self) -> list[dict[str, Any]]:
        network = self.network
        head = {id(parameter) for parameter in network.head.parameters()}
        theta2 = [*network.hidden.parameters(), *network.classifier.parameters()]
        return [
            {"params": list(network.encoder.parameters()), "lr": self.encoder_lr},
            {"params": [parameter for parameter in theta2 if id(parameter) not in head]},
            {"params": list(network.head.parameters()), "lr": self.head_lr},
        ]

    def learn(self, task: Task, plan: Plan, tick: Tick = lambda: None) -> None:
        batches = self.boundary.open(task, plan.batch_size, self.generator)
        for step in range(plan.steps):
            batch = self.boundary.batch(batches, step % len(batches))
            g = self.boundary.gradient(self.network, batch)
            if self.boundary.episodes > 0:
                reference = self.boundary.recall(self.generator)
                g_ref = self.boundary.gradient(self.network, reference)
                g = self._project(g, g_ref)
            self.descend(g)
            self.boundary.constrain(self.network)
            tick()
        chosen = int(torch.randint(len(batches), (), generator=self.generator))
        self.boundary.remember(self.boundary.batch(batches, chosen))

    def _project(self, g: tuple[Tensor, ...], g_ref: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if self.project_parts == "joint":
            return project(g, g_ref, self.projection)
        cut = len(list(self.network.encoder.parameters()))
        return (
            *project(g[:cut], g_ref[:cut], self.projection),
            *project(g[cut:], g_ref[cut:], self.projection),
        )

    def scores(self, x: Tensor) -> Tensor:
        """The authors' way of testing: with the secret χ1 and χ2."""
        self.network.eval()
        out = self.boundary.noisy_scores(self.network, x)
        self.network.train()
        return out

    def released_scores(self, x: Tensor) -> Tensor:
        """What somebody gets who has θ and nothing else."""
        return super().scores(x)

    @property
    def guarantee(self) -> Guarantee:
        return self.boundary.guarantee

    def state(self) -> State:
        state = super().state()
        state.tensors |= {f"draw.{name}": tensor for name, tensor in self.boundary.draws.items()}
        state.meta["encoder_norm"] = self.boundary.encoder_norm
        return state

    def episode(self, index: int) -> dict[str, Tensor]:
        return self.boundary.episode(index)

    def restore(self, state: State, episodes: Sequence[dict[str, Tensor]], past: Sequence[Task]) -> None:
        super().restore(state, episodes, past)
        draws = {key.removeprefix("draw."): value for key, value in state.tensors.items() if key.startswith("draw.")}
        self.boundary.restore(draws, state.meta["encoder_norm"], list(episodes))

    def config(self) -> dict[str, Any]:
        return {**super().config(), "budget": {"epsilon": self.budget.epsilon, "delta": self.budget.delta}}

    def facts(self) -> dict[str, Any]:
        return {"claim": self.boundary.description()}
