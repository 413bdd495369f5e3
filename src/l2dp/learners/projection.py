"""The projected gradient of A-GEM: g̃ = g − (gᵀg_ref / g_refᵀg_ref)·g_ref."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

When = Literal["conflict", "always"]


def _dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    # One number at a time: for a small model, stacking them costs more than the products.
    return math.fsum(float(torch.dot(p.reshape(-1), q.reshape(-1))) for p, q in zip(a, b, strict=True))


def project(g: Sequence[Tensor], g_ref: Sequence[Tensor], when: When = "conflict") -> tuple[Tensor, ...]:
    """Removes from g its part along g_ref: if the two conflict (A-GEM), or always (as the paper prints it).

    >>> g, g_ref = [torch.tensor([1.0, -1.0])], [torch.tensor([0.0, 2.0])]
    >>> project(g, g_ref)
    (tensor([1., 0.]),)
    """
    product = _dot(g, g_ref)
    if when == "conflict" and product >= 0:
        return tuple(g)
    square = _dot(g_ref, g_ref)
    if square == 0:
        return tuple(g)
    return tuple(torch.add(p, q, alpha=-product / square) for p, q in zip(g, g_ref, strict=True))
