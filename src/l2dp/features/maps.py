"""The maps: pixels, oriented gradients, a spectrum of windows, a pretrained encoder, random features."""

from __future__ import annotations

import difflib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from l2dp.errors import BadInput
from l2dp.features.efficientnet import WIDTH as EFFICIENTNET_WIDTH
from l2dp.features.efficientnet import EfficientNetLite0, pretrained

TINY = 1e-9


class FeatureMap(Protocol):
    """A fixed function of one input. `name` says all that it depends on."""

    name: str
    width: int
    costly: bool
    """Whether a result is worth keeping on disk."""

    def __call__(self, x: Tensor) -> Tensor:
        """Inputs in [−1, 1], one a row → codes, one a row: the costly part, which may be kept on disk."""
        ...

    def finish(self, encoded: Tensor) -> Tensor:
        """Codes → features of norm 1: the cheap part."""
        ...


def unit(rows: Tensor) -> Tensor:
    """Rows of norm 1; a row of zeros stays."""
    scaled: Tensor = rows / rows.norm(dim=1, keepdim=True).clamp_min(TINY)
    return scaled


class Cheap(ABC):
    """A map that is all in one part, and not worth keeping."""

    name: str
    width: int
    costly: bool = False

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor: ...

    def finish(self, encoded: Tensor) -> Tensor:
        return encoded


class Pixels(Cheap):
    """The values of an input, moved to [0, 1] so that a dark background is silent, at norm 1."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.name = "pixels"
        self.width = math.prod(shape)

    def __call__(self, x: Tensor) -> Tensor:
        return unit(x.flatten(1).add(1.0).mul_(0.5))


class OrientedGradients(Cheap):
    """Histograms of oriented gradients (Dalal and Triggs 2005) on a five by five grid of overlapping cells.

    Each pixel votes for the directions near its own, with a weight of cos⁴ of the angle between them and the
    gradient's length; the square root evens out strong and weak edges. Channels add up.
    """

    DIRECTIONS, GRID = 8, 5

    def __init__(self, shape: tuple[int, ...]) -> None:
        if len(shape) not in (2, 3) or min(shape[-2:]) < self.GRID + 2:
            raise BadInput(f"features 'hog' need images of at least {self.GRID + 2}x{self.GRID + 2}, not {shape}")
        self.name = "hog"
        height, width = shape[-2:]
        self.cell = (math.ceil(height * 2 / 7), math.ceil(width * 2 / 7))
        self.stride = tuple((size - cell) // (self.GRID - 1) for size, cell in zip(shape[-2:], self.cell, strict=True))
        places = [(size - c) // s + 1 for size, c, s in zip(shape[-2:], self.cell, self.stride, strict=True)]
        self.width = self.DIRECTIONS * math.prod(places)
        angles = torch.arange(self.DIRECTIONS) * (2 * math.pi / self.DIRECTIONS)
        self.directions = torch.stack([angles.cos(), angles.sin()])

    def __call__(self, x: Tensor) -> Tensor:
        images = x.reshape(len(x), -1, *x.shape[-2:])
        across = F.pad(images[..., 2:] - images[..., :-2], (1, 1)) / 2
        down = F.pad(images[..., 2:, :] - images[..., :-2, :], (0, 0, 1, 1)) / 2
        length = (across.square() + down.square()).sqrt()
        cosines, sines = self.directions.to(x.device)
        votes = torch.zeros(len(x), self.DIRECTIONS, *x.shape[-2:], device=x.device)
        for index in range(self.DIRECTIONS):
            along = (across * cosines[index] + down * sines[index]).clamp_min_(0)
            # length·cos⁴, with cos = along / length
            votes[:, index] = (along.pow_(4) / length.pow(3).clamp_min(TINY)).sum(1)
        cells = F.avg_pool2d(votes, self.cell, self.stride)
        return unit(cells.flatten(1).sqrt())


class Spectrum(Cheap):
    """Windows of a sensor: mean, spread and the amplitude spectrum of each channel and of their length.

    The spectrum is averaged over bands that widen with frequency, so that close rates of movement stay apart.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        if len(shape) != 2 or shape[1] < 8:
            raise BadInput(f"features of windows need inputs of channels x samples (8 or more), not {shape}")
        self.name = "spectrum"
        channels, samples = shape
        bins = samples // 2
        edges = {round(edge) for edge in torch.logspace(0, math.log10(bins + 1), 21).tolist()}
        self.edges = sorted(edges)
        self.width = (channels + 1) * (2 + len(self.edges) - 1)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The means of the waves, and their spread followed by the amplitudes of the bands."""
        waves = torch.cat([x, x.square().sum(1, keepdim=True).sqrt()], dim=1)
        mean = waves.mean(2, keepdim=True)
        amplitudes = torch.fft.rfft(waves - mean, norm="forward").abs()
        bands = [
            amplitudes[..., a:b].square().sum(2, keepdim=True).sqrt()
            for a, b in zip(self.edges, self.edges[1:], strict=False)
        ]
        return mean.squeeze(2), torch.cat([waves.std(2, keepdim=True), *bands], dim=2)

    def __call__(self, x: Tensor) -> Tensor:
        mean, moving = self.parts(x)
        return unit(torch.cat([mean.unsqueeze(2), moving], dim=2).flatten(1))


class Motion(Spectrum):
    """Windows of an accelerometer: the direction of gravity, and square roots of spread and spectrum at norm 1.

    The square root evens out strong and weak movements, as people differ more in strength than in kind.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self.name = "motion"

    def __call__(self, x: Tensor) -> Tensor:
        mean, moving = self.parts(x)
        return unit(torch.cat([unit(mean), moving.flatten(1).sqrt()], dim=1))


class Pretrained:
    """EfficientNet-Lite0's features of colour images, enlarged to `size` pixels first."""

    costly = True

    def __init__(self, shape: tuple[int, ...], size: int) -> None:
        if len(shape) != 3 or shape[0] != 3:
            raise BadInput(f"features 'efficientnet-lite0' need colour images (3 x height x width), not {shape}")
        if size < 32 or size % 32:
            raise BadInput(f"features 'efficientnet-lite0-{size}': the size must be 32, 64, 96 or so on")
        self.name = f"efficientnet-lite0-{size}"
        self.width = EFFICIENTNET_WIDTH
        self.size = size
        self.network = _efficientnet()

    @torch.inference_mode()
    def __call__(self, x: Tensor) -> Tensor:
        parts = []
        for some in x.split(64):  # small batches stay in the processor's cache
            large = F.interpolate(some, size=(self.size, self.size), mode="bilinear", align_corners=False)
            parts.append(self.network(large.contiguous(memory_format=torch.channels_last)))
        return torch.cat(parts)

    def finish(self, encoded: Tensor) -> Tensor:
        # The square root evens out strong and weak detectors; the constant takes away what all pictures share.
        return unit(unit(encoded.sqrt()) - 1 / math.sqrt(self.width))


@cache
def _efficientnet() -> EfficientNetLite0:
    return pretrained()


class Projected:
    """Another map's features on fewer dimensions: a random projection of a public seed. Noise grows with dimensions."""

    SEED = 20_22

    def __init__(self, inner: FeatureMap, width: int) -> None:
        if not 1 <= width <= inner.width:
            raise BadInput(f"cannot project {inner.width} features onto {width}; choose 1 to {inner.width}")
        self.inner = inner
        self.name = inner.name  # of the codes, which are the same
        self.width = width
        self.costly = inner.costly
        generator = torch.Generator().manual_seed(self.SEED)
        self.directions = torch.linalg.qr(torch.randn(inner.width, width, generator=generator)).Q.contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        return self.inner(x)

    def finish(self, encoded: Tensor) -> Tensor:
        return unit(self.inner.finish(encoded) @ self.directions.to(encoded.device))


class RandomLift:
    """Random features: max(0, ⟨w, u⟩) for fixed Gaussian directions w of a public seed, at norm 1.

    For inputs of norm 1 they approximate the arc-cosine kernel of degree 1 (Cho and Saul 2009); the mean over
    all inputs, 1/√(2π), is taken away.
    """

    SEED = 20_21

    def __init__(self, inputs: int, width: int) -> None:
        generator = torch.Generator().manual_seed(self.SEED)
        self.width = width
        self.directions = torch.randn(inputs, width, generator=generator)

    def __call__(self, rows: Tensor) -> Tensor:
        return unit((unit(rows) @ self.directions.to(rows.device)).clamp_min_(0).sub_(1 / math.sqrt(2 * math.pi)))


NAMES = ("pixels", "hog", "spectrum", "motion", "efficientnet-lite0-SIZE")


def build(name: str, shape: tuple[int, ...]) -> FeatureMap:
    """The feature map of a name, for inputs of one shape.

    >>> build("pixels", (1, 8, 8)).width
    64
    """
    simple: dict[str, Callable[[tuple[int, ...]], FeatureMap]] = {
        "pixels": Pixels,
        "hog": OrientedGradients,
        "spectrum": Spectrum,
        "motion": Motion,
    }
    if name in simple:
        return simple[name](shape)
    base, _, size = name.rpartition("-")
    if base == "efficientnet-lite0" and size.isascii() and size.isdigit():
        return Pretrained(shape, int(size))
    near = difflib.get_close_matches(name, NAMES, 1, 0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(NAMES)}"
    raise BadInput(f"unknown features {name!r}; {hint}")
