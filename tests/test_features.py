"""Feature maps are fixed functions of one input with rows of norm 1; the cache changes nothing and tells nobody."""

from __future__ import annotations

import hashlib
import math
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from l2dp.durable import read_tensors
from l2dp.errors import BadInput
from l2dp.features import Encoder, FeatureMap, Projected, RandomLift, build, efficientnet
from l2dp.features.maps import unit

MAPS: dict[str, tuple[int, ...]] = {"pixels": (1, 8, 8), "hog": (1, 28, 28), "spectrum": (3, 32)}


def inputs(shape: tuple[int, ...], count: int = 12) -> Tensor:
    """Noise, constants of every brightness, and one bright dot."""
    x = torch.rand(count, *shape, generator=torch.Generator().manual_seed(len(shape))) * 2 - 1
    for row, value in enumerate((-1.0, 0.0, 1.0, 0.3)):
        x[row] = value
    x[4] = -1.0
    x[4].view(-1)[x[4].numel() // 2] = 1.0
    return x


def made(name: str) -> tuple[FeatureMap, Tensor]:
    return build(name, MAPS[name]), inputs(MAPS[name])


def check_rows(rows: Tensor, width: int, x: Tensor) -> None:
    assert rows.shape == (len(x), width)
    assert rows.dtype == torch.float32
    assert bool(rows.isfinite().all())
    lengths = rows.norm(dim=1)
    assert bool(((lengths - 1).abs() < 5e-5).logical_or(lengths == 0).all()), "norm 1, or nothing to see"
    assert bool((lengths[5:] > 0).all()), "what varies is seen"


# --- maps -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAPS)
def test_rows_have_norm_one_and_depend_on_their_own_input_alone(name: str) -> None:
    feature_map, x = made(name)
    kept = x.clone()
    rows = Encoder(feature_map)(x)
    check_rows(rows, feature_map.width, x)
    assert torch.equal(x, kept), "the input is left alone"
    for row in range(len(x)):
        assert torch.allclose(Encoder(feature_map)(x[row : row + 1])[0], rows[row], atol=1e-6)
    assert torch.equal(Encoder(build(name, MAPS[name]))(x), rows), "the same whenever it is made"
    other = x.clone()
    other[7] = inputs(MAPS[name])[8]
    keep = torch.arange(len(x)) != 7
    assert torch.equal(Encoder(feature_map)(other)[keep], rows[keep])
    assert not torch.equal(Encoder(feature_map)(other)[7], rows[7])


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *(("hog", shape) for shape in ((7, 7), (1, 7, 9), (1, 8, 8), (3, 32, 32), (1, 28, 28), (12, 40), (2, 15, 31))),
        *(("spectrum", shape) for shape in ((1, 8), (3, 9), (9, 128), (2, 33))),
        *(("pixels", shape) for shape in ((1,), (5,), (2, 3, 4))),
    ],
)
def test_the_width_is_as_stated_for_every_shape(name: str, shape: tuple[int, ...]) -> None:
    feature_map = build(name, shape)
    check_rows(feature_map.finish(feature_map(inputs(shape))), feature_map.width, inputs(shape))


def test_pixels_are_silent_where_an_image_is_dark() -> None:
    rows = build("pixels", (4,))(torch.tensor([[-1.0, -1.0, 1.0, -1.0], [-1.0] * 4, [0.0] * 4]))
    assert torch.allclose(rows, torch.tensor([[0.0, 0.0, 1.0, 0.0], [0.0] * 4, [0.5] * 4]))


def test_oriented_gradients_tell_directions_and_ignore_brightness() -> None:
    hog = build("hog", (1, 28, 28))
    ramp = torch.linspace(-0.5, 0.5, 28).expand(28, 28)
    across, down = (hog(image.reshape(1, 1, 28, 28))[0] for image in (ramp, ramp.T.contiguous()))
    assert float(across @ down) < 0.5
    brighter = hog((ramp + 0.3).reshape(1, 1, 28, 28))[0]
    assert torch.allclose(across, brighter, atol=1e-3)
    bins = across.view(hog.width // 25, 25).sum(1)  # directions x cells
    assert int(bins.argmax()) == 0, "a ramp to the right points along the first direction"


def test_a_spectrum_tells_rates_and_ignores_when_a_window_begins() -> None:
    spectrum = build("spectrum", (1, 64))
    t = torch.arange(64) / 64

    def wave(rate: int, phase: float) -> Tensor:
        return spectrum(0.5 * torch.sin(2 * math.pi * (rate * t + phase)).view(1, 1, 64))[0]

    assert torch.allclose(wave(5, 0.0), wave(5, 0.3), atol=0.05)
    assert float(wave(5, 0.0) @ wave(9, 0.0)) < float(wave(5, 0.0) @ wave(5, 0.3)) - 0.1


def test_a_projection_keeps_angles_and_its_seed_is_public() -> None:
    pixels = build("pixels", (1, 28, 28))
    x = torch.rand(50, 1, 28, 28, generator=torch.Generator().manual_seed(0)) * 2 - 1
    whole = pixels(x)
    projected = Projected(pixels, 300)
    rows = projected.finish(projected(x))
    check_rows(rows, 300, x)
    assert torch.equal(rows, Projected(pixels, 300).finish(whole))
    same = Projected(pixels, 784)
    assert torch.allclose(same.finish(whole) @ same.finish(whole).T, whole @ whole.T, atol=1e-4)
    for width in (0, 785, -1):
        with pytest.raises(BadInput, match="cannot project 784"):
            Projected(pixels, width)


def test_random_features_approximate_their_kernel() -> None:
    """The arc-cosine kernel of degree 1 (Cho and Saul 2009), less the mean, at norm 1."""
    rows = unit(torch.randn(6, 20, generator=torch.Generator().manual_seed(0)))
    lift = RandomLift(20, 20_000)
    lifted = lift(rows)
    check_rows(lifted, 20_000, rows)
    angle = (rows @ rows.T).clamp(-1, 1).arccos()
    kernel = (angle.sin() + (math.pi - angle) * angle.cos()) / (2 * math.pi) - 1 / (2 * math.pi)
    kernel = kernel / kernel.diagonal().mean()
    assert torch.allclose(lifted @ lifted.T, kernel, atol=0.06)
    assert torch.equal(RandomLift(20, 20_000)(rows), lifted), "the seed is public"
    assert torch.allclose(lift(rows * 7), lifted, atol=1e-6)


def test_rows_of_zeros_stay_and_others_get_norm_one() -> None:
    rows = unit(torch.tensor([[3.0, 4.0], [0.0, 0.0], [1e-4, 0.0]]))
    assert torch.allclose(rows, torch.tensor([[0.6, 0.8], [0.0, 0.0], [1.0, 0.0]]))


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("pixel", (4,), "did you mean 'pixels'"),
        ("nothing like it", (4,), "choose from"),
        ("hog", (1, 6, 28), "at least 7x7"),
        ("hog", (40,), "at least 7x7"),
        ("spectrum", (3, 7), "channels x samples"),
        ("spectrum", (1, 8, 8), "channels x samples"),
        ("efficientnet-lite0-100", (3, 32, 32), "must be 32, 64"),
        ("efficientnet-lite0-96", (1, 28, 28), "colour images"),
        ("efficientnet-lite0-", (3, 32, 32), "unknown features"),
        ("efficientnet-lite1-96", (3, 32, 32), "did you mean"),
    ],
)
def test_what_cannot_be_built_is_refused(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        build(name, shape)


@pytest.mark.parametrize("size", ["0", "²"])
def test_sizes_that_are_none_are_refused(size: str) -> None:
    with pytest.raises(BadInput):
        build(f"efficientnet-lite0-{size}", (3, 32, 32))


# --- the cache ------------------------------------------------------------------------------------------


class Costly:
    """A map that counts how often it is asked."""

    name, width, costly = "costly-test", 5, True

    def __init__(self) -> None:
        self.encoded = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.encoded += len(x)
        return x.flatten(1)[:, :5] * math.pi

    def finish(self, encoded: Tensor) -> Tensor:
        return unit(encoded)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("L2DP_FEATURES", str(tmp_path / "features"))
    return tmp_path / "features"


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def encoded(x: Tensor) -> tuple[Tensor, int]:
    costly = Costly()
    return Encoder(costly)(x), costly.encoded


def test_the_cache_gives_the_same_bits_and_asks_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(2300, 7, generator=torch.Generator().manual_seed(0)) * 2 - 1
    first, asked = encoded(x)
    assert asked == 2300
    assert len(files(folder)) == 3
    second, asked = encoded(x)
    assert asked == 0
    assert torch.equal(first, second)
    monkeypatch.setenv("L2DP_FEATURES", "off")
    plain, asked = encoded(x)
    assert asked == 2300
    assert torch.equal(first, plain), "with and without the cache, to the last bit"
    assert len(files(folder)) == 3
    assert first.dtype == torch.float32
    assert torch.allclose(first, unit(x[:, :5]), atol=2e-3)


def test_other_inputs_shapes_and_maps_are_other_entries(folder: Path) -> None:
    x = torch.rand(4, 6, generator=torch.Generator().manual_seed(0))
    encoded(x)
    assert encoded(x + 1e-7)[1] == 4
    assert encoded(x.view(4, 3, 2))[1] == 4, "the same bytes in another shape"
    assert encoded(x[:3])[1] == 3
    other = Costly()
    other.name = "costly-other"
    Encoder(other)(x)
    assert other.encoded == 4
    assert encoded(x.t().contiguous().t())[1] == 0, "the same values however they lie"


def test_the_entries_are_for_their_owner_alone(folder: Path) -> None:
    encoded(torch.rand(3, 6))
    (path,) = files(folder)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [cut, flip, empty], ids=lambda f: f.__name__)
def test_a_damaged_entry_is_made_again(folder: Path, damage: Callable[[Path], None]) -> None:
    x = torch.rand(3, 6, generator=torch.Generator().manual_seed(0))
    first, _ = encoded(x)
    (path,) = files(folder)
    damage(path)
    again, asked = encoded(x)
    assert asked == 3
    assert torch.equal(first, again)
    read_tensors(path)
    assert encoded(x)[1] == 0


def test_a_disk_that_cannot_be_written_makes_it_slower_and_not_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("L2DP_FEATURES", str(tmp_path / "file"))
    x = torch.rand(3, 6, generator=torch.Generator().manual_seed(0))
    first, second = encoded(x), encoded(x)
    assert first[1] == second[1] == 3
    assert torch.equal(first[0], second[0])


def test_cheap_maps_keep_nothing(folder: Path) -> None:
    for name in MAPS:
        feature_map, x = made(name)
        Encoder(feature_map)(x)
        Encoder(Projected(feature_map, 3))(x)
    assert not folder.exists()


def test_a_projection_of_a_costly_map_shares_its_entries(folder: Path) -> None:
    x = torch.rand(3, 6, generator=torch.Generator().manual_seed(0))
    whole, _ = encoded(x)
    costly = Costly()
    narrow = Encoder(Projected(costly, 2))(x)
    assert costly.encoded == 0
    assert narrow.shape == (3, 2)
    assert torch.allclose(narrow, unit(whole @ Projected(costly, 2).directions), atol=1e-6)


# --- the public encoder ---------------------------------------------------------------------------------


def installed() -> Path:
    pytest.importorskip(efficientnet.PACKAGE)
    return efficientnet.weight_file()


@pytest.fixture(scope="module")
def loaded() -> dict[str, Tensor]:
    found: dict[str, Tensor] = torch.load(installed(), weights_only=True)
    return found


def test_the_weights_are_what_torch_reads(loaded: dict[str, Tensor]) -> None:
    flat = efficientnet.read_weights(installed())
    floats = {name: tensor for name, tensor in loaded.items() if tensor.is_floating_point()}
    assert flat.keys() == floats.keys()
    shapes = efficientnet._shapes(efficientnet.EfficientNetLite0())
    assert set(floats) - set(shapes) == {"_fc.weight", "_fc.bias"}, "the classifier of the encoder's own task"
    for name, shape in shapes.items():
        assert torch.equal(efficientnet._shaped(flat[name], shape), floats[name]), name


def reference(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """The network again, step by step from its description: nothing folded, everything functional."""

    def same(x: Tensor, kernel: int, stride: int) -> Tensor:
        """TensorFlow's padding: as much as the output needs, the odd one at the end."""
        pads = []
        for size in (x.shape[3], x.shape[2]):
            total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
            pads += [total // 2, total - total // 2]
        return F.pad(x, pads)

    def layer(x: Tensor, conv: str, norm: str, stride: int = 1, active: bool = True) -> Tensor:
        weight = weights[f"{conv}.weight"]
        groups = x.shape[1] // weight.shape[1]
        x = F.conv2d(same(x, weight.shape[2], stride), weight, stride=stride, groups=groups)
        parts = [weights[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
        x = F.batch_norm(x, *parts, eps=1e-3)
        return x.clamp(0, 6) if active else x

    x = layer(((x + 1) * 127.5 - 127) / 128, "_conv_stem", "_bn0", 2)
    index = 0
    for repeats, stride in ((1, 1), (2, 2), (2, 2), (3, 2), (3, 1), (4, 2), (1, 1)):
        for repeat in range(repeats):
            name, before = f"_blocks.{index}", x
            if f"{name}._expand_conv.weight" in weights:
                x = layer(x, f"{name}._expand_conv", f"{name}._bn0")
            x = layer(x, f"{name}._depthwise_conv", f"{name}._bn1", stride if repeat == 0 else 1)
            x = layer(x, f"{name}._project_conv", f"{name}._bn2", active=False)
            x = x + before if repeat else x
            index += 1
    return layer(x, "_conv_head", "_bn1").mean((2, 3))


def test_the_encoder_is_the_network_that_it_says(loaded: dict[str, Tensor]) -> None:
    for size in (64, 96):
        x = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(size)) * 2 - 1
        with torch.no_grad():
            found, expected = efficientnet.pretrained()(x), reference(loaded, x)
        assert found.shape == (2, 1280)
        assert float(expected.abs().max()) > 0.1
        assert torch.allclose(found, expected, atol=1e-4)


def test_encoded_pictures_have_norm_one_and_are_kept(folder: Path) -> None:
    installed()
    feature_map: Any = build("efficientnet-lite0-32", (3, 16, 16))
    x = inputs((3, 16, 16), 7)
    rows = Encoder(feature_map)(x)
    check_rows(rows, 1280, x)
    assert len(files(folder)) == 1
    assert torch.equal(Encoder(feature_map)(x), rows)
    assert not any(p.requires_grad for p in feature_map.network.parameters())


def test_a_file_of_another_checksum_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / efficientnet.PACKAGE
    path = package / efficientnet.FILE
    path.parent.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.delitem(sys.modules, efficientnet.PACKAGE, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(BadInput, match="missing or not the file"):
        efficientnet.weight_file()
    path.write_bytes(b"weights")
    with pytest.raises(BadInput, match="missing or not the file"):
        efficientnet.weight_file()
    monkeypatch.setattr(efficientnet, "SHA256", hashlib.sha256(b"weights").hexdigest())
    assert efficientnet.weight_file() == path


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(efficientnet, "PACKAGE", "no_such_package_of_weights")
    with pytest.raises(BadInput, match="no-such-package-of-weights"):
        efficientnet.weight_file()
