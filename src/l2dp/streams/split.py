"""Split streams: the classes of a dataset, a few at a time; no class appears in two tasks.

Under the protocols `class` and `task` the space holds all classes; under `domain` each task's labels are
renamed to their positions within the task, so that one small head serves all tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from l2dp.errors import BadInput
from l2dp.streams.dataset import Dataset
from l2dp.streams.records import Protocol, Records, Sealed, Source, Space, Stream, Task


def _rows(source: Source, classes: Sequence[int]) -> torch.Tensor:
    wanted = torch.isin(source.y, torch.tensor(classes))
    return wanted.nonzero().flatten()


def split(
    *datasets: Dataset | str,
    tasks: int = 5,
    seed: int = 0,
    per_task: int | None = None,
    protocol: Protocol = "class",
) -> Stream:
    """The last dataset in `tasks` parts of equal class counts, each earlier dataset as one task before them.

    `split("mnist", tasks=5)` has two digits a task; `split("cifar10", "cifar100", tasks=11)` has all of
    CIFAR-10 first and then ten classes of CIFAR-100 at a time, as in the paper.

    >>> [task.name for task in split("digits", tasks=5)]
    ['0,1', '2,3', '4,5', '6,7', '8,9']
    """
    loaded = [Dataset.load(d) for d in datasets]
    whole, parts = loaded[:-1], tasks - len(loaded) + 1
    last = loaded[-1]
    if parts < 1 or parts > last.space.classes:
        raise BadInput(
            f"--tasks {tasks}: a split of {last.name} needs {len(whole) + 1} to {len(whole) + last.space.classes} tasks"
        )
    if len({d.name for d in loaded}) < len(loaded):
        raise BadInput(f"a split stream takes each dataset once, not {', '.join(d.name for d in loaded)}")
    if any(d.space.shape != last.space.shape for d in loaded):
        raise BadInput("datasets of one split stream must have inputs of the same shape")
    groups: list[tuple[Dataset, list[int]]] = [(d, list(range(d.space.classes))) for d in whole]
    bounds = [round(i * last.space.classes / parts) for i in range(parts + 1)]
    groups += [(last, list(range(a, b))) for a, b in pairwise(bounds)]

    offsets: dict[int, int] = {}
    names: list[str] = []
    for d in loaded:
        offsets[id(d)] = len(names)
        names += [f"{d.name}:{label}" if len(loaded) > 1 else label for label in d.space.labels]
    if protocol == "domain":
        width = max(len(classes) for _, classes in groups)
        names = [f"position-{i}" for i in range(width)]

    generator = torch.Generator().manual_seed(seed)
    made = []
    for data, classes in groups:
        relabel = torch.full((data.space.classes,), -1, dtype=torch.int64)
        first = 0 if protocol == "domain" else offsets[id(data)] + classes[0]
        relabel[classes] = torch.arange(first, first + len(classes))
        rows = _rows(data.train, classes)
        if per_task is not None:
            if not 1 <= per_task <= len(rows):
                raise BadInput(f"--per-task {per_task}: classes {classes} of {data.name} have {len(rows)} records")
            rows = rows[torch.randperm(len(rows), generator=generator)[:per_task]]
        labels = [data.space.labels[c] for c in classes]
        title = data.name if data in whole else ",".join(labels[:3]) + (",…" if len(labels) > 3 else "")
        made.append(
            Task(
                title,
                Sealed(Records(data.train, rows, relabel=relabel)),
                Records(data.test, _rows(data.test, classes), relabel=relabel),
                tuple(range(first, first + len(classes))),
            )
        )
    name = "split-" + "-".join(d.name for d in loaded)
    return Stream(name, Space(last.space.shape, tuple(names)), tuple(made), protocol)
