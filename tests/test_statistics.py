"""One unit moves a released statistic by no more than is stated, whatever its features; the noise is what is stated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from l2dp.boundary import statistics
from l2dp.boundary.entry import Entry, Opened, Protection
from l2dp.boundary.statistics import ClassSums, Features, bounded, class_sums, scatter, whole
from l2dp.budget import Budget, Unit
from l2dp.errors import BadInput
from l2dp.noise import InsecureNoise, Noise
from l2dp.streams import Records, Sealed, Source, Space, Task

light = settings(deadline=None, max_examples=200)
CPU = torch.device("cpu")
ALARM = 1e-9
ROUNDING = 1 + 1e-6
"""Releases are float32."""
WEIGHT = 0.3
TILT = math.sqrt(1 - WEIGHT**2)
PER_USER = 3
UNITS: list[Unit] = ["record", "user"]


class Silent(InsecureNoise):
    """Adds nothing, so that exact sums are seen."""

    def gaussian(self, scale: float, shape: tuple[int, ...]) -> NDArray[np.float64]:
        assert scale > 0
        return np.zeros(shape)

    def k_norm(self, scale: float, rows: int, width: int) -> NDArray[np.float64]:
        assert scale > 0
        return np.zeros((rows, width))


class Declared(Sealed):
    """Records of a size that was declared in advance: neighbours declare the same."""

    @property
    def declared_size(self) -> int:
        return 24


Data = tuple[Tensor, Tensor, Tensor]
"""Inputs, labels and users."""


def data(seed: int = 0) -> Data:
    """Fourteen records of five users, the fourth class empty, the third with a single record."""
    x = torch.rand(14, 4, generator=torch.Generator().manual_seed(seed)) * 0.9 + 0.1  # rows that hardly cancel
    y = torch.tensor([0, 1, 0, 1, 1, 0, 2, 0, 1, 0, 0, 0, 1, 0])
    users = torch.tensor([7, 7, 3, 3, 3, 9, 9, 9, 9, 9, 9, 1, 4, 4])
    return x, y, users


def neighbours(given: Data, unit: Unit) -> Iterator[Data]:
    """The data without one record, or without one user, for each of them."""
    x, y, users = given
    if unit == "record":
        for row in range(len(y)):
            keep = torch.arange(len(y)) != row
            yield x[keep], y[keep], users[keep]
    else:
        for user in users.unique():
            yield x[users != user], y[users != user], users[users != user]


def opened(given: Data, unit: Unit, per_user: int = PER_USER, classes: int = 4) -> Opened:
    x, y, users = given
    space = Space(tuple(x.shape[1:]), tuple(map(str, range(classes))))
    records = Records(Source(x, y, "test", units=users))
    task = Task("t", Declared(records), records, tuple(range(classes)))
    return Entry(space, Protection(Budget(1.0, 1e-5), unit, per_user=per_user)).open(task)


def rows_per_unit(unit: Unit) -> int:
    return 1 if unit == "record" else PER_USER


def long(x: Tensor) -> Tensor:
    """Features far longer than 1, of all lengths."""
    return x.flatten(1) * torch.tensor([9.0, 0.1, 3.0, 1.0])


def garbage(x: Tensor) -> Tensor:
    """Features that depend on the record and are NaN, infinite, huge, tiny or zero."""
    bad = torch.tensor([math.nan, math.inf, -math.inf, 3e38, -3e38, 1e-45, 0.0, 1e20], dtype=torch.float32)
    rows = x.flatten(1).clone()
    for column in range(rows.shape[1]):
        which = (rows[:, column].abs() * 1000).long() % (2 * len(bad))
        rows[:, column] = torch.where(which < len(bad), bad[which % len(bad)], rows[:, column])
    return rows


def doubled(x: Tensor) -> Tensor:
    """The largest numbers of float64."""
    return x.flatten(1).double() * 1.7e308


FEATURES: list[Features] = [long, garbage, doubled]
features = pytest.mark.parametrize("features", FEATURES, ids=lambda f: f.__name__)
units = pytest.mark.parametrize("unit", UNITS)
pure = pytest.mark.parametrize("pure", [False, True], ids=["gaussian", "pure"])


def sums_of(given: Data, unit: Unit, features: Features, pure: bool, noise: Noise | None = None) -> ClassSums:
    positions = torch.arange(4)
    k = rows_per_unit(unit)
    return class_sums(opened(given, unit), features, 4, positions, WEIGHT, 2.0, pure, k, noise or Silent(0), CPU)


def joint(found: ClassSums) -> Tensor:
    """The rows that were summed: features and counts at their weights."""
    return torch.cat([found.sums.double() * TILT, found.counts.double().unsqueeze(1) * WEIGHT], dim=1)


def changes(given: Data, unit: Unit, release: Callable[[Data], Tensor]) -> list[Tensor]:
    there = release(given)
    return [there - release(other) for other in neighbours(given, unit)]


# --- class sums -----------------------------------------------------------------------------------------


@units
@features
@pure
def test_one_unit_moves_the_class_sums_by_its_rows_at_most(unit: Unit, features: Features, pure: bool) -> None:
    moved = changes(data(), unit, lambda given: joint(sums_of(given, unit, features, pure)))
    k = rows_per_unit(unit)
    for change in moved:
        lengths = change.norm(dim=1)
        assert bool(change.isfinite().all())
        # What the K-norm mechanism needs: the lengths over all classes add up. It implies the Gaussian's L2 bound.
        assert float(lengths.sum()) <= k * ROUNDING
        assert float(change.norm()) <= k * ROUNDING
        if unit == "record":
            assert int((lengths > 0).sum()) <= 1, "one class alone changes"
    if features is long:
        assert max(float(change.norm(dim=1).sum()) for change in moved) > 0.8 * k, "the bound is nearly reached"


@units
def test_without_clipping_the_bound_is_broken(unit: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "bounded", lambda rows, limit: rows.double())
    moved = changes(data(), unit, lambda given: joint(sums_of(given, unit, long, False)))
    assert max(float(change.norm()) for change in moved) > rows_per_unit(unit) * 1.1


def test_without_the_contribution_bound_the_bound_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Entry, "_first_rows", lambda self, groups, *rest: torch.arange(len(groups)))
    moved = changes(data(), "user", lambda given: joint(sums_of(given, "user", long, False)))
    assert max(float(change.norm(dim=1).sum()) for change in moved) > PER_USER * 1.1


@pure
def test_class_sums_are_what_they_say(pure: bool) -> None:
    """Against plain sums of unit rows, up to the grid; a class without records is zero."""
    x, y, _ = data()
    found = sums_of(data(), "record", lambda x: x.flatten(1), pure)
    for label in range(4):
        rows = x[y == label].double()
        rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(1.0)
        assert torch.allclose(found.sums[label].double(), rows.sum(0), atol=14 * 2.0**-15)
        assert float(found.counts[label]) == pytest.approx(len(rows), abs=14 * 2.0**-13)
    assert not bool(found.sums[3].any())
    assert float(found.counts[3]) == 0


def test_every_label_has_its_row_wherever_it_stands() -> None:
    x, y, users = data()
    positions = torch.tensor([-1, 2, -1, 0, 1])  # of the labels 3, 4 and 1
    labels = torch.tensor([1, 3, 4, 0])[y]
    source = Records(Source(x, labels, "test", units=users))
    task = Task("t", Declared(source), source, (3, 4, 1))
    entry = Entry(Space((4,), tuple("abcde")), Protection(Budget(1.0, 1e-5)))
    moved = class_sums(entry.open(task), long, 4, positions, WEIGHT, 1.0, False, 1, Silent(0), CPU)
    plain = sums_of(data(), "record", long, False)
    assert torch.equal(moved.sums, plain.sums[[1, 2, 0]])
    assert torch.equal(moved.counts, plain.counts[[1, 2, 0]])


def test_more_records_than_are_summed_at_once() -> None:
    x = torch.rand(2500, 3, generator=torch.Generator().manual_seed(0)) * 2 - 1
    given = x, torch.arange(2500) % 4, torch.arange(2500)
    found = class_sums(opened(given, "record"), lambda x: x, 3, torch.arange(4), WEIGHT, 1.0, False, 1, Silent(0), CPU)
    rows = x.double() / x.double().norm(dim=1, keepdim=True).clamp_min(1.0)
    assert torch.allclose(found.sums[1].double(), rows[1::4].sum(0), atol=625 * 2.0**-15)


@pytest.mark.parametrize("weight", [0.0, 1.0, -0.1, math.nan])
def test_a_count_weight_that_leaves_nothing_is_refused(weight: float) -> None:
    with pytest.raises(BadInput, match="count_weight"):
        class_sums(opened(data(), "record"), long, 4, torch.arange(4), weight, 1.0, False, 1, Silent(0), CPU)


# --- the scatter ----------------------------------------------------------------------------------------

CENTRES = torch.tensor([[0.2, 0.0, 0.1, 0.0], [math.nan, 0.0, 0.0, 0.0], [0.0, 3e38, 0.0, 0.0], [0.0, 0.0, 0.0, 0.5]])


def scatter_of(given: Data, unit: Unit, features: Features, clip: float, noise: Noise | None = None) -> Tensor:
    k = rows_per_unit(unit)
    found = scatter(opened(given, unit), features, CENTRES, torch.arange(4), clip, 2.0, k, noise or Silent(0), CPU)
    return found.matrix.double()


@units
@features
@pytest.mark.parametrize("clip", [0.5, 1.0, 2.0])
def test_one_unit_moves_the_scatter_by_its_rows_at_most(unit: Unit, features: Features, clip: float) -> None:
    moved = changes(data(), unit, lambda given: scatter_of(given, unit, features, clip))
    k = rows_per_unit(unit)
    for change in moved:
        assert bool(change.isfinite().all())
        assert float(change.norm()) <= k * clip**2 * ROUNDING
    if clip == 0.5 and features is long:
        assert max(float(change.norm()) for change in moved) > 0.5 * k * clip**2, "the bound is nearly reached"


@units
def test_without_clipping_the_scatters_bound_is_broken(unit: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "bounded", lambda rows, limit: rows.double().clamp(-9, 9))
    moved = changes(data(), unit, lambda given: scatter_of(given, unit, long, 0.5))
    assert max(float(change.norm()) for change in moved) > rows_per_unit(unit) * 0.25 * 1.1


def test_the_scatter_is_what_it_says() -> None:
    x, y, _ = data()
    centres = torch.tensor([[0.2, 0.0, 0.1, 0.0], [0.0] * 4, [-0.3, 0.1, 0.0, 0.0], [0.0] * 4])
    found = scatter(opened(data(), "record"), lambda x: x * 0.3, centres, torch.arange(4), 2.0, 1.0, 1, Silent(0), CPU)
    rows = x.double() * 0.3 - centres[y].double()
    assert torch.allclose(found.matrix.double(), rows.T @ rows, atol=14 * 2.0**-13)
    assert torch.equal(found.matrix, found.matrix.T)


@pytest.mark.parametrize("clip", [0.0, -1.0, 2.1, math.nan, math.inf])
def test_a_clip_that_bounds_nothing_is_refused(clip: float) -> None:
    with pytest.raises(BadInput, match="clip of residuals"):
        scatter_of(data(), "record", long, clip)


def test_a_task_far_larger_than_declared_is_refused_and_not_rounded() -> None:
    x = torch.zeros(300_000, 1)
    given = x, torch.zeros(300_000, dtype=torch.int64), torch.arange(300_000)
    there = opened(given, "record")
    there.declared_size = 1
    with pytest.raises(BadInput, match="declare a size"):
        scatter(there, lambda x: x, torch.zeros(4, 1), torch.arange(4), 2.0, 1.0, 1, Silent(0), CPU)


# --- the noise ------------------------------------------------------------------------------------------

CLASSES, WIDTH = 3000, 8


def spread_p(draws: Tensor, scale: float) -> float:
    """Two-sided exact test of a normal scale: squares add up to a chi-square."""
    law, total = stats.chi2(draws.numel()), float((draws.double() / scale).square().sum())
    return 2 * float(min(law.cdf(total), law.sf(total)))


def shape_p(draws: Tensor, scale: float) -> float:
    return float(stats.kstest(draws.double().flatten().numpy(), stats.norm(scale=scale).cdf).pvalue)


def many_classes(unit: Unit, pure: bool, noise: Noise) -> ClassSums:
    x = torch.rand(6, WIDTH, generator=torch.Generator().manual_seed(1)) * 2 - 1
    given = x, torch.arange(6) * 400, torch.tensor([1, 1, 2, 2, 2, 2])
    k = rows_per_unit(unit)
    there = opened(given, unit, classes=CLASSES)
    return class_sums(there, lambda x: x, WIDTH, torch.arange(CLASSES), WEIGHT, 5.0, pure, k, noise, CPU)


@units
def test_gaussian_class_sums_have_the_stated_noise(unit: Unit) -> None:
    exact, noisy = (many_classes(unit, False, noise) for noise in (Silent(0), InsecureNoise(4)))
    k = rows_per_unit(unit)
    assert noisy.deviation == pytest.approx(5.0 * k / TILT, rel=1e-12)
    assert noisy.count_deviation == pytest.approx(5.0 * k / WEIGHT, rel=1e-12)
    for drawn, deviation in (
        (noisy.sums - exact.sums, noisy.deviation),
        (noisy.counts - exact.counts, noisy.count_deviation),
    ):
        assert spread_p(drawn, deviation) > ALARM
        assert shape_p(drawn, deviation) > ALARM
        for wrong in (deviation * 1.3, deviation / 1.3):
            assert spread_p(drawn, wrong) < ALARM


@units
def test_pure_class_sums_have_the_stated_noise(unit: Unit) -> None:
    exact, noisy = (many_classes(unit, True, noise) for noise in (Silent(0), InsecureNoise(4)))
    scale = 5.0 * rows_per_unit(unit)
    drawn = joint(noisy) - joint(exact)
    lengths = drawn.norm(dim=1).numpy()
    law = stats.gamma(CLASSES * (WIDTH + 1))
    assert stats.kstest(lengths / scale, stats.gamma(WIDTH + 1).cdf).pvalue > ALARM
    for wrong, right in ((1.0, True), (1.2, False), (1 / 1.2, False)):
        total = float(lengths.sum()) / (scale * wrong)
        assert (2 * min(law.cdf(total), law.sf(total)) > ALARM) == right
    # The stated deviations, by the normal law of a mean of squares: Var r² / (E r²)² = (d+2)(d+3)/(d(d+1)) − 1.
    d = WIDTH + 1
    limit = float(stats.norm.isf(ALARM)) * math.sqrt(((d + 2) * (d + 3) / (d * (d + 1)) - 1) / CLASSES)
    for part, deviation, spread in (
        (noisy.sums - exact.sums, noisy.deviation, 1.0),
        (noisy.counts - exact.counts, noisy.count_deviation, 3.0),  # one coordinate varies more than nine together
    ):
        ratio = float(part.double().square().mean()) / deviation**2
        assert abs(ratio - 1) < spread * limit
        assert abs(ratio * 1.5**2 - 1) > spread * limit


@units
def test_the_scatter_has_the_stated_noise(unit: Unit) -> None:
    """Symmetric; a variance on the diagonal that is twice the one beside it."""
    width, k = 120, rows_per_unit(unit)
    x = torch.rand(5, width, generator=torch.Generator().manual_seed(1)) * 2 - 1
    given = x, torch.zeros(5, dtype=torch.int64), torch.tensor([1, 1, 2, 2, 2])
    centres, places = torch.zeros(4, width), torch.arange(4)
    exact, noisy = (
        scatter(opened(given, unit), lambda x: x, centres, places, 0.5, 5.0, k, noise, CPU)
        for noise in (Silent(0), InsecureNoise(6))
    )
    assert noisy.deviation == pytest.approx(5.0 * k * 0.25, rel=1e-12)
    assert torch.equal(noisy.matrix, noisy.matrix.T)
    drawn = noisy.matrix - exact.matrix
    beside = drawn[np.triu_indices(width, 1)]
    for part, deviation in ((beside, noisy.deviation / math.sqrt(2)), (drawn.diagonal(), noisy.deviation)):
        assert spread_p(part, deviation) > ALARM
        assert shape_p(part, deviation) > ALARM
    assert spread_p(beside, noisy.deviation) < ALARM
    assert spread_p(beside, noisy.deviation / 2) < ALARM
    assert spread_p(drawn.diagonal(), noisy.deviation / 2) < ALARM
    assert spread_p(drawn.diagonal(), noisy.deviation * 2) < ALARM


def test_noise_is_drawn_afresh_for_every_release() -> None:
    noise = InsecureNoise(0)
    first, second = (many_classes("record", False, noise) for _ in range(2))
    assert not bool((first.sums == second.sums).all(dim=1).any())


# --- cutting rows ---------------------------------------------------------------------------------------

anything = st.floats(width=64) | st.sampled_from(
    [math.nan, math.inf, -math.inf, 1.7e308, -1.7e308, 5e-324, 1.0, 1e-300]
)
tables = st.integers(1, 6).flatmap(
    lambda width: st.lists(st.lists(anything, min_size=width, max_size=width), min_size=1, max_size=4)
)


def square(row: Tensor) -> Fraction:
    """The squared length without any rounding."""
    return sum((Fraction(value) ** 2 for value in row.tolist()), Fraction(0))


@light
@given(tables, st.sampled_from([1.0, 0.5, 2.0, 0.1]))
def test_whatever_comes_in_no_row_is_longer_than_the_limit(rows: list[list[float]], limit: float) -> None:
    table = torch.tensor(rows, dtype=torch.float64)
    kept = table.clone()
    cut = bounded(table, limit)
    assert cut.dtype == torch.float64
    assert torch.equal(table.nan_to_num(7.0), kept.nan_to_num(7.0)), "the input is left alone"
    for before, after in zip(table, cut, strict=True):
        assert bool(after.isfinite().all())
        assert square(after) <= Fraction(limit) ** 2, "exactly"
        if not bool(before.isfinite().all()):
            assert not bool(after.any())
        elif square(before) <= (Fraction(limit) * Fraction(999, 1000)) ** 2:
            assert torch.equal(before, after), "a short row stays as it is"
        elif square(before) < Fraction(10) ** 600:
            assert square(after) >= (Fraction(limit) * Fraction(999, 1000)) ** 2, "a long row is cut no further"
            assert torch.equal(before.sign() * (after != 0), after.sign())


@light
@given(tables, st.sampled_from([1.0, 0.3]))
def test_in_single_precision_the_limit_holds_to_a_millionth(rows: list[list[float]], limit: float) -> None:
    table = torch.tensor(rows, dtype=torch.float64).float()
    cut = bounded(table, limit, torch.float32)
    assert cut.dtype == torch.float32
    assert bool(cut.isfinite().all())
    assert all(square(row) <= (Fraction(limit) * Fraction(1_000_001, 1_000_000)) ** 2 for row in cut)


@pytest.mark.parametrize("width", [64, 2000, 20_000])
def test_long_rows_of_many_numbers_are_cut_exactly(width: int) -> None:
    rows = torch.randn(3, width, generator=torch.Generator().manual_seed(width), dtype=torch.float64) * 10
    for row in bounded(torch.cat([rows, torch.ones(1, width)]), 1.0):
        assert square(row) <= 1


@light
@given(tables, st.integers(1, 16))
def test_a_grid_makes_nothing_larger(rows: list[list[float]], bits: int) -> None:
    cut = bounded(torch.tensor(rows, dtype=torch.float64), 1.0)
    steps = whole(cut, bits)
    assert torch.equal(steps, steps.round())
    assert bool((steps.abs() <= cut.abs() * 2.0**bits).all())
    assert bool(((cut * 2.0**bits - steps).abs() < 1).all())
