"""The paper's baselines for windows, and the map of motion: shapes, statistics with known answers, learning."""

from __future__ import annotations

import pytest
import torch

from l2dp import activity_models
from l2dp.errors import BadInput
from l2dp.features import build as build_map
from l2dp.models import build
from l2dp.streams.records import Space

SPACE = Space((3, 100), ("a", "b", "c", "d", "e"))


@pytest.mark.parametrize("name", activity_models.NAMES)
def test_every_model_gives_scores_and_equal_seeds_give_equal_weights(name):
    x = torch.rand(4, 3, 100, generator=torch.Generator().manual_seed(0)) * 2 - 1
    one, same, other = (build(name, SPACE, seed)(x) for seed in (0, 0, 1))
    assert one.shape == (4, 5)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("name", ["har-cnn-32", "har-bilstm"])
def test_models_learn_to_tell_fast_from_slow(name):
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(40) % 2
    seconds = torch.arange(100) / 20
    phase = torch.rand(40, 1, generator=generator) * 6
    waves = torch.sin((2 + 6 * y[:, None]) * seconds + phase)
    x = waves[:, None].repeat(1, 3, 1) * 0.5
    network = build(name, Space((3, 100), ("slow", "fast")), 0)
    descent = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(30):
        loss = torch.nn.functional.cross_entropy(network(x), y)
        descent.zero_grad()
        loss.backward()
        descent.step()
    assert loss.item() < 0.5


def test_statistics_of_a_window():
    x = torch.tensor([[[-1.0, 0.0, 0.5, 1.0]]])
    found = activity_models.statistics(x)[0]
    assert found[:3].tolist() == pytest.approx([0.125, float(x.var()), 0.625])
    assert found[3:].tolist() == [0.25, 0, 0, 0, 0, 0.25, 0, 0.25, 0, 0.25]


@pytest.mark.parametrize("shape", [(3, 10), (1, 28, 28), (300,)])
def test_models_for_windows_refuse_other_inputs(shape):
    with pytest.raises(BadInput, match="windows"):
        build("har-cnn-64", Space(shape, ("a", "b")), 0)


def test_the_map_of_motion_has_norm_one_and_knows_which_way_is_down():
    motion = build_map("motion", (3, 100))
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(6, 3, 100, generator=generator) * 0.2
    x[3:, 2] -= 0.9
    codes = motion.finish(motion(x))
    assert codes.shape == (6, motion.width)
    assert codes.norm(dim=1).tolist() == pytest.approx([1.0] * 6, abs=1e-5)
    likeness = codes @ codes.T
    assert likeness[:3, 3:].max() < min(likeness[:3, :3].min(), likeness[3:, 3:].min())
