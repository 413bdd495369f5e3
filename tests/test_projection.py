"""The projected gradient is the nearest one that does not raise the loss on the memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from l2dp.learners import L2dpMl, Setting
from l2dp.learners.projection import When, project
from l2dp.noise import InsecureNoise
from l2dp.streams import Space

light = settings(deadline=None, max_examples=60)
Array = np.ndarray[Any, np.dtype[np.float64]]
values = st.floats(-1e3, 1e3).map(lambda v: 0.0 if abs(v) < 1e-3 else v)
SHAPES: tuple[tuple[int, ...], ...] = ((2, 3), (4,), (1, 2, 2))
SIZE = 14


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Array, Array]:
    """g and g_ref, often in conflict, sometimes parallel or zero."""
    g_ref = draw(hnp.arrays(np.float64, SIZE, elements=values))
    kind = draw(st.sampled_from(["free", "against", "along"]))
    if kind == "free":
        return draw(hnp.arrays(np.float64, SIZE, elements=values)), g_ref
    return g_ref * draw(st.floats(0.01, 100)) * (-1 if kind == "against" else 1), g_ref


def parts(vector: Array, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    cuts = np.cumsum([np.prod(shape) for shape in SHAPES])[:-1]
    return [torch.tensor(p.reshape(s), dtype=dtype) for p, s in zip(np.split(vector, cuts), SHAPES, strict=True)]


def flat(tensors: tuple[Tensor, ...]) -> Array:
    return np.concatenate([t.double().numpy().ravel() for t in tensors])


def quadratic_programme(g: Array, g_ref: Array) -> Array:
    """argmin ‖v − g‖² subject to v·g_ref ≥ 0, from its dual: v = g + μ·g_ref with the least μ ≥ 0 that is feasible."""
    square = sum(float(b) ** 2 for b in g_ref)
    if square == 0:
        return g
    mu = max(0.0, -sum(float(a) * float(b) for a, b in zip(g, g_ref, strict=True)) / square)
    return g + mu * g_ref


def tolerance(g: Array, g_ref: Array, relative: float = 1e-12) -> float:
    return relative * (1 + float(np.linalg.norm(g)) * float(np.linalg.norm(g_ref)))


@light
@given(pairs())
def test_it_solves_the_quadratic_programme(pair: tuple[Array, Array]) -> None:
    g, g_ref = pair
    out = flat(project(parts(g), parts(g_ref)))
    np.testing.assert_allclose(out, quadratic_programme(g, g_ref), rtol=0, atol=1e-9)
    assert float(out @ g_ref) >= -tolerance(g, g_ref)


@light
@given(pairs(), hnp.arrays(np.float64, SIZE, elements=values))
def test_no_other_harmless_gradient_is_nearer(pair: tuple[Array, Array], other: Array) -> None:
    g, g_ref = pair
    other = other if other @ g_ref >= 0 else -other
    out = flat(project(parts(g), parts(g_ref)))
    assert np.linalg.norm(out - g) <= np.linalg.norm(other - g) + 1e-9


@light
@given(pairs())
def test_single_precision_is_good_enough(pair: tuple[Array, Array]) -> None:
    g, g_ref = (v.astype(np.float32).astype(np.float64) for v in pair)
    out = project(parts(g, torch.float32), parts(g_ref, torch.float32))
    assert all(t.dtype is torch.float32 for t in out)
    assert float(flat(out) @ g_ref) >= -tolerance(g, g_ref, 1e-5)


@pytest.mark.parametrize("when", ["conflict", "always"])
@light
@given(pair=pairs())
def test_twice_is_once(when: When, pair: tuple[Array, Array]) -> None:
    g, g_ref = parts(pair[0]), parts(pair[1])
    once = project(g, g_ref, when)
    np.testing.assert_allclose(flat(project(once, g_ref, when)), flat(once), rtol=0, atol=1e-9)


@light
@given(pairs())
def test_without_a_conflict_nothing_changes(pair: tuple[Array, Array]) -> None:
    g, g_ref = pair
    product = float(flat(tuple(parts(g))) @ g_ref)
    assume(abs(product) > tolerance(g, g_ref))
    out = flat(project(parts(g), parts(g_ref)))
    if product > 0:
        np.testing.assert_array_equal(out, g)
    else:
        assert not np.array_equal(out, g)


@light
@given(pairs())
def test_always_makes_them_orthogonal(pair: tuple[Array, Array]) -> None:
    g, g_ref = pair
    out = flat(project(parts(g), parts(g_ref), "always"))
    assert abs(float(out @ g_ref)) <= tolerance(g, g_ref)
    if np.any(g_ref):
        lost = g - out
        np.testing.assert_allclose(lost, (g @ g_ref) / (g_ref @ g_ref) * g_ref, rtol=0, atol=1e-9)


@pytest.mark.parametrize("when", ["conflict", "always"])
@light
@given(g=hnp.arrays(np.float64, SIZE, elements=values))
def test_a_zero_reference_changes_nothing(when: When, g: Array) -> None:
    np.testing.assert_array_equal(flat(project(parts(g), parts(np.zeros(SIZE)), when)), g)


def test_the_inputs_are_left_alone() -> None:
    g, g_ref = parts(np.arange(1.0, 15)), parts(-np.ones(SIZE))
    project(g, g_ref)
    np.testing.assert_array_equal(flat(tuple(g)), np.arange(1.0, 15))
    np.testing.assert_array_equal(flat(tuple(g_ref)), -np.ones(SIZE))


def test_gradients_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        project([torch.ones(2)], [torch.ones(2), torch.ones(2)])


def learner(**options: Any) -> L2dpMl:
    made = L2dpMl(model="mlp-3-2", normalisation="none", **options)
    made.begin(Setting(Space((4,), ("a", "b")), 5, noise=InsecureNoise(0)))
    return made


@pytest.mark.parametrize("when", ["conflict", "always"])
def test_l2dp_ml_projects_jointly_or_each_part_by_itself(when: When) -> None:
    joint, separate = learner(projection=when), learner(projection=when, project_parts="separate")
    shapes = [p.shape for p in joint.network.parameters()]
    cut = 1  # the encoder is one matrix
    encoder = joint.network.encoder.weight.numel()
    rng = np.random.default_rng(3)
    seen = set()
    for _ in range(40):
        g, g_ref = (tuple(torch.tensor(rng.normal(size=s)) for s in shapes) for _ in range(2))
        a, b = flat(g), flat(g_ref)

        def solved(u: Array, v: Array) -> Array:
            return quadratic_programme(u, v) if when == "conflict" else u - (u @ v) / (v @ v) * v

        np.testing.assert_allclose(flat(joint._project(g, g_ref)), solved(a, b), rtol=0, atol=1e-12)
        expected = np.concatenate([solved(a[:encoder], b[:encoder]), solved(a[encoder:], b[encoder:])])
        np.testing.assert_allclose(flat(separate._project(g, g_ref)), expected, rtol=0, atol=1e-12)
        seen.add((bool(flat(g[:cut]) @ flat(g_ref[:cut]) < 0), bool(flat(g[cut:]) @ flat(g_ref[cut:]) < 0)))
    assert len(seen) == 4, "all four combinations of conflicts were met"
