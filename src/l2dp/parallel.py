"""One run over several processes (`torchrun -m l2dp run …`): each adds up its part of every batch, all hold the sums.

Every process goes through the same steps with the same seeds; a batch, a Poisson sample or a task's records are divided
by position, and what is added up over them is added up over all processes. Without torchrun nothing here does
anything. All processes are inside the boundary, and so is the network between them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as group
from numpy.typing import NDArray
from torch import Tensor

from l2dp.errors import BadInput
from l2dp.noise import Noise

PATIENCE = timedelta(hours=2)
"""For a process that waits while the first one writes or evaluates something long."""


@contextmanager
def joined() -> Iterator[None]:
    """Joins the processes that torchrun started; alone, nothing happens."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield
        return
    try:
        group.init_process_group("gloo", timeout=PATIENCE)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"the processes could not join ({reason}); start them with torchrun -m l2dp run …") from error
    yield
    # Not in a `finally`: one that failed must not wait for the others, which torchrun ends.
    group.barrier()
    group.destroy_process_group()


def size() -> int:
    return group.get_world_size() if group.is_initialized() else 1


def rank() -> int:
    """Which process this is; the first, 0, draws the noise and writes the files."""
    return group.get_rank() if group.is_initialized() else 0


def part(count: int, block: int = 1) -> slice:
    """This process's part of `count` rows, cut at multiples of `block`.

    With blocks, the same rows pass a feature map together however many processes there are, and come out the same to
    the last bit.
    """
    blocks = -(-count // block)
    start, stop = (blocks * who // size() for who in (rank(), rank() + 1))
    return slice(min(count, start * block), min(count, stop * block))


def add(total: Tensor) -> Tensor:
    """The sum of a tensor over all processes, the same in each."""
    if size() > 1:
        here = total.detach().cpu().contiguous()
        group.all_reduce(here)
        return here.to(total.device)
    return total


class _Total(torch.autograd.Function):
    """`add`, and its gradient: what one process puts in is in the loss of all of them."""

    @staticmethod
    def forward(_: Any, here: Tensor) -> Tensor:
        return add(here)

    @staticmethod
    def backward(_: Any, slope: Tensor) -> Tensor:
        return add(slope)


def total(here: Tensor) -> Tensor:
    """The sum of a tensor over all processes, for a loss that is the sum of the losses of all."""
    if size() == 1:
        return here
    summed: Tensor = _Total.apply(here)  # type: ignore[no-untyped-call]
    return summed


def together(gradients: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The sums over all processes of gradients of their parts of a loss."""
    if size() == 1:
        return tuple(gradients)
    flat = add(torch.cat([gradient.flatten() for gradient in gradients]))
    parts = flat.split([gradient.numel() for gradient in gradients])
    return tuple(one.view_as(gradient) for one, gradient in zip(parts, gradients, strict=True))


def first(here: Tensor) -> Tensor:
    """What the first process has, told to all: machines may compute the same number with other last bits."""
    if size() == 1:
        return here
    told = here.detach().cpu().clone()
    group.broadcast(told, 0)
    return told.to(here.device)


def agreed(number: int) -> int:
    """What the first process says."""
    return int(first(torch.tensor(number)))


def check_same(seen: bytes, what: str) -> None:
    """Refuses where a process has seen something else than the first: together they would do what nobody asked for.

    All processes refuse, so that none goes on alone to charge a task or to write a file. They are told a digest.
    """
    digest = int.from_bytes(hashlib.sha256(seen).digest()[:8], "big") >> 1
    differs = torch.zeros(size(), dtype=torch.int64)
    differs[rank()] = agreed(digest) != digest
    others: list[int] = add(differs).nonzero().flatten().tolist()
    if others:
        raise BadInput(
            f"process {others[0]} has another {what} than the first; give all machines the same command, data and --out"
        )


class SharedNoise(Noise):
    """Privacy noise that the first process draws, once, and the others are told.

    Guarantee
    ---------
    That of the noise behind it: all processes see one and the same draw, so an answer has the noise of one mechanism,
    neither none nor several, and a Poisson sample is one sample over all records. The draws pass between the
    processes as raw sums do: over a network that nobody else can read.
    """

    def __init__(self, drawn: Noise) -> None:
        self._drawn = drawn
        self.secure = drawn.secure

    def words(self, count: int) -> NDArray[np.uint64]:
        told = torch.empty(count, dtype=torch.int64)
        if rank() == 0:
            told = torch.from_numpy(self._drawn.words(count).astype(np.int64, casting="unsafe", copy=True))
        group.broadcast(told, 0)
        return told.numpy().view(np.uint64)

    def fork(self, purpose: str) -> SharedNoise:
        return SharedNoise(self._drawn.fork(purpose))
