"""What all gradient-trained learners share: a network, an optimiser, an order of data, and their state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l2dp import parallel
from l2dp.boundary.unprotected import Batch
from l2dp.errors import BadInput
from l2dp.learners.learner import Learner, Setting, State
from l2dp.models import Builder, Network, Normalisation, build, normalises_parts

OPTIMISERS = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}


def cross_entropy(scores: Tensor, batch: Batch) -> Tensor:
    """Mean cross-entropy; where the batch has a mask, over each record's own labels."""
    if batch.mask is not None:
        scores = scores.masked_fill(~batch.mask, float("-inf"))
    return F.cross_entropy(scores, batch.y)


@dataclass
class GradientLearner(Learner):
    """A network trained step by step."""

    model: str | Builder = "mlp"
    """A name for `l2dp.models.build`, or a function of the space that makes a `Network`."""
    normalisation: Normalisation = "none"
    inputs: Literal["signed", "unit"] = "signed"
    """The range in which the network sees its inputs: [−1, 1], or moved to [0, 1] (not for l2dp-ml)."""
    optimiser: str = "SGD"
    lr: float = 0.1
    momentum: float = 0.0
    """Of SGD; the other optimisers have their own."""

    def begin(self, setting: Setting) -> None:
        if self.normalisation in ("channel", "neuron") and setting.batch_size < 2:
            raise BadInput(
                f"normalisation {self.normalisation!r} needs batches of at least 2; "
                "raise --batch-size or use -o normalisation=none"
            )
        self.setting = setting
        self.network = self._build(setting).to(setting.device)
        if parallel.size() > 1 and normalises_parts(self.network):
            raise BadInput(
                f"the network {self.model!r} has batch normalisation of its own, which would see parts of batches; "
                "use l2dp.models.WholeBatchNorm or a single process"
            )
        self.generator = torch.Generator().manual_seed(setting.seed)
        if self.optimiser not in OPTIMISERS:
            raise BadInput(f"unknown optimiser {self.optimiser!r}; choose from {', '.join(OPTIMISERS)}")
        extra: dict[str, Any] = {"momentum": self.momentum} if self.optimiser == "SGD" else {}
        self.descent = OPTIMISERS[self.optimiser](self._groups(), lr=self.lr, **extra)
        self._theta = list(self.network.parameters())

    def _build(self, setting: Setting) -> Network:
        network = build(self.model, setting.space, setting.seed, self.normalisation)
        network.unit_inputs = self.inputs == "unit"
        return network

    def _groups(self) -> list[dict[str, Any]]:
        """Parameter groups for the optimiser."""
        return [{"params": list(self.network.parameters())}]

    def gradient(self, batch: Batch) -> tuple[Tensor, ...]:
        """∇θ of the mean cross-entropy of a batch."""
        loss = cross_entropy(self.network(batch.x), batch)
        if parallel.size() > 1:
            # The part that these records have in the mean over the whole batch.
            loss = loss * len(batch.y) / parallel.add(torch.tensor(len(batch.y)))
        return parallel.together(torch.autograd.grad(loss, self._parameters()))

    def descend(self, g: Sequence[Tensor]) -> None:
        """One step of the optimiser along g."""
        if self.optimiser == "SGD" and self.momentum == 0 and len(self.descent.param_groups) == 1:
            # SGD's own arithmetic without its bookkeeping, which costs as much as the step of a small model.
            with torch.no_grad():
                for parameter, slope in zip(self._parameters(), g, strict=True):
                    parameter.add_(slope, alpha=-self.lr)
            return
        for parameter, slope in zip(self._parameters(), g, strict=True):
            parameter.grad = slope
        self.descent.step()

    def _parameters(self) -> list[nn.Parameter]:
        """θ in the order of gradients: encoder, hidden layer, classifier."""
        return self._theta

    @torch.no_grad()
    def scores(self, x: Tensor) -> Tensor:
        self.network.eval()
        out: Tensor = self.network(x)
        self.network.train()
        return out

    def release(self) -> dict[str, Tensor]:
        # Copies: what was released or saved must not follow the network when it learns on.
        return {name: tensor.detach().clone() for name, tensor in self.network.state_dict().items()}

    def state(self) -> State:
        tensors = {f"network.{name}": tensor for name, tensor in self.release().items()}
        tensors["generator"] = self.generator.get_state()
        numbers: dict[str, Any] = {}
        for index, slots in self.descent.state_dict()["state"].items():
            for name, value in slots.items():
                if isinstance(value, Tensor):
                    tensors[f"optimiser.{index}.{name}"] = value.clone()
                elif value is not None:
                    numbers[f"{index}.{name}"] = value
        return State(tensors, {"optimiser": numbers})

    def restore(self, state: State, episodes: Sequence[dict[str, Tensor]], past: Sequence[Any]) -> None:
        network, slots = {}, {}
        for key, tensor in state.tensors.items():
            room, _, name = key.partition(".")
            if room == "network":
                network[name] = tensor
            elif room == "optimiser":
                slots[name] = tensor.clone()
        self.network.load_state_dict(network)
        self.generator.set_state(state.tensors["generator"])
        full = self.descent.state_dict()
        full["state"] = {}
        for key, value in {**slots, **state.meta["optimiser"]}.items():
            index, _, name = key.partition(".")
            full["state"].setdefault(int(index), {})[name] = value
        self.descent.load_state_dict(full)
