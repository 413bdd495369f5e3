"""Rows are dealt into batches without loss or repetition, and a raw memory gives back what was put in."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from l2dp.boundary import Unprotected
from l2dp.boundary.unprotected import EpisodicMemory
from l2dp.errors import BadInput
from l2dp.streams import Space, Task
from l2dp.streams.batches import disjoint_batches

light = settings(deadline=None, max_examples=60)
CPU = torch.device("cpu")


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@light
@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))), st.integers(0, 2**31))
def test_batches_are_a_partition_of_nearly_equal_parts(sizes: tuple[int, int], seed: int) -> None:
    size, batch_size = sizes
    batches = [rows.tolist() for rows in disjoint_batches(size, batch_size, seeded(seed))]
    assert sorted(row for batch in batches for row in batch) == list(range(size))
    lengths = [len(batch) for batch in batches]
    assert min(lengths) >= batch_size
    assert max(lengths) - min(lengths) <= 1
    assert len(batches) == size // batch_size


def test_the_deal_follows_the_generator_alone() -> None:
    def deal(seed: int) -> list[list[int]]:
        return [rows.tolist() for rows in disjoint_batches(50, 7, seeded(seed))]

    state = torch.get_rng_state()
    assert deal(1) == deal(1)
    assert deal(1) != deal(2)
    assert torch.equal(state, torch.get_rng_state())


def test_every_row_is_as_likely_in_every_batch() -> None:
    generator = seeded(0)
    first = Counter(row for _ in range(3000) for row in disjoint_batches(6, 3, generator)[0].tolist())
    # Binomial(3000, ½): six standard deviations are 164.
    assert all(abs(first[row] - 1500) < 164 for row in range(6))


@pytest.mark.parametrize(("size", "batch_size"), [(10, 11), (0, 1), (10, 0), (10, -1)])
def test_a_batch_that_does_not_fit_is_refused(size: int, batch_size: int) -> None:
    with pytest.raises(BadInput, match=f"a batch of {batch_size} does not fit a task of {size} records"):
        disjoint_batches(size, batch_size, seeded(0))


@light
@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(0, 2**31))
def test_memory_grows_without_touching_what_it_holds(sizes: list[int], seed: int) -> None:
    memory = EpisodicMemory(CPU)
    kept: list[tuple[Tensor, Tensor]] = []
    generator = seeded(seed)
    for number, size in enumerate(sizes):
        x, y = torch.randn(size, 2, 3, generator=generator), torch.full((size,), number)
        memory.add(x=x, y=y)
        kept.append((x.clone(), y.clone()))
        x.zero_()  # the memory holds its own copy
        for index, (before_x, before_y) in enumerate(kept):
            episode = memory.episode(index)
            assert torch.equal(episode["x"], before_x)
            assert torch.equal(episode["y"], before_y)
    assert len(memory) == sum(sizes)
    batch = memory.sample(64, generator)
    everything = torch.cat([x for x, _ in kept])
    owner = torch.cat([y for _, y in kept])
    for x, y in zip(batch.x, batch.y, strict=True):
        same = (everything == x).flatten(1).all(dim=1)
        assert bool(same.any())
        assert int(y) in owner[same].tolist()


def test_sampling_is_uniform_over_records_not_tasks() -> None:
    memory = EpisodicMemory(CPU)
    for number, size in enumerate((10, 30, 60)):
        memory.add(x=torch.zeros(size, 1), y=torch.full((size,), number), mask=torch.eye(3).bool()[[number] * size])
    batch = memory.sample(20_000, seeded(0))
    assert batch.mask is not None
    assert torch.equal(batch.mask.nonzero()[:, 1], batch.y)
    counts = torch.bincount(batch.y, minlength=3).tolist()
    for count, share in zip(counts, (0.1, 0.3, 0.6), strict=True):
        assert abs(count - 20_000 * share) < 6 * (20_000 * share * (1 - share)) ** 0.5


def numbered(labels: list[int], name: str = "t", start: int = 0) -> Task:
    """A task whose inputs tell the records apart: record i has the value (start + i)/1000."""
    x = (torch.arange(start, start + len(labels)) / 1000).unsqueeze(1)
    y = torch.tensor(labels)
    return Task.from_tensors(name, (x, y), (x, y))


def numbers(x: Tensor) -> list[int]:
    return [round(1000 * float(v)) for v in x]


@light
@given(st.lists(st.integers(0, 4), min_size=1, max_size=80), st.integers(1, 90), st.integers(0, 2**31))
def test_remember_is_as_even_over_classes_as_they_allow(labels: list[int], size: int, seed: int) -> None:
    boundary = Unprotected(Space((1,), tuple("abcde")), CPU)
    boundary.remember(numbered(labels), size, seeded(seed))
    kept = boundary.memory.episode(0)
    rows = numbers(kept["x"])
    assert len(rows) == len(set(rows)) == min(size, len(labels))
    assert [labels[row] for row in rows] == kept["y"].tolist()
    there, taken = Counter(labels), Counter(kept["y"].tolist())
    unexhausted = [taken[label] for label in there if taken[label] < there[label]]
    # A class that still has records to give has at most one fewer than any other.
    assert all(max(taken.values()) - count <= 1 for count in unexhausted)


def test_remember_chooses_at_random_within_a_class() -> None:
    chosen: Counter[int] = Counter()
    for seed in range(600):
        boundary = Unprotected(Space((1,), ("a", "b")), CPU)
        boundary.remember(numbered([0, 1] * 5), 4, seeded(seed))
        chosen.update(numbers(boundary.memory.episode(0)["x"]))
    # Each record is kept with probability 2/5: Binomial(600, 0.4) has a standard deviation of 12.
    assert all(abs(chosen[row] - 240) < 72 for row in range(10))


def test_masks_are_remembered_where_scores_are_masked() -> None:
    space = Space((1,), ("a", "b", "c"))
    boundary = Unprotected(space, CPU, masked=True)
    boundary.remember(numbered([0, 0, 2, 2]), 3, seeded(0))
    boundary.remember(numbered([1, 1]), 3, seeded(0))
    assert boundary.memory.episode(0)["mask"].tolist() == [[True, False, True]] * 3
    assert boundary.memory.episode(1)["mask"].tolist() == [[False, True, False]] * 2


@light
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 5), st.integers(0, 2**31))
def test_batches_of_a_task_visit_every_record_once_a_pass(size: int, batch_size: int, passes: int, seed: int) -> None:
    batch_size = min(size, batch_size)
    boundary = Unprotected(Space((1,), ("a",)), CPU)
    a_pass = size // batch_size
    batches = list(boundary.batches(numbered([0] * size), batch_size, passes * a_pass, seeded(seed)))
    assert len(batches) == passes * a_pass
    for start in range(0, len(batches), a_pass):
        seen = [row for batch in batches[start : start + a_pass] for row in numbers(batch.x)]
        assert sorted(seen) == list(range(size))


@light
@given(st.lists(st.integers(1, 15), min_size=1, max_size=5), st.integers(1, 20), st.integers(0, 2**31))
def test_mixed_batches_visit_every_record_of_all_tasks_once_a_pass(sizes: list[int], batch: int, seed: int) -> None:
    total = sum(sizes)
    batch = min(batch, total)
    boundary = Unprotected(Space((1,), tuple("abcde")), CPU, masked=True)
    tasks = [numbered([i] * size, str(i), sum(sizes[:i])) for i, size in enumerate(sizes)]
    owner = [i for i, size in enumerate(sizes) for _ in range(size)]
    steps = total // batch
    seen: list[int] = []
    for made in boundary.mixed_batches(tasks, batch, steps, seeded(seed)):
        rows = numbers(made.x)
        assert made.y.tolist() == [owner[row] for row in rows]
        assert made.mask is not None
        assert made.mask.nonzero()[:, 1].tolist() == made.y.tolist()
        seen += rows
    assert sorted(seen) == list(range(total))
