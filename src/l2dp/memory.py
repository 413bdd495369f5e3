"""What is kept of past tasks: only what has left the boundary, and what follows from it without another look.

`Remembered` is one task; `Memory` all of them, with a shared metric. Everything here is post-processing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TINY = 1e-12


def shrunk(noisy: Tensor, noise_energy: Tensor | float) -> Tensor:
    """Rows pulled towards zero by the part of their squared length that is expected to be noise (James and Stein)."""
    energy = noisy.square().sum(-1, keepdim=True).clamp_min(TINY)
    return noisy * (1 - torch.as_tensor(noise_energy) / energy).clamp(min=0.0)


@dataclass(frozen=True)
class Remembered:
    """The private description of one task."""

    classes: Tensor
    """Labels of the rows below."""
    sums: Tensor
    counts: Tensor
    deviation: float
    count_deviation: float
    declared_size: int
    head: Tensor | None = None
    """Weights of the task's own linear head, features x classes."""
    lifted: bool = False
    """Whether the head is one over random features."""
    spread: Tensor | None = None
    """Main directions of the scatter within classes, each as long as its standard deviation; rows."""

    def sizes(self) -> Tensor:
        """The number of records in each class: the noisy count, held near an even share as far as it is uncertain."""
        even = self.declared_size / len(self.classes)
        spread = even / 2  # what is believed beforehand: an even share, give or take half
        trust = spread**2 / (spread**2 + self.count_deviation**2)
        return (even + trust * (self.counts - even)).clamp_min(max(1.0, 0.05 * even))

    def centre(self) -> Tensor:
        """The mean of all features of the task."""
        total = self.sizes().sum()
        noise = len(self.classes) * self.sums.shape[1] * (self.deviation / total) ** 2
        return shrunk(self.sums.sum(0) / total, noise)

    def means(self) -> Tensor:
        """The mean of every class: as far from the task's centre as the noise lets one believe."""
        sizes = self.sizes().unsqueeze(1)
        centre = self.centre()
        noise = self.sums.shape[1] * (self.deviation / sizes).square()
        return centre + shrunk(self.sums / sizes - centre, noise)

    def tensors(self) -> dict[str, Tensor]:
        kept = {
            "classes": self.classes,
            "sums": self.sums,
            "counts": self.counts,
            "facts": torch.tensor(
                [self.deviation, self.count_deviation, self.declared_size, self.lifted], dtype=torch.float64
            ),
        }
        more = {"head": self.head, "spread": self.spread}
        return kept | {name: tensor for name, tensor in more.items() if tensor is not None}

    @staticmethod
    def from_tensors(kept: dict[str, Tensor]) -> Remembered:
        deviation, count_deviation, size, lifted = kept["facts"].tolist()
        head, spread = kept.get("head"), kept.get("spread")
        return Remembered(
            kept["classes"].clone(),
            kept["sums"].clone(),
            kept["counts"].clone(),
            deviation,
            count_deviation,
            int(size),
            None if head is None else head.clone(),
            bool(lifted),
            None if spread is None else spread.clone(),
        )


def main_directions(matrix: Tensor, deviation: float, declared_size: int, most: int = 48) -> Tensor:
    """Directions in which a noisy scatter matrix exceeds its own noise, at most `most`; other rows are zero."""
    values, vectors = torch.linalg.eigh(matrix.to(torch.float64))
    values, vectors = values[-most:], vectors[:, -most:]
    noise = deviation * (2 * len(matrix)) ** 0.5  # where the eigenvalues of the noise end
    lengths = torch.where(values > noise, values, 0.0).clamp_min(0).div(declared_size).sqrt()
    directions: Tensor = (vectors * lengths).T.to(torch.float32).contiguous()
    return directions


class Metric:
    """How far apart features are: the pooled scatter within classes, noise taken into account; else Euclidean."""

    def __init__(self, width: int, ridge: float) -> None:
        self.scatter = torch.zeros(width, width, dtype=torch.float64)
        self.total = 0.0
        self.variance = 0.0
        """Of the noise in one diagonal entry, over all tasks."""
        self._ridge = ridge
        self._precision: Tensor | None = None

    def add(self, matrix: Tensor, deviation: float, declared_size: int) -> None:
        self.scatter += matrix
        self.total += declared_size
        self.variance += deviation**2
        self._precision = None

    def load(self, precision: Tensor) -> None:
        """Takes up what `precision` gave, to measure with; nothing can be added then."""
        self._precision = precision.clone()

    def precision(self) -> Tensor:
        """The inverse of the covariance within classes, its eigenvalues raised by the noise's own.

        A symmetric matrix of Gaussian noise, off-diagonal entries of variance v/2, has its eigenvalues within about
        √(2v·width) of zero; `ridge` times that is added, and negative eigenvalues are taken as zero.
        """
        if self._precision is None:
            values, vectors = torch.linalg.eigh(self.scatter)
            floor = self._ridge * (2 * self.variance * len(values)) ** 0.5 + 1e-4 * float(values.clamp_min(0).mean())
            scale = self.total / (values.clamp_min(0) + floor)
            self._precision = ((vectors * scale) @ vectors.T).to(torch.float32)
        return self._precision


class Memory:
    """All tasks learned so far; finds the task and the class of new features."""

    def __init__(self, width: int, metric: Metric | None) -> None:
        self.width = width
        self.metric = metric
        self.tasks: list[Remembered] = []
        self.centres: list[Tensor] = []
        self.means: list[Tensor] = []
        self._index: tuple[Tensor, Tensor, Tensor, Tensor] | None = None

    def add(self, task: Remembered) -> None:
        self.tasks.append(task)
        self.centres.append(task.centre())
        self.means.append(task.means())
        self._index = None

    def _directions(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """For all classes of all tasks: directions, offsets, the task and the label of each."""
        if self._index is None:
            means = torch.cat(self.means)
            directions = means if self.metric is None else means @ self.metric.precision()
            offsets = (means * directions).sum(1) / 2
            owners = torch.cat([torch.full((len(t.classes),), i) for i, t in enumerate(self.tasks)])
            self._index = directions.T.contiguous(), offsets, owners, torch.cat([t.classes for t in self.tasks])
        return self._index

    def sample(self, task: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Features as the task might have had them, and the positions of their classes among the task's.

        A Gaussian around each class mean: the main directions of the scatter as released, and the same everywhere
        else, so that the length is 1 on average, as that of features is.
        """
        known, means = self.tasks[task], self.means[task]
        own = torch.randint(len(known.classes), (count,), generator=generator)
        rows = means[own]
        left = (1 - means.square().sum(1)).clamp_min(0)
        if known.spread is not None:
            rows = rows + torch.randn(count, len(known.spread), generator=generator) @ known.spread
            left = (left - known.spread.square().sum()).clamp_min(0)
        rest = (left / self.width).sqrt()[own].unsqueeze(1)
        rows = rows + torch.randn(count, self.width, generator=generator) * rest
        return rows / rows.norm(dim=1, keepdim=True).clamp_min(TINY), own

    def nearest(self, features: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """For every row the task whose classes lie nearest, and the nearness of every label over all tasks.

        Nearness is the logarithm of a Gaussian's density around the class mean, up to a constant of the row.
        """
        directions, offsets, owners, labels = self._directions()
        near = features @ directions.to(features.device) - offsets.to(features.device)
        found = near.max(dim=1)
        scores = torch.full((len(features), classes), float("-inf"), device=features.device)
        scores.scatter_reduce_(1, labels.to(features.device).expand(len(features), -1), near, "amax")
        floor = near.amin(dim=1, keepdim=True) - 1
        return owners.to(features.device)[found.indices], torch.where(scores.isfinite(), scores, floor)
