"""Per-example clipping of whole networks without per-example gradients (ghost norms).

One forward pass keeps the inputs of every layer with parameters; one backward pass gives the gradients at their
outputs. From the two, an example's gradient norm follows layer by layer (Goodfellow 2015 for dense layers, Rochette
et al. 2019 and Li et al. 2022 for others), and the clipped sum is the layer's own weight gradient with rescaled
outputs (the book-keeping of Bu et al. 2022): no second backward pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l2dp.errors import BadInput
from l2dp.models import AsImage, Flat

AT_ONCE = 32
"""Examples whose unfolded inputs are held together: they should fit the processor's cache."""


def full_precision(device: torch.device) -> None:
    """Refuses arithmetic that is coarser than float32: the margin of a clipped sum is made for float32.

    Guarantee
    ---------
    Products that are rounded to 8 bits (bfloat16, by autocast or `torch.set_float32_matmul_precision`) or 11 (TF32)
    would let an example's part in a sum differ from the norm by which it was cut; past this call they cannot.
    """
    kinds = [getattr(torch.backends.mkldnn, name, None) for name in ("conv", "matmul")]  # since torch 2.9
    if (
        torch.is_autocast_enabled(device.type)
        or torch.get_float32_matmul_precision() != "highest"
        or any(getattr(kind, "fp32_precision", "ieee") in ("bf16", "tf32", "fp16") for kind in kinds)
    ):
        raise BadInput(
            "torch is set to multiply with less than float32's precision, and clipping would not hold exactly; "
            "leave autocast, and set torch.set_float32_matmul_precision('highest')"
        )
    if device.type == "cuda":
        torch.backends.cudnn.allow_tf32 = False  # on by default, for convolutions


def clipped_sum(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    clip: float,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> list[Tensor]:
    """Σ over examples of their gradients, each cut to norm `clip`; one tensor for each parameter that learns.

    Guarantee
    ---------
    Adding or removing one example changes the result by at most `clip` in Euclidean norm (up to float32 rounding),
    provided that the network treats examples one by one: layers known to mix them are refused, and so are layers that
    see an example as several rows, and those that keep something of what they see in a buffer.
    """
    full_precision(x.device)
    layers = clipped_layers(network)
    inputs: dict[nn.Module, Tensor] = {}
    outputs: dict[nn.Module, Tensor] = {}
    kept: list[tuple[Tensor, int]] = []

    def keep(layer: nn.Module, taken: tuple[Any, ...], given: Tensor) -> None:
        if layer in inputs:
            raise BadInput(f"the layer {type(layer).__name__} is used twice in one pass; its clipping is not supported")
        inputs[layer], outputs[layer] = taken[0].detach(), given
        kept.extend((tensor, tensor._version) for tensor in (taken[0], given))

    before = _buffers(network)
    hooks = [layer.register_forward_hook(keep) for layer in layers]
    try:
        losses = loss(network(x), y)
    finally:
        for hook in hooks:
            hook.remove()
    if any(tensor._version != version for tensor, version in kept):
        raise BadInput(
            "a layer's input or output is overwritten in place, which clipping cannot see; use inplace=False"
        )
    if _buffers(network) != before:
        raise BadInput("a layer keeps a buffer of what it sees, which no clipping bounds; use one without running sums")
    if losses.shape != y.shape or any(len(one) != len(x) for one in (*inputs.values(), *outputs.values())):
        raise BadInput("a layer sees other rows than one for each example, and clipping would bound each row by itself")
    used = [layer for layer in layers if layer in outputs]
    # Gradients at the outputs only: the weights' own gradients, unclipped, are never computed.
    slopes = dict(zip(used, torch.autograd.grad(losses.sum(), [outputs[layer] for layer in used]), strict=True))
    with torch.no_grad():
        rules = {layer: _RULES[type(layer)](layer, inputs[layer], slopes[layer]) for layer in used}
        squares = torch.stack([rule.squares() for rule in rules.values()]).sum(0)
        sound = squares.isfinite()
        factors = torch.where(sound, (clip / squares.sqrt().clamp_min(1e-30)).clamp(max=1.0), 0.0)
        if not bool(sound.all()):  # zero times infinity is not zero: such an example has to go altogether
            for rule in rules.values():
                rule.drop(~sound)
        made: dict[Tensor, Tensor] = {}
        for rule in rules.values():
            made |= rule.total(factors)
        return [made[p] if p in made else torch.zeros_like(p) for p in network.parameters() if p.requires_grad]


def _buffers(network: nn.Module) -> list[tuple[str, int, int]]:
    """Which buffers there are, and how often each was written."""
    return [(name, id(buffer), buffer._version) for name, buffer in network.named_buffers()]


def clipped_layers(network: nn.Module) -> list[nn.Module]:
    """The layers that learn; refuses a network that cannot be clipped example by example."""
    found: list[nn.Module] = []
    seen: set[nn.Parameter] = set()
    for layer in network.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise BadInput("batch normalisation mixes examples, so clipping protects nobody; use group normalisation")
        if not any(p.requires_grad for p in layer.parameters(recurse=False)):
            continue
        if type(layer) not in _RULES:
            known = ", ".join(kind.__name__ for kind in _RULES)
            raise BadInput(f"no clipping rule for the layer {type(layer).__name__}; the network may use {known}")
        own = set(layer.parameters(recurse=False))
        if own & seen:
            raise BadInput(f"a weight of {type(layer).__name__} is shared by two layers; its clipping is not supported")
        seen |= own
        found.append(layer)
    return found


class _Rule(ABC):
    """What a layer adds to the squared norm of every example's gradient, and to the sum of rescaled gradients."""

    def __init__(self, layer: Any, taken: Tensor, slope: Tensor) -> None:
        self.layer, self.taken, self.slope = layer, taken, slope

    @abstractmethod
    def squares(self) -> Tensor:
        """One number for every example."""

    @abstractmethod
    def total(self, factors: Tensor) -> dict[Tensor, Tensor]:
        """For every parameter, the sum of the examples' gradients times their factors."""

    def drop(self, examples: Tensor) -> None:
        """Takes examples out of the sums. The tensors may be the caller's own, so they are replaced, not changed."""
        self.taken = self.taken.masked_fill(examples.view(-1, *[1] * (self.taken.dim() - 1)), 0.0)
        self.slope = self.slope.masked_fill(examples.view(-1, *[1] * (self.slope.dim() - 1)), 0.0)


class _Dense(_Rule):
    def __init__(self, layer: nn.Linear, taken: Tensor, slope: Tensor) -> None:
        if slope.dim() != 2:
            raise BadInput("a dense layer on more than one row an example is not supported; flatten its input")
        super().__init__(layer, taken.flatten(1), slope)

    def squares(self) -> Tensor:
        reach = self.taken.square().sum(1)
        if self.layer.bias is not None:
            reach += 1
        return reach * self.slope.square().sum(1)

    def total(self, factors: Tensor) -> dict[Tensor, Tensor]:
        slope = self.slope * factors.unsqueeze(1)
        made = {self.layer.weight: slope.T @ self.taken}
        return made if self.layer.bias is None else {**made, self.layer.bias: slope.sum(0)}


class _Convolution(_Rule):
    def __init__(self, layer: nn.Conv2d, taken: Tensor, slope: Tensor) -> None:
        if layer.groups != 1 or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
            raise BadInput("clipping supports convolutions without groups, with numeric zero padding")
        # Windows of channels x samples are images of one channel, as `models.AsImage` sees them.
        super().__init__(layer, taken.unsqueeze(1) if taken.dim() == 3 else taken, slope)

    def squares(self) -> Tensor:
        """‖Σ_p g_p·a_pᵀ‖² over the places p, by whichever way takes fewer products."""
        layer = self.layer
        reach = self.taken.shape[1] * layer.kernel_size[0] * layer.kernel_size[1]
        slope = self.slope.permute(0, 2, 3, 1).flatten(
            1, 2
        )  # examples x places x channels: a view, channels being last
        by_places = slope.shape[1] * (reach + layer.out_channels) < reach * layer.out_channels
        rounding = (reach + layer.out_channels + slope.shape[1]) * 2.0**-24
        found = []
        for some, g in zip(self.taken.split(AT_ONCE), slope.split(AT_ONCE), strict=True):
            a = self._patches(some)
            if by_places:
                left, right = torch.bmm(a, a.mT).flatten(1), torch.bmm(g, g.mT).flatten(1)
                # Large terms may cancel: what float32 can lose in the sum is added, so that a norm is never too small.
                loss = torch.linalg.vector_norm(left, dim=1) * torch.linalg.vector_norm(right, dim=1) * rounding
                found.append(torch.linalg.vecdot(left, right) + loss)
            else:
                found.append(torch.bmm(g.mT, a).square().sum((1, 2)))
        total = torch.cat(found)
        return total if layer.bias is None else total + slope.sum(1).square().sum(1)

    def _patches(self, images: Tensor) -> Tensor:
        """The inputs under the kernel at every place: examples x places x (kernel x channels)."""
        layer = self.layer
        (tall, wide), (down, right) = layer.kernel_size, layer.dilation
        images = F.pad(images, (layer.padding[1], layer.padding[1], layer.padding[0], layer.padding[0]))
        # With the channels last, a row of the kernel is one piece of memory, and copying it several times as fast.
        images = images.permute(0, 2, 3, 1).contiguous()
        views = images.unfold(1, down * (tall - 1) + 1, layer.stride[0]).unfold(
            2, right * (wide - 1) + 1, layer.stride[1]
        )
        views = views[..., ::down, ::right].permute(0, 1, 2, 4, 5, 3)
        return views.reshape(len(images), views.shape[1] * views.shape[2], -1)

    def total(self, factors: Tensor) -> dict[Tensor, Tensor]:
        layer = self.layer
        _, weight, bias = torch.ops.aten.convolution_backward(
            self.slope * factors.view(-1, 1, 1, 1), self.taken, layer.weight, [layer.out_channels], layer.stride,
            layer.padding, layer.dilation, False, [0, 0], layer.groups, [False, True, layer.bias is not None],
        )  # fmt: skip
        return {layer.weight: weight} if layer.bias is None else {layer.weight: weight, layer.bias: bias}


class _Group(_Rule):
    """Group normalisation: an example's own gradients of scale and shift are small enough to hold."""

    def __init__(self, layer: nn.GroupNorm, taken: Tensor, slope: Tensor) -> None:
        super().__init__(layer, taken, slope)
        even = F.group_norm(taken, layer.num_groups, eps=layer.eps)
        if slope.dim() > 2:
            places = tuple(range(2, slope.dim()))
            even, slope = even.mul_(slope).sum(places), slope.sum(places)
        else:
            even.mul_(slope)
        self.taken, self.slope = even, slope

    def squares(self) -> Tensor:
        return self.taken.square().sum(1) + self.slope.square().sum(1)

    def total(self, factors: Tensor) -> dict[Tensor, Tensor]:
        return {self.layer.weight: factors @ self.taken, self.layer.bias: factors @ self.slope}


_RULES: dict[type[nn.Module], type[_Rule]] = {
    nn.Linear: _Dense,
    Flat: _Dense,
    nn.Conv2d: _Convolution,
    AsImage: _Convolution,
    nn.GroupNorm: _Group,
}
