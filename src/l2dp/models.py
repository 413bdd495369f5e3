"""The paper's networks, each as encoder + hidden layer + classifier, and a way to bring your own.

The encoder (θ1) is one linear map without bias: a dense layer or a convolution. `hidden` turns its output
into the first hidden layer h1, and the classifier (θ2) maps h1 to class scores through a last dense layer Wπ.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l2dp import activity_models, parallel
from l2dp.errors import BadInput
from l2dp.streams.records import Space

Normalisation = Literal["none", "channel", "neuron", "group"]
Builder = Callable[[Space], "Network"]

MOMENTUM = 0.3
"""Of the running statistics used at test time: large batches make few steps, so they must follow quickly."""


class Network(nn.Module):
    """f(x) = classifier(hidden(encoder(x))).

    `encoder` must be an `nn.Linear` or `nn.Conv2d` for methods that train it as an auto-encoder; any module
    will do for the others. `hidden` may be left out: the encoder's output is then clipped to [−1, 1].
    """

    def __init__(self, encoder: nn.Module, classifier: nn.Module, hidden: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.hidden = nn.Hardtanh() if hidden is None else hidden
        self.classifier = classifier
        self.unit_inputs = False
        """Whether `forward` moves inputs from [−1, 1] to [0, 1] first, where the background of an image is silent."""

    def forward(self, x: Tensor) -> Tensor:
        if self.unit_inputs:
            x = (x + 1) / 2
        scores: Tensor = self.classifier(self.hidden(self.encoder(x)))
        return scores

    @property
    def head(self) -> nn.Linear:
        """Wπ: the last dense layer of the classifier."""
        layers = [module for module in self.classifier.modules() if isinstance(module, nn.Linear)]
        if not layers:
            raise BadInput("the classifier has no nn.Linear layer to serve as its head")
        return layers[-1]

    def encoder_weight(self) -> Tensor:
        """θ1 as a matrix with one column per hidden feature (d × features, as in the paper)."""
        if not isinstance(self.encoder, nn.Linear | nn.Conv2d):
            raise BadInput(f"the encoder must be nn.Linear or nn.Conv2d, not {type(self.encoder).__name__}")
        return self.encoder.weight.flatten(1).T

    def inner_with_decoded(self, e: Tensor, h: Tensor) -> Tensor:
        """⟨e, decode(h)⟩ summed over a batch, without decoding where that is avoidable.

        A convolution that decodes to a single channel at full size is slow. The inner product is the same with
        the adjoint applied to e: box sums over the stride (what nearest upsampling repeats), then the encoder's
        own convolution, then the product with h.
        """
        encoder = self.encoder
        if isinstance(encoder, nn.Conv2d):
            image = e.view(-1, encoder.in_channels, *e.shape[-2:])
            rows, columns = encoder.stride
            if image.shape[2:] == (rows * h.shape[2], columns * h.shape[3]):
                tall, wide = encoder.kernel_size
                right, bottom = wide - 1 - wide // 2, tall - 1 - tall // 2
                padded = F.pad(image, (wide // 2, right, tall // 2, bottom))
                boxes = F.avg_pool2d(padded, (rows, columns), 1) * (rows * columns)
                return (F.conv2d(boxes, encoder.weight, stride=encoder.stride) * h).sum()
        return (e * self.decode(h, e.shape)).sum()

    def decode(self, h: Tensor, shape: torch.Size) -> Tensor:
        """x̃ = θ1 h: the reconstruction with tied weights.

        For a convolution: nearest upsampling to the input's size, then a convolution with the filters
        transposed (channels swapped, taps reversed), which is the adjoint of the encoder up to its stride.
        """
        if isinstance(self.encoder, nn.Linear):
            return F.linear(h, self.encoder.weight.T).view(shape)
        if not isinstance(self.encoder, nn.Conv2d):
            raise BadInput(f"the encoder must be nn.Linear or nn.Conv2d, not {type(self.encoder).__name__}")
        large = F.interpolate(h, size=shape[-2:], mode="nearest")
        rows, columns = self.encoder.kernel_size
        large = F.pad(large, ((columns - 1) // 2, columns // 2, (rows - 1) // 2, rows // 2))
        return F.conv2d(large, self.encoder.weight.transpose(0, 1).flip(2, 3)).view(shape)


class WholeBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch normalisation by the mean and variance of the whole batch, also where several processes divide it.

    Takes any number of dimensions; features are the second.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise BadInput(f"batch normalisation needs a batch of features, not a tensor of shape {tuple(input.shape)}")

    def forward(self, x: Tensor) -> Tensor:
        if parallel.size() == 1 or not self.training:
            return super().forward(x)
        features = [1, -1, *[1] * (x.dim() - 2)]
        others = [dim for dim in range(x.dim()) if dim != 1]
        count = parallel.add(torch.tensor(x.numel() // x.shape[1], device=x.device))
        mean = parallel.total(x.sum(others)) / count
        # Two rounds: from the sum of squares alone, a mean far from zero would leave nothing of the variance.
        centred = x - mean.view(features)
        variance = parallel.total(centred.square().sum(others)) / count
        if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
            with torch.no_grad():
                self.num_batches_tracked.add_(1)
                follow = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
                self.running_mean.lerp_(mean, follow)
                self.running_var.lerp_(variance * count / (count - 1), follow)
        scaled = centred * (variance + self.eps).rsqrt().view(features)
        return scaled * self.weight.view(features) + self.bias.view(features) if self.affine else scaled


class _PerNeuron(WholeBatchNorm):
    """Batch normalisation with statistics of its own for every neuron, also in convolutional layers."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4:
            return super().forward(x)
        last = x.permute(0, 2, 3, 1)  # with channels last in memory, neither this nor the next line copies
        return super().forward(last.flatten(1)).view(last.shape).permute(0, 3, 1, 2)


def normalises_parts(network: nn.Module) -> bool:
    """Whether a layer would normalise each process's part of a batch by itself."""
    return any(
        isinstance(layer, nn.modules.batchnorm._BatchNorm) and not isinstance(layer, WholeBatchNorm)
        for layer in network.modules()
    )


def _norm(kind: Normalisation, channels: int, area: int = 1) -> nn.Module:
    if kind == "none":
        return nn.Identity()
    if kind == "group":
        return nn.GroupNorm(math.gcd(8, channels) if area > 1 else 1, channels)
    if kind == "neuron":
        return _PerNeuron(channels * area, momentum=MOMENTUM)
    return WholeBatchNorm(channels, momentum=MOMENTUM)


def _hidden(kind: Normalisation, bounded: bool, channels: int, area: int = 1) -> nn.Sequential:
    """Activation, normalisation, bound: the order of the authors' code."""
    layers: list[nn.Module] = [nn.ReLU(), _norm(kind, channels, area)]
    return nn.Sequential(*layers, *([nn.Hardtanh()] if bounded else []))


def _image(space: Space, model: str) -> tuple[int, int, int]:
    """Channels, height and width; a (channels, samples) window counts as a one-channel image."""
    if len(space.shape) == 3:
        return space.shape[0], space.shape[1], space.shape[2]
    if len(space.shape) == 2:
        return 1, space.shape[0], space.shape[1]
    raise BadInput(f"model {model} needs images or windows, not inputs of shape {space.shape}; try --model mlp")


class AsImage(nn.Conv2d):
    """A convolution that also takes (channels, samples) windows, as one-channel images."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.unsqueeze(1) if x.dim() == 3 else x)


class Flat(nn.Linear):
    """A dense layer on inputs of any shape."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(1))


def _conv_size(size: int, kernel: int, padding: int) -> int:
    return (size + 2 * padding - kernel) // 2 + 1


def _conv_net(
    space: Space, kernel: int, padding: int, units: int, norm: Normalisation, bounded: bool, name: str
) -> Network:
    """Three stride-2 convolutions of 32, 64 and 96 features and a dense layer."""
    channels, height, width = _image(space, name)
    layers: list[nn.Module] = []
    for inputs, outputs in ((channels, 32), (32, 64), (64, 96)):
        height, width = _conv_size(height, kernel, padding), _conv_size(width, kernel, padding)
        if height < 1 or width < 1:
            raise BadInput(f"model {name} is too deep for inputs of shape {space.shape}; try --model mlp")
        first = inputs == channels and not layers
        conv = (AsImage if first else nn.Conv2d)(inputs, outputs, kernel, 2, padding, bias=not first)
        layers += [conv, _hidden(norm, bounded and first, outputs, height * width)]
    encoder, hidden, *rest = layers
    classifier = nn.Sequential(
        *rest,
        nn.Flatten(),
        nn.Linear(96 * height * width, units),
        _hidden(norm, bounded, units),
        nn.Linear(units, space.classes, bias=not bounded),
    )
    return Network(encoder, classifier, hidden)


class _Residual(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, area: int, norm: Normalisation) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=norm == "none"),
            _norm(norm, outputs, area),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=norm == "none"),
            _norm(norm, outputs, area),
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def _resnet(space: Space, norm: Normalisation, bounded: bool) -> Network:
    """ResNet-18 with 64-64-128-128-160 features: a 4×4 encoder and four stages of two residual blocks."""
    channels, height, width = _image(space, "cifar-resnet")
    if min(height, width) < 8:
        raise BadInput(f"model cifar-resnet needs images of at least 8x8, not {space.shape}; try --model mlp")
    encoder = AsImage(channels, 64, 4, 2, 1, bias=False)
    height, width = _conv_size(height, 4, 1), _conv_size(width, 4, 1)
    hidden = _hidden(norm, bounded, 64, height * width)
    blocks: list[nn.Module] = []
    inputs = 64
    for outputs, stride in ((64, 1), (128, 2), (128, 1), (160, 2)):
        height, width = -(-height // stride), -(-width // stride)
        for step in (stride, 1):
            blocks.append(_Residual(inputs, outputs, step, height * width, norm))
            inputs = outputs
    classifier = nn.Sequential(
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(inputs, 256),
        _hidden(norm, bounded, 256),
        nn.Linear(256, space.classes, bias=not bounded),
    )
    return Network(encoder, classifier, hidden)


def _mlp(space: Space, widths: list[int], norm: Normalisation, bounded: bool) -> Network:
    first, *rest = widths
    layers: list[nn.Module] = []
    inputs = first
    for place, outputs in enumerate(rest):
        last = place == len(rest) - 1
        layers += [nn.Linear(inputs, outputs), _hidden(norm, bounded and last, outputs)]
        inputs = outputs
    layers.append(nn.Linear(inputs, space.classes, bias=not bounded))
    encoder = Flat(math.prod(space.shape), first, bias=False)
    return Network(encoder, nn.Sequential(*layers), _hidden(norm, bounded, first))


NAMES = ("mnist-conv", "cifar-resnet", "har-conv", "mlp", *activity_models.NAMES)


def build(
    spec: str | Builder, space: Space, seed: int, normalisation: Normalisation = "none", bounded: bool = False
) -> Network:
    """A fresh network for a space; equal seeds give equal weights, and no global generator is disturbed.

    `spec` is one of `NAMES`, `mlp-W1-W2…` for a dense net of those widths, or a function of the space that
    makes a `Network`. `bounded` clips h1 and hπ to [−1, 1], as the paper's sensitivities assume.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = spec(space) if callable(spec) else _named(spec, space, normalisation, bounded)
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _named(spec: str, space: Space, normalisation: Normalisation, bounded: bool) -> Network:
    if spec == "mnist-conv":
        return _conv_net(space, 5, 2, 512, normalisation, bounded, spec)
    if spec == "har-conv":
        return _conv_net(space, 2, 1, 128, normalisation, bounded, spec)
    if spec in activity_models.NAMES:
        inner = activity_models.body(spec, space)
        return Network(inner, nn.Linear(inner.width, space.classes), nn.Identity())
    if spec == "cifar-resnet":
        return _resnet(space, normalisation, bounded)
    if re.fullmatch(r"mlp(-[1-9]\d{0,4})*", spec):
        widths = [int(w) for w in spec.split("-")[1:]] or [256, 256]
        return _mlp(space, widths, normalisation, bounded)
    near = difflib.get_close_matches(spec, NAMES, 1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; choose from {', '.join(NAMES)}"
    raise BadInput(f"unknown model {spec!r}{hint}")
