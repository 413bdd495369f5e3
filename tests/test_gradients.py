"""Clipped sums of gradients are what explicit clipping gives, move by the clip at most, and carry the stated noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn

from l2dp.boundary import gradients
from l2dp.boundary.entry import Entry, Opened, Protection
from l2dp.boundary.ghost import clipped_sum
from l2dp.boundary.gradients import (
    CLIP_MARGIN,
    LinearGradients,
    Sampled,
    masked_cross_entropy,
    noisy_gradient,
    noisy_sum,
)
from l2dp.budget import Budget, Unit
from l2dp.errors import BadInput, Refused
from l2dp.models import build
from l2dp.noise import InsecureNoise, Noise
from l2dp.streams import Records, Sealed, Source, Space, Task

CPU = torch.device("cpu")
ALARM = 1e-9
CLIP = 0.5
PER_USER = 3
UNITS: list[Unit] = ["record", "user"]
units = pytest.mark.parametrize("unit", UNITS)
Data = tuple[Tensor, Tensor, Tensor]


class Silent(InsecureNoise):
    """Adds nothing and samples what it is told, so that exact sums are seen."""

    def __init__(self, chosen: list[int] | None = None) -> None:
        super().__init__(0)
        self.chosen = chosen

    def gaussian(self, scale: float, shape: tuple[int, ...]) -> NDArray[np.float64]:
        assert scale > 0
        return np.zeros(shape)

    def subset(self, size: int, rate: float) -> NDArray[np.int64]:
        return np.arange(size) if self.chosen is None else np.array(self.chosen, dtype=np.int64)


class Declared(Sealed):
    @property
    def declared_size(self) -> int:
        return 24


def data() -> Data:
    x = torch.rand(14, 4, generator=torch.Generator().manual_seed(0)) * 0.9 + 0.1
    y = torch.tensor([0, 1, 0, 1, 1, 0, 2, 0, 1, 0, 0, 0, 1, 0])
    users = torch.tensor([7, 7, 3, 3, 3, 9, 9, 9, 9, 9, 9, 1, 4, 4])
    return x, y, users


def neighbours(given: Data, unit: Unit) -> Iterator[Data]:
    x, y, users = given
    whose = torch.arange(len(y)) if unit == "record" else users
    for gone in whose.unique():
        yield x[whose != gone], y[whose != gone], users[whose != gone]


def opened(given: Data, unit: Unit = "record", per_user: int = PER_USER) -> Opened:
    x, y, users = given
    space = Space(tuple(x.shape[1:]), tuple("abcd"))
    records = Records(Source(x, y, "test", units=users))
    task = Task("t", Declared(records), records, (0, 1, 2, 3))
    return Entry(space, Protection(Budget(1.0, 1e-5), unit, per_user=per_user)).open(task)


def linear(
    there: Opened,
    noise: Noise | None = None,
    unit: Unit = "record",
    features: Callable[[Tensor], Tensor] = lambda x: x,
    clip: float = CLIP,
    steps: int = 1,
    rate: float = 0.5,
    multiplier: float = 2.0,
) -> LinearGradients:
    k = 1 if unit == "record" else PER_USER
    return LinearGradients(there, features, (0, 1, 2, 3), clip, multiplier, rate, steps, k, noise or Silent(), CPU)


def linear_sum(given: Data, unit: Unit, weight: Tensor, **how: Any) -> Tensor:
    gradient = linear(opened(given, unit), unit=unit, **how)
    return gradient(weight).double() * gradient.expected


def garbage(x: Tensor) -> Tensor:
    bad = torch.tensor([math.nan, math.inf, -math.inf, 3e38, -3e38, 1e-45, 0.0, 1e20])
    rows = x.clone()
    for column in range(rows.shape[1]):
        which = (rows[:, column].abs() * 1000).long() % (2 * len(bad))
        rows[:, column] = torch.where(which < len(bad), bad[which % len(bad)], rows[:, column])
    return rows


def long(x: Tensor) -> Tensor:
    return x * 100


WEIGHTS = {
    "zero": torch.zeros(4, 4),
    "some": torch.randn(4, 4, generator=torch.Generator().manual_seed(1)),
    "large": torch.randn(4, 4, generator=torch.Generator().manual_seed(2)) * 1e6,
}
weights = pytest.mark.parametrize("weight", WEIGHTS.values(), ids=WEIGHTS)


# --- linear heads ---------------------------------------------------------------------------------------


@units
@weights
@pytest.mark.parametrize("features", [long, garbage], ids=lambda f: f.__name__)
@pytest.mark.parametrize("clip", [0.05, 0.5, 2.0])
def test_one_unit_moves_the_sum_of_gradients_by_the_clip_at_most(
    unit: Unit, weight: Tensor, features: Callable[[Tensor], Tensor], clip: float
) -> None:
    there = linear_sum(data(), unit, weight, features=features, clip=clip)
    moved = [
        float((there - linear_sum(other, unit, weight, features=features, clip=clip)).norm())
        for other in neighbours(data(), unit)
    ]
    assert all(change <= clip for change in moved)
    if clip == 0.05 and features is long:
        assert max(moved) > 0.98 * clip, "the bound is nearly reached"


@units
def test_without_a_clip_the_bound_is_broken(unit: Unit) -> None:
    weight = WEIGHTS["some"]
    there = linear_sum(data(), unit, weight, clip=1e9)
    moved = [float((there - linear_sum(other, unit, weight, clip=1e9)).norm()) for other in neighbours(data(), unit)]
    assert max(moved) > 0.7


def test_without_bounded_features_the_bound_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not finite has to go before clipping: a factor of zero does not mend it."""
    monkeypatch.setattr(gradients, "bounded", lambda rows, limit, precision: rows.to(precision))
    with pytest.raises(BadInput, match="not finite"):
        linear_sum(data(), "record", WEIGHTS["some"], features=garbage)


def explicit_linear(given: Data, weight: Tensor, groups: Tensor, clip: float) -> Tensor:
    """Autograd, unit by unit, in double precision."""
    x, y, _ = given
    total = torch.zeros_like(weight, dtype=torch.float64)
    for group in groups.unique():
        w = weight.double().requires_grad_()
        rows = x[groups == group].double()
        rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(1.0)
        F.cross_entropy(rows @ w, y[groups == group], reduction="sum").backward()  # type: ignore[no-untyped-call]
        assert w.grad is not None
        total += w.grad * min(1.0, CLIP_MARGIN * clip / max(1e-30, float(w.grad.norm())))
    return total


@units
@weights
@pytest.mark.parametrize("clip", [0.05, 0.5, 5.0])
def test_the_sum_is_that_of_explicit_clipping(unit: Unit, weight: Tensor, clip: float) -> None:
    x, y, users = data()
    keep = torch.ones(14, dtype=torch.bool)
    keep[5:8] = unit == "record"  # of user 9, so that nobody has more than three rows
    given = x[keep], y[keep], users[keep]
    groups = torch.arange(len(given[1])) if unit == "record" else given[2]
    found = linear_sum(given, unit, weight, clip=clip)
    assert torch.allclose(found, explicit_linear(given, weight, groups, clip), atol=2e-6, rtol=1e-5)


def test_a_user_is_sampled_as_a_whole() -> None:
    x, y, users = data()
    keep = users != 9
    given = x[keep], y[keep], users[keep]  # users 1, 3, 4 and 7
    found = linear_sum(given, "user", WEIGHTS["some"], noise=Silent([1, 3]))
    only = [part[torch.isin(given[2], torch.tensor([3, 7]))] for part in given]
    assert torch.allclose(
        found, explicit_linear((only[0], only[1], only[2]), WEIGHTS["some"], only[2], CLIP), atol=1e-6
    )
    assert not bool(linear_sum(given, "user", WEIGHTS["some"], noise=Silent([])).any())


def test_more_records_than_are_used_at_once() -> None:
    x = torch.rand(1300, 4, generator=torch.Generator().manual_seed(0)) * 2 - 1
    given = x, torch.arange(1300) % 4, torch.arange(1300) // 3
    for unit in UNITS:
        groups = torch.arange(1300) if unit == "record" else given[2]
        found = linear_sum(given, unit, WEIGHTS["some"])
        assert torch.allclose(found, explicit_linear(given, WEIGHTS["some"], groups, CLIP), atol=1e-3)


@units
def test_the_bound_holds_for_many_units_that_agree(unit: Unit) -> None:
    """A float32 sum of many equal gradients would lose the next one."""

    def total(count: int) -> Tensor:
        x, y = torch.tensor([[1.0, 0.0, 0.0, 0.0]]).repeat(count, 1), torch.zeros(count, dtype=torch.int64)
        return linear_sum((x, y, torch.arange(count)), unit, torch.zeros(4, 4))

    for count in (5_000, 60_000, 60_002, 100_000):
        assert float((total(count) - total(count - 1)).norm()) <= CLIP


@units
def test_the_bound_holds_for_a_sum_whose_places_all_move(unit: Unit) -> None:
    """Rounding that follows a row's place adds up when the first of many unlike rows leaves; float32 would not do."""
    x = torch.rand(512, 4, generator=torch.Generator().manual_seed(0))
    count = 100_352

    def total(rows: slice) -> Tensor:
        given = x.repeat(count // 512, 1)[rows], torch.zeros(count, dtype=torch.int64)[rows], torch.arange(count)[rows]
        return linear_sum(given, unit, torch.zeros(4, 4, dtype=torch.float64))

    moved = float((total(slice(None)) - total(slice(1, None))).norm())
    assert moved == pytest.approx(CLIP_MARGIN * CLIP, rel=1e-6)


def test_the_mean_is_over_the_declared_number_never_the_true_one() -> None:
    for unit, expected in (("record", 12.0), ("user", 4.0)):
        assert linear(opened(data(), unit), unit=unit).expected == expected  # type: ignore[arg-type]
        smaller = next(neighbours(data(), unit))  # type: ignore[arg-type]
        assert linear(opened(smaller, unit), unit=unit).expected == expected  # type: ignore[arg-type]
    assert linear(opened(data()), rate=0.01).expected == 1.0


def test_the_margin_covers_the_float32_sums_of_a_network() -> None:
    """Nearly equal pictures, whose errors add up, before and after all of them move by one place."""
    torch.manual_seed(0)
    space = Space((1, 28, 28), tuple("abcdefghij"))
    network = build("mnist-conv", space, 0, "group")
    x = torch.rand(1, 1, 28, 28) + 0.01 * torch.rand(gradients.PART, 1, 28, 28)
    y = torch.zeros(gradients.PART, dtype=torch.int64)
    clip = 0.1

    def total(x: Tensor) -> Tensor:
        found = clipped_sum(network, x, y, CLIP_MARGIN * clip, partial(masked_cross_entropy, None))
        return torch.cat([part.flatten() for part in found]).double()

    drift = float((total(x) - total(x.roll(1, 0))).norm())
    assert 0 < drift * gradients.LARGEST / gradients.PART <= (1 - CLIP_MARGIN) / 2 * clip


def test_samples_that_are_too_large_for_float32_are_refused() -> None:
    x, y = torch.rand(8, 4), torch.zeros(8, dtype=torch.int64)
    sampled = Sampled(Records(Source(x, y, "test")), torch.arange(8))
    network = nn.Sequential(nn.Linear(4, 3))
    with pytest.raises(BadInput, match="samples of about 20,001 examples"):
        noisy_gradient(network, [sampled], 0.1, 2.0, 20_001, Silent(), CPU)


def test_after_its_steps_it_refuses_and_draws_nothing() -> None:
    class Counting(Silent):
        asked = 0

        def subset(self, size: int, rate: float) -> NDArray[np.int64]:
            self.asked += 1
            return super().subset(size, rate)

    noise = Counting()
    gradient = linear(opened(data()), noise, steps=3)
    for _ in range(3):
        gradient(WEIGHTS["some"])
    for _ in range(2):
        with pytest.raises(Refused, match="used up"):
            gradient(WEIGHTS["some"])
    assert noise.asked == 3


def test_a_weight_that_is_not_finite_is_refused() -> None:
    with pytest.raises(BadInput, match="not finite"):
        linear(opened(data()))(torch.full((4, 4), math.nan))


def spread_p(draws: Tensor, scale: float) -> float:
    law, total = stats.chi2(draws.numel()), float((draws.double() / scale).square().sum())
    return 2 * float(min(law.cdf(total), law.sf(total)))


def shape_p(draws: Tensor, scale: float) -> float:
    return float(stats.kstest(draws.double().flatten().numpy(), stats.norm(scale=scale).cdf).pvalue)


@units
def test_gradients_have_the_stated_noise(unit: Unit) -> None:
    width, multiplier = 5000, 3.0
    x = torch.rand(9, width, generator=torch.Generator().manual_seed(1)) * 2 - 1
    given = x, torch.arange(9) % 4, torch.arange(9) // 3
    weight = torch.zeros(width, 4)
    noisy, exact = (
        linear(opened(given, unit), noise, unit, rate=1.0, multiplier=multiplier)(weight)
        for noise in (InsecureNoise(8), Silent())
    )
    drawn = (noisy - exact) * (24.0 if unit == "record" else 8.0)
    deviation = multiplier * CLIP
    assert spread_p(drawn, deviation) > ALARM
    assert shape_p(drawn, deviation) > ALARM
    for wrong in (deviation * 1.15, deviation / 1.15):
        assert spread_p(drawn, wrong) < ALARM
        assert shape_p(drawn, wrong) < ALARM


def test_every_step_has_a_sample_and_noise_of_its_own() -> None:
    gradient = linear(opened(data()), InsecureNoise(1), steps=2)
    first, second = (gradient(WEIGHTS["some"]) for _ in range(2))
    assert not bool((first == second).any())


# --- the grid -------------------------------------------------------------------------------------------


def test_a_noisy_sum_lies_on_a_grid_that_the_data_do_not_move() -> None:
    step = 0.5 / 2**30
    for total in (torch.tensor([0.3, -1e-9, 12.25]), torch.tensor([math.pi, 0.0, -7.0])):
        found = noisy_sum(total.double(), 0.5, 2.0, InsecureNoise(0))
        steps = found.double() / step
        assert torch.equal(steps, steps.round())
        silent = noisy_sum(total.double(), 0.5, 2.0, Silent())
        assert torch.allclose(silent, total.double(), atol=step)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 3e38])
def test_a_sum_that_cannot_be_held_is_refused(bad: float) -> None:
    with pytest.raises(BadInput):
        noisy_sum(torch.tensor([1.0, bad]), 1.0, 1.0, Silent())


def test_more_parameters_than_the_margin_covers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    noisy_sum(torch.zeros(1000), 1.0, 1e5, Silent())
    monkeypatch.setattr(gradients, "FINE", 2.0**10)
    with pytest.raises(BadInput, match="too many"):
        noisy_sum(torch.zeros(1000), 1.0, 1e5, Silent())


# --- networks -------------------------------------------------------------------------------------------


def loss(scores: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(scores, y, reduction="none")


def explicit(network: nn.Module, x: Tensor, y: Tensor, clip: float) -> tuple[list[Tensor], list[float]]:
    """The sum of clipped gradients one example at a time, and their norms."""
    parameters = [p for p in network.parameters() if p.requires_grad]
    totals, norms = [torch.zeros_like(p) for p in parameters], []
    for row in range(len(x)):
        found = torch.autograd.grad(loss(network(x[row : row + 1].clone()), y[row : row + 1]).sum(), parameters)
        norms.append(math.sqrt(sum(float(g.double().square().sum()) for g in found)))
        for total, g in zip(totals, found, strict=True):
            total += g * min(1.0, clip / norms[-1])
    return totals, norms


def flat(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.double().flatten() for part in parts])


LABELS = ("a", "b", "c")
NETWORKS: dict[str, tuple[str | Callable[[Space], Any], tuple[int, ...], str]] = {
    "conv, groups": ("mnist-conv", (1, 12, 12), "group"),
    "conv": ("mnist-conv", (1, 12, 12), "none"),
    "conv on windows": ("har-conv", (3, 16), "group"),
    "residual": ("cifar-resnet", (3, 8, 8), "group"),
    "dense, groups": ("mlp-16-8", (6,), "group"),
    "dense on images": ("mlp-16", (1, 4, 4), "none"),
    "dense": ("mlp", (5,), "none"),
}
networks = pytest.mark.parametrize("name", NETWORKS)


def case(name: str, count: int = 6) -> tuple[nn.Module, Tensor, Tensor]:
    spec, shape, norm = NETWORKS[name]
    network = build(spec, Space(shape, LABELS), 0, norm)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for p in network.parameters():  # not the even values that layers begin with
            p.add_(torch.randn(p.shape, generator=generator) * 0.05)
    x = torch.rand(count, *shape, generator=generator) * 2 - 1
    return network, x, torch.arange(count) % 3


@networks
def test_a_clipped_sum_is_that_of_explicit_clipping(name: str) -> None:
    network, x, y = case(name)
    _, norms = explicit(network, x, y, 1.0)
    middle = sorted(norms)[len(norms) // 2]
    for clip in (middle / 10, middle, middle * 10):  # all are cut, some, none
        found = flat(clipped_sum(network, x, y, clip, loss))
        expected = flat(explicit(network, x, y, clip)[0])
        assert float((found - expected).norm()) < 1e-4 * float(expected.norm())
    assert all(p.grad is None for p in network.parameters())


def test_a_convolution_by_either_way_and_of_any_shape() -> None:
    """Few places and many channels, and the other way about; strides, paddings and dilations."""
    for inputs, outputs, size, how in (
        (16, 16, 4, {"padding": 1}),
        (1, 2, 12, {}),
        (3, 4, 9, {"stride": (2, 3), "padding": (1, 2), "dilation": (2, 1)}),
        (8, 32, 5, {"stride": 2, "bias": False}),
    ):
        torch_conv = nn.Conv2d(inputs, outputs, 3, **how)  # type: ignore[arg-type]
        network = nn.Sequential(torch_conv, nn.Tanh(), nn.Flatten(), nn.LazyLinear(3))
        generator = torch.Generator().manual_seed(inputs)
        x = torch.rand(5, inputs, size, size, generator=generator)
        with torch.no_grad():
            network(x)
            for p in network.parameters():
                p.copy_(torch.randn(p.shape, generator=generator) * 0.2)
        y = torch.arange(5) % 3
        found, expected = (
            flat(part) for part in (clipped_sum(network, x, y, 0.3, loss), explicit(network, x, y, 0.3)[0])
        )
        assert float((found - expected).norm()) < 1e-4 * float(expected.norm())


@networks
def test_one_example_moves_the_clipped_sum_by_the_clip_at_most(name: str) -> None:
    network, x, y = case(name)
    clip = 0.1
    there = flat(clipped_sum(network, x, y, clip, loss))
    moved = []
    for row in range(len(x)):
        keep = torch.arange(len(x)) != row
        moved.append(float((there - flat(clipped_sum(network, x[keep], y[keep], clip, loss))).norm()))
    assert max(moved) <= clip * 1.0005
    assert max(moved) > 0.9 * clip, "the bound is nearly reached"
    loose = flat(clipped_sum(network, x, y, 1e9, loss)) - flat(clipped_sum(network, x[1:], y[1:], 1e9, loss))
    assert float(loose.norm()) > 2 * clip, "or else the bound could not fail"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -3e38])
@pytest.mark.parametrize("name", ["dense", "conv, groups", "dense, groups"])
def test_an_example_that_is_not_finite_adds_nothing(name: str, bad: float) -> None:
    network, x, y = case(name)
    poisoned = x.clone()
    poisoned[2].view(-1)[0] = bad
    keep = torch.arange(len(x)) != 2
    found = flat(clipped_sum(network, poisoned, y, 0.1, loss))
    without = flat(clipped_sum(network, x[keep], y[keep], 0.1, loss))
    assert bool(found.isfinite().all())
    assert float((found - without).norm()) <= 0.1 * 1.0005


def test_the_inputs_are_left_alone() -> None:
    network, x, y = case("dense")
    x[2, 0] = math.inf
    kept = x.clone()
    clipped_sum(network, x, y, 0.1, loss)
    assert torch.equal(x, kept)


def test_a_norm_that_cancels_is_not_underestimated() -> None:
    """A nearly even image and gradients that alternate: the terms of the norm are far larger than the norm."""
    generator = torch.Generator().manual_seed(0)
    sign = 1.0 - 2.0 * ((torch.arange(6).view(6, 1) + torch.arange(6)) % 2)
    for _ in range(20):
        network = nn.Sequential(nn.Conv2d(16, 64, 3, bias=False))
        x = torch.ones(1, 16, 8, 8) + 1e-3 * torch.randn(1, 16, 8, 8, generator=generator)
        slope = 1000 * torch.randn(1, 64, 1, 1, generator=generator) * sign

        def weighted(scores: Tensor, y: Tensor, slope: Tensor = slope) -> Tensor:
            return (scores * slope).flatten(1).sum(1)

        found = flat(clipped_sum(network, x, torch.zeros(1), 1.0, weighted))
        assert float(found.norm()) <= 1.001


def test_layers_that_mix_examples_are_refused() -> None:
    x, y = torch.rand(4, 1, 12, 12), torch.arange(4) % 3
    for norm in ("channel", "neuron"):
        network = build("mnist-conv", Space((1, 12, 12), LABELS), 0, norm)  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="batch normalisation mixes"):
            clipped_sum(network, x, y, 1.0, loss)
    network = nn.Sequential(nn.Flatten(), nn.Linear(144, 5), nn.BatchNorm1d(5, affine=False), nn.Linear(5, 3))
    with pytest.raises(BadInput, match="batch normalisation mixes"):
        clipped_sum(network, x, y, 1.0, loss)


def test_a_layer_used_twice_is_refused() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.last = nn.Linear(5, 5), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.inner(torch.relu(self.inner(x))))  # type: ignore[no-any-return]

    with pytest.raises(BadInput, match="used twice"):
        clipped_sum(Twice(), torch.rand(4, 5), torch.arange(4) % 3, 1.0, loss)


def test_a_weight_shared_by_two_layers_is_refused() -> None:
    network = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5), nn.Linear(5, 3))
    network[2].weight = network[0].weight
    with pytest.raises(BadInput):
        clipped_sum(network, torch.rand(4, 5), torch.arange(4) % 3, 1.0, loss)


def test_a_layer_whose_output_is_overwritten_is_right_or_refused() -> None:
    network = nn.Sequential(nn.Linear(5, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))
    x, y = torch.rand(4, 5, generator=torch.Generator().manual_seed(0)), torch.arange(4) % 3
    try:
        found = flat(clipped_sum(network, x, y, 0.3, loss))
    except BadInput:
        return
    expected = flat(explicit(network, x, y, 0.3)[0])
    assert float((found - expected).norm()) < 1e-4 * float(expected.norm())


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(1, 3, 3, padding="same"),
        nn.Conv2d(2, 2, 3, groups=2),
        nn.Conv2d(1, 3, 3, 1, 1, padding_mode="circular"),
    ],
    ids=["same", "groups", "circular"],
)
def test_convolutions_without_a_rule_are_refused(layer: nn.Conv2d) -> None:
    network = nn.Sequential(layer, nn.Flatten())
    with pytest.raises(BadInput, match="convolutions without groups"):
        clipped_sum(network, torch.rand(4, layer.in_channels, 5, 5), torch.arange(4) % 3, 1.0, loss)


def test_layers_without_a_rule_are_refused() -> None:
    dense = nn.Sequential(nn.Linear(5, 5), nn.LayerNorm(5), nn.Linear(5, 3))
    with pytest.raises(BadInput, match="no clipping rule for the layer LayerNorm"):
        clipped_sum(dense, torch.rand(4, 5), torch.arange(4) % 3, 1.0, loss)
    rows = nn.Sequential(nn.Linear(5, 3), nn.Flatten())
    with pytest.raises(BadInput, match="more than one row"):
        clipped_sum(rows, torch.rand(4, 2, 5), torch.arange(4) % 3, 1.0, loss)


class Folded(nn.Module):
    """Treats examples one by one, but its layer sees the parts of an example as rows of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.reshape(-1, 2)).view(len(x), -1, 3).sum(1)  # type: ignore[no-any-return]


class Remembers(nn.Module):
    """Keeps the mean of all it has seen in a buffer, which would be released."""

    def __init__(self, replaced: bool) -> None:
        super().__init__()
        self.layer, self.replaced = nn.Linear(4, 3), replaced
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.replaced:
            self.seen = x.mean(0)
        else:
            self.seen.add_(x.mean(0))  # type: ignore[operator, arg-type, union-attr]
        return self.layer(x)  # type: ignore[no-any-return]


def test_layers_that_see_an_example_as_several_rows_are_refused() -> None:
    with pytest.raises(BadInput, match="other rows than one for each example"):
        clipped_sum(Folded(), torch.rand(5, 8), torch.arange(5) % 3, 1.0, loss)


@pytest.mark.parametrize("network", [Remembers(True), Remembers(False)], ids=["replaced", "added to"])
def test_layers_that_keep_what_they_see_are_refused(network: nn.Module) -> None:
    with pytest.raises(BadInput, match="keeps a buffer of what it sees"):
        clipped_sum(network, torch.rand(5, 4), torch.arange(5) % 3, 1.0, loss)
    normed = nn.Sequential(nn.Unflatten(1, (1, 2, 4)), nn.InstanceNorm2d(1, track_running_stats=True), nn.Flatten())
    with pytest.raises(BadInput, match="keeps a buffer of what it sees"):
        clipped_sum(nn.Sequential(normed, nn.Linear(8, 3)), torch.rand(5, 8), torch.arange(5) % 3, 1.0, loss)


@pytest.fixture(params=["matmul", "convolutions", "autocast"])
def coarse(request: pytest.FixtureRequest) -> Iterator[None]:
    """Torch set to round the factors of products to bfloat16, in each way that it can be."""
    if request.param == "matmul":
        torch.set_float32_matmul_precision("medium")
        yield
        torch.set_float32_matmul_precision("highest")
    elif request.param == "convolutions":
        before = torch.backends.mkldnn.conv.fp32_precision
        torch.backends.mkldnn.conv.fp32_precision = "bf16"
        yield
        torch.backends.mkldnn.conv.fp32_precision = before
    else:
        with torch.autocast("cpu", torch.bfloat16):
            yield


@pytest.mark.usefixtures("coarse")
def test_products_coarser_than_float32_are_refused_before_anything_is_drawn() -> None:
    with pytest.raises(BadInput, match="float32's precision"):
        clipped_sum(nn.Linear(3, 2), torch.ones(4, 3), torch.zeros(4, dtype=torch.int64), 1.0, loss)
    gradient = linear(opened(data()))
    with pytest.raises(BadInput, match="float32's precision"):
        gradient(WEIGHTS["some"])


def test_what_does_not_learn_is_neither_counted_nor_returned() -> None:
    network, x, y = case("dense")
    first = next(network.parameters())
    first.requires_grad_(False)
    found = clipped_sum(network, x, y, 0.1, loss)
    assert len(found) == len(list(network.parameters())) - 1
    assert torch.allclose(flat(found), flat(explicit(network, x, y, 0.1)[0]), atol=1e-5)


# --- noisy gradients of networks ------------------------------------------------------------------------


def network_gradient(noise: Noise, rows: list[int], name: str = "dense") -> tuple[list[Tensor], nn.Module, Data]:
    network, x, y = case(name, 8)
    sampled = Sampled(Records(Source(x, y, "test")), torch.tensor(rows, dtype=torch.int64))
    return noisy_gradient(network, [sampled], 0.1, 2.0, 12.0, noise, CPU), network, (x, y, torch.arange(8))


def test_noisy_gradients_are_the_clipped_sum_of_the_sample_over_the_expected_number() -> None:
    found, network, (x, y, _) = network_gradient(Silent(), [1, 4, 5])
    expected = explicit(network, x[[1, 4, 5]], y[[1, 4, 5]], 0.1 * CLIP_MARGIN)[0]
    assert [tuple(part.shape) for part in found] == [tuple(p.shape) for p in network.parameters()]
    assert all(part.dtype == p.dtype for part, p in zip(found, network.parameters(), strict=True))
    assert torch.allclose(flat(found), flat(expected) / 12.0, atol=1e-7)


def test_an_empty_sample_gives_noise_alone() -> None:
    assert not bool(flat(network_gradient(Silent(), [])[0]).any())
    assert bool(flat(network_gradient(InsecureNoise(0), [], "conv")[0]).all())


def test_network_gradients_have_the_stated_noise() -> None:
    noisy, exact = (flat(network_gradient(noise, list(range(8)), "conv")[0]) for noise in (Silent(), InsecureNoise(3)))
    drawn = (noisy - exact) * 12.0
    assert spread_p(drawn, 0.2) > ALARM
    assert shape_p(drawn, 0.2) > ALARM
    for wrong in (0.2 * 1.1, 0.2 / 1.1):
        assert spread_p(drawn, wrong) < ALARM
