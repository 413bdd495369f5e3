"""Noisy gradients of the task in training, and of raw records kept of earlier tasks (the paper's NaiveGaussian).

Kept records never leave: the memory holds row numbers, and rows are read only for a step that their block has paid for
(`l2dp.lifetime.Book`). A block that cannot pay any more is retired, and training goes on without it. An adaptive policy
holds records out, and asks them with noise whether the task has been learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from l2dp.accounting import RenyiFilter
from l2dp.boundary.admission import admit, label_mask, same_everywhere
from l2dp.boundary.ghost import clipped_layers
from l2dp.boundary.gradients import Sampled, noisy_gradient, small_enough
from l2dp.boundary.scores import noisy_counts
from l2dp.budget import NO_PRIVACY, Budget, Guarantee
from l2dp.errors import BadInput, Refused
from l2dp.lifetime import EVERY, Book, Reading, figures
from l2dp.noise import Noise
from l2dp.policies import Adaptive, Policy
from l2dp.streams.records import Records, Space, Task


@dataclass(frozen=True)
class Replay:
    """How records are read and kept: public configuration, fixed before the first task."""

    clip: float
    """The norm C to which an example's gradient is cut."""
    memory_per_task: int
    """Records that are expected to be kept of a task."""
    reference_batch: int
    """Records of the memory that one step is expected to sample."""
    noise_scale: float | None = None
    """Noise over clip, z; None: the least with which the planned steps fit the policy's shares."""

    def __post_init__(self) -> None:
        if not self.clip > 0:
            raise BadInput(f"the clipping bound must be above 0, not {self.clip}")
        if self.noise_scale is not None and not self.noise_scale > 0:
            raise BadInput(f"the noise scale must be above 0, not {self.noise_scale}")
        small_enough(self.reference_batch)


@dataclass(frozen=True)
class _Kept:
    """The records of one task, and what becomes of each: one of `LOTS`."""

    name: str
    lots: Tensor
    expected: float
    """The expected number of those kept, by the declared size."""
    records: Records
    mask: Tensor | None

    def rows(self, *lots: int) -> Tensor:
        return torch.isin(self.lots, torch.tensor(lots, dtype=torch.uint8)).nonzero().flatten()

    @cached_property
    def kept(self) -> Tensor:
        return self.rows(KEPT)

    @cached_property
    def trained(self) -> Tensor:
        return self.rows(REST, KEPT)


LOTS = REST, KEPT, HELD = range(3)
"""Of a record: only its own task trains on it; it is replayed as well; it is held out and only scored."""


class PrivateMemory:
    """Noisy gradients under one lifetime budget for every record, in its own task and in all replays.

    Guarantee
    ---------
    Everything that is given out over a lifetime is together (ε, δ)-private for every record, with the budget's ε and δ.
    Each gradient is a Gaussian mechanism over a Poisson sample whose rate comes from declared sizes, each score one
    over the records held out. A record is kept in memory or held out by coins of its own. Charges come before
    reads, through one Rényi filter for each block of records that pays alike: those of a task that are kept, those held
    out, and the rest.
    """

    def __init__(
        self,
        space: Space,
        network: nn.Module,
        replay: Replay,
        budget: Budget,
        policy: Policy,
        noise: Noise,
        device: torch.device,
        masked: bool = False,
    ) -> None:
        clipped_layers(network)
        self._space, self._network, self._replay = space, network, replay
        self._noise, self._device, self._masked = noise, device, masked
        self.book = Book(budget, policy)
        self._kept: list[_Kept] = []
        self._counted: tuple[str, dict[str, Any]] | None = None
        self.scores: list[list[Score]] = []
        """Of every task, after each attempt at it."""

    @property
    def guarantee(self) -> Guarantee:
        if not self._noise.secure:
            return NO_PRIVACY
        return Guarantee("proved", self.book.budget.epsilon, self.book.budget.delta)

    # --- plans, from public numbers -------------------------------------------------------------------

    def own_reading(self, declared_size: int, steps: int, batch_size: int) -> Reading:
        """How a task of a declared size will be read: sampling rate, noise, and the steps that its share pays for."""
        rate = min(1.0, batch_size / max(1.0, self._trained(declared_size)))
        small_enough(min(batch_size, self._trained(declared_size)))
        return self.book.own_reading(rate, steps, self._replay.noise_scale)

    def most_steps(self, declared_size: int, steps: int, batch_size: int) -> int:
        """The most steps that a task can take, over all attempts at it."""
        first = self.own_reading(declared_size, steps, batch_size).steps
        if self._replay.noise_scale is None or self.book.policy.most_attempts == 1:
            return first * self.book.policy.most_attempts
        return sum(steps * 2**attempt for attempt in range(self.book.policy.most_attempts))

    def steps_of(self, name: str) -> int | None:
        """The steps that a task has taken; None: it was not learned."""
        found = zip(self._kept, self.book.phases, strict=False)
        return next((phase.steps for kept, phase in found if kept.name == name), None)

    def _held_out(self) -> float:
        policy = self.book.policy
        return policy.held_out if isinstance(policy, Adaptive) else 0.0

    def _trained(self, declared_size: int) -> float:
        """The expected number of a task's records that are not held out."""
        return declared_size * (1 - self._held_out())

    def _replay_reading(self, steps: int) -> Reading | None:
        expected = sum(self._kept[index].expected for index in self.book.active())
        if expected == 0 or steps == 0:
            return None
        rate = min(1.0, self._replay.reference_batch / expected)
        asked = self._replay.noise_scale
        multiplier = self.book.replay_noise(rate, steps) if asked is None else asked
        return None if multiplier is None else Reading(rate, multiplier, steps)

    # --- a task ---------------------------------------------------------------------------------------

    def open(self, task: Task, steps: int, batch_size: int) -> Course:
        """Checks a task and opens its blocks; nothing is charged or read for learning yet."""
        mask = label_mask(task, self._space)
        records = admit(task, self._space)
        same_everywhere(task, records)
        if any(kept.name == task.name for kept in self._kept):
            raise Refused(f"task {task.name!r} was learned before; give new records a new task name")
        size = task.train.declared_size
        own = self.own_reading(size, steps, batch_size)
        replay = self._replay_reading(own.steps * self.book.policy.most_attempts)
        noise = self._noise.fork(f"task {len(self._kept)}")
        self.book.begin(own, replay)
        self._keep(task, records, self._lots(len(records), size, noise), mask)
        return Course(self, own, replay, steps, self._trained(size), noise)

    def _lots(self, count: int, declared_size: int, noise: Noise) -> Tensor:
        """Every record has coins of its own: what becomes of the others must not depend on who is there."""
        lots = torch.full((count,), REST, dtype=torch.uint8)
        lots[torch.from_numpy(noise.subset(count, min(1.0, self._replay.memory_per_task / max(1, declared_size))))] = (
            KEPT
        )
        if self._held_out() > 0:
            lots[torch.from_numpy(noise.subset(count, self._held_out()))] = HELD
        return lots

    def _keep(self, task: Task, records: Records, lots: Tensor, mask: Tensor) -> None:
        expected = min(self._replay.memory_per_task, task.train.declared_size) * (1 - self._held_out())
        self._kept.append(_Kept(task.name, lots, expected, records, mask if self._masked else None))

    # --- state ----------------------------------------------------------------------------------------

    def episode(self, index: int) -> dict[str, Tensor]:
        """What becomes of a task's records, and how it was read: with its records, all that `restore` needs."""
        phase = self.book.phases[index]
        readings = (phase.replay or Reading(0.0, 0.0, 0), *phase.attempts)
        numbers = [(it.rate, it.multiplier, it.steps, it.order or 0.0) for it in readings]
        return {
            "lots": self._kept[index].lots.clone(),
            "readings": torch.tensor(numbers, dtype=torch.float64),
            "scores": torch.tensor(
                [(score.noise, score.right, score.wrong) for score in self.scores[index]], dtype=torch.float64
            ).reshape(-1, 3),
        }

    def restore(self, episodes: Sequence[dict[str, Tensor]], past: Sequence[Task]) -> None:
        """Books the saved tasks again, without reading for learning."""
        for kept, task in zip(episodes, past, strict=True):
            records = admit(task, self._space)
            same_everywhere(task, records)  # the lots are row numbers: elsewhere they would be those of other records
            replay, own, *again = (
                Reading(rate, noise, int(steps), order or None)
                for rate, noise, steps, order in kept["readings"].tolist()
            )
            scores = [Score(*score) for score in kept["scores"].tolist()]
            self.book.repeat(own, replay if replay.rate > 0 else None, again, [score.noise for score in scores])
            self._keep(task, records, kept["lots"].clone(), label_mask(task, self._space))
            self.scores.append(scores)

    # --- what a reader should know --------------------------------------------------------------------

    def description(self) -> dict[str, Any]:
        """How every task was read, who was retired when, and what the lifetime costs by each way of counting."""
        book, secure = self.book, self._noise.secure
        adaptive = isinstance(book.policy, Adaptive)
        tasks = []
        for index, (kept, block, phase) in enumerate(zip(self._kept, book.blocks, book.phases, strict=False)):
            replay = phase.replay
            last = phase.attempts[-1]
            row = {
                "task": kept.name,
                "steps": phase.steps,
                "sampling_rate": last.rate,
                "noise_multiplier": last.multiplier,
                "replayed_steps": {
                    earlier.name: steps for earlier, steps in zip(self._kept, phase.replayed, strict=False) if steps
                },
                "replay_rate": replay and replay.rate,
                "replay_noise_multiplier": replay and replay.multiplier,
                "retired_during_task": None if block.retired_in is None else self._kept[block.retired_in].name,
                "kept_records": _paid(block.kept, secure, adaptive),
                "other_records": _paid(block.rest, secure, adaptive),
            }
            if adaptive:
                row["held_out_records"] = _paid(block.held, secure, adaptive)
                row["attempts"] = [
                    {
                        "steps": own.steps,
                        "noise_multiplier": own.multiplier,
                        "noisy_right": score.right,
                        "noisy_wrong": score.wrong,
                        "score_noise": score.noise,
                        "target_met": score.met(book.policy),
                    }
                    for own, score in zip(phase.attempts, self.scores[index], strict=True)
                ]
            tasks.append(row)
        return {"counted": self.counted(), "tasks": tasks}

    def counted(self) -> dict[str, Any]:
        """ε of the lifetime by each way of counting, with its status."""
        book = self.book
        lived = repr(book.phases)
        if self._counted is None or self._counted[0] != lived:  # it takes seconds
            adaptive = book.budget if isinstance(book.policy, Adaptive) else None
            self._counted = lived, figures(book.phases, book.budget.delta, self._noise.secure, adaptive)
        return self._counted[1]

    def for_source(self, overlap: int) -> Budget | None:
        """(ε, δ) for a source record with a copy in so many tasks; None: not known.

        Guarantee
        ---------
        Copies are read together, in one noisy sum over the memory: their costs do not just add up. Known for a copy
        in every task (the adjacency of one record in every task), where the plan was fixed in advance.
        """
        if overlap != len(self.book.phases) or not self._noise.secure:
            return None
        found = self.counted()[EVERY]["modes"]["per-record"]
        return Budget(found["epsilon"], found["delta"]) if found["valid"] else None


class Score(NamedTuple):
    """What held-out records said after one attempt: noisy counts of right and wrong answers."""

    noise: float
    right: float
    wrong: float

    def met(self, policy: Policy) -> bool:
        return isinstance(policy, Adaptive) and policy.met(self.right, self.wrong, self.noise)


def _paid(block: RenyiFilter, secure: bool, adaptive: bool) -> dict[str, Any]:
    """What the records of a block have paid; what private scores decided is bounded by the filter's budget only."""
    if not secure:
        return {"status": "none"}
    spent = {"part_of_allowance": float(block.spent / Fraction(block.allowance))}
    if block.spent == 0:
        return {"epsilon": 0.0, "delta": 0.0, "status": "proved"} | spent
    epsilon = block.budget.epsilon if adaptive else block.epsilon()
    return {"epsilon": epsilon, "delta": block.budget.delta, "status": "proved"} | spent


class Course:
    """The training of one opened task: `gradient` and `reference` once a step, `steps` times, then `again` until it
    says no, then `end`."""

    def __init__(
        self,
        owner: PrivateMemory,
        own: Reading,
        replay: Reading | None,
        planned: int,
        trained: float,
        noise: Noise,
    ) -> None:
        self._owner, self._own, self._replay, self._noise = owner, own, replay, noise
        self._planned, self._trained = planned, trained
        self._scores: list[Score] = []

    @property
    def steps(self) -> int:
        """The steps that the share of the attempt pays for; without a noise of one's own, those that were planned."""
        return self._own.steps

    def gradient(self) -> list[Tensor]:
        """g: the noisy mean gradient of the task in training. Charged before anything is read."""
        owner = self._owner
        owner.book.charge_own()
        block = owner._kept[-1]
        return self._noisy([(block, block.trained)], self._own, self._own.rate * self._trained)

    def reference(self) -> list[Tensor] | None:
        """g_ref: the noisy mean gradient of the memory; None: no block of it can pay for this step."""
        if self._replay is None:
            return None
        owner = self._owner
        paid = [owner._kept[index] for index in owner.book.charge_replay()]
        if not paid:
            return None
        expected = self._replay.rate * sum(block.expected for block in paid)
        return self._noisy([(block, block.kept) for block in paid], self._replay, expected)

    def _noisy(self, blocks: Sequence[tuple[_Kept, Tensor]], reading: Reading, expected: float) -> list[Tensor]:
        owner, samples = self._owner, []
        for block, rows in blocks:
            drawn = torch.from_numpy(self._noise.subset(len(rows), reading.rate))
            samples.append(Sampled(block.records, rows[drawn], block.mask))
        return noisy_gradient(
            owner._network,
            samples,
            owner._replay.clip,
            reading.multiplier,
            max(1.0, expected),
            self._noise,
            owner._device,
        )

    def again(self) -> bool:
        """Whether the task should be trained once more, from where it began, with more budget.

        Only an adaptive policy ever says so: its held-out records pay for a noisy score first, and are read then.
        """
        owner, book = self._owner, self._owner.book
        if not isinstance(book.policy, Adaptive):
            return False
        noise = book.score_noise()
        book.charge_score(noise)
        block = owner._kept[-1]
        held = Sampled(block.records, block.rows(HELD), block.mask)
        score = Score(noise, *noisy_counts(owner._network, held, noise, self._noise, owner._device))
        self._scores.append(score)
        if score.met(book.policy):
            return False
        following = book.next_reading(self._planned, owner._replay.noise_scale)
        if following is None:
            return False
        book.attempt(following)
        self._own = following
        return True

    def end(self) -> None:
        """Closes the task: from now on its kept records are memory."""
        self._owner.book.end()
        self._owner.scores.append(self._scores)
