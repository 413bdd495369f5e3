"""The paper's boundary: perturbed inputs, hidden layer and objectives (L2DP-ML, Algorithms 1 and 2).

The symbols: χ1, χ2, χ3 are the three Laplace draws, made once for the lifetime; λ is the batch size;
x̄ = x + χ1/λ the perturbed input, h̄ the hidden layer with 2χ2/λ added before its activation; R̄ and L̄ the
perturbed objectives of auto-encoder and classifier; Δ_R, Δ_L their sensitivities as the paper counts them.

What leaves is the gradient of R̄ and L̄. The paper claims that it is differentially private. It is not:
the draw is the same for every record, so it is a bias that an attacker removes (docs/l2dp-ml.md).
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l2dp import parallel
from l2dp.boundary.admission import admit, label_mask, same_everywhere
from l2dp.budget import NO_PRIVACY, Budget, Guarantee
from l2dp.errors import BadInput
from l2dp.models import Network
from l2dp.noise import Noise
from l2dp.streams.batches import disjoint_batches
from l2dp.streams.records import Records, Space, Task


@dataclass(frozen=True)
class Perturbation:
    """The choices the paper leaves open; docs/l2dp-ml.md explains each. Public configuration."""

    budget: Budget
    output_share: float = 0.5
    """The part of the total that ε2 gets; the three ε1 terms share the rest."""
    sensitivity: Literal["patch", "literal"] = "patch"
    """What d and |h1| count in Δ_R: one patch and one feature map, or all inputs and all hidden neurons."""
    chi3: Literal["matrix", "vector"] = "matrix"
    """χ3 with an entry for each weight of the last layer, or one for each of its inputs."""
    series: Literal["true", "literal"] = "true"
    """L̃ as the Taylor series of the cross-entropy, or as the paper prints it (unbounded below)."""
    reconstruction: Literal["constant", "tied"] = "constant"
    """The gradient of R̄ with h̄ held constant (the paper's form), or through both tied layers."""
    encoder_norm: float | None = None
    """The bound on ‖θ1‖₁,₁ that γ assumes; None takes the norm of the initial encoder."""


@dataclass(frozen=True)
class Terms:
    """The four terms of the paper's total, ε1 + ε1/γx + ε1/γ + ε2, and the ε1, ε2 behind them."""

    epsilon1: float
    epsilon1_over_gamma_x: float
    epsilon1_over_gamma: float
    epsilon2: float

    @property
    def total(self) -> float:
        return math.fsum((self.epsilon1, self.epsilon1_over_gamma_x, self.epsilon1_over_gamma, self.epsilon2))


def reconstruction_sensitivity(inputs: int, hidden: int) -> int:
    """Δ_R = d(|h1| + 2), as the paper counts it.

    >>> reconstruction_sensitivity(25, 14 * 14), reconstruction_sensitivity(48, 14 * 14)
    (4950, 9504)
    """
    return inputs * (hidden + 2)


def classification_sensitivity(last_hidden: int) -> int:
    """Δ_L = 2|hπ|, as the paper counts it."""
    return 2 * last_hidden


def solve(budget: Budget, output_share: float, delta_r: float, batch_size: int, encoder_norm: float) -> Terms:
    """ε1 and ε2 such that the four terms add up to the total.

    γx = Δ_R/λ and γ = 2Δ_R/(λ‖θ1‖₁,₁); ε2 takes `output_share` of the total and the three ε1 terms the rest.
    """
    if budget.delta != 0:
        raise BadInput("l2dp-ml claims pure epsilon: --delta must be left out or 0")
    if not 0 < output_share < 1:
        raise BadInput(f"output_share must lie between 0 and 1, not {output_share}")
    if not (math.isfinite(encoder_norm) and encoder_norm > 0):
        raise BadInput(f"the encoder's norm must be positive and finite, not {encoder_norm}")
    over_gamma_x = batch_size / delta_r
    over_gamma = batch_size * encoder_norm / (2 * delta_r)
    epsilon1 = (1 - output_share) * budget.epsilon / (1 + over_gamma_x + over_gamma)
    terms = Terms(epsilon1, epsilon1 * over_gamma_x, epsilon1 * over_gamma, output_share * budget.epsilon)
    if not all(term > 0 for term in astuple(terms)):
        raise BadInput("a term of the budget vanishes; choose output_share and encoder_norm less extreme")
    return terms


def classification_loss(z: Tensor, y: Tensor, series: str, mask: Tensor | None = None) -> Tensor:
    """L̃ summed over records and classes, with z = hπ·Wπ.

    The true second-order series of Σ_k −y·log σ(z) − (1−y)·log σ(−z) is ln 2 + (½ − y)z + ⅛z². The paper
    prints z − zy − ½|z| − ⅛z² (`literal`), which has no lower bound.
    """
    hot = F.one_hot(y, z.shape[1]).to(z.dtype)
    true = series == "true"
    terms = math.log(2) + (0.5 - hot) * z + z * z / 8 if true else z - z * hot - z.abs() / 2 - z * z / 8
    return terms.sum() if mask is None else terms[:, mask].sum()


@dataclass(frozen=True, eq=False)
class FixedBatches:
    """One task as fixed, disjoint batches of perturbed records: the same ones in every epoch."""

    records: Records
    rows: tuple[Tensor, ...]
    batch_size: int
    mask: Tensor | None

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, eq=False)
class PerturbedBatch:
    """x̄, y, the λ that scales the noise, and the labels the task declares (None: all)."""

    x: Tensor
    y: Tensor
    batch_size: int
    mask: Tensor | None


class PerturbedObjective:
    """Gradients of the paper's perturbed objectives, and its episodic memory of perturbed batches.

    Guarantee
    ---------
    The paper claims ε-Lifelong DP with ε = ε1 + ε1/γx + ε1/γ + ε2 for records under replacement. The status
    is `refuted`: no finite ε holds, whatever the noise scale. What the code does keep are the premises of
    the claim: one draw per lifetime from the noise source it is given, fixed disjoint batches, h1 and hπ
    bounded by the model, and ‖θ1‖₁,₁ at most the norm that γ was computed with.
    """

    def __init__(
        self,
        perturbation: Perturbation,
        network: Network,
        space: Space,
        batch_size: int,
        device: torch.device,
        masked: bool,
        noise: Noise,
    ) -> None:
        self.perturbation = perturbation
        self.batch_size = batch_size
        self._space = space
        self._device = device
        self._masked = masked
        self._memory: list[PerturbedBatch] = []

        was_training = network.training
        network.eval()
        with torch.no_grad():
            hidden = network.encoder(torch.zeros((1, *space.shape), device=device)).shape[1:]
        network.train(was_training)
        norm = perturbation.encoder_norm
        if norm is None:
            norm = float(network.encoder_weight().detach().abs().sum(0).max())
        self.encoder_norm = norm
        d, h1 = self._counted(network.encoder, math.prod(space.shape), hidden)
        self.delta_r = reconstruction_sensitivity(d, h1)
        head = network.head
        self.delta_l = classification_sensitivity(head.in_features)
        self.terms = solve(perturbation.budget, perturbation.output_share, self.delta_r, batch_size, norm)

        input_scale, output_scale = self.delta_r / self.terms.epsilon1, self.delta_l / self.terms.epsilon2
        outputs = (head.out_features,) if perturbation.chi3 == "matrix" else ()
        self.draws = {
            "chi1": self._tensor(noise, input_scale, space.shape),
            "chi2": self._tensor(noise, input_scale, tuple(hidden)),
            "chi3": self._tensor(noise, output_scale, (*outputs, head.in_features)),
        }
        self._secure = noise.secure
        self.constrain(network)

    def _counted(self, encoder: nn.Module, inputs: int, hidden: torch.Size) -> tuple[int, int]:
        """d and |h1| as the chosen reading counts them; a dense layer has one patch and one feature map."""
        if self.perturbation.sensitivity == "patch" and isinstance(encoder, nn.Conv2d):
            return encoder.weight[0].numel(), math.prod(hidden[1:])
        return inputs, math.prod(hidden)

    def _tensor(self, noise: Noise, scale: float, shape: tuple[int, ...]) -> Tensor:
        return torch.from_numpy(noise.laplace(scale, shape)).to(torch.float32).to(self._device)

    @property
    def guarantee(self) -> Guarantee:
        if not self._secure:
            return NO_PRIVACY
        return Guarantee("refuted", self.perturbation.budget.epsilon, 0.0, adjacency="replace")

    # --- records --------------------------------------------------------------------------------------

    def open(self, task: Task, batch_size: int, generator: torch.Generator) -> FixedBatches:
        """Deals a task into its fixed batches, once (Algorithm 2, line 4)."""
        if batch_size > self.batch_size:
            # The budget was solved for the largest λ: a larger one would make the noise too weak for it.
            raise BadInput(
                f"a batch of {batch_size} is larger than the {self.batch_size} that the noise was scaled for"
            )
        records = admit(task, self._space)
        same_everywhere(task, records)
        rows = disjoint_batches(len(records), batch_size, generator)
        mask = label_mask(task, self._space).to(self._device) if self._masked else None
        return FixedBatches(records, rows, batch_size, mask)

    def batch(self, batches: FixedBatches, index: int) -> PerturbedBatch:
        """One perturbed batch: x̄ = x + χ1/λ."""
        x, y = batches.records.batch(batches.rows[index])
        size = batches.batch_size
        perturbed = x.to(self._device).add(self.draws["chi1"], alpha=1 / size)
        return PerturbedBatch(perturbed, y.to(self._device), size, batches.mask)

    def remember(self, batch: PerturbedBatch) -> None:
        """Puts a batch into the episodic memory, whole and for ever."""
        self._memory.append(batch)

    @property
    def episodes(self) -> int:
        return len(self._memory)

    def recall(self, generator: torch.Generator) -> PerturbedBatch:
        """One batch of the episodic memory, picked at random."""
        return self._memory[int(torch.randint(len(self._memory), (), generator=generator))]

    # --- what leaves ----------------------------------------------------------------------------------

    def _hidden_input(self, network: Network, x: Tensor, size: int) -> Tensor:
        """θ1ᵀx̄ + 2χ2/λ: what goes into the activation of the first hidden layer."""
        out: Tensor = network.encoder(x)
        return out.add(self.draws["chi2"], alpha=2 / size)

    def objectives(self, network: Network, batch: PerturbedBatch) -> tuple[Tensor, Tensor]:
        """R̄ and L̄ of one batch, per record of λ. R̄ depends on θ1 alone; so does L̄ on θ2 alone.

        Where several processes share a run, each gives what its part of the batch adds to them.
        """
        rows = parallel.part(len(batch.y))
        x, y = batch.x[rows], batch.y[rows]
        tied = self.perturbation.reconstruction == "tied"
        with torch.set_grad_enabled(tied):
            into_hidden = self._hidden_input(network, x, batch.batch_size)
        h = network.hidden(into_hidden)
        for_r = h if tied else h.detach()
        # R̃ = Σ_s (½ − x_s)·x̃_s, the first-order series of the cross-entropy less its constant.
        r = network.inner_with_decoded(0.5 - x, for_r)
        z = network.classifier(h)
        loss = classification_loss(z, y, self.perturbation.series, batch.mask)
        if parallel.rank() == 0:  # χ3 belongs to the batch, not to its records
            loss = loss - (self.draws["chi3"] * network.head.weight).sum()  # a vector is added to every class alike
        return r / batch.batch_size, loss / batch.batch_size

    def gradient(self, network: Network, batch: PerturbedBatch) -> tuple[Tensor, ...]:
        """g = {∇θ1 R̄, ∇θ2 L̄}: first the encoder's gradients, then those of the hidden layer and classifier."""
        theta1 = list(network.encoder.parameters())
        theta2 = [*network.hidden.parameters(), *network.classifier.parameters()]
        r, loss = self.objectives(network, batch)
        if self.perturbation.reconstruction == "tied":
            second = torch.autograd.grad(loss, theta2, retain_graph=True)
            return parallel.together((*torch.autograd.grad(r, theta1), *second))
        # A bias of the encoder takes no part in the reconstruction: its gradient is zero.
        every = torch.autograd.grad(r + loss, [*theta1, *theta2], allow_unused=True, materialize_grads=True)
        return parallel.together(every)

    @torch.no_grad()
    def constrain(self, network: Network) -> None:
        """Scales down every column of θ1 whose 1-norm exceeds the one that γ assumes."""
        factors = (self.encoder_norm / network.encoder_weight().abs().sum(0)).clamp(max=1.0)
        weight = network.encoder.get_parameter("weight")  # the matrix may be a copy: not every layout flattens in place
        weight.mul_(factors.view(-1, *[1] * (weight.dim() - 1)))

    @torch.no_grad()
    def noisy_scores(self, network: Network, x: Tensor) -> Tensor:
        """Scores with χ1 and χ2 fed at test time, the authors' way. Needs the secret draws."""
        perturbed = x.add(self.draws["chi1"], alpha=1 / self.batch_size)
        scores: Tensor = network.classifier(network.hidden(self._hidden_input(network, perturbed, self.batch_size)))
        return scores

    # --- state ----------------------------------------------------------------------------------------

    def episode(self, index: int) -> dict[str, Tensor]:
        batch = self._memory[index]
        kept = {"x": batch.x, "y": batch.y, "batch_size": torch.tensor(batch.batch_size)}
        return kept if batch.mask is None else {**kept, "mask": batch.mask}

    def restore(self, draws: dict[str, Tensor], encoder_norm: float, episodes: list[dict[str, Tensor]]) -> None:
        """Takes the lifetime's draws and memory from a saved state; nothing is drawn again."""
        self.draws = {name: tensor.to(self._device) for name, tensor in draws.items()}
        self.encoder_norm = encoder_norm
        self._memory = [
            PerturbedBatch(
                kept["x"].to(self._device),
                kept["y"].to(self._device),
                int(kept["batch_size"]),
                kept["mask"].to(self._device) if "mask" in kept else None,
            )
            for kept in episodes
        ]

    def description(self) -> dict[str, object]:
        """The arithmetic behind the claim, for the result."""
        return {
            "delta_r": self.delta_r,
            "delta_l": self.delta_l,
            "encoder_norm": self.encoder_norm,
            "epsilon1": self.terms.epsilon1,
            "epsilon1_over_gamma_x": self.terms.epsilon1_over_gamma_x,
            "epsilon1_over_gamma": self.terms.epsilon1_over_gamma,
            "epsilon2": self.terms.epsilon2,
            "input_noise_scale": self.delta_r / self.terms.epsilon1 / self.batch_size,
            "hidden_noise_scale": 2 * self.delta_r / self.terms.epsilon1 / self.batch_size,
            "output_noise_scale": self.delta_l / self.terms.epsilon2 / self.batch_size,
        }
