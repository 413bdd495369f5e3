"""Permuted streams: every task shows the same kind of records with their values rearranged.

The rearrangement of a task covers all values of an input: the pixels, and for colour images the three
channels as well. By default every task shows all records; `disjoint` gives each record to one task only.
"""

from __future__ import annotations

import torch

from l2dp.errors import BadInput
from l2dp.streams.dataset import Dataset
from l2dp.streams.records import Records, Sealed, Stream, Task


def permuted(
    dataset: Dataset | str,
    tasks: int = 20,
    seed: int = 0,
    per_task: int | None = None,
    disjoint: bool = False,
) -> Stream:
    """A stream of `tasks` permutations of one dataset (a name, a path, or a loaded `Dataset`).

    >>> stream = permuted("digits", tasks=3)
    >>> [task.name for task in stream], stream.source_overlap
    (['permutation-1', 'permutation-2', 'permutation-3'], 3)
    """
    data = Dataset.load(dataset)
    if tasks < 1:
        raise BadInput(f"--tasks must be at least 1, not {tasks}")
    generator = torch.Generator().manual_seed(seed)
    total, values = len(data.train), data.train.x[0].numel()
    share = total // tasks if disjoint else total
    size = share if per_task is None else per_task
    if not 1 <= size <= share:
        raise BadInput(f"{size} records a task were asked for, but {data.name} has {share} for each of {tasks}")
    deal = torch.randperm(total, generator=generator)
    made = []
    for number in range(1, tasks + 1):
        permutation = torch.randperm(values, generator=generator)
        if disjoint:
            start = (number - 1) * share
            rows: torch.Tensor | None = deal[start : start + size]
        else:
            rows = None if size == total else torch.randperm(total, generator=generator)[:size]
        made.append(
            Task(
                f"permutation-{number}",
                Sealed(Records(data.train, rows, permutation)),
                Records(data.test, None, permutation),
                tuple(range(data.space.classes)),
            )
        )
    return Stream(f"permuted-{data.name}", data.space, tuple(made), source_overlap=1 if disjoint else tasks)
