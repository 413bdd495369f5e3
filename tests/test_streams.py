"""Streams rearrange, deal and relabel as they say, hold their data once, and bad records do not get in."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from l2dp.boundary import PerturbedObjective, Unprotected
from l2dp.boundary.admission import check_task
from l2dp.boundary.perturbed import Perturbation
from l2dp.budget import Budget
from l2dp.errors import BadInput
from l2dp.models import build
from l2dp.noise import InsecureNoise
from l2dp.streams import Dataset, Records, Sealed, Source, Space, Stream, Task, permuted, split

light = settings(deadline=None, max_examples=30)


def made(
    shape: tuple[int, ...] = (1, 3, 4),
    classes: int = 6,
    train: int = 60,
    test: int = 24,
    seed: int = 0,
    name: str = "own",
) -> Dataset:
    generator = torch.Generator().manual_seed(seed)

    def part(size: int) -> Source:
        x = torch.randint(256, (size, *shape), generator=generator, dtype=torch.uint8)
        return Source(x, torch.arange(size) % classes, name)

    return Dataset(name, Space(shape, tuple(f"c{i}" for i in range(classes))), part(train), part(test))


def opened(records: Records) -> tuple[Tensor, Tensor]:
    return records.batch(torch.arange(len(records)))


def scaled(source: Source) -> np.ndarray[Any, Any]:
    """[low, high] → [−1, 1], worked out in numpy."""
    return -1 + 2 * (source.x.numpy().astype(np.float64) - source.low) / (source.high - source.low)


def rows(task: Task) -> list[int]:
    kept = task.train.unseal().rows
    return list(range(task.train.declared_size)) if kept is None else [int(r) for r in kept]


# --- permuted -----------------------------------------------------------------------------------------


@light
@given(st.integers(1, 6), st.integers(0, 2**31), st.sampled_from([(5,), (1, 3, 4), (3, 2, 2)]))
def test_each_task_applies_one_bijection_to_train_and_test(tasks: int, seed: int, shape: tuple[int, ...]) -> None:
    data = made(shape)
    values = math.prod(shape)
    stream = permuted(data, tasks, seed)
    assert len(stream) == tasks
    for task in stream:
        permutation = task.train.unseal().permutation
        assert permutation is not None
        assert sorted(permutation.tolist()) == list(range(values))
        for records, source in ((task.train.unseal(), data.train), (task.test, data.test)):
            x, y = opened(records)
            assert x.shape == (len(source), *shape)
            assert torch.equal(y, source.y)
            expected = scaled(source).reshape(len(source), -1)
            for place, origin in enumerate(permutation.tolist()):
                np.testing.assert_allclose(x.flatten(1)[:, place].numpy(), expected[:, origin], atol=1e-6)


def test_tasks_have_different_permutations() -> None:
    seen = {tuple(task.train.unseal().permutation.tolist()) for task in permuted(made(), 10)}  # type: ignore[union-attr]
    assert len(seen) == 10


def test_a_long_stream_holds_its_data_once() -> None:
    data = made()
    stream = permuted(data, 20)
    for task in stream:
        assert task.train.unseal().source.x.data_ptr() == data.train.x.data_ptr()
        assert task.test.source.x.data_ptr() == data.test.x.data_ptr()
        assert task.train.unseal().rows is None, "nor a list of rows for every task"


def test_colour_images_are_permuted_across_channels() -> None:
    data = made((3, 8, 8))
    for channel in range(3):
        data.train.x[:, channel] = 100 * channel
    # A channel of 64 values without one of each of the three has a probability below 3·(2/3)^64 ≈ 1e-11.
    for task in permuted(data, 3):
        x, _ = opened(task.train.unseal())
        for channel in range(3):
            assert len(x[:, channel].unique()) == 3


@light
@given(st.integers(1, 7), st.integers(0, 2**31), st.none() | st.integers(1, 8))
def test_disjoint_tasks_share_no_record(tasks: int, seed: int, per_task: int | None) -> None:
    data = made()
    stream = permuted(data, tasks, seed, per_task, disjoint=True)
    dealt = [row for task in stream for row in rows(task)]
    assert len(dealt) == len(set(dealt))
    assert [task.train.declared_size for task in stream] == [per_task or 60 // tasks] * tasks
    assert stream.source_overlap == 1


def test_disjoint_tasks_are_random_deals() -> None:
    assert rows(permuted(made(), 2, disjoint=True)[0]) != list(range(30))


def test_overlapping_streams_say_in_how_many_tasks_a_source_appears() -> None:
    assert permuted(made(), 7).source_overlap == 7
    assert permuted(made(), 7, per_task=20).source_overlap == 7, "up to: samples of each task are independent"


@light
@given(st.integers(1, 60), st.integers(0, 2**31))
def test_per_task_takes_so_many_different_records(size: int, seed: int) -> None:
    for task in permuted(made(), 3, seed, per_task=size):
        chosen = rows(task)
        assert len(chosen) == len(set(chosen)) == size
        assert len(task.test) == 24


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": 0}, "--tasks must be at least 1, not 0"),
        ({"tasks": -3}, "--tasks must be at least 1, not -3"),
        ({"tasks": 2, "per_task": 61}, "61 records a task were asked for, but own has 60"),
        ({"tasks": 2, "per_task": 0}, "0 records a task"),
        ({"tasks": 4, "per_task": 16, "disjoint": True}, "16 records a task were asked for, but own has 15"),
        ({"tasks": 61, "disjoint": True}, "0 records a task"),
    ],
)
def test_permuted_streams_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        permuted(made(), **options)


# --- split --------------------------------------------------------------------------------------------


@light
@given(st.integers(1, 9), st.integers(0, 5))
def test_classes_are_disjoint_and_complete(classes: int, fewer: int) -> None:
    tasks = max(1, classes - fewer)
    data = made(classes=classes)
    stream = split(data, tasks=tasks)
    declared = [label for task in stream for label in task.classes]
    assert sorted(declared) == list(range(classes))
    sizes = [len(task.classes) for task in stream]
    assert len(stream) == tasks
    assert max(sizes) - min(sizes) <= 1
    dealt = sorted(row for task in stream for row in rows(task))
    assert dealt == list(range(60)), "every record is in one task"
    for task in stream:
        for records, source in ((task.train.unseal(), data.train), (task.test, data.test)):
            x, y = opened(records)
            assert set(y.tolist()) <= set(task.classes)
            kept = np.isin(source.y.numpy(), task.classes)
            assert y.tolist() == source.y.numpy()[kept].tolist()
            np.testing.assert_allclose(x.numpy(), scaled(source)[kept], atol=1e-6)
    assert stream.source_overlap == 1


@pytest.mark.parametrize(
    ("protocol", "labels", "classes", "allowed"),
    [
        ("class", 6, [(0, 1), (2, 3), (4, 5)], [None, None, None]),
        ("task", 6, [(0, 1), (2, 3), (4, 5)], [(0, 1), (2, 3), (4, 5)]),
        ("domain", 2, [(0, 1), (0, 1), (0, 1)], [None, None, None]),
    ],
)
def test_protocols_map_labels(protocol: Any, labels: int, classes: list[Any], allowed: list[Any]) -> None:
    data = made()
    stream = split(data, tasks=3, protocol=protocol)
    assert stream.protocol == protocol
    assert stream.space.classes == labels
    assert [task.classes for task in stream] == classes
    assert [stream.allowed(task) for task in stream] == allowed
    for number, task in enumerate(stream):
        for records, source in ((task.train.unseal(), data.train), (task.test, data.test)):
            _, y = opened(records)
            assert torch.equal(y, records.labels())
            assert records.rows is not None
            original = source.y[records.rows]
            assert set(original.tolist()) == {2 * number, 2 * number + 1}
            assert torch.equal(y, original - 2 * number if protocol == "domain" else original)


def test_the_widest_task_sizes_the_head_of_the_domain_protocol() -> None:
    stream = split(made(classes=7), tasks=3, protocol="domain")
    widths = [len(task.classes) for task in stream]
    assert sorted(widths) == [2, 2, 3]
    assert stream.space.classes == 3
    assert all(task.classes == tuple(range(width)) for task, width in zip(stream, widths, strict=True))


def test_earlier_datasets_come_first_and_whole() -> None:
    first, second = made(classes=4, name="one"), made(classes=6, name="two", seed=1)
    stream = split(first, second, tasks=4)
    assert [task.name for task in stream] == ["one", "c0,c1", "c2,c3", "c4,c5"]
    assert [task.classes for task in stream] == [(0, 1, 2, 3), (4, 5), (6, 7), (8, 9)]
    assert stream.space.labels == (*(f"one:c{i}" for i in range(4)), *(f"two:c{i}" for i in range(6)))
    assert len(stream[0].train.unseal()) == 60
    assert opened(stream[2].train.unseal())[1].unique().tolist() == [6, 7]


def test_per_task_of_a_split_stays_within_the_classes() -> None:
    stream = split(made(), tasks=3, per_task=5)
    for task in stream:
        chosen = rows(task)
        assert len(chosen) == len(set(chosen)) == 5
        assert set(task.train.unseal().labels().tolist()) <= set(task.classes)
    assert [rows(t) for t in split(made(), tasks=3, per_task=5)] == [rows(t) for t in stream]
    assert [rows(t) for t in split(made(), tasks=3, per_task=5, seed=1)] != [rows(t) for t in stream]


def test_splits_that_cannot_be_are_refused() -> None:
    for tasks in (0, 7):
        with pytest.raises(BadInput, match=f"--tasks {tasks}: a split of own needs 1 to 6 tasks"):
            split(made(), tasks=tasks)
    with pytest.raises(BadInput, match="needs 2 to 7 tasks"):
        split(made(name="one"), made(), tasks=1)
    with pytest.raises(BadInput, match="same shape"):
        split(made((5,), name="one"), made(), tasks=2)
    with pytest.raises(BadInput, match=r"--per-task 21: .* have 20 records"):
        split(made(), tasks=3, per_task=21)


# --- both ---------------------------------------------------------------------------------------------

MAKERS: dict[str, Any] = {
    "permuted": lambda seed: permuted(made(), 4, seed, per_task=30),
    "disjoint": lambda seed: permuted(made(), 4, seed, disjoint=True),
    "split": lambda seed: split(made(), tasks=3, seed=seed, per_task=10),
}


def contents(stream: Stream) -> list[tuple[str, list[float], list[int]]]:
    return [(t.name, *(part.flatten().tolist() for part in opened(t.train.unseal()))) for t in stream]


@pytest.mark.parametrize("kind", MAKERS)
def test_equal_seeds_give_equal_streams_and_disturb_nobody(kind: str) -> None:
    state = torch.get_rng_state()
    first = contents(MAKERS[kind](3))
    assert torch.equal(state, torch.get_rng_state())
    torch.rand(3)
    assert contents(MAKERS[kind](3)) == first
    assert contents(MAKERS[kind](4)) != first


def test_longer_streams_begin_like_shorter_ones() -> None:
    assert contents(permuted(made(), 6))[:3] == contents(permuted(made(), 3))


@pytest.mark.parametrize("high", [255.0, 16.0])
def test_integers_span_minus_one_to_one(high: float) -> None:
    x = torch.tensor([[0, int(high) // 2, int(high)]], dtype=torch.uint8)
    out, _ = Records(Source(x, torch.tensor([0]), "own", 0.0, high)).batch(slice(0, 1))
    assert out.dtype is torch.float32
    np.testing.assert_allclose(out.numpy(), [[-1, 2 * (int(high) // 2) / high - 1, 1]], atol=1e-6)


@pytest.mark.parametrize("stream", [permuted("digits", 3), split("digits", tasks=5)], ids=["permuted", "split"])
def test_the_embedded_digits_pass_the_door(stream: Stream) -> None:
    for task in stream:
        check_task(task, stream.space)
        x, _ = opened(task.train.unseal())
        assert float(x.min()) == -1
        assert float(x.max()) == 1


def test_chunks_are_the_records_in_order() -> None:
    task = split(made(), tasks=3)[1]
    x, y = opened(task.test)
    parts = list(task.test.chunks(3))
    assert torch.equal(torch.cat([a for a, _ in parts]), x)
    assert torch.equal(torch.cat([b for _, b in parts]), y)
    assert [len(b) for _, b in task.test.chunks(3, limit=7)] == [3, 3, 1]


def test_order() -> None:
    stream = split(made(), tasks=3)
    again = stream.reordered([2, 0, 1])
    assert [task.name for task in again] == ["c4,c5", "c0,c1", "c2,c3"]
    assert again[0] is stream[2]
    assert again.space == stream.space
    assert [task.name for task in stream[1:]] == ["c2,c3", "c4,c5"]


# --- the door -----------------------------------------------------------------------------------------

SPACE = Space((2, 3), ("a", "b", "c"))


def own(x: Tensor | None = None, y: Tensor | None = None, size: int = 9) -> tuple[Tensor, Tensor]:
    return torch.zeros(size, 2, 3) if x is None else x, torch.arange(size) % 3 if y is None else y


def with_value(value: float, row: int) -> Tensor:
    x = torch.zeros(9, 2, 3)
    x[row, 1, 2] = value
    return x


BAD: dict[str, tuple[tuple[Tensor, Tensor], str]] = {
    "shape": (own(torch.zeros(9, 3, 2)), r"has inputs of shape \(3, 2\), the stream declares \(2, 3\)"),
    "nan": (own(with_value(math.nan, 4)), "row 4: a value is NaN or outside"),
    "infinite": (own(with_value(math.inf, 0)), "row 0: a value is NaN or outside"),
    "minus infinite": (own(with_value(-math.inf, 8)), "row 8: a value is NaN or outside"),
    "too large": (own(with_value(1.001, 7)), "row 7: a value is NaN or outside"),
    "too small": (own(with_value(-1.001, 2)), "row 2: a value is NaN or outside"),
    "integers": (own(torch.full((9, 2, 3), 256)), "row 0: a value is NaN or outside"),
    "label above": (own(y=torch.tensor([0, 1, 2, 0, 1, 3, 0, 1, 2])), "row 5: label 3 is not one of the 3 declared"),
    "label below": (own(y=torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, -1])), "row 8: label -1 is not one of the 3 declared"),
    "empty": (own(size=0), "is empty"),
}


@pytest.mark.parametrize("part", ["training", "test"])
@pytest.mark.parametrize("kind", BAD)
def test_bad_records_are_refused_with_their_place(kind: str, part: str) -> None:
    bad, message = BAD[kind]
    train, test = (bad, own()) if part == "training" else (own(), bad)
    task = Task.from_tensors("march", train, test)
    with pytest.raises(BadInput, match=f"^task 'march', {part} part[, ]+{message}"):
        check_task(task, SPACE)


@pytest.mark.parametrize("kind", BAD)
def test_no_boundary_opens_bad_records(kind: str) -> None:
    task = Task.from_tensors("march", BAD[kind][0], own())
    generator = torch.Generator().manual_seed(0)
    cpu = torch.device("cpu")
    raw = Unprotected(SPACE, cpu)
    perturbed = PerturbedObjective(
        Perturbation(Budget(1.0)), build("mlp-4", SPACE, 0, "none", True), SPACE, 3, cpu, False, InsecureNoise(0)
    )
    for attempt in (
        lambda: next(raw.batches(task, 1, 1, generator)),
        lambda: next(raw.mixed_batches([task], 1, 1, generator)),
        lambda: raw.remember(task, 1, generator),
        lambda: raw.check(task),
        lambda: perturbed.open(task, 1, generator),
    ):
        with pytest.raises(BadInput, match=r"^task 'march', training part"):
            attempt()
    assert len(raw.memory) == 0


def test_what_fits_is_admitted() -> None:
    x = torch.rand(9, 2, 3) * 2 - 1
    x[0, 0] = torch.tensor([-1.0, 0.0, 1.0])
    check_task(Task.from_tensors("march", own(x), own()), SPACE)
    check_task(Task.from_tensors("march", own(torch.full((9, 2, 3), 255)), own()), SPACE)


def test_a_bad_row_outside_the_view_harms_nobody_and_one_inside_is_named_by_its_place_in_the_task() -> None:
    x, y = own(with_value(2.0, 5))
    x[8, 0, 0] = math.nan
    source = Source(x, y, "own")

    def task(*chosen: int) -> Task:
        return Task("march", Sealed(Records(source, torch.tensor(chosen))), Records(Source(*own(), "test")), (0, 1, 2))

    check_task(task(0, 1, 2, 7), SPACE)
    with pytest.raises(BadInput, match="row 1: a value"):
        check_task(task(0, 5, 7), SPACE)
    with pytest.raises(BadInput, match="row 3: a value"):
        check_task(task(0, 1, 2, 8), SPACE)


def test_labels_that_a_task_does_not_declare_are_refused() -> None:
    task = Task.from_tensors("march", own(), own())
    with pytest.raises(BadInput, match="'march', training part, row 2: label 2 is not one of those that the task"):
        check_task(replace(task, classes=(0, 1)), SPACE)
    with pytest.raises(BadInput, match="declares label 7, the stream only 0 to 2"):
        check_task(replace(task, classes=(0, 1, 2, 7)), SPACE)


def test_inputs_and_labels_must_pair_up() -> None:
    with pytest.raises(BadInput, match="'march': 9 inputs but 8 labels"):
        Task.from_tensors("march", own(y=torch.zeros(8)), own())


def test_sealed_records_show_nothing_but_their_size() -> None:
    sealed = Sealed(Records(Source(*own(), "own")))
    assert repr(sealed) == "Sealed(9 records)"
    assert not hasattr(sealed, "batch")
    assert not hasattr(sealed, "labels")
