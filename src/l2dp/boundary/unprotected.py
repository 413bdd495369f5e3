"""The boundary of methods without privacy: raw records pass as they are, and it says so.

Batches of the current task and the raw episodic memory live here, so that even an unprotected method reads
records in one place only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from l2dp import parallel
from l2dp.boundary.admission import admit, label_mask, same_everywhere
from l2dp.budget import NO_PRIVACY, Guarantee
from l2dp.streams.batches import disjoint_batches
from l2dp.streams.records import Records, Space, Task


class Batch(NamedTuple):
    """Inputs, labels, and which labels each record's task declares (None: all labels are open to all)."""

    x: Tensor
    y: Tensor
    mask: Tensor | None


READ_AHEAD = 256
"""Small batches are read about this many records at a time: one by one, reading would cost as much as learning."""


class EpisodicMemory:
    """Records kept of past tasks, in one growing block, so that a mixed batch costs the same at any length."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._starts: list[int] = [0]
        self._block: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return self._starts[-1]

    def add(self, **columns: Tensor) -> None:
        """Appends one episode: tensors of equal length, the same names every time."""
        used = len(self)
        needed = used + len(next(iter(columns.values())))
        for name, new in columns.items():
            held = self._block.get(name)
            if held is None or needed > len(held):
                room = max(needed, 2 * used)  # doubling keeps the cost of adding constant on average
                grown = torch.empty((room, *new.shape[1:]), dtype=new.dtype, device=self._device)
                if held is not None:
                    grown[:used] = held[:used]
                self._block[name] = grown
            self._block[name][used:needed] = new.to(self._device)
        self._starts.append(needed)

    def episode(self, index: int) -> dict[str, Tensor]:
        """What is kept of the task at `index`."""
        rows = slice(self._starts[index], self._starts[index + 1])
        return {name: column[rows] for name, column in self._block.items()}

    def sample(self, size: int, generator: torch.Generator) -> Batch:
        """A batch drawn uniformly, with replacement, from everything kept."""
        index = torch.randint(len(self), (size,), generator=generator)[parallel.part(size)].to(self._device)
        mask = self._block.get("mask")
        # index_select copies whole rows; indexing with brackets is several times slower.
        x, y = self._block["x"].index_select(0, index), self._block["y"].index_select(0, index)
        return Batch(x, y, None if mask is None else mask.index_select(0, index))


class Unprotected:
    """Raw batches and a raw episodic memory.

    Guarantee
    ---------
    None: status `none`. Whoever sees the model may learn anything about any record.
    """

    guarantee: Guarantee = NO_PRIVACY

    def __init__(self, space: Space, device: torch.device, masked: bool = False) -> None:
        self._space = space
        self._device = device
        self._masked = masked
        self.memory = EpisodicMemory(device)

    def _batch(self, x: Tensor, y: Tensor, mask: Tensor | None) -> Batch:
        return Batch(x.to(self._device), y.to(self._device), None if mask is None else mask.to(self._device))

    def _mask(self, task: Task) -> Tensor | None:
        """The labels of a task as one row of booleans, when its scores are restricted to them."""
        return label_mask(task, self._space) if self._masked else None

    def _open(self, task: Task) -> Records:
        records = admit(task, self._space)
        same_everywhere(task, records)
        return records

    def check(self, task: Task) -> None:
        """Refuses a task that does not fit the space, or that is another one in another process."""
        self._open(task)

    def batches(self, task: Task, batch_size: int, steps: int, generator: torch.Generator) -> Iterator[Batch]:
        """`steps` batches of one task, dealt anew for every pass over it."""
        records = self._open(task)
        mask = self._mask(task)
        left = steps
        while left > 0:
            whole = disjoint_batches(len(records), batch_size, generator)[:left]
            left -= len(whole)
            dealt = [rows[parallel.part(len(rows))] for rows in whole]
            at_once = max(1, READ_AHEAD // batch_size)
            for start in range(0, len(dealt), at_once):
                some = dealt[start : start + at_once]
                x, y = records.batch(torch.cat(some))
                sizes = [len(rows) for rows in some]
                for part in zip(x.split_with_sizes(sizes), y.split_with_sizes(sizes), strict=True):
                    yield self._batch(*part, mask)

    def mixed_batches(
        self, tasks: list[Task], batch_size: int, steps: int, generator: torch.Generator
    ) -> Iterator[Batch]:
        """`steps` batches drawn uniformly from the records of all `tasks` together."""
        opened = [self._open(task) for task in tasks]
        masks = torch.stack([label_mask(task, self._space) for task in tasks]) if self._masked else None
        sizes = torch.tensor([len(records) for records in opened])
        starts = sizes.cumsum(0) - sizes
        left = steps
        while left > 0:
            for rows in disjoint_batches(int(sizes.sum()), batch_size, generator)[:left]:
                rows = rows[parallel.part(len(rows))]
                owner = (torch.bucketize(rows, starts, right=True) - 1).sort()
                rows = rows[owner.indices]
                parts = [
                    opened[i].batch(rows[owner.values == i] - starts[i]) for i in sorted(set(owner.values.tolist()))
                ]
                yield self._batch(
                    torch.cat([x for x, _ in parts]),
                    torch.cat([y for _, y in parts]),
                    None if masks is None else masks[owner.values],
                )
                left -= 1

    def remember(self, task: Task, size: int, generator: torch.Generator) -> None:
        """Keeps `size` records of a task, chosen at random, as evenly over its classes as they allow."""
        records = self._open(task)
        y = records.labels()
        shuffled = torch.randperm(len(records), generator=generator)
        # Rank every record within its class, then take the lowest ranks: balanced without a loop over classes.
        order = shuffled[torch.argsort(y[shuffled], stable=True)]
        counts = torch.bincount(y, minlength=self._space.classes)
        starts = counts.cumsum(0) - counts
        rank = torch.arange(len(order)) - starts[y[order]]
        chosen = order[torch.argsort(rank, stable=True)[: min(size, len(records))]]
        x, y = records.batch(chosen)
        mask = self._mask(task)
        extra = {} if mask is None else {"mask": mask.expand(len(y), -1)}
        self.memory.add(x=x, y=y, **extra)
