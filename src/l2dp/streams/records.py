"""Records, tasks and streams: the one currency that everything else speaks.

A `Records` object is a lazy view: rows of a shared source, seen through a fixed rearrangement of their
values and a relabelling. A twenty-task permuted stream therefore holds its data once. Training records are
sealed: only the boundary opens them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, overload

import torch
from torch import Tensor

from l2dp.errors import BadInput

Protocol = Literal["class", "task", "domain"]


@dataclass(frozen=True)
class Space:
    """What is declared in advance: the shape of an input and the names of all labels."""

    shape: tuple[int, ...]
    labels: tuple[str, ...]

    @property
    def classes(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Source:
    """Raw inputs and labels, held once. `x` is uint8 (then `low`, `high` map to −1, 1) or float in [−1, 1].

    `name` says where it came from, for messages. `units` says whose a record is, where users are protected.
    """

    x: Tensor
    y: Tensor
    name: str
    low: float = 0.0
    high: float = 255.0
    units: Tensor | None = None

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise BadInput(f"{self.name}: {len(self.x)} inputs but {len(self.y)} labels; they must pair up")
        if self.units is not None and len(self.units) != len(self.y):
            raise BadInput(f"{self.name}: {len(self.y)} records but {len(self.units)} unit ids; they must pair up")
        if self.units is not None and self.units.dtype not in (torch.int64, torch.int32, torch.int16, torch.uint8):
            raise BadInput(f"{self.name}: unit ids must be whole numbers, not {self.units.dtype}; number the users")

    def __len__(self) -> int:
        return len(self.y)


class Records:
    """Rows of a source through a fixed view; `batch` makes float inputs in [−1, 1] and int64 labels."""

    def __init__(
        self,
        source: Source,
        rows: Tensor | None = None,
        permutation: Tensor | None = None,
        relabel: Tensor | None = None,
    ) -> None:
        self.source = source
        self.rows = rows
        self.permutation = permutation
        self.relabel = relabel

    def __len__(self) -> int:
        return len(self.source.y) if self.rows is None else len(self.rows)

    def labels(self) -> Tensor:
        """All labels of the view, in row order."""
        y = self.source.y if self.rows is None else self.source.y[self.rows]
        return y if self.relabel is None else self.relabel[y]

    def units(self) -> Tensor | None:
        """Whose each record is, in row order; None: nobody said."""
        units = self.source.units
        return units if units is None or self.rows is None else units[self.rows]

    def batch(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Inputs and labels of the rows at `index`."""
        where: Tensor | slice = index
        if self.rows is not None:
            where = self.rows[index]
        if isinstance(where, slice):
            x, y = self.source.x[where], self.source.y[where]
        else:  # index_select copies whole rows; indexing with brackets is several times slower
            x, y = self.source.x.index_select(0, where), self.source.y.index_select(0, where)
        if not x.is_floating_point():
            low, high = self.source.low, self.source.high
            x = x.to(torch.float32).mul_(2.0 / (high - low)).sub_((high + low) / (high - low))
        x = x.to(torch.float32)
        if self.permutation is not None:  # after the conversion: floats are rearranged faster than bytes
            x = x.flatten(1).index_select(1, self.permutation).view(x.shape)
        return x, (y if self.relabel is None else self.relabel[y])

    def chunks(self, size: int, limit: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """The records in order, `size` at a time, at most `limit` of them."""
        total = len(self) if limit is None else min(limit, len(self))
        for start in range(0, total, size):
            yield self.batch(slice(start, min(start + size, total)))


class Sealed:
    """Training records that nobody but the boundary may read.

    Guarantee
    ---------
    `unseal` is the only way to the records, and a check that runs with the linters and the tests refuses
    any call of it outside `boundary/`. This is a fence against mistakes, not against malice.
    """

    def __init__(self, records: Records, declared_size: int | None = None, prepared: str = "") -> None:
        """`prepared` says why no statement about these records alone could be signed; empty: one could."""
        if declared_size is not None and declared_size < 1:
            raise BadInput(f"the declared size of a task must be at least 1, not {declared_size}")
        self._records = records
        self._declared_size = declared_size
        self.prepared = prepared

    @property
    def declared_size(self) -> int:
        """The size a task is declared to have, which is public; benchmarks declare the true one."""
        return len(self._records) if self._declared_size is None else self._declared_size

    def sized(self, declared_size: int) -> Sealed:
        """The same records with another declared size."""
        return Sealed(self._records, declared_size, self.prepared)

    def unseal(self) -> Records:
        return self._records

    def __repr__(self) -> str:
        return f"Sealed({self.declared_size} records)"


@dataclass(frozen=True, eq=False)
class Task:
    """A named finite dataset. `classes` are the labels it was declared to have (positions in the space)."""

    name: str
    train: Sealed
    test: Records
    classes: tuple[int, ...]

    @staticmethod
    def from_tensors(
        name: str,
        train: tuple[Tensor, Tensor],
        test: tuple[Tensor, Tensor],
        units: Tensor | None = None,
        classes: tuple[int, ...] | None = None,
        declared_size: int | None = None,
    ) -> Task:
        """A task from float inputs in [−1, 1] and integer labels; `units` says whose each training record is.

        Labels and size of a task are public, so for private data declare them: by default they are those that occur.
        """
        parts = [
            Records(Source(x, y.long(), f"task {name!r}", units=whose))
            for (x, y), whose in ((train, units), (test, None))
        ]
        if classes is None:
            classes = tuple(sorted(set(torch.cat([p.labels() for p in parts]).tolist())))
        return Task(name, Sealed(parts[0], declared_size), parts[1], classes)


@dataclass(frozen=True, eq=False)
class Stream(Sequence[Task]):
    """A sequence of tasks over one declared space.

    `source_overlap` is the number of tasks in which one source record appears: 1 unless the stream shows the
    same data again, as permuted streams do. `protocol` says how a task is tested: `class` over all labels,
    `task` over the task's own labels, `domain` over label positions shared by all tasks.
    """

    name: str
    space: Space
    tasks: tuple[Task, ...]
    protocol: Protocol = "class"
    source_overlap: int = 1
    config: Mapping[str, object] = field(default_factory=dict)
    spent: tuple[float, float] = (0.0, 0.0)
    """ε and δ that preparing the data has cost every unit before the first task."""
    covered: bool = True
    """Whether preparing the data looked at nobody's but each unit's own, so that a proof about the records holds."""

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Task, ...]: ...
    def __getitem__(self, index: int | slice) -> Task | tuple[Task, ...]:
        return self.tasks[index]

    def __len__(self) -> int:
        return len(self.tasks)

    def allowed(self, task: Task) -> tuple[int, ...] | None:
        """The labels a prediction for `task` may choose from; None means all of them."""
        return task.classes if self.protocol == "task" else None

    def reordered(self, order: Sequence[int]) -> Stream:
        """The same tasks in another order, given as zero-based positions."""
        return replace(self, tasks=tuple(self.tasks[i] for i in order))
