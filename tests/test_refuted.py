"""Why the status of L2DP-ML is `refuted`: the noise of its released gradient lives in one rank-1 term.

With h̄ = θᵀx̄ + b and x̄ = x + a (a, b the same for every record), Σ_r (½ − x̄_r) h̄_rᵀ = −n·Σ̂·θ + p·qᵀ, where Σ̂ is the
exact centred covariance of the batch. An adversary who knows the other records and θ tries each candidate for the
missing one: G + n·Σ̂·θ has rank 1 for the right candidate and a higher rank for a wrong one, at any noise scale.
"""

import pytest
import torch
from torch import nn

from l2dp.boundary.perturbed import Perturbation, PerturbedBatch, PerturbedObjective
from l2dp.budget import Budget
from l2dp.models import Network
from l2dp.noise import SystemNoise
from l2dp.streams import Space

INPUTS, HIDDEN, RECORDS = 20, 10, 50


def second_over_first(gradient: torch.Tensor, records: torch.Tensor, theta: torch.Tensor) -> float:
    """How far G + n·Σ̂·θ is from rank 1, for a candidate dataset."""
    centred = records - records.mean(dim=0)
    values = torch.linalg.svdvals(gradient + centred.T @ centred @ theta)
    return float(values[1] / values[0])


@pytest.mark.parametrize("epsilon", [0.5, 0.01])
def test_one_released_gradient_tells_which_record_was_there(epsilon: float) -> None:
    generator = torch.Generator().manual_seed(0)
    guesses = []
    for _ in range(50):
        network = Network(nn.Linear(INPUTS, HIDDEN, bias=False), nn.Linear(HIDDEN, 2), nn.Identity()).double()
        space = Space((INPUTS,), ("no", "yes"))
        boundary = PerturbedObjective(
            Perturbation(Budget(epsilon)), network.float(), space, RECORDS, torch.device("cpu"), False, SystemNoise()
        )
        network.double()
        boundary.draws = {name: draw.double() for name, draw in boundary.draws.items()}
        candidates = torch.rand((2, INPUTS), generator=generator, dtype=torch.float64) * 2 - 1
        others = torch.rand((RECORDS - 1, INPUTS), generator=generator, dtype=torch.float64) * 2 - 1
        true = int(torch.randint(2, (), generator=generator))
        x = torch.cat([others, candidates[true : true + 1]])
        batch = PerturbedBatch(x + boundary.draws["chi1"] / RECORDS, torch.zeros(RECORDS).long(), RECORDS, None)
        released = boundary.gradient(network, batch)[0].T * RECORDS
        theta = network.encoder_weight().detach()
        ratios = [second_over_first(released, torch.cat([others, candidate[None]]), theta) for candidate in candidates]
        guesses.append(int(ratios[1] < ratios[0]) == true)
        assert boundary.guarantee.status == "refuted"
    assert all(guesses)
