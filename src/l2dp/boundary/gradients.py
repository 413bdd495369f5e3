"""Noisy gradients of one task (DP-SGD, Abadi et al. 2016): Poisson samples, clipped per unit, Gaussian noise.

`LinearGradients` serves a linear head, where the norm of an example's gradient has a closed form. `noisy_gradient`
serves whole networks with ghost norms: no example's gradient of a convolution or a dense layer is ever held.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l2dp import parallel
from l2dp.boundary.entry import Opened
from l2dp.boundary.ghost import clipped_sum, full_precision
from l2dp.boundary.statistics import CHUNK, Features, bounded, encoded, positions_of
from l2dp.errors import BadInput, Refused
from l2dp.noise import Noise, rounded_sum
from l2dp.streams.records import Records

CLIP_MARGIN = 0.99
"""Gradients are cut slightly below the bound: float32 sums of networks and the rounding to a grid take up the rest."""
LARGEST = 20_000
"""Examples that one noisy gradient of a network may be expected to sample: the margin has to cover its float32 sums."""
AT_ONCE = 256
"""Rows that are read once and used twice: they should fit the processor's cache."""
USERS, HELD = 128, 2**24
"""Users whose gradients are held together, and the most numbers in those."""
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
        # Of records each process holds its part; of users all hold all, and each adds up its part of the sample.
        self._part = parallel.part(len(opened), CHUNK) if rows_per_unit == 1 else slice(0, len(opened))
        for some in opened.rows[self._part].split(CHUNK):
            x, y = opened.records.batch(some)
            rows.append(bounded(encoded(features, x.to(device)), 1.0, torch.float32))
            labels.append(positions[y])
        self._rows, self._labels = torch.cat(rows), torch.cat(labels)
        self._labels = self._labels.to(device)
        self._users = rows_per_unit > 1
        if self._users:  # the rows of a user side by side
            order = opened.groups.argsort(stable=True).to(device)
            self._rows, self._labels = self._rows[order], self._labels[order]
            self._counts = torch.bincount(opened.groups).to(device)
            self._starts = self._counts.cumsum(0) - self._counts
        else:
            self._norms = torch.linalg.vector_norm(self._rows, dim=1, dtype=torch.float64)
        self._units = len(self._counts) if self._users else len(opened)
        self.expected = max(1.0, rate * opened.declared_size / rows_per_unit)
        """The number of units that a sample is expected to hold, from the declared size."""

    def __call__(self, weight: Tensor) -> Tensor:
        """The noisy mean gradient at `weight` (features x classes)."""
        if self._left < 1:
            raise Refused("the steps that this task has paid for are used up; nothing was read")
        full_precision(self._rows.device)
        self._left -= 1
        chosen = torch.from_numpy(self._noise.subset(self._units, self._rate)).to(self._rows.device)
        if not self._users:
            mine = chosen[(chosen >= self._part.start) & (chosen < self._part.stop)] - self._part.start
            total = self._over_records(weight.double(), mine)
        else:
            total = self._over_users(weight.double(), chosen[parallel.part(len(chosen))])
        total = parallel.add(total)
        noisy = noisy_sum(total, self._clip, self._multiplier, self._noise)
        return (noisy / self.expected).to(weight.dtype)

    def _errors(self, rows: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
        errors = torch.softmax(rows @ weight, dim=1)
        errors[torch.arange(len(labels)), labels] -= 1
        return errors

    # Everything from here to the sum is float64. In float32 the rounding of a sum of n gradients moves, with its order
    # and with the place of a record among the others, by up to n times 10⁻⁷: of 100,000 records that is more than
    # CLIP_MARGIN leaves, and a record that leaves moves the places of all others.

    def _over_records(self, weight: Tensor, chosen: Tensor) -> Tensor:
        total = torch.zeros_like(weight.T)
        taken = self._rows.new_empty(AT_ONCE, len(weight))  # once: new memory for every part would cost more than sums
        wide = torch.empty_like(taken, dtype=torch.float64)
        for some in chosen.split(AT_ONCE):
            torch.index_select(self._rows, 0, some, out=taken[: len(some)])
            rows = wide[: len(some)].copy_(taken[: len(some)])
            errors = self._errors(rows, self._labels[some], weight)
            # The gradient of one example is the outer product of its features and its errors: the norms multiply.
            norms = self._norms[some] * errors.norm(dim=1)
            errors *= (CLIP_MARGIN * self._clip / norms.clamp_min(1e-30)).clamp(max=1.0).unsqueeze(1)
            total.addmm_(errors.T, rows)
        return total.T

    def _over_users(self, weight: Tensor, chosen: Tensor) -> Tensor:
        total = torch.zeros_like(weight.T)
        if not len(chosen):
            return total.T
        width, classes = weight.shape
        chosen = chosen[self._counts[chosen].argsort(stable=True)]  # users with about as many rows share a padding
        widest = max(classes, int(self._counts[chosen[-1]]))
        # A user's gradient has to be held to be cut: few at a time.
        for some in chosen.split(max(1, min(USERS, HELD // (width * widest)))):
            most = int(self._counts[some[-1]])
            places = torch.arange(most, device=some.device)
            mine = self._starts[some].unsqueeze(1) + places
            absent = places >= self._counts[some].unsqueeze(1)
            mine[absent] = 0  # any row: its errors are set to zero
            rows = self._rows.index_select(0, mine.flatten()).double()
            errors = self._errors(rows, self._labels[mine.flatten()], weight).view(-1, most, classes)
            errors[absent] = 0
            held = (errors.mT @ rows.view(-1, most, width)).flatten(1)
            cut = (CLIP_MARGIN * self._clip / held.norm(dim=1).clamp_min(1e-30)).clamp(max=1.0)
            total += (cut @ held).view_as(total)
        return total.T


PART = 512
"""Examples that pass a network together; larger samples are summed part by part."""

Losses = Callable[[Tensor | None, Tensor, Tensor], Tensor]
"""From which labels are open (None: all), scores and labels, one number an example."""


def masked_cross_entropy(mask: Tensor | None, scores: Tensor, y: Tensor) -> Tensor:
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return F.cross_entropy(scores, y, reduction="none")


class Sampled(NamedTuple):
    """Rows that were drawn of one task's records, and the labels that are open to them (None: all)."""

    records: Records
    rows: Tensor
    mask: Tensor | None = None


Part = tuple[Tensor, Tensor, Tensor | None]
"""Inputs, labels, and one row a record that says which labels are open to it (None: all)."""


def _parts(samples: Sequence[Sampled], device: torch.device) -> Iterator[Part]:
    """All samples, some hundred rows at a time: small ones together, large ones cut."""
    held: list[Part] = []
    for records, rows, mask in samples:
        for some in rows.split(PART) if len(rows) else ():
            x, y = records.batch(some)
            held.append((x, y, None if mask is None else mask.expand(len(y), -1)))
            if sum(len(part[1]) for part in held) >= PART:
                yield _together(held, device)
                held = []
    if held:
        yield _together(held, device)


def _together(parts: Sequence[Part], device: torch.device) -> Part:
    masks = [mask for _, _, mask in parts if mask is not None]
    return (
        torch.cat([x for x, _, _ in parts]).to(device),
        torch.cat([y for _, y, _ in parts]).to(device),
        torch.cat(masks).to(device) if masks else None,
    )


def small_enough(expected: float) -> None:
    """Refuses samples, by their public expected number, whose float32 sums CLIP_MARGIN may not cover."""
    if expected > LARGEST * (1 + 1e-9):  # a rate times a size may be rounded up
        raise BadInput(
            f"samples of about {expected:,.0f} examples are too large for a network's float32 sums; "
            f"choose a batch of at most {LARGEST:,}"
        )


def noisy_gradient(
    network: nn.Module,
    samples: Sequence[Sampled],
    clip: float,
    multiplier: float,
    expected: float,
    noise: Noise,
    device: torch.device,
    losses: Losses = masked_cross_entropy,
) -> list[Tensor]:
    """The noisy mean gradient over the samples, one tensor a parameter that learns, in their order.

    Guarantee
    ---------
    Each example's gradient over all parameters is cut to norm `clip`, and the sum gets Gaussian noise of standard
    deviation multiplier·clip: one Gaussian mechanism for whoever is in the samples. `expected` must be public. Within a
    network numbers are float32: their rounding is taken to stay within CLIP_MARGIN for samples up to LARGEST, which
    `expected` must not understate by much (docs/proofs.md, 3).
    """
    small_enough(expected)
    parameters = [p for p in network.parameters() if p.requires_grad]
    sizes = [p.numel() for p in parameters]
    # In float64: a float32 sum of thousands of equal terms loses the next one.
    flat = torch.zeros(sum(sizes), dtype=torch.float64, device=device)
    mine = [sample._replace(rows=sample.rows[parallel.part(len(sample.rows))]) for sample in samples]
    for x, y, mask in _parts(mine, device):
        totals = clipped_sum(network, x, y, CLIP_MARGIN * clip, partial(losses, mask))
        flat += torch.cat([total.flatten() for total in totals])
    noisy = noisy_sum(parallel.add(flat), clip, multiplier, noise) / expected
    return [part.view_as(p).to(p.dtype) for part, p in zip(noisy.split(sizes), parameters, strict=True)]
