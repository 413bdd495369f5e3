"""Each task passes once: `PrivateTasks.open` checks, charges and opens it, and the session gives its releases.

This is the boundary of `private-replay`. It holds the accounting and the noise; learners see only what is released.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from l2dp.accounting import Multipliers, Shares, calibrate, signal
from l2dp.boundary.admission import label_mask
from l2dp.boundary.entry import Entry, Opened, Protection
from l2dp.boundary.gradients import LinearGradients
from l2dp.boundary.statistics import ClassSums, Features, Scatter, class_sums, positions_of, scatter
from l2dp.budget import NO_PRIVACY, Charges, Guarantee
from l2dp.errors import BadInput
from l2dp.noise import Noise
from l2dp.streams.records import Space, Task


@dataclass(frozen=True)
class Releases:
    """What a task releases, and how: public configuration, fixed before the first task."""

    scatter_share: float = 0.0
    head_share: float = 0.0
    """Parts of a task's budget; the class sums get the rest."""
    count_weight: float = 0.3
    """The part of a row's norm that counts records; the features get the rest, √(1 − 0.3²) = 0.95."""
    residual_clip: float = 0.5
    """The norm to which a feature's distance from its class centre is cut in the scatter."""
    gradient_clip: float = 0.5
    sample_size: int = 6000
    """Units that one noisy gradient is expected to sample; a task declared smaller is sampled whole."""
    steps: int = 50


class PrivateTasks:
    """Opens tasks under one lifetime budget for every unit.

    Guarantee
    ---------
    Everything that the session of one task releases is together (ε, δ)-private for that task's units, with the budget
    of `Protection.cost`: noise is calibrated by dp-accounting for the composition of class sums, scatter and head.
    Tasks hold different records, so a record's lifetime cost is that of its task; a user who returns is charged in
    each task and never above the lifetime budget. With δ = 0 only class sums are released, by the K-norm mechanism.
    """

    def __init__(
        self,
        space: Space,
        protection: Protection,
        releases: Releases,
        noise: Noise,
        device: torch.device,
        ledger: Charges | None = None,
    ) -> None:
        cost = protection.cost
        self._pure = cost.delta == 0
        shares = Shares(1 - releases.scatter_share - releases.head_share, releases.scatter_share, releases.head_share)
        if self._pure and (shares.scatter > 0 or shares.head > 0):
            raise BadInput("pure epsilon (delta 0) releases class sums alone; set the shares of scatter and head to 0")
        self._space, self._releases, self._noise, self._device = space, releases, noise, device
        self._entry = Entry(space, protection, ledger)
        self.protection = protection
        self._shares = shares
        self._signal = signal(cost)
        self._latest = self.noise_for(releases.sample_size)

    def noise_for(self, declared_size: int) -> tuple[Multipliers, float]:
        """The noise multipliers and the sampling rate for a task of a declared size. Public."""
        cost, releases = self.protection.cost, self._releases
        if self._pure:
            return Multipliers(1 / cost.epsilon, None, None, cost), 1.0
        units = max(1, declared_size // self.protection.rows_per_unit)
        # Small samples need little noise, but amplification ends where the multiplier falls below about 1.
        least = math.sqrt(self._shares.head / releases.steps) * self._signal
        rate = min(1.0, math.ceil(1000 * max(releases.sample_size / units, least)) / 1000)
        return calibrate(cost, self._shares, rate, releases.steps), rate

    @property
    def guarantee(self) -> Guarantee:
        if not self._noise.secure:
            return NO_PRIVACY
        lifetime = self.protection.lifetime
        return Guarantee("proved", lifetime.epsilon, lifetime.delta, self.protection.unit)

    def open(self, task: Task, index: int) -> Session:
        """Checks and charges a task, once. `index` is its place in the lifetime."""
        label_mask(task, self._space)
        # Before the charge, which says what it pays for.
        self._latest = planned = self.noise_for(task.train.declared_size)
        opened = self._entry.open(task)
        return Session(self, opened, task.classes, self._noise.fork(f"task {index}"), *planned)

    def recharge(self, task: Task) -> None:
        """Books a task that a saved state has learned."""
        self._entry.recharge(task)

    def description(self) -> dict[str, object]:
        """The arithmetic behind the guarantee for the latest task, for the result."""
        found, rate = self._latest
        return {
            "mechanism": "K-norm class sums" if self._pure else "Gaussian class sums, scatter and sampled gradients",
            "noise_multipliers": {"sums": found.sums, "scatter": found.scatter, "head": found.head},
            "sampling_rate": rate if found.head is not None else None,
            "steps": self._releases.steps if found.head is not None else None,
            "status": self.guarantee.status,
            "epsilon_of_one_task": found.spent.epsilon if self._noise.secure else None,
            "delta_of_one_task": found.spent.delta if self._noise.secure else None,
            "rows_per_unit": self.protection.rows_per_unit,
        }


class Session:
    """The releases of one opened task; each at most once."""

    def __init__(
        self,
        owner: PrivateTasks,
        opened: Opened,
        classes: tuple[int, ...],
        noise: Noise,
        multipliers: Multipliers,
        rate: float,
    ) -> None:
        self._owner, self._opened, self._noise = owner, opened, noise
        self._multipliers, self._rate = multipliers, rate
        self._used: set[str] = set()
        self.classes = classes
        self.declared_size = opened.declared_size
        self.strength = opened.declared_size * owner._signal / owner.protection.rows_per_unit
        """Signal over noise of a sum over the whole task, from the declared size and the budget. Public."""

    def _once(self, what: str, multiplier: float | None) -> float:
        if multiplier is None:
            raise BadInput(f"no share of the budget was set aside for the {what}")
        if what in self._used:
            raise BadInput(f"the {what} of a task is released once; keep the first answer")
        self._used.add(what)
        return multiplier

    def class_sums(self, features: Features, width: int) -> ClassSums:
        """Noisy sums and counts, one row for each label that the task declares."""
        owner = self._owner
        return class_sums(
            self._opened,
            features,
            width,
            positions_of(self.classes),
            owner._releases.count_weight,
            self._once("class sums", self._multipliers.sums),
            owner._pure,
            owner.protection.rows_per_unit,
            self._noise,
            owner._device,
        )

    def scatter(self, features: Features, centres: Tensor) -> Scatter:
        """The noisy scatter around centres that were released before, one row for each declared label."""
        owner = self._owner
        return scatter(
            self._opened,
            features,
            centres,
            positions_of(self.classes),
            owner._releases.residual_clip,
            self._once("scatter", self._multipliers.scatter),
            owner.protection.rows_per_unit,
            self._noise,
            owner._device,
        )

    def head(self, features: Features) -> LinearGradients:
        """Noisy gradients for a linear head over the task's labels."""
        owner = self._owner
        return LinearGradients(
            self._opened,
            features,
            self.classes,
            owner._releases.gradient_clip,
            self._once("head", self._multipliers.head),
            self._rate,
            owner._releases.steps,
            owner.protection.rows_per_unit,
            self._noise,
            owner._device,
        )
