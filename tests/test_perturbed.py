"""The paper's boundary does what the paper says, term by term; where the paper is wrong, the test shows it."""

from __future__ import annotations

import itertools
import math
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from l2dp.boundary import PerturbedObjective
from l2dp.boundary.perturbed import (
    Perturbation,
    PerturbedBatch,
    classification_loss,
    classification_sensitivity,
    reconstruction_sensitivity,
    solve,
)
from l2dp.budget import Budget
from l2dp.errors import BadInput
from l2dp.learners import L2dpMl, Plan, Setting
from l2dp.models import Network, build
from l2dp.noise import InsecureNoise, SystemNoise
from l2dp.streams import Records, Sealed, Source, Space, Task, permuted

light = settings(deadline=None, max_examples=100)
CPU = torch.device("cpu")
Array = NDArray[np.float64]


class Fixed:
    """A source of noise that writes down what it is asked for, and answers with small repeatable numbers."""

    secure = True

    def __init__(self, size: float = 1.0) -> None:
        self.asked: list[tuple[float, tuple[int, ...]]] = []
        self._size = size
        self._rng = np.random.default_rng(5)

    def laplace(self, scale: float, shape: tuple[int, ...]) -> Array:
        self.asked.append((scale, shape))
        return self._size * self._rng.laplace(size=shape)


def objective(
    network: Network, space: Space, size: int, noise: Any = None, masked: bool = False, **how: Any
) -> PerturbedObjective:
    perturbation = Perturbation(Budget(1.0), **how)
    return PerturbedObjective(perturbation, network, space, size, CPU, masked, noise or Fixed())


def small(
    space: Space, model: str = "mlp-3-4", size: int = 5, seed: int = 0, **how: Any
) -> tuple[Network, PerturbedObjective, PerturbedBatch]:
    """A network, its objective and one perturbed batch, all in double precision."""
    network = build(model, space, seed, "none", bounded=True)
    # The first layer is kept as it is: a generous bound is never active.
    boundary = objective(network, space, size, **{"encoder_norm": 50.0, **how})
    network.double()
    boundary.draws = {name: draw.double() for name, draw in boundary.draws.items()}
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(size, *space.shape, generator=generator, dtype=torch.float64) * 2 - 1
    y = torch.randint(space.classes, (size,), generator=generator)
    batches = boundary.open(Task.from_tensors("t", (x, y), (x, y)), size, generator)
    return network, boundary, boundary.batch(batches, 0)


FLAT = Space((4,), ("a", "b", "c"))


# --- the polynomials ------------------------------------------------------------------------------------


def cross_entropy(z: Any, y: float) -> Any:
    """−y·log σ(z) − (1 − y)·log σ(−z)."""
    return y * mpmath.log1p(mpmath.exp(-z)) + (1 - y) * mpmath.log1p(mpmath.exp(z))


@pytest.mark.parametrize("label", [0, 1])
def test_the_classification_polynomial_is_the_second_order_series(label: int) -> None:
    value, slope, bend = (float(c) for c in mpmath.taylor(lambda z: cross_entropy(z, label), 0, 2))
    for z in (-2.0, -0.3, 0.0, 0.7, 3.0):
        # One of two classes; class 1 is scored z, class 0 is kept out by a mask.
        scores = torch.tensor([[9.0, z]], dtype=torch.float64)
        mask = torch.tensor([False, True])
        got = classification_loss(scores, torch.tensor([label]), "true", mask).item()
        assert got == pytest.approx(value + slope * z + bend * z * z, abs=1e-12)


def test_the_classification_polynomial_adds_up_over_records_and_classes() -> None:
    z = np.random.default_rng(0).normal(size=(4, 3))
    y = [2, 0, 1, 1]
    series = {hot: [float(c) for c in mpmath.taylor(lambda v, h=hot: cross_entropy(v, h), 0, 2)] for hot in (0, 1)}
    expected = 0.0
    for r in range(4):
        for k in range(3):
            a, b, c = series[int(y[r] == k)]
            expected += a + b * z[r, k] + c * z[r, k] ** 2
    assert classification_loss(torch.tensor(z), torch.tensor(y), "true").item() == pytest.approx(expected, rel=1e-12)


def test_the_reconstruction_polynomial_is_the_first_order_series_less_its_constant() -> None:
    network, boundary, batch = small(FLAT)
    x, _, chi2, _ = numbers(boundary, batch)
    theta = network.encoder.weight.detach().numpy()
    z = code(theta, x, chi2, 5) @ theta
    expected = 0.0
    for place in np.ndindex(5, 4):

        def true(v: Any, target: float = float(x[place])) -> Any:
            return target * mpmath.log1p(mpmath.exp(-v)) + (1 - target) * mpmath.log1p(mpmath.exp(v))

        constant, slope = (float(c) for c in mpmath.taylor(true, 0, 1))
        assert constant == pytest.approx(math.log(2))
        expected += slope * z[place]
    assert abs(expected) > 0.1
    assert boundary.objectives(network, batch)[0].item() == pytest.approx(expected / 5, abs=1e-12)


def test_the_printed_polynomial_has_no_lower_bound_and_the_true_one_has() -> None:
    label = torch.tensor([1])
    sizes = [10.0**k for k in range(1, 7)]
    for sign in (-1, 1):
        scores = [torch.tensor([[0.0, sign * size]], dtype=torch.float64) for size in sizes]
        printed = [classification_loss(z, label, "literal").item() for z in scores]
        assert all(later < earlier for earlier, later in itertools.pairwise(printed[1:]))
        assert printed[-1] < -1e10
        # ln 2 + (½ − y)z + z²/8 is least at z = ±2, where it is ln 2 − ½: twice that for two classes.
        least = 2 * (math.log(2) - 0.5)
        assert all(classification_loss(z, label, "true").item() >= least for z in scores)
    best = torch.tensor([[-2.0, 2.0]], dtype=torch.float64)
    assert classification_loss(best, label, "true").item() == pytest.approx(least, abs=1e-12)


@pytest.mark.parametrize("hot", [0, 1])
@pytest.mark.parametrize("z", [-3.0, -0.5, 0.0, 2.0])
def test_the_printed_polynomial_is_as_printed(z: float, hot: int) -> None:
    mask = torch.tensor([False, True])
    got = classification_loss(torch.tensor([[0.0, z]]), torch.tensor([hot]), "literal", mask).item()
    assert got == pytest.approx(z - z * hot - abs(z) / 2 - z * z / 8)


# --- gradients ------------------------------------------------------------------------------------------


def numbers(boundary: PerturbedObjective, batch: PerturbedBatch) -> tuple[Array, list[int], Array, Array]:
    x, y = batch.x.flatten(1).numpy(), [int(v) for v in batch.y]
    return x, y, boundary.draws["chi2"].numpy(), boundary.draws["chi3"].numpy()


def code(theta: Array, x: Array, chi2: Array, size: int) -> Array:
    """h̄ of every record, by loops: clip(relu(θ1ᵀx̄ + 2χ2/λ))."""
    h = np.zeros((len(x), len(theta)))
    for r in range(len(x)):
        for j in range(len(theta)):
            total = sum(theta[j, s] * x[r, s] for s in range(x.shape[1])) + 2 * chi2[j] / size
            h[r, j] = min(max(total, 0.0), 1.0)
    return h


def differences(function: Any, at: Array, step: float = 1e-6) -> Array:
    """The gradient of a function of an array, by central differences."""
    out = np.zeros_like(at)
    for place in np.ndindex(*at.shape):
        up, down = at.copy(), at.copy()
        up[place] += step
        down[place] -= step
        out[place] = (function(up) - function(down)) / (2 * step)
    return out


@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_of_a_dense_encoder_is_the_papers(seed: int) -> None:
    """∇θ1s R̄ = Σ_r h̄_r(½ − x̄_rs), per record of λ, with h̄ held constant."""
    network, boundary, batch = small(FLAT, seed=seed)
    x, _, chi2, _ = numbers(boundary, batch)
    theta = network.encoder.weight.detach().numpy().copy()
    h = code(theta, x, chi2, 5)
    assert np.any(h > 0)
    expected = np.zeros_like(theta)
    for j in range(3):
        for s in range(4):
            expected[j, s] = sum(h[r, j] * (0.5 - x[r, s]) for r in range(5)) / 5
    got = boundary.gradient(network, batch)[0]
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_the_tied_gradient_is_that_of_the_tied_objective(seed: int) -> None:
    network, boundary, batch = small(FLAT, seed=seed, reconstruction="tied")
    x, _, chi2, _ = numbers(boundary, batch)
    theta = network.encoder.weight.detach().numpy().copy()

    def tied(weight: Array) -> float:
        return float(((0.5 - x) * (code(weight, x, chi2, 5) @ weight)).sum() / 5)

    got = boundary.gradient(network, batch)[0].numpy()
    np.testing.assert_allclose(got, differences(tied, theta), atol=1e-7)
    constant = small(FLAT, seed=seed)
    untied = constant[1].gradient(constant[0], constant[2])[0].numpy()
    assert not np.allclose(got, untied, atol=1e-4), "the two forms would not be told apart"


@pytest.mark.parametrize(
    ("model", "space"),
    # With and without sizes that the stride divides, which are computed in different ways.
    [
        ("mnist-conv", (1, 5, 6)),
        ("mnist-conv", (1, 6, 8)),
        ("mnist-conv", (2, 4, 4)),
        ("cifar-resnet", (1, 8, 10)),
        ("har-conv", (3, 7)),
        ("har-conv", (2, 4, 5)),
    ],
)
def test_the_gradient_of_a_convolution_holds_the_code_constant(model: str, space: tuple[int, ...]) -> None:
    network, boundary, batch = small(Space(space, ("a", "b")), model, size=3)
    weight = network.encoder.weight.detach().clone()
    with torch.no_grad():
        h = network.hidden(network.encoder(batch.x) + 2 * boundary.draws["chi2"] / 3).numpy()
    x = batch.x.numpy().reshape(3, weight.shape[1], *space[-2:])
    _, channels, rows, columns = weight.shape
    high, wide = space[-2:]
    # R̄ is linear in θ1 once h̄ is fixed: the slope of each tap is a sum over the places that it touches.
    expected = np.zeros((2, *weight.shape[1:]))  # two of the features will do
    for f, c, a, b in np.ndindex(2, channels, rows, columns):
        for r, i, j in np.ndindex(3, high, wide):
            p, q = i + (rows - 1 - a) - (rows - 1) // 2, j + (columns - 1 - b) - (columns - 1) // 2
            if 0 <= p < high and 0 <= q < wide:
                expected[f, c, a, b] += (0.5 - x[r, c, i, j]) * h[r, f, p * h.shape[2] // high, q * h.shape[3] // wide]
    got = boundary.gradient(network, batch)[0].numpy()
    np.testing.assert_allclose(got[:2], expected / 3, atol=1e-12)
    assert np.abs(expected).max() > 0

    def held(moved: Array) -> float:
        with torch.no_grad():
            network.encoder.weight[:2] = torch.from_numpy(moved)
            decoded = network.decode(torch.from_numpy(h), batch.x.shape)
        return float(((0.5 - batch.x) * decoded).sum() / 3)

    np.testing.assert_allclose(got[:2], differences(held, weight[:2].numpy()), atol=1e-6)


@pytest.mark.parametrize("reconstruction", ["constant", "tied"])
@pytest.mark.parametrize("series", ["true", "literal"])
@pytest.mark.parametrize("chi3", ["matrix", "vector"])
def test_the_gradient_of_the_rest_is_that_of_the_perturbed_loss(chi3: str, series: str, reconstruction: str) -> None:
    """L̄ = [Σ_r Σ_k L̃ − ⟨χ3, Wπ⟩]/λ, a function of θ2 alone."""
    network, boundary, batch = small(FLAT, chi3=chi3, series=series, reconstruction=reconstruction)
    x, y, chi2, noise = numbers(boundary, batch)
    assert noise.shape == ((3, 4) if chi3 == "matrix" else (4,))
    h = code(network.encoder.weight.detach().numpy(), x, chi2, 5)
    dense, head = network.classifier[0], network.head
    start = [p.detach().numpy().copy() for p in (dense.weight, dense.bias, head.weight)]

    def loss(weight: Array, bias: Array, last: Array) -> float:
        total = 0.0
        for r in range(5):
            hidden = np.clip(np.maximum(weight @ h[r] + bias, 0), -1, 1)
            for k in range(3):
                z, hot = float(last[k] @ hidden), float(y[r] == k)
                if series == "true":
                    total += math.log(2) + (0.5 - hot) * z + z * z / 8
                else:
                    total += z - z * hot - abs(z) / 2 - z * z / 8
        for k in range(3):
            for i in range(4):
                total -= (noise[k, i] if chi3 == "matrix" else noise[i]) * last[k, i]
        return total / 5

    got = boundary.gradient(network, batch)[1:]
    assert len(got) == 3
    for place, slope in enumerate(got):

        def moved(value: Array, place: int = place) -> float:
            return loss(*[value if i == place else p for i, p in enumerate(start)])

        np.testing.assert_allclose(slope.numpy(), differences(moved, start[place]), atol=1e-7)
    assert boundary.objectives(network, batch)[1].item() == pytest.approx(loss(*start), abs=1e-12)


def test_a_vector_chi3_moves_every_class_alike() -> None:
    network, boundary, batch = small(FLAT, chi3="vector")
    with_noise = boundary.gradient(network, batch)[-1]
    chi3 = boundary.draws["chi3"]
    boundary.draws["chi3"] = torch.zeros_like(chi3)
    shift = with_noise - boundary.gradient(network, batch)[-1]
    for k in range(3):
        np.testing.assert_allclose(shift[k].numpy(), -chi3.numpy() / 5, atol=1e-12)


@pytest.mark.parametrize("reconstruction", ["constant", "tied"])
def test_the_encoder_learns_nothing_from_the_labels(reconstruction: str) -> None:
    network, boundary, batch = small(FLAT, reconstruction=reconstruction)
    first = boundary.gradient(network, batch)
    other = PerturbedBatch(batch.x, (batch.y + 1) % 3, batch.batch_size, None)
    boundary.draws["chi3"] = -boundary.draws["chi3"]
    second = boundary.gradient(network, other)
    assert torch.equal(first[0], second[0])
    assert not any(torch.equal(a, b) for a, b in zip(first[1:], second[1:], strict=True))


@pytest.mark.parametrize("reconstruction", ["constant", "tied"])
def test_the_classifier_learns_nothing_from_the_reconstruction(
    reconstruction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a normalisation that has weights of its own between h1 and the code: they belong to θ2."""
    space = FLAT
    network = build("mlp-3-4", space, 0, "neuron", bounded=True)
    boundary = objective(network, space, 6, reconstruction=reconstruction)
    x = torch.rand(6, 4, generator=torch.Generator().manual_seed(0))
    batch = PerturbedBatch(x, torch.arange(6) % 3, 6, None)
    first = boundary.gradient(network, batch)
    decode = network.decode
    monkeypatch.setattr(network, "decode", lambda h, shape: 100 * decode(h, shape))
    second = boundary.gradient(network, batch)
    assert torch.allclose(100 * first[0], second[0], rtol=1e-4)
    assert len(first) == 1 + 2 + 2 + 2 + 1  # θ1; normalisation; dense; normalisation; head
    assert all(torch.equal(a, b) for a, b in zip(first[1:], second[1:], strict=True))


def test_gradients_come_in_the_order_of_the_parameters() -> None:
    network, boundary, batch = small(FLAT)
    got = boundary.gradient(network, batch)
    assert [g.shape for g in got] == [p.shape for p in network.parameters()]


def test_a_bias_of_the_encoder_stays_as_it_was_made() -> None:
    network = Network(nn.Linear(4, 3), nn.Sequential(nn.Linear(3, 2), nn.Hardtanh(), nn.Linear(2, 3)))
    boundary = objective(network, FLAT, 2)
    got = boundary.gradient(network, PerturbedBatch(torch.rand(2, 4), torch.tensor([0, 1]), 2, None))
    assert torch.equal(got[1], torch.zeros(3))
    assert got[0].abs().sum().item() > 0


# --- masked classes ---------------------------------------------------------------------------------------


def test_masked_classes_contribute_nothing_but_their_noise() -> None:
    network, boundary, batch = small(FLAT)
    y = torch.tensor([0, 2, 0, 2, 2])
    masked = PerturbedBatch(batch.x, y, 5, torch.tensor([True, False, True]))
    before = boundary.gradient(network, masked)
    np.testing.assert_allclose(before[-1][1].numpy(), -boundary.draws["chi3"][1].numpy() / 5, atol=1e-15)
    # Whatever the weights of the masked class are, the rest of the gradient is the same, and the loss but for ⟨χ3, W⟩.
    r, loss = (value.item() for value in boundary.objectives(network, masked))
    noise = (boundary.draws["chi3"][1] * network.head.weight[1]).sum().item() / 5
    with torch.no_grad():
        network.head.weight[1] *= -30
    after = boundary.gradient(network, masked)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    again = [value.item() for value in boundary.objectives(network, masked)]
    assert again[0] == r
    assert again[1] == pytest.approx(loss + noise + 30 * noise, rel=1e-9)
    unmasked = boundary.gradient(network, PerturbedBatch(batch.x, y, 5, None))
    assert not torch.allclose(unmasked[-1][1], after[-1][1])


def test_the_mask_is_that_of_the_task() -> None:
    network = build("mlp-3", FLAT, 0, "none", bounded=True)
    x, y = torch.zeros(4, 4), torch.tensor([0, 2, 0, 2])
    task = Task.from_tensors("t", (x, y), (x, y))
    for masked in (True, False):
        boundary = objective(network, FLAT, 2, masked=masked)
        batch = boundary.batch(boundary.open(task, 2, torch.Generator()), 0)
        assert (None if batch.mask is None else batch.mask.tolist()) == ([True, False, True] if masked else None)


# --- the shared draws -------------------------------------------------------------------------------------


def learner(space: Space, size: int, noise: Any = None, masked: bool = False, **options: Any) -> L2dpMl:
    options = {"model": "mlp-6-5", "normalisation": "neuron", "lr": 0.01, **options}
    made = L2dpMl(**options)
    made.begin(Setting(space, size, noise=noise or InsecureNoise(1), masked=masked))
    return made


def test_every_record_of_every_batch_and_task_gets_the_same_shift() -> None:
    stream = permuted("digits", 3, per_task=100)
    boundary = learner(stream.space, 20).boundary
    chi1 = boundary.draws["chi1"].double()
    shift = chi1 / 20
    assert shift.abs().min().item() > 0
    for task in stream:
        batches = boundary.open(task, 20, torch.Generator().manual_seed(0))
        for index, rows in enumerate(batches.rows):
            raw, y = task.train.unseal().batch(rows)
            batch = boundary.batch(batches, index)
            assert torch.equal(batch.y, y)
            # Within the rounding of single precision at the size of x̄.
            error = (batch.x.double() - (raw.double() + shift)).abs()
            assert bool((error <= 2**-23 * (batch.x.double().abs() + 1)).all())


def test_equal_inputs_become_equal_bit_for_bit() -> None:
    space = Space((6,), ("a", "b"))
    boundary = learner(space, 4).boundary
    row = torch.rand(6)
    x, y = row.expand(12, 6), torch.arange(12) % 2
    seen = []
    for name in ("one", "two"):
        batches = boundary.open(Task.from_tensors(name, (x, y), (x, y)), 4, torch.Generator())
        seen += [boundary.batch(batches, i).x for i in range(len(batches))]
    assert all(bool((part == seen[0][0]).all()) for part in seen)
    assert not torch.allclose(seen[0][0], row)


@pytest.mark.parametrize("model", ["mlp-6-5", "mnist-conv"])
def test_the_hidden_layer_gets_twice_chi2_over_lambda(model: str) -> None:
    space = Space((1, 8, 8), ("a", "b"))
    made = learner(space, 4, noise=Fixed(), model=model)
    seen: list[Tensor] = []
    made.network.hidden.register_forward_hook(lambda _m, given, _o: seen.append(given[0].detach()))
    x, y = torch.rand(8, 1, 8, 8), torch.arange(8) % 2
    batches = made.boundary.open(Task.from_tensors("t", (x, y), (x, y)), 4, torch.Generator())
    for index in range(2):
        batch = made.boundary.batch(batches, index)
        made.boundary.gradient(made.network, batch)
        with torch.no_grad():
            plain = made.network.encoder(batch.x)
        shift = (seen[-1] - plain).double().numpy()
        expected = 2 * made.boundary.draws["chi2"].double().numpy() / 4
        for record in shift:
            np.testing.assert_allclose(record, expected, atol=1e-5)
    assert np.abs(expected).max() > 0.1


def test_noise_is_scaled_by_each_tasks_own_lambda() -> None:
    space = Space((6,), ("a", "b"))
    boundary = learner(space, 10, noise=Fixed()).boundary
    x, y = torch.zeros(10, 6), torch.arange(10) % 2
    task = Task.from_tensors("t", (x, y), (x, y))
    for size in (10, 5, 2):
        batch = boundary.batch(boundary.open(task, size, torch.Generator()), 0)
        np.testing.assert_allclose(batch.x[0].numpy(), boundary.draws["chi1"].numpy() / size, rtol=1e-6)
        assert batch.batch_size == size
    with pytest.raises(BadInput, match="a batch of 11 is larger than the 10"):
        boundary.open(task, 11, torch.Generator())


def test_noise_is_drawn_once_in_a_lifetime() -> None:
    stream = permuted("digits", 3, per_task=60)
    noise = Fixed()
    made = learner(stream.space, 20, noise=noise)
    # χ1 has the shape of an input, χ2 of the first hidden layer, χ3 of the last layer's weights.
    scales, shapes = zip(*noise.asked, strict=True)
    assert shapes == ((1, 8, 8), (6,), (10, 5))
    terms = made.boundary.terms
    assert scales == pytest.approx((64 * 8 / terms.epsilon1, 64 * 8 / terms.epsilon1, 2 * 5 / terms.epsilon2))
    before = {name: draw.clone() for name, draw in made.boundary.draws.items()}
    for task in stream:
        made.learn(task, Plan(6, 20))
        made.scores(torch.zeros(2, 1, 8, 8))
    assert len(noise.asked) == 3
    assert all(torch.equal(before[name], draw) for name, draw in made.boundary.draws.items())

    fresh = learner(stream.space, 20, noise=Fixed(7.0))
    fresh.restore(made.state(), [made.episode(i) for i in range(3)], list(stream))
    assert all(torch.equal(before[name], draw) for name, draw in fresh.boundary.draws.items())
    assert fresh.boundary.episodes == 3


# --- sensitivities ------------------------------------------------------------------------------------------

TEN = tuple(str(i) for i in range(10))
MNIST, CIFAR = Space((1, 28, 28), TEN), Space((3, 32, 32), TEN)


@pytest.mark.parametrize(
    ("model", "space", "reading", "delta_r", "delta_l"),
    [
        # One 5 × 5 patch of one channel, one 14 × 14 feature map.
        ("mnist-conv", MNIST, "patch", 25 * (14 * 14 + 2), 2 * 512),
        ("mnist-conv", MNIST, "literal", 28 * 28 * (32 * 14 * 14 + 2), 2 * 512),
        # One 4 × 4 patch of three channels, one 16 × 16 feature map.
        ("cifar-resnet", CIFAR, "patch", 48 * (16 * 16 + 2), 2 * 256),
        ("cifar-resnet", CIFAR, "literal", 3 * 32 * 32 * (64 * 16 * 16 + 2), 2 * 256),
        ("mlp", MNIST, "patch", 784 * (256 + 2), 2 * 256),
        ("mlp", MNIST, "literal", 784 * (256 + 2), 2 * 256),
    ],
)
def test_sensitivities_of_the_papers_models(model: str, space: Space, reading: str, delta_r: int, delta_l: int) -> None:
    network = build(model, space, 0, "none", bounded=True)
    noise = Fixed()
    boundary = objective(network, space, 2500, noise, sensitivity=reading)
    assert (boundary.delta_r, boundary.delta_l) == (delta_r, delta_l)
    assert boundary.description()["delta_r"] == delta_r
    if (model, reading) == ("mnist-conv", "patch"):
        assert boundary.delta_r == 4950
    assert noise.asked[0] == (pytest.approx(delta_r / boundary.terms.epsilon1), space.shape)
    assert noise.asked[2][0] == pytest.approx(delta_l / boundary.terms.epsilon2)


def test_sensitivities_of_the_authors_code() -> None:
    assert reconstruction_sensitivity(25, 14 * 14) == 4950
    assert reconstruction_sensitivity(48, 14 * 14) == 9504
    assert classification_sensitivity(256) == 512


def corners(size: int) -> list[Array]:
    return [np.array(corner) for corner in itertools.product((-1.0, 1.0), repeat=size)]


@pytest.mark.parametrize(("d", "h1"), [(1, 1), (2, 1), (1, 2), (2, 2), (3, 1)])
def test_delta_r_is_the_sensitivity_of_the_terms_that_the_paper_counts(d: int, h1: int) -> None:
    """½·h_j for each of d outputs and x_s for each input, as if h were free of x: L1, one record replaced."""

    def counted(x: Array, h: Array) -> Array:
        return np.concatenate([*(h / 2 for _ in range(d)), x])

    # The change is convex in each record, so that corners suffice.
    records = [counted(corner[:d], corner[d:]) for corner in corners(d + h1)]
    worst = max(float(np.abs(a - b).sum()) for a in records for b in records)
    assert worst == reconstruction_sensitivity(d, h1)


@pytest.mark.parametrize(("hidden", "classes"), [(1, 2), (2, 2), (2, 3), (3, 2)])
def test_delta_l_is_the_sensitivity_of_the_terms_with_labels(hidden: int, classes: int) -> None:
    """The terms hπ_i·y_k, the only ones that read a label; the others are counted with the hidden layer."""
    records = [np.outer(h, np.eye(classes)[k]) for h in corners(hidden) for k in range(classes)]
    worst = max(float(np.abs(a - b).sum()) for a in records for b in records)
    assert worst == classification_sensitivity(hidden)


@pytest.mark.parametrize("d", [2, 3, 4, 5])
def test_the_true_coefficients_of_one_hidden_unit_move_by_three_d_less_two(d: int) -> None:
    """R̃ = Σ_s θ_s(½ − x_s)·h with h = θᵀx: for θ = −e_1 the coefficients are the products (½ − x_s)·(−x_1)."""
    coefficients = [(0.5 - x) * -x[0] for x in corners(d)]
    worst = max(float(np.abs(a - b).sum()) for a in coefficients for b in coefficients)
    assert worst == 3 * d - 2


def test_violation_one_record_moves_the_true_coefficients_by_14308_where_delta_r_is_4950() -> None:
    """SOUNDNESS §1, point 2, on the shipped boundary, with the noise switched off.

    d = 25 inputs, |h1| = 196 hidden units, all with θ = −e_1, so that h = −x_1. The records (−1, −1, …) and
    (1, −1, …) differ in one value, which turns h from 1 to −1. Each of the 24 other inputs then moves a
    coefficient from (½ + 1)·1 to (½ + 1)·(−1), by 3; the first moves one from 3/2 to (½ − 1)·(−1) = ½, by 1.
    That is 24·3 + 1 = 73 for each hidden unit, and 196·73 = 14,308.
    """
    d, h1 = 25, 196
    space = Space((d,), ("a", "b"))
    network = Network(nn.Linear(d, h1, bias=False), nn.Linear(h1, 2, bias=False))
    with torch.no_grad():
        network.encoder.weight.zero_()
        network.encoder.weight[:, 0] = -1
    boundary = objective(network, space, 1, Fixed(0.0))
    released = []
    for first in (-1.0, 1.0):
        x = -torch.ones(1, d)
        x[0, 0] = first
        y = torch.tensor([0])
        batches = boundary.open(Task.from_tensors("t", (x, y), (x, y)), 1, torch.Generator())
        # The coefficients of R̃ are what the boundary releases as its gradient with respect to θ1.
        released.append(boundary.gradient(network, boundary.batch(batches, 0))[0])
    change = (released[0] - released[1]).abs().sum().item()
    assert change == 14_308
    assert boundary.delta_r == 4_950
    assert change > boundary.delta_r, "were it not, the sensitivity would hold"


# --- the budget ---------------------------------------------------------------------------------------------

epsilons, shares = st.floats(1e-6, 1e3), st.floats(1e-9, 1 - 1e-9)
sensitivities, lots, norms = st.integers(1, 10**8), st.integers(1, 10**6), st.floats(1e-6, 1e6)


@light
@given(epsilons, shares, sensitivities, lots, norms)
def test_four_positive_terms_add_up_to_the_total(
    epsilon: float, share: float, delta_r: int, lot: int, norm: float
) -> None:
    terms = solve(Budget(epsilon), share, delta_r, lot, norm)
    four = [terms.epsilon1, terms.epsilon1_over_gamma_x, terms.epsilon1_over_gamma, terms.epsilon2]
    assert min(four) > 0
    with mpmath.workdps(40):
        exact = mpmath.fsum(mpmath.mpf(term) for term in four)
        assert abs(exact / epsilon - 1) <= 1e-12
        gamma_x = mpmath.mpf(delta_r) / lot
        gamma = 2 * mpmath.mpf(delta_r) / (lot * mpmath.mpf(norm))
        assert abs(terms.epsilon1 / gamma_x / terms.epsilon1_over_gamma_x - 1) < 1e-12
        assert abs(terms.epsilon1 / gamma / terms.epsilon1_over_gamma - 1) < 1e-12
        assert abs(terms.epsilon2 / (mpmath.mpf(share) * epsilon) - 1) < 1e-12
    assert terms.total <= epsilon * (1 + 1e-12)


@light
@given(epsilons, st.floats(1.001, 100), shares, sensitivities, lots, norms)
def test_a_larger_budget_makes_every_term_larger(
    epsilon: float, factor: float, share: float, delta_r: int, lot: int, norm: float
) -> None:
    less, more = (solve(Budget(e), share, delta_r, lot, norm) for e in (epsilon, factor * epsilon))
    for name in ("epsilon1", "epsilon1_over_gamma_x", "epsilon1_over_gamma", "epsilon2"):
        assert getattr(less, name) < getattr(more, name)


def test_a_budget_by_hand() -> None:
    # Δ_R = 4950, λ = 2475, ‖θ1‖ = 6: 1/γx = ½, 1/γ = 2475·6/9900 = 3/2; half of ε = 3 is shared 1 : ½ : 3/2.
    terms = solve(Budget(3.0), 0.5, 4950, 2475, 6.0)
    assert terms.epsilon1 == pytest.approx(0.5)
    assert terms.epsilon1_over_gamma_x == pytest.approx(0.25)
    assert terms.epsilon1_over_gamma == pytest.approx(0.75)
    assert terms.epsilon2 == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budget": Budget(1.0, 1e-5)}, "pure epsilon"),
        *(({"output_share": s}, "output_share must lie between 0 and 1") for s in (0.0, 1.0, -0.5, 2.0, math.nan)),
        *(({"encoder_norm": n}, "norm must be positive and finite") for n in (0.0, -1.0, math.nan, math.inf)),
        ({"output_share": 1e-320, "budget": Budget(1e-10)}, "a term of the budget vanishes"),
        ({"encoder_norm": 1e308, "batch_size": 10**6}, "a term of the budget vanishes"),
    ],
)
def test_budgets_without_meaning_are_refused(change: dict[str, Any], message: str) -> None:
    usual: dict[str, Any] = {
        "budget": Budget(1.0),
        "output_share": 0.5,
        "delta_r": 10,
        "batch_size": 5,
        "encoder_norm": 1.0,
    }
    with pytest.raises(BadInput, match=message):
        solve(**{**usual, **change})


@pytest.mark.parametrize("norm", [0.0, -1.0, math.nan])
def test_a_bad_norm_is_refused_before_anything_is_drawn(norm: float) -> None:
    noise = Fixed()
    with pytest.raises(BadInput, match="norm must be positive"):
        objective(build("mlp-3", FLAT, 0, "none", True), FLAT, 5, noise, encoder_norm=norm)
    assert noise.asked == []


# --- the encoder's norm ---------------------------------------------------------------------------------------


def column_norms(network: Network) -> Array:
    """The 1-norm of every column of θ1: of everything that feeds one hidden feature."""
    weight = network.encoder.get_parameter("weight").detach().double().numpy()
    return np.array([sum(abs(float(v)) for v in feature.ravel()) for feature in weight])


@settings(deadline=None, max_examples=30)
@given(st.floats(0.05, 3.0), st.integers(0, 1000), st.sampled_from(["dense", "conv", "channels last"]))
def test_constrain_bounds_every_column(bound: float, seed: int, kind: str) -> None:
    space = FLAT if kind == "dense" else Space((2, 4, 4), ("a", "b"))

    def make(_: Space) -> Network:
        if kind == "dense":
            return Network(nn.Linear(4, 6, bias=False), nn.Linear(6, 3, bias=False))
        conv = nn.Conv2d(2, 5, 3, padding=1, bias=False)
        if kind == "channels last":
            conv = conv.to(memory_format=torch.channels_last)
        return Network(conv, nn.Sequential(nn.Flatten(), nn.Linear(80, 2)))

    network = build(make, space, seed)
    boundary = objective(network, space, 4, encoder_norm=bound)
    assert column_norms(network).max() <= bound * (1 + 1e-6), "from the start"
    with torch.no_grad():
        for j, feature in enumerate(network.encoder.weight):
            feature *= j  # the first is zero, the last several times its size
    before, norms_before = network.encoder.weight.detach().clone(), column_norms(network)
    boundary.constrain(network)
    after, norms_after = network.encoder.weight.detach().clone(), column_norms(network)
    assert norms_after.max() <= bound * (1 + 1e-6)
    for j, norm in enumerate(norms_before):
        if norm <= bound * (1 - 1e-6):
            assert torch.equal(before[j], after[j])
        else:
            # On the bound, in the same direction.
            assert norms_after[j] == pytest.approx(min(norm, bound), rel=1e-5)
            assert torch.allclose(after[j] / norms_after[j], before[j] / norm, atol=1e-6)
    boundary.constrain(network)
    assert torch.allclose(network.encoder.weight, after, rtol=1e-6, atol=0)


def test_the_bound_is_the_norm_of_the_first_encoder_by_default() -> None:
    network = build("mlp-6-5", FLAT, 3, "none", bounded=True)
    before = network.encoder.weight.detach().clone()
    boundary = objective(network, FLAT, 4)
    assert boundary.encoder_norm == pytest.approx(column_norms(network).max(), rel=1e-6)
    assert torch.allclose(before, network.encoder.weight, rtol=1e-6)


@pytest.mark.parametrize("model", ["mlp-6-5", "mnist-conv"])
def test_the_norm_is_kept_during_training(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = permuted("digits", 2, per_task=60)

    def train() -> list[float]:
        seen: list[float] = []
        made = learner(stream.space, 20, noise=Fixed(), model=model, encoder_lr=0.1)
        for task in stream:
            made.learn(task, Plan(4, 20), lambda: seen.append(column_norms(made.network).max() / bound(made)))
        return seen

    def bound(made: L2dpMl) -> float:
        return made.boundary.encoder_norm

    kept = train()
    assert len(kept) == 8
    assert max(kept) <= 1 + 1e-6
    monkeypatch.setattr(PerturbedObjective, "constrain", lambda self, network: None)
    assert max(train()) > 1.01, "nothing would have exceeded the bound anyway"


# --- batches and memory -----------------------------------------------------------------------------------------


class Watched(Records):
    """Records that write down which rows are opened."""

    def __init__(self, source: Source, rows: Tensor | None = None) -> None:
        super().__init__(source, rows)
        self.opened: list[list[int]] = []

    def batch(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        assert isinstance(index, Tensor)
        self.opened.append(index.tolist())
        return super().batch(index)


def watched(name: str, size: int, space: Space) -> tuple[Task, Watched]:
    generator = torch.Generator().manual_seed(size)
    x = torch.rand(size, *space.shape, generator=generator) * 2 - 1
    y = torch.arange(size) % space.classes
    records = Watched(Source(x, y, name))
    return Task(name, Sealed(records), Records(records.source), tuple(range(space.classes))), records


def test_batches_are_disjoint_and_the_same_in_every_epoch() -> None:
    made = learner(FLAT, 6, noise=Fixed())
    task, records = watched("t", 27, FLAT)
    made.learn(task, Plan(steps=12, batch_size=6))
    # 27 records make four batches: three epochs of them, and one opened again to be remembered.
    assert len(records.opened) == 13
    epochs = [records.opened[start : start + 4] for start in (0, 4, 8)]
    assert epochs[0] == epochs[1] == epochs[2]
    assert sorted(row for rows in epochs[0] for row in rows) == list(range(27))
    assert all(len(rows) >= 6 for rows in epochs[0])
    assert records.opened[12] in epochs[0]


def test_memory_is_one_whole_batch_of_each_task_and_records_are_never_opened_again() -> None:
    made = learner(FLAT, 6, noise=Fixed())
    made_of = [watched(name, size, FLAT) for name, size in (("one", 18), ("two", 24), ("three", 13))]
    for number, (task, records) in enumerate(made_of):
        made.learn(task, Plan(8, 6))
        assert made.boundary.episodes == number + 1
        episode = made.episode(number)
        x, y = Records(records.source).batch(torch.tensor(records.opened[-1]))
        assert torch.equal(episode["y"], y)
        np.testing.assert_allclose(episode["x"].numpy(), x.numpy() + made.boundary.draws["chi1"].numpy() / 6, atol=1e-5)
        assert len(records.opened) == 9
    assert [len(records.opened) for _, records in made_of] == [9, 9, 9], "no task was read after its time"

    kept = [made.episode(i)["x"].data_ptr() for i in range(3)]
    generator = torch.Generator().manual_seed(0)
    recalled = [kept.index(made.boundary.recall(generator).x.data_ptr()) for _ in range(300)]
    # Binomial(300, ⅓): six standard deviations are 49.
    assert all(abs(recalled.count(i) - 100) < 49 for i in range(3))


def test_the_remembered_batch_is_chosen_at_random() -> None:
    chosen = set()
    for seed in range(12):
        made = L2dpMl(model="mlp-3", normalisation="none")
        made.begin(Setting(FLAT, 5, seed=seed, noise=Fixed()))
        task, records = watched("t", 15, FLAT)
        made.learn(task, Plan(3, 5))
        chosen.add(records.opened[:3].index(records.opened[3]))
    assert chosen == {0, 1, 2}


def test_training_replays_only_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    made = learner(FLAT, 6, noise=Fixed())
    used: list[int] = []
    gradient = PerturbedObjective.gradient

    def watching(self: PerturbedObjective, network: Network, batch: PerturbedBatch) -> Any:
        used.append(batch.x.data_ptr())
        return gradient(self, network, batch)

    monkeypatch.setattr(PerturbedObjective, "gradient", watching)
    made.learn(watched("one", 18, FLAT)[0], Plan(5, 6))
    assert len(used) == 5, "the first task has nothing to replay"
    memory = {made.episode(0)["x"].data_ptr()}
    for name in ("two", "three"):
        used.clear()
        made.learn(watched(name, 18, FLAT)[0], Plan(5, 6))
        assert len(used) == 10
        assert set(used[1::2]) <= memory
        memory.add(made.episode(len(memory))["x"].data_ptr())


def test_a_full_batch_is_algorithm_1() -> None:
    sizes = (18, 30, 24)
    made = learner(FLAT, max(sizes), noise=Fixed())
    for number, size in enumerate(sizes):
        task, records = watched(str(number), size, FLAT)
        made.learn(task, Plan(2, size))
        assert [sorted(rows) for rows in records.opened] == [list(range(size))] * 3
        episode = made.episode(number)
        assert len(episode["y"]) == size
        assert int(episode["batch_size"]) == size
        # The noise is that of the whole dataset: χ1/|D|.
        shift = made.boundary.draws["chi1"].numpy() / size
        raw = records.source.x[records.opened[-1]].numpy()
        np.testing.assert_allclose(episode["x"].numpy(), raw + shift, atol=1e-5)


def test_one_step_of_the_learner_by_hand() -> None:
    """θ ← θ − ϱ·g̃ with a learning rate for each part, then the bound: Algorithm 2, lines 11 to 16."""
    made = learner(
        FLAT,
        6,
        noise=Fixed(),
        model="mlp-3-4",
        normalisation="none",
        encoder_norm=50.0,
        lr=0.3,
        encoder_lr=0.02,
        head_lr=0.005,
    )
    made.learn(watched("one", 6, FLAT)[0], Plan(1, 6))
    task, records = watched("two", 6, FLAT)
    before = [p.detach().clone().double() for p in made.network.parameters()]
    boundary = made.boundary
    reference = boundary.recall(torch.Generator())
    g_ref = [g.double() for g in boundary.gradient(made.network, reference)]
    made.learn(task, Plan(1, 6))
    x = records.source.x[records.opened[0]] + boundary.draws["chi1"] / 6
    after = [p.detach().clone().double() for p in made.network.parameters()]
    with torch.no_grad():
        for parameter, value in zip(made.network.parameters(), before, strict=True):
            parameter.copy_(value)
    fresh = PerturbedBatch(x, records.source.y[records.opened[0]], 6, None)
    g = [slope.double() for slope in boundary.gradient(made.network, fresh)]
    product = sum(float((a * b).sum()) for a, b in zip(g, g_ref, strict=True))
    square = sum(float((b * b).sum()) for b in g_ref)
    factor = min(0.0, product / square)
    rates = [0.02, 0.3, 0.3, 0.005]
    for old, new, slope, ref, rate in zip(before, after, g, g_ref, rates, strict=True):
        np.testing.assert_allclose(new.numpy(), (old - rate * (slope - factor * ref)).numpy(), atol=2e-5)


# --- the guarantee ----------------------------------------------------------------------------------------------


def test_the_claim_is_marked_refuted_and_without_true_noise_there_is_none() -> None:
    system = learner(FLAT, 6, noise=SystemNoise(), budget=Budget(0.7)).guarantee
    assert (system.status, system.epsilon, system.delta) == ("refuted", 0.7, 0.0)
    assert (system.unit, system.adjacency) == ("record", "replace")
    assert "refuted" in str(system)
    seeded = learner(FLAT, 6, noise=InsecureNoise(0)).guarantee
    assert (seeded.status, seeded.epsilon) == ("none", None)


def test_a_release_holds_no_draw_and_no_memory() -> None:
    made = learner(FLAT, 6, noise=Fixed())
    made.learn(watched("t", 18, FLAT)[0], Plan(3, 6))
    released = made.release()
    assert set(released) == set(made.network.state_dict())
    secrets = [*made.boundary.draws.values(), made.episode(0)["x"]]
    pointers = {tensor.data_ptr() for tensor in released.values()}
    assert not pointers & {secret.data_ptr() for secret in secrets}
    x = torch.rand(4, 4)
    made.network.eval()
    with torch.no_grad():
        plain = made.network(x)
        noisy = made.network.encoder(x + made.boundary.draws["chi1"] / 6) + 2 * made.boundary.draws["chi2"] / 6
        tested = made.network.classifier(made.network.hidden(noisy))
    made.network.train()
    assert torch.allclose(made.released_scores(x), plain, atol=1e-5)
    assert torch.allclose(made.scores(x), tested, atol=1e-4)
    assert not torch.allclose(plain, tested, atol=1e-3)
