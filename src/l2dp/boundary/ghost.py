"""Per-example clipping of whole networks without per-example gradients (ghost norms).

One forward pass keeps the inputs of every layer with parameters; one backward pass gives the gradients at their
outputs. From the two, an example's gradient norm follows layer by layer (Goodfellow 2015 for dense layers, Rochette
et al. 2019 and Li et al. 2022 for others), and the clipped sum is the layer's own weight gradient with rescaled
outputs (the book-keeping of Bu et al. 2022): no second backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l2dp.errors import BadInput

AT_ONCE = 32
"""Examples whose unfolded inputs are held together: they should fit the processor's cache."""


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
    provided that the network treats examples one by one: layers known to mix them are refused.
    """
    layers = _layers(network)
    inputs: dict[nn.Module, Tensor] = {}
    outputs: dict[nn.Module, Tensor] = {}

    def keep(layer: nn.Module, taken: tuple[Any, ...], given: Tensor) -> None:
        if layer in inputs:
            raise BadInput(f"the layer {type(layer).__name__} is used twice in one pass; its clipping is not supported")
        inputs[layer], outputs[layer] = taken[0].detach(), given

    hooks = [layer.register_forward_hook(keep) for layer in layers]
    try:
        losses = loss(network(x), y)
    finally:
        for hook in hooks:
            hook.remove()
    used = [layer for layer in layers if layer in outputs]
    # Gradients at the outputs only: the weights' own gradients, unclipped, are never computed.
    slopes = dict(zip(used, torch.autograd.grad(losses.sum(), [outputs[layer] for layer in used]), strict=True))
    with torch.no_grad():
        squares = torch.zeros(len(x), device=x.device)
        for layer in used:
            squares += _RULES[type(layer)][0](layer, inputs[layer], slopes[layer])
        factors = (clip / squares.sqrt().clamp_min(1e-30)).clamp(max=1.0)
        factors = torch.where(squares.isfinite(), factors, 0.0)
        made: dict[Tensor, Tensor] = {}
        for layer in used:
            slope = torch.where(
                squares.isfinite().view(-1, *[1] * (slopes[layer].dim() - 1)), slopes[layer], 0.0
            ) * factors.view(-1, *[1] * (slopes[layer].dim() - 1))
            made |= _RULES[type(layer)][1](layer, inputs[layer], slope)
        return [made[p] if p in made else torch.zeros_like(p) for p in network.parameters() if p.requires_grad]


def _layers(network: nn.Module) -> list[nn.Module]:
    found = []
    for layer in network.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise BadInput("batch normalisation mixes examples, so clipping protects nobody; use group normalisation")
        if not any(p.requires_grad for p in layer.parameters(recurse=False)):
            continue
        if type(layer) not in _RULES:
            known = ", ".join(kind.__name__ for kind in _RULES)
            raise BadInput(f"no clipping rule for the layer {type(layer).__name__}; the network may use {known}")
        found.append(layer)
    return found


# --- dense layers -----------------------------------------------------------------------------------------


def _dense_norm(layer: nn.Linear, taken: Tensor, slope: Tensor) -> Tensor:
    if taken.dim() != 2:
        raise BadInput("a dense layer on more than one row an example is not supported; flatten its input")
    reach = taken.square().sum(1)
    if layer.bias is not None:
        reach += 1
    return reach * slope.square().sum(1)


def _dense_sum(layer: nn.Linear, taken: Tensor, slope: Tensor) -> dict[Tensor, Tensor]:
    made: dict[Tensor, Tensor] = {layer.weight: slope.T @ taken}
    if layer.bias is not None:
        made[layer.bias] = slope.sum(0)
    return made


# --- convolutions -----------------------------------------------------------------------------------------


def _conv_norm(layer: nn.Conv2d, taken: Tensor, slope: Tensor) -> Tensor:
    """‖Σ_p g_p·a_pᵀ‖² over the places p, by whichever way takes fewer products."""
    if layer.groups != 1 or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        raise BadInput("clipping supports convolutions without groups, with numeric zero padding")
    reach = taken.shape[1] * layer.kernel_size[0] * layer.kernel_size[1]
    out, places = layer.out_channels, slope.shape[2] * slope.shape[3]
    by_places = places * (reach + out) < reach * out
    squares = []
    for some, g in zip(taken.split(AT_ONCE), slope.flatten(2).split(AT_ONCE), strict=True):
        a = F.unfold(some, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
        if by_places:
            squares.append((torch.bmm(a.mT, a) * torch.bmm(g.mT, g)).sum((1, 2)))
        else:
            squares.append(torch.bmm(g, a.mT).square().sum((1, 2)))
    total = torch.cat(squares)
    return total if layer.bias is None else total + slope.sum((2, 3)).square().sum(1)


def _conv_sum(layer: nn.Conv2d, taken: Tensor, slope: Tensor) -> dict[Tensor, Tensor]:
    _, weight, bias = torch.ops.aten.convolution_backward(
        slope, taken, layer.weight, [layer.out_channels], layer.stride, layer.padding, layer.dilation,
        False, [0, 0], layer.groups, [False, True, layer.bias is not None],
    )  # fmt: skip
    made: dict[Tensor, Tensor] = {layer.weight: weight}
    if layer.bias is not None:
        made[layer.bias] = bias
    return made


# --- group normalisation ----------------------------------------------------------------------------------


def _group_parts(layer: nn.GroupNorm, taken: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """An example's gradients of scale and shift: small enough to hold."""
    even = F.group_norm(taken, layer.num_groups, eps=layer.eps)
    return (slope * even).flatten(2).sum(2), slope.flatten(2).sum(2)


def _group_norm(layer: nn.GroupNorm, taken: Tensor, slope: Tensor) -> Tensor:
    scale, shift = _group_parts(layer, taken, slope)
    return scale.square().sum(1) + shift.square().sum(1)


def _group_sum(layer: nn.GroupNorm, taken: Tensor, slope: Tensor) -> dict[Tensor, Tensor]:
    scale, shift = _group_parts(layer, taken, slope)
    return {layer.weight: scale.sum(0), layer.bias: shift.sum(0)}


_RULES: dict[type[nn.Module], tuple[Callable[..., Tensor], Callable[..., dict[Tensor, Tensor]]]] = {
    nn.Linear: (_dense_norm, _dense_sum),
    nn.Conv2d: (_conv_norm, _conv_sum),
    nn.GroupNorm: (_group_norm, _group_sum),
}
