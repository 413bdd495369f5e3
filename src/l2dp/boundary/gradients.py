"""Noisy gradients of one task (DP-SGD, Abadi et al. 2016): Poisson samples, clipped per unit, Gaussian noise.

`LinearGradients` serves a linear head, where the norm of an example's gradient has a closed form. `NetworkGradients`
serves whole networks with ghost norms: no example's gradient of a convolution or a dense layer is ever held.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l2dp.boundary.entry import Opened
from l2dp.boundary.ghost import clipped_sum
from l2dp.boundary.statistics import CHUNK, Features, bounded, encoded, positions_of
from l2dp.errors import BadInput, Refused
from l2dp.noise import Noise, rounded_sum

CLIP_MARGIN = 0.99
"""Gradients are cut slightly below the bound: float32 sums and the rounding to a grid take up the rest."""
AT_ONCE = 512
"""Rows that are read once and used twice: they should fit the processor's cache."""
FINE = 2.0**30
"""Steps of the grid in the clipping bound, and at least as many in one standard deviation of noise."""


def noisy_sum(total: Tensor, clip: float, multiplier: float, noise: Noise) -> Tensor:
    """A sum of clipped gradients with Gaussian noise, on a grid that does not depend on the data.

    Guarantee
    ---------
    For a sum that one unit changes by at most CLIP_MARGIN·clip, this is the Gaussian mechanism of that multiplier
    and sensitivity `clip`: rounding to the grid moves the sum by less than √entries steps, which the margin covers
    as long as √entries ≤ 0.005·2³⁰ (checked); half of it is left for the rounding of float32.
    """
    if math.sqrt(total.numel()) > (1 - CLIP_MARGIN) / 2 * FINE:
        raise BadInput(f"{total.numel()} parameters are too many for one noisy gradient")
    step = clip * min(1.0, multiplier) / FINE
    whole = np.rint(total.detach().to("cpu", torch.float64).numpy() / step)
    if not np.isfinite(whole).all():
        raise BadInput("a gradient is not finite; lower the learning rate")
    drawn = noise.gaussian(clip * multiplier / step, tuple(total.shape))
    return torch.from_numpy(rounded_sum(whole, drawn) * step).to(total.device, total.dtype)


class LinearGradients:
    """Noisy gradients of the cross-entropy of a linear head over features that are fixed or were released before.

    Guarantee
    ---------
    Each call is one Poisson-sampled Gaussian mechanism: every unit is in with probability `rate`, on its own; its
    gradient is cut to norm `clip`; noise has the standard deviation multiplier·clip. After `steps` calls it refuses.
    The sum is divided by the expected number of units under the declared size, never by the true one.
    """

    def __init__(
        self,
        opened: Opened,
        features: Features,
        classes: Sequence[int],
        clip: float,
        multiplier: float,
        rate: float,
        steps: int,
        rows_per_unit: int,
        noise: Noise,
        device: torch.device,
    ) -> None:
        self._clip, self._multiplier, self._rate, self._left = clip, multiplier, rate, steps
        self._noise = noise
        positions = positions_of(classes)
        rows, labels = [], []
        for some in opened.rows.split(CHUNK):
            x, y = opened.records.batch(some)
            rows.append(bounded(encoded(features, x.to(device)), 1.0, torch.float32))
            labels.append(positions[y])
        self._rows, self._labels = torch.cat(rows), torch.cat(labels)
        self._norms = self._rows.norm(dim=1)
        self._groups = None if rows_per_unit == 1 else opened.groups.to(device)
        self._labels = self._labels.to(device)
        self._units = len(opened) if self._groups is None else int(opened.groups.max()) + 1
        self.expected = max(1.0, rate * opened.declared_size / rows_per_unit)
        """The number of units that a sample is expected to hold, from the declared size."""

    def __call__(self, weight: Tensor) -> Tensor:
        """The noisy mean gradient at `weight` (features x classes)."""
        if self._left < 1:
            raise Refused("the steps that this task has paid for are used up; nothing was read")
        self._left -= 1
        chosen = torch.from_numpy(self._noise.subset(self._units, self._rate)).to(self._rows.device)
        total = self._over_records(weight, chosen) if self._groups is None else self._over_users(weight, chosen)
        noisy = noisy_sum(total, self._clip, self._multiplier, self._noise)
        return (noisy / self.expected).to(weight.dtype)

    def _errors(self, rows: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
        errors = torch.softmax(rows @ weight, dim=1)
        errors[torch.arange(len(labels)), labels] -= 1
        return errors

    def _over_records(self, weight: Tensor, chosen: Tensor) -> Tensor:
        # In float64: a float32 sum of thousands of equal terms loses the next one.
        total = torch.zeros_like(weight.T, dtype=torch.float64)
        for some in chosen.split(AT_ONCE):
            rows = self._rows.index_select(0, some)
            errors = self._errors(rows, self._labels[some], weight)
            # The gradient of one example is the outer product of its features and its errors: the norms multiply.
            norms = self._norms[some] * errors.norm(dim=1)
            errors *= (CLIP_MARGIN * self._clip / norms.clamp_min(1e-30)).clamp(max=1.0).unsqueeze(1)
            total += errors.T @ rows
        return total.T

    def _over_users(self, weight: Tensor, chosen: Tensor) -> Tensor:
        assert self._groups is not None
        total = torch.zeros_like(weight, dtype=torch.float64)
        for some in chosen.split(max(1, 2**24 // weight.numel())):  # a user's gradient has to be held to be cut
            where = torch.full((self._units,), -1, device=chosen.device)
            where[some] = torch.arange(len(some), device=chosen.device)
            mine = (where[self._groups] >= 0).nonzero().flatten()
            rows, errors = self._rows[mine], self._errors(self._rows[mine], self._labels[mine], weight)
            owner = where[self._groups[mine]]
            held = torch.zeros(len(some), *weight.shape, device=weight.device)
            for start in range(0, len(mine), CHUNK):
                part = slice(start, start + CHUNK)
                held.index_add_(0, owner[part], rows[part].unsqueeze(2) * errors[part].unsqueeze(1))
            norms = held.flatten(1).norm(dim=1)
            total += torch.einsum("u,ufc->fc", (CLIP_MARGIN * self._clip / norms.clamp_min(1e-30)).clamp(max=1.0), held)
        return total


class NetworkGradients:
    """Noisy gradients of a whole network on the records of one task.

    Guarantee
    ---------
    As `LinearGradients`, for records as units: Poisson sample, each example's gradient over all parameters cut to norm
    `clip`, Gaussian noise. Networks that mix examples (batch normalisation) are refused: clipping would not bound them.
    """

    def __init__(
        self,
        opened: Opened,
        network: nn.Module,
        clip: float,
        multiplier: float,
        rate: float,
        noise: Noise,
        device: torch.device,
        charge: Callable[[], None],
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        if len(opened.groups.unique()) < len(opened):
            raise BadInput("units with several records need clipping per unit, which networks lack; protect records")
        self._opened, self._network = opened, network
        self._clip, self._multiplier, self._rate = clip, multiplier, rate
        self._noise, self._device, self._charge = noise, device, charge
        self._loss = loss or (lambda scores, y: F.cross_entropy(scores, y, reduction="none"))
        self.expected = max(1.0, rate * opened.declared_size)

    def __call__(self) -> list[Tensor]:
        """The noisy mean gradient, one tensor a parameter, in their order. Charged before anything is read."""
        self._charge()
        chosen = torch.from_numpy(self._noise.subset(len(self._opened), self._rate))
        parameters = [p for p in self._network.parameters() if p.requires_grad]
        if len(chosen) == 0:
            totals = [torch.zeros_like(p) for p in parameters]
        else:
            x, y = self._opened.records.batch(self._opened.rows[chosen])
            totals = clipped_sum(
                self._network, x.to(self._device), y.to(self._device), CLIP_MARGIN * self._clip, self._loss
            )
        flat = torch.cat([total.flatten() for total in totals])
        noisy = noisy_sum(flat, self._clip, self._multiplier, self._noise) / self.expected
        sizes = [p.numel() for p in parameters]
        return [part.view_as(p) for part, p in zip(noisy.split(sizes), parameters, strict=True)]
