"""The networks are the paper's, layer by layer, and a network of one's own works as well."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from l2dp.errors import BadInput
from l2dp.learners import Agem, L2dpMl, Learner, Plan, Setting
from l2dp.models import Network, build
from l2dp.noise import InsecureNoise
from l2dp.streams import Space, Task

TEN = tuple(str(i) for i in range(10))
MNIST, CIFAR, HAR = Space((1, 28, 28), TEN), Space((3, 32, 32), TEN), Space((3, 100), TEN[:5])
PAPER = {"mnist-conv": MNIST, "cifar-resnet": CIFAR, "har-conv": HAR, "mlp": MNIST}
NORMALISATIONS = ("none", "channel", "neuron", "group")


def inputs(space: Space, count: int = 4, seed: int = 0, reach: float = 1.0) -> Tensor:
    return (2 * torch.rand(count, *space.shape, generator=torch.Generator().manual_seed(seed)) - 1) * reach


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def convolutions(network: Network) -> list[tuple[int, int, tuple[int, ...], tuple[int, ...]]]:
    found = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    return [(m.in_channels, m.out_channels, m.kernel_size, m.stride) for m in found]


def denses(network: Network) -> list[tuple[int, int]]:
    return [(m.in_features, m.out_features) for m in network.modules() if isinstance(m, nn.Linear)]


# --- the paper's architectures ------------------------------------------------------------------------


def test_mnist_conv() -> None:
    network = build("mnist-conv", MNIST, 0, "none")
    five, two = (5, 5), (2, 2)
    assert convolutions(network) == [(1, 32, five, two), (32, 64, five, two), (64, 96, five, two)]
    # Stride 2 with padding 2: 28 → 14 → 7 → 4.
    assert network.encoder(inputs(MNIST)).shape == (4, 32, 14, 14)
    assert denses(network) == [(96 * 4 * 4, 512), (512, 10)]
    first = 5 * 5 * 1 * 32  # the encoder has no bias
    second, third = 5 * 5 * 32 * 64 + 64, 5 * 5 * 64 * 96 + 96
    dense, head = 1536 * 512 + 512, 512 * 10 + 10
    assert count(network) == first + second + third + dense + head == 997_834
    assert network(inputs(MNIST)).shape == (4, 10)


def test_har_conv() -> None:
    network = build("har-conv", HAR, 0, "none")
    two = (2, 2)
    assert convolutions(network) == [(1, 32, two, two), (32, 64, two, two), (64, 96, two, two)]
    # A window is a 3 × 100 image of one channel; with padding 1: 3 → 2 → 2 → 2 and 100 → 51 → 26 → 14.
    assert network.encoder(inputs(HAR)).shape == (4, 32, 2, 51)
    assert denses(network) == [(96 * 2 * 14, 128), (128, 5)]
    assert count(network) == 4 * 32 + (4 * 32 * 64 + 64) + (4 * 64 * 96 + 96) + (2688 * 128 + 128) + (128 * 5 + 5)
    assert network(inputs(HAR)).shape == (4, 5)


def test_cifar_resnet() -> None:
    network = build("cifar-resnet", CIFAR, 0, "none")
    found = convolutions(network)
    assert found[0] == (3, 64, (4, 4), (2, 2))
    body = [c for c in found[1:] if c[2] == (3, 3)]
    assert [c[1] for c in body] == [64] * 4 + [128] * 4 + [128] * 4 + [160] * 4
    # ResNet-18: an encoder, eight blocks of two convolutions, and a classifier on top.
    assert len(body) == 16
    assert denses(network) == [(160, 256), (256, 10)]

    def conv3(a: int, b: int) -> int:
        return 9 * a * b + b

    stages = 4 * conv3(64, 64)
    stages += conv3(64, 128) + 64 * 128 + 3 * conv3(128, 128)
    stages += 4 * conv3(128, 128)
    stages += conv3(128, 160) + 128 * 160 + 3 * conv3(160, 160)
    assert count(network) == 16 * 3 * 64 + stages + (160 * 256 + 256) + (256 * 10 + 10)
    assert network.encoder(inputs(CIFAR, 1)).shape == (1, 64, 16, 16)
    assert network(inputs(CIFAR, 2)).shape == (2, 10)


def test_mlp() -> None:
    # 784-256-256-10, the network of A-GEM's own paper; the encoder is its first layer, without a bias.
    network = build("mlp", MNIST, 0, "none")
    assert denses(network) == [(784, 256), (256, 256), (256, 10)]
    assert count(network) == 784 * 256 + (256 * 256 + 256) + (256 * 10 + 10)
    assert denses(build("mlp-7", MNIST, 0, "none")) == [(784, 7), (7, 10)]
    assert denses(build("mlp-7-5-3", HAR, 0, "none")) == [(300, 7), (7, 5), (5, 3), (3, 5)]


@pytest.mark.parametrize("name", PAPER)
def test_the_head_of_a_bounded_network_has_no_bias(name: str) -> None:
    """L̃ is a function of hπ·Wπ alone."""
    network = build(name, PAPER[name], 0, "none", bounded=True)
    assert network.head.bias is None
    assert network.head.out_features == PAPER[name].classes
    assert getattr(network.encoder, "bias", 0) is None


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@pytest.mark.parametrize("name", PAPER)
def test_bounded_layers_lie_between_minus_one_and_one(name: str, normalisation: Any) -> None:
    space = PAPER[name]
    seen: dict[str, Tensor] = {}
    for bounded in (True, False):
        network = build(name, space, 0, normalisation, bounded=bounded)
        network.hidden.register_forward_hook(lambda _m, _i, out: seen.update(h1=out.detach()))
        network.head.register_forward_pre_hook(lambda _m, given: seen.update(last=given[0].detach()))
        network(inputs(space, 3, reach=1e4))
        largest = {layer: float(values.abs().max()) for layer, values in seen.items()}
        if bounded:
            assert largest["h1"] <= 1
            assert largest["last"] <= 1
        else:
            assert largest["h1"] > 1, "the bound was never put to the test"


@pytest.mark.parametrize("normalisation", ["channel", "neuron"])
@pytest.mark.parametrize("name", ["mnist-conv", "har-conv", "mlp-9"])
def test_at_test_time_normalisation_uses_running_statistics(name: str, normalisation: Any) -> None:
    space = PAPER.get(name, MNIST)
    network = build(name, space, 0, normalisation)
    x = inputs(space, 6)
    for seed in range(3):
        network(inputs(space, 6, seed))
    together = network(x)[:2]
    assert not torch.allclose(together, network(x[:2]), atol=1e-4), "in training the batch decides"
    network.eval()
    # By itself or in company, a record gets the same scores; and the statistics of training are the ones used.
    assert torch.allclose(network(x)[:2], network(x[:2]), atol=1e-5)
    norm = next(m for m in network.hidden.modules() if hasattr(m, "running_mean"))
    assert not torch.equal(norm.running_mean, torch.zeros_like(norm.running_mean))
    h = torch.relu(network.encoder(x)).detach().double().numpy()
    mean, variance = (getattr(norm, key).double().numpy() for key in ("running_mean", "running_var"))
    if h.ndim == 4 and normalisation == "channel":
        mean, variance = mean[:, None, None], variance[:, None, None]
    elif h.ndim == 4:  # one statistic for each neuron, channels last
        mean, variance = (v.reshape(h.shape[2], h.shape[3], h.shape[1]).transpose(2, 0, 1) for v in (mean, variance))
    expected = (h - mean) / np.sqrt(variance + norm.eps)
    np.testing.assert_allclose(network.hidden(network.encoder(x)).detach().numpy(), expected, atol=1e-4)


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_maps_of_one_pixel_are_normalised_too(normalisation: Any) -> None:
    """8×8 images leave the last convolution as one pixel."""
    space = Space((1, 8, 8), MNIST.labels)
    scores = build("mnist-conv", space, 0, normalisation)(inputs(space, 5))
    assert scores.shape == (5, len(MNIST.labels))
    assert bool(scores.isfinite().all())


@pytest.mark.parametrize("name", ["mnist-conv", "mlp-32", "cifar-resnet"])
@pytest.mark.parametrize("normalisation", ["none", "group"])
def test_without_batch_statistics_records_do_not_meet(name: str, normalisation: Any) -> None:
    """What per-example gradients need: the scores of a record do not depend on the others, in training either."""
    space = PAPER.get(name, MNIST)
    network = build(name, space, 0, normalisation)
    x = inputs(space, 3)
    assert torch.allclose(network(x)[:1], network(x[:1]), atol=1e-5)


def test_per_neuron_statistics_are_those_of_each_neuron() -> None:
    network = build("mnist-conv", MNIST, 0, "neuron")
    x = inputs(MNIST, 8)
    h = torch.relu(network.encoder(x)).detach().double().numpy()
    expected = (h - h.mean(axis=0)) / np.sqrt(h.var(axis=0) + 1e-5)
    np.testing.assert_allclose(network.hidden(network.encoder(x)).detach().numpy(), expected, atol=1e-3)


# --- decoding -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "space"),
    [
        *PAPER.items(),
        ("mlp", HAR),
        ("mlp-5", Space((6,), TEN)),
        ("mnist-conv", CIFAR),
        ("mnist-conv", Space((1, 8, 8), TEN)),
        ("har-conv", Space((2, 7, 9), TEN)),
        ("cifar-resnet", Space((1, 9, 13), TEN)),
    ],
)
def test_the_reconstruction_has_the_shape_of_the_input(name: str, space: Space) -> None:
    network = build(name, space, 0, "none", bounded=True)
    x = inputs(space, 3)
    assert network.decode(network.hidden(network.encoder(x)), x.shape).shape == x.shape


@settings(deadline=None, max_examples=10)
@given(st.sampled_from([*PAPER]), st.floats(-3, 3), st.integers(0, 1000))
def test_decoding_is_linear(name: str, factor: float, seed: int) -> None:
    space = PAPER[name]
    network = build(name, space, 0, "none", bounded=True).double()
    x = inputs(space, 1).double()
    shape = network.encoder(x).shape
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    together = network.decode(a + factor * b, x.shape)
    apart = network.decode(a, x.shape) + factor * network.decode(b, x.shape)
    assert torch.allclose(together, apart, atol=1e-9)
    assert not torch.allclose(apart, torch.zeros_like(apart))


def looped_decode(weight: np.ndarray[Any, Any], h: np.ndarray[Any, Any], size: tuple[int, int]) -> np.ndarray[Any, Any]:
    """Nearest upsampling, then the transposed filters with their taps reversed, smaller half first."""
    features, channels, rows, columns = weight.shape
    high, wide = size
    out = np.zeros((len(h), channels, high, wide))
    for n in range(len(h)):
        for c in range(channels):
            for i in range(high):
                for j in range(wide):
                    for a in range(rows):
                        for b in range(columns):
                            p, q = i + a - (rows - 1) // 2, j + b - (columns - 1) // 2
                            if not (0 <= p < high and 0 <= q < wide):
                                continue
                            u, v = p * h.shape[2] // high, q * h.shape[3] // wide
                            for f in range(features):
                                out[n, c, i, j] += weight[f, c, rows - 1 - a, columns - 1 - b] * h[n, f, u, v]
    return out


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(5, 2, 2), (4, 2, 1), (2, 2, 1), (3, 1, 1), ((2, 3), 2, 1)])
def test_decoding_a_convolution_matches_loops(kernel: Any, stride: int, padding: int) -> None:
    torch.manual_seed(0)
    encoder = nn.Conv2d(2, 3, kernel, stride, padding, bias=False).double()
    network = Network(encoder, nn.Linear(1, 1))
    x = torch.randn(2, 2, 6, 7, dtype=torch.float64)
    h = torch.randn_like(encoder(x))
    expected = looped_decode(encoder.weight.detach().numpy(), h.numpy(), (6, 7))
    np.testing.assert_allclose(network.decode(h, x.shape).detach().numpy(), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "size", "fast"),
    [
        (5, 2, 2, (6, 8), True),
        (4, 2, 1, (6, 8), True),
        (2, 2, 0, (6, 8), True),
        (3, 1, 1, (5, 7), True),
        ((2, 3), (2, 1), (0, 1), (6, 7), True),
        (3, 3, 0, (6, 9), True),
        (5, 2, 2, (5, 8), False),
        (2, 2, 1, (6, 8), False),
    ],
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_inner_product_with_a_reconstruction_matches_loops(
    kernel: Any,
    stride: Any,
    padding: Any,
    size: tuple[int, int],
    fast: bool,
    layout: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    encoder = nn.Conv2d(2, 3, kernel, stride, padding, bias=False).double().to(memory_format=layout)
    network = Network(encoder, nn.Linear(1, 1))
    e = torch.randn(2, 2, *size, dtype=torch.float64)
    h = torch.randn_like(encoder(e)).requires_grad_()
    decoded = looped_decode(encoder.weight.detach().numpy(), h.detach().numpy(), size)
    if fast:
        monkeypatch.setattr(network, "decode", None)  # not called where the stride divides the size
    product = network.inner_with_decoded(e, h)
    assert product.item() == pytest.approx(float((e.numpy() * decoded).sum()), rel=1e-10)
    # It is linear in θ1 and in h, each of which it therefore gives back from its own gradient.
    slopes = torch.autograd.grad(product, [encoder.weight, h])
    for slope, of in zip(slopes, (encoder.weight, h), strict=True):
        assert (slope * of).sum().item() == pytest.approx(product.item(), rel=1e-10)


@pytest.mark.parametrize("encoder", [nn.Linear(6, 4), nn.Conv2d(2, 3, 3, 1, 1), nn.Conv2d(2, 3, 5, 1, 2)])
def test_without_a_stride_decoding_is_the_adjoint_of_encoding(encoder: nn.Linear | nn.Conv2d) -> None:
    """⟨θ1ᵀx, h⟩ = ⟨x, θ1 h⟩."""
    encoder.bias = None
    network = Network(encoder.double(), nn.Linear(1, 1))
    generator = torch.Generator().manual_seed(1)
    shape = (3, 6) if isinstance(encoder, nn.Linear) else (3, 2, 5, 7)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    code = encoder(x)
    h = torch.randn(code.shape, generator=generator, dtype=torch.float64)
    there, back = (code * h).sum().item(), (x * network.decode(h, x.shape)).sum().item()
    assert there == pytest.approx(back, rel=1e-12)


def test_the_encoder_as_a_matrix_has_one_column_for_each_feature() -> None:
    conv = build("mnist-conv", MNIST, 0)
    assert conv.encoder_weight().shape == (25, 32)
    assert torch.equal(conv.encoder_weight()[:, 3], conv.encoder.weight[3].flatten())
    assert build("cifar-resnet", CIFAR, 0).encoder_weight().shape == (48, 64)
    assert build("mlp-7", MNIST, 0).encoder_weight().shape == (784, 7)


# --- building -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mnist-conv", "mlp-5"])
def test_equal_seeds_give_equal_weights_and_disturb_nobody(name: str) -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    a, b, c = (build(name, MNIST, seed).state_dict() for seed in (3, 3, 4))
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(5)  # nor does anybody else's use of the generator matter
    d = build(name, MNIST, 3).state_dict()
    assert all(torch.equal(a[key], b[key]) and torch.equal(a[key], d[key]) for key in a)
    assert not any(torch.equal(a[key], c[key]) for key in a)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("mnist_conv", "mnist-conv"), ("cifar-resnt", "cifar-resnet"), ("mpl", "mlp"), ("harconv", "har-conv")],
)
def test_a_mistyped_model_suggests_the_nearest(name: str, meant: str) -> None:
    with pytest.raises(BadInput, match=f"unknown model '{name}'; did you mean '{meant}'"):
        build(name, MNIST, 0)


@pytest.mark.parametrize("name", ["transformer", "", "mlp-0", "mlp-", "mlp-5-x", "mlp--5", "mlp-999999"])
def test_other_unknown_models_are_refused(name: str) -> None:
    with pytest.raises(BadInput, match="unknown model"):
        build(name, MNIST, 0)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("mnist-conv", (784,)),
        ("har-conv", (300,)),
        ("cifar-resnet", (3072,)),
        ("cifar-resnet", (3, 7, 32)),
        ("mnist-conv", (2, 3, 4, 5)),
    ],
)
def test_inputs_that_a_model_cannot_take_are_refused(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(BadInput, match=f"{name} needs .*try --model mlp"):
        build(name, Space(shape, TEN), 0)


# --- a network of one's own -----------------------------------------------------------------------------


def own_dense(space: Space) -> Network:
    return Network(nn.Linear(6, 5), nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, space.classes)))


def own_conv(space: Space) -> Network:
    encoder = nn.Conv2d(2, 3, 3, padding=1, bias=False).to(memory_format=torch.channels_last)
    return Network(encoder, nn.Sequential(nn.Flatten(), nn.Linear(3 * 16, space.classes)))


@pytest.mark.parametrize("make", [own_dense, own_conv])
@pytest.mark.parametrize("cls", [Agem, L2dpMl])
def test_a_pair_of_ones_own_modules_learns(cls: type[Learner], make: Any) -> None:
    space = Space((6,) if make is own_dense else (2, 4, 4), ("a", "b", "c"))
    tasks = []
    for seed in (0, 1):
        x, y = inputs(space, 30, seed), torch.arange(30) % 3
        tasks.append(Task.from_tensors(f"task {seed}", (x, y), (x, y)))
    learner = cls(model=make, lr=0.01)  # type: ignore[call-arg]
    learner.begin(Setting(space, 10, seed=2, noise=InsecureNoise(0)))
    before = {key: value.clone() for key, value in learner.release().items()}
    for task in tasks:
        learner.learn(task, Plan(6, 10))
    after = learner.release()
    assert all(bool(value.isfinite().all()) for value in after.values())
    moved = {key for key in before if not torch.equal(before[key], after[key])}
    # L2DP-ML trains the encoder on the reconstruction θ1·h alone, in which a bias has no part.
    assert set(before) - moved <= ({"encoder.bias"} if cls is L2dpMl else set())
    assert learner.scores(inputs(space, 5)).shape == (5, 3)


def test_the_hidden_layer_of_ones_own_network_is_bounded_by_default() -> None:
    network = own_dense(Space((6,), ("a", "b")))
    h = network.hidden(network.encoder(inputs(Space((6,), ()), 20, reach=100.0)))
    assert h.abs().max().item() == 1.0


def test_what_cannot_be_an_auto_encoder_is_refused_by_name() -> None:
    network = Network(nn.Sequential(nn.Flatten(), nn.Linear(6, 5)), nn.Linear(5, 2))
    with pytest.raises(BadInput, match=r"must be nn.Linear or nn.Conv2d, not Sequential"):
        network.encoder_weight()
    with pytest.raises(BadInput, match=r"must be nn.Linear or nn.Conv2d, not Sequential"):
        network.decode(torch.zeros(1, 5), torch.Size((1, 6)))
    with pytest.raises(BadInput, match=r"no nn.Linear layer"):
        _ = Network(nn.Linear(6, 5), nn.ReLU()).head


def test_the_last_dense_layer_is_the_head() -> None:
    network = own_dense(Space((6,), ("a", "b")))
    assert network.head is network.classifier[-1]
    assert math.prod(network.head.weight.shape) == 8
