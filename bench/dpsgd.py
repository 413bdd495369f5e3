"""DP-SGD on the MNIST conv net: examples per second against plain SGD and against Opacus, in the same run.

Every contestant does the same work on the same batch of 256: forward, per-example clipping, noise, a step. Opacus runs
with its hooks (per-example gradients) and with ghost clipping. The sampling of batches is left out for all.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from l2dp.boundary.ghost import clipped_sum
from l2dp.boundary.gradients import noisy_sum
from l2dp.models import build
from l2dp.noise import SystemNoise
from l2dp.streams.records import Space

BATCH, CLIP, MULTIPLIER, RATE = 256, 1.0, 1.0, 0.1
GOAL = 0.45
"""Of the speed of plain SGD."""


def _network() -> nn.Module:
    return build("mnist-conv", Space((1, 28, 28), tuple("0123456789")), 0, "group")


def _plain(x: Tensor, y: Tensor) -> Callable[[], None]:
    network = _network()
    parameters = list(network.parameters())

    def step() -> None:
        slopes = torch.autograd.grad(F.cross_entropy(network(x), y), parameters)
        with torch.no_grad():
            for parameter, slope in zip(parameters, slopes, strict=True):
                parameter.add_(slope, alpha=-RATE)

    return step


def _ours(x: Tensor, y: Tensor) -> Callable[[], None]:
    network = _network()
    parameters = list(network.parameters())
    noise = SystemNoise()

    def losses(scores: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(scores, labels, reduction="none")

    def step() -> None:
        totals = clipped_sum(network, x, y, CLIP, losses)
        noisy = noisy_sum(torch.cat([total.flatten() for total in totals]), CLIP, MULTIPLIER, noise)
        with torch.no_grad():
            for parameter, slope in zip(parameters, noisy.split([p.numel() for p in parameters]), strict=True):
                parameter.add_(slope.view_as(parameter), alpha=-RATE / BATCH)

    return step


def _opacus(x: Tensor, y: Tensor, ghost: bool) -> Callable[[], None]:
    from opacus import GradSampleModule
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    network = _network().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    if ghost:
        wrapped: Any = GradSampleModuleFastGradientClipping(network, max_grad_norm=CLIP, use_ghost_clipping=True)
        optimiser: Any = DPOptimizerFastGradientClipping(
            torch.optim.SGD(wrapped.parameters(), lr=RATE),
            noise_multiplier=MULTIPLIER,
            max_grad_norm=CLIP,
            expected_batch_size=BATCH,
        )
        criterion: Any = DPLossFastGradientClipping(wrapped, optimiser, nn.CrossEntropyLoss(reduction="mean"))
    else:
        wrapped = GradSampleModule(network)
        optimiser = DPOptimizer(
            torch.optim.SGD(wrapped.parameters(), lr=RATE),
            noise_multiplier=MULTIPLIER,
            max_grad_norm=CLIP,
            expected_batch_size=BATCH,
        )
        criterion = nn.CrossEntropyLoss(reduction="mean")

    def step() -> None:
        optimiser.zero_grad()
        criterion(wrapped(x), y).backward()
        optimiser.step()

    return step


def _take_turns(contestants: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every step, all contestants in turn; the first round warms up and does not count."""
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, step in contestants.items():
            started = time.perf_counter()
            step()
            if number > 0:
                taken[name].append(time.perf_counter() - started)
    return taken


def run(console: Console, quick: bool) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(BATCH, 1, 28, 28, generator=generator) * 2 - 1
    y = torch.randint(10, (BATCH,), generator=generator)
    contestants = {"plain SGD": _plain(x, y), "l2dp, ghost norms": _ours(x, y)}
    if importlib.util.find_spec("opacus") is not None:
        contestants |= {"Opacus, hooks": _opacus(x, y, False), "Opacus, ghost": _opacus(x, y, True)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rounds = _take_turns(contestants, 3 if quick else 11)
    seconds = {name: statistics.median(taken) for name, taken in rounds.items()}
    # The ratio is taken round by round: neighbours in time share the machine's mood.
    ratios = {
        name: statistics.median(plain / own for plain, own in zip(rounds["plain SGD"], taken, strict=True))
        for name, taken in rounds.items()
    }
    table = Table(title=f"DP-SGD, MNIST conv net with group normalisation, batch {BATCH}")
    for column in ("who", "ms a step", "examples/s", "of plain SGD"):
        table.add_column(column, justify="left" if column == "who" else "right")
    found: dict[str, Any] = {}
    for name, median in seconds.items():
        found[name] = {"seconds": median, "examples_per_second": BATCH / median, "ratio": ratios[name]}
        table.add_row(name, f"{1000 * median:.0f}", f"{BATCH / median:.0f}", f"{ratios[name]:.2f}")
    console.print(table)
    return {"contestants": found, "goal": GOAL, "passed": found["l2dp, ghost norms"]["ratio"] >= GOAL}
