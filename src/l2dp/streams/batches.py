"""How the rows of a task are dealt into batches. Pure arithmetic on row numbers; no record is read here."""

from __future__ import annotations

import torch
from torch import Tensor

from l2dp.errors import BadInput


def disjoint_batches(size: int, batch_size: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """A random partition of `size` rows into batches of at least `batch_size`, equal to within one row.

    No row is left out and none appears twice. A remainder is spread over the batches instead of forming a
    smaller one, since noise that was scaled for a batch of `batch_size` would be too weak for it.
    """
    if not 1 <= batch_size <= size:
        raise BadInput(f"a batch of {batch_size} does not fit a task of {size} records; lower --batch-size")
    return torch.randperm(size, generator=generator).tensor_split(size // batch_size)
