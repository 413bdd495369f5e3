"""Noisy statistics of one task: class sums with counts, and the scatter within classes. Each is released once.

Everything is whole numbers: a row of norm at most 1 is cut to a grid towards zero, which never makes it longer, so
sums are exact and sensitivities hold to the last bit. Noise is added and the sum rounded (`noise.rounded_sum`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from l2dp import parallel
from l2dp.boundary.entry import Opened
from l2dp.errors import BadInput
from l2dp.noise import LARGEST, Noise, rounded_sum

Features = Callable[[Tensor], Tensor]

GRID_BITS = 16
MARGIN = 1 - 2.0**-40
"""Takes up the rounding of float64 in computing a norm."""
CHUNK = 1000


def bounded(rows: Tensor, limit: float, precision: torch.dtype = torch.float64) -> Tensor:
    """Rows of norm at most `limit`; a row that is not finite becomes zero.

    Guarantee
    ---------
    Whatever comes in (NaN, infinite, the largest floats), every row that goes out has norm ≤ limit, exactly in float64,
    and up to its rounding (one part in a million) in float32.
    """
    rows = rows.detach().to(precision)
    rows = torch.where(rows.isfinite().all(dim=1, keepdim=True), rows, 0.0)
    peak = rows.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(precision).tiny)
    norm = (rows / peak).norm(dim=1, keepdim=True) * peak
    cut: Tensor = rows * (limit * MARGIN / norm).clamp(max=1.0)
    return cut


def whole(rows: Tensor, bits: int) -> Tensor:
    """Rows cut to a grid of 2^−bits towards zero, as whole numbers: no coordinate and no norm grows."""
    return torch.trunc(rows * 2.0**bits)


def positions_of(classes: Sequence[int]) -> Tensor:
    """The row of every label that a task declares, in the order declared; −1 for others."""
    positions = torch.full((max(classes) + 1,), -1)
    positions[list(classes)] = torch.arange(len(classes))
    return positions


def _grid_bits(opened: Opened, power: int, largest: float) -> int:
    """The finest grid on which sums stay exact, from the *declared* size: the true one is private.

    `power` is that of the coordinates in a summand, `largest` a bound on one summand.
    """
    room = LARGEST / 16 / max(1.0, largest)  # a sixteenth: noise and an understated size have to fit as well
    bits = min(GRID_BITS, int(math.log2(room / opened.declared_size) / power))
    if len(opened) * 2.0 ** (bits * power) >= room * 8:
        raise BadInput(
            f"the task has far more records than the {opened.declared_size} it declares; declare a size near the true"
        )
    return bits


def _chunks(opened: Opened, features: Features, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    for rows in opened.rows[parallel.part(len(opened), CHUNK)].split(CHUNK):
        x, y = opened.records.batch(rows)
        yield encoded(features, x.to(device)).cpu(), y


def encoded(features: Features, x: Tensor) -> Tensor:
    """Features of a chunk; a row is never alone, for matrix products treat a single row by other arithmetic."""
    return features(x) if len(x) > 1 else features(torch.cat([x, x]))[:1]


@dataclass(frozen=True)
class ClassSums:
    """What leaves: for each class the noisy sum of its features and its noisy number of records.

    `deviation` is the standard deviation of the noise in each coordinate of a sum, `count_deviation` of a count.
    """

    sums: Tensor
    counts: Tensor
    deviation: float
    count_deviation: float


def class_sums(
    opened: Opened,
    features: Features,
    width: int,
    positions: Tensor,
    count_weight: float,
    multiplier: float,
    pure: bool,
    rows_per_unit: int,
    noise: Noise,
    device: torch.device,
) -> ClassSums:
    """Releases Σ (√(1−w²)·φ, w) over the records of each class, with φ of norm at most 1 and w the weight of counts.

    `positions` gives the row of every label; all labels of an admitted task have one.

    Guarantee
    ---------
    One record is one row of norm ≤ 1 in one class: the sums of all classes together change by at most 1 in
    Euclidean norm, and one class alone changes. With `pure`, each class gets a K-norm draw with density ∝
    exp(−‖z‖/multiplier): (1/multiplier)-private, δ = 0, under ideal real-valued sampling. Otherwise Gaussian noise
    of that multiplier. A user with k rows changes Σ_c ‖Δ_c‖ by at most k, and the noise is k times as large.
    """
    if not 0 < count_weight < 1:
        raise BadInput(f"count_weight must lie between 0 and 1, not {count_weight}")
    bits = _grid_bits(opened, 1, 1.0)
    tilt = math.sqrt(1 - count_weight**2)
    classes = int(positions.max()) + 1
    exact = torch.zeros(classes, width + 1, dtype=torch.float64)
    for phi, y in _chunks(opened, features, device):
        rows = bounded(phi, 1.0).mul_(tilt)
        rows = torch.cat([rows, torch.full((len(rows), 1), count_weight, dtype=torch.float64)], dim=1)
        exact.index_add_(0, positions[y], whole(bounded(rows, 1.0), bits))
    exact = parallel.add(exact)
    scale = multiplier * rows_per_unit * 2.0**bits
    if pure:
        drawn = noise.k_norm(scale, classes, width + 1)
        # Of one coordinate of a K-norm draw: E‖z‖² = scale²·d(d+1), spread over d coordinates.
        spread = multiplier * rows_per_unit * math.sqrt(width + 2)
    else:
        drawn = noise.gaussian(scale, (classes, width + 1))
        spread = multiplier * rows_per_unit
    noisy = torch.from_numpy(rounded_sum(exact.numpy(), drawn)) * 2.0**-bits
    return ClassSums(
        (noisy[:, :width] / tilt).to(torch.float32),
        (noisy[:, width] / count_weight).to(torch.float32),
        spread / tilt,
        spread / count_weight,
    )


@dataclass(frozen=True)
class Scatter:
    """What leaves: the noisy sum of outer products of residuals. `deviation` is that of a diagonal entry."""

    matrix: Tensor
    deviation: float


def scatter(
    opened: Opened,
    features: Features,
    centres: Tensor,
    positions: Tensor,
    clip: float,
    multiplier: float,
    rows_per_unit: int,
    noise: Noise,
    device: torch.device,
) -> Scatter:
    """Releases Σ r·rᵀ with r = φ − centre of the record's own class, cut to norm at most `clip`.

    `centres` (one row a class) must have been released before: they are no secret any more.

    Guarantee
    ---------
    One record adds one matrix r·rᵀ of Frobenius norm ≤ clip²; a user with k rows, at most k·clip². The noise is
    Gaussian on the isometric coordinates of a symmetric matrix (the diagonal, and √2 times what is above it), with a
    standard deviation of multiplier·k·clip².
    """
    if not (math.isfinite(clip) and 0 < clip <= 2):
        raise BadInput(f"the clip of residuals must lie above 0 and at most 2, not {clip}")
    width = centres.shape[1]
    bits = _grid_bits(opened, 2, clip**2)
    middle = torch.where(centres.isfinite().all(dim=1, keepdim=True), centres, 0.0).to(torch.float64)
    exact = torch.zeros(width, width, dtype=torch.float64)
    for phi, y in _chunks(opened, features, device):
        rows = whole(bounded(bounded(phi, 1.0) - middle[positions[y]], clip), bits)
        exact.addmm_(rows.T, rows)
    exact = parallel.add(exact)
    deviation = multiplier * rows_per_unit * clip**2
    scale = deviation * 4.0**bits
    upper = np.triu_indices(width, 1)
    drawn = np.zeros((width, width))
    drawn[upper] = noise.gaussian(scale / math.sqrt(2), (len(upper[0]),))
    drawn += drawn.T
    np.fill_diagonal(drawn, noise.gaussian(scale, (width,)))
    noisy = torch.from_numpy(rounded_sum(exact.numpy(), drawn)) * 4.0**-bits
    return Scatter(noisy.to(torch.float32), deviation)
