"""Networks for windows of an accelerometer that the paper compares with: CNN-32/64/128, BiLSTM, and Ignatov's.

The paper gives only their names and widths; what it leaves open is chosen here. They are baselines without privacy, so
none of them has the one linear encoder that L2DP-ML trains.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l2dp.errors import BadInput
from l2dp.streams.records import Space

BINS = 10


class Convolutions(nn.Module):
    """Three convolutions over time with `width` channels, halved in between, and the mean over time."""

    def __init__(self, space: Space, width: int) -> None:
        super().__init__()
        channels, _ = _windows(space)
        layers: list[nn.Module] = []
        for inputs in (channels, width, width):
            layers += [nn.Conv1d(inputs, width, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2)]
        self.layers = nn.Sequential(*layers)
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return found.mean(2)


class BiLSTM(nn.Module):
    """Two LSTMs over time, one in each direction; the mean of their outputs over time."""

    def __init__(self, space: Space, width: int = 64) -> None:
        super().__init__()
        channels, _ = _windows(space)
        self.recurrent = nn.LSTM(channels, width, batch_first=True, bidirectional=True)
        self.width = 2 * width

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.recurrent(x.transpose(1, 2))[0]
        return found.mean(1)


class Ignatov(nn.Module):
    """Ignatov (2018): 196 filters of 16 samples, the largest of every four, and a dense layer of 1024.

    With `features`, statistics of the window join before the dense layer: mean, variance, mean absolute value and a
    histogram of each axis. His dropout of 5 % is left out, so that a run can be repeated to the last bit.
    """

    def __init__(self, space: Space, features: bool) -> None:
        super().__init__()
        channels, samples = _windows(space)
        self.features = features
        self.filters = nn.Conv1d(channels, 196, 16)
        places = (samples - 15) // 4
        self.dense = nn.Linear(196 * places + (channels * (3 + BINS) if features else 0), 1024)
        self.width = 1024

    def forward(self, x: Tensor) -> Tensor:
        found = F.max_pool1d(torch.relu(self.filters(x)), 4).flatten(1)
        if self.features:
            found = torch.cat([found, statistics(x)], dim=1)
        return torch.relu(self.dense(found))


def statistics(x: Tensor) -> Tensor:
    """Mean, variance, mean absolute value and the shares of ten equal parts of [−1, 1], for each axis.

    >>> statistics(torch.zeros(1, 3, 20)).shape
    torch.Size([1, 39])
    """
    place = ((x + 1) * (BINS / 2)).long().clamp(0, BINS - 1)
    shares = torch.stack([(place == index).float().mean(2) for index in range(BINS)], dim=2)
    simple = torch.stack([x.mean(2), x.var(2), x.abs().mean(2)], dim=2)
    return torch.cat([simple, shares], dim=2).flatten(1)


def _windows(space: Space) -> tuple[int, int]:
    if len(space.shape) != 2 or space.shape[1] < 19:
        raise BadInput(f"this model needs windows of channels x samples (19 or more), not inputs of {space.shape}")
    return space.shape[0], space.shape[1]


def body(name: str, space: Space) -> Convolutions | BiLSTM | Ignatov:
    """All but the last layer of a model by its name."""
    if name == "har-bilstm":
        return BiLSTM(space)
    if name in ("har-cnn-ig", "har-cnn-ig-featureless"):
        return Ignatov(space, features=name == "har-cnn-ig")
    return Convolutions(space, int(name.rpartition("-")[2]))


NAMES = ("har-cnn-32", "har-cnn-64", "har-cnn-128", "har-bilstm", "har-cnn-ig", "har-cnn-ig-featureless")
