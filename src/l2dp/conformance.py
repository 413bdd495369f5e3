"""The one suite that every learner must pass, ours and yours: `check_learner(MyLearner)`.

It knows nothing of any method: it uses the contract of `l2dp.learners.Learner` on small embedded and synthetic
streams, and raises AssertionError with one sentence about what broke. It tests behaviour, not privacy: passing
it makes no guarantee true.
"""

from __future__ import annotations

import json
import math
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from l2dp.budget import Guarantee, Status
from l2dp.durable import read_tensors, write_tensors
from l2dp.errors import BadInput
from l2dp.learners.learner import Learner, Plan, Setting, State
from l2dp.noise import InsecureNoise, Noise, SystemNoise
from l2dp.streams import Dataset, Protocol, Space, Stream, Task, permuted, split

RECORDS, BATCH, STEPS = 24, 8, 4
"""Of a task: more steps than one pass over it has batches, so that a second pass is tested too."""
SCORED = 20
LABELS = tuple("abcd")


def check_learner(factory: Callable[[], Learner]) -> None:
    """Checks a learner against its contract; `factory` makes a new one, best with a small dense model.

    The learner takes every stream it can (images, vectors, windows; the protocols class, task and domain; tasks of
    unequal size), scores with finite numbers of the right shape, is restored from bytes and goes on exactly,
    keeps a state that does not grow and episodes that do not change, refuses bad tasks and forgets them, states a
    valid guarantee, releases no record and no draw of noise, and leaves its inputs and global generators alone.
    """
    with tempfile.TemporaryDirectory() as folder:
        _Suite(factory, Path(folder)).run()


class _Tape(InsecureNoise):
    """Repeatable noise that can be rewound, so that a restored learner finds what an uninterrupted one found."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.draws: list[NDArray[np.float64]] = []

    def rewind(self, seed: int) -> None:
        super().__init__(seed)

    def fork(self, purpose: str) -> Noise:
        return self

    def laplace(self, scale: float, shape: tuple[int, ...]) -> NDArray[np.float64]:
        return self._kept(super().laplace(scale, shape))

    def gaussian(self, scale: float, shape: tuple[int, ...]) -> NDArray[np.float64]:
        return self._kept(super().gaussian(scale, shape))

    def k_norm(self, scale: float, rows: int, width: int) -> NDArray[np.float64]:
        return self._kept(super().k_norm(scale, rows, width))

    def _kept(self, draw: NDArray[np.float64]) -> NDArray[np.float64]:
        self.draws.append(draw.copy())
        return draw


@dataclass(frozen=True)
class _Case:
    """A stream, how it is learned, and the tensors behind it in the suite's own hands."""

    title: str
    stream: Stream
    batch_sizes: tuple[int, ...]
    sources: tuple[Tensor, ...]
    records: Tensor | None = None
    """Training inputs as rows, where the suite made them itself."""


def _synthetic(title: str, shape: tuple[int, ...], sizes: tuple[int, ...], batches: tuple[int, ...]) -> _Case:
    generator = torch.Generator().manual_seed(len(shape))
    tasks, sources = [], []
    for number, size in enumerate(sizes):
        x = torch.rand((size + SCORED, *shape), generator=generator) * 2 - 1
        # An uneven stream starts with a task of a single class.
        classes = len(LABELS) if number > 0 or len(set(sizes)) == 1 else 1
        y = torch.arange(size + SCORED) % classes
        sources += [x[:size], y[:size], x[size:], y[size:]]
        tasks.append(Task.from_tensors(f"synthetic-{number}", (x[:size], y[:size]), (x[size:], y[size:])))
    records = torch.cat([x.flatten(1) for x in sources[::4]])
    return _Case(title, Stream(title, Space(shape, LABELS), tuple(tasks)), batches, tuple(sources), records)


def _digits(title: str, stream: Stream) -> _Case:
    digits = Dataset.load("digits")
    sources = (digits.train.x, digits.train.y, digits.test.x, digits.test.y)
    return _Case(title, stream, (BATCH,) * len(stream), sources)


def _cases() -> Iterator[_Case]:
    """The first one is long and even, for what has to stay the same from task to task."""
    yield _synthetic("a stream of vectors", (12,), (RECORDS,) * 6, (BATCH,) * 6)
    yield _synthetic("a stream of windows with full batches of unequal size", (2, 6), (16, 30, 9), (16, 30, 9))
    yield _digits("permuted digits", permuted("digits", tasks=3, per_task=RECORDS))
    protocols: tuple[Protocol, ...] = get_args(Protocol)
    for protocol in protocols:
        stream = split("digits", tasks=3, per_task=RECORDS, protocol=protocol)
        yield _digits(f"split digits under the {protocol} protocol", stream)


def _bad_tasks(space: Space) -> dict[str, Task]:
    """Tasks that fit the space but for one flaw, in the last row where it is in a row."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand((RECORDS, *space.shape), generator=generator) * 2 - 1
    y = torch.arange(RECORDS) % space.classes

    def value(bad: float) -> tuple[Tensor, Tensor]:
        inputs = x.clone()
        inputs.view(-1)[-1] = bad
        return inputs, y

    def label(bad: int) -> tuple[Tensor, Tensor]:
        labels = y.clone()
        labels[-1] = bad
        return x, labels

    flawed = {
        "an empty task": (x[:0], y[:0]),
        "a task of another shape": (torch.cat((x, x), dim=-1), y),
        "a task with a NaN": value(math.nan),
        "a task with an infinite value": value(math.inf),
        "a task with a value above 1": value(1.5),
        "a task with a label beyond the space": label(space.classes),
        "a task with a negative label": label(-1),
    }
    return {flaw: Task.from_tensors(flaw, train, (x, y)) for flaw, train in flawed.items()}


def _bytes(tensor: Tensor) -> bytes:
    raw: bytes = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return raw


def _snapshot(tensors: dict[str, Tensor], meta: Any = None) -> dict[str, object]:
    """A copy that can be compared bit for bit."""
    taken: dict[str, object] = {name: (tuple(t.shape), t.dtype, _bytes(t)) for name, t in sorted(tensors.items())}
    return taken | {"meta": json.dumps(meta, sort_keys=True)}


def _size(tensors: dict[str, Tensor], meta: Any = None) -> int:
    """Bytes of tensors, characters of strings, and one for anything else: digits of a counter may grow."""

    def count(value: Any) -> int:
        if isinstance(value, dict):
            return sum(count(key) + count(item) for key, item in value.items())
        if isinstance(value, list | tuple):
            return sum(map(count, value))
        return len(value) if isinstance(value, str) else 1

    return count(meta) + sum(t.numel() * t.element_size() for t in tensors.values())


def _global_generators() -> tuple[bytes, str, str]:
    return _bytes(torch.get_rng_state()), repr(np.random.get_state()), repr(random.getstate())


class _Suite:
    def __init__(self, factory: Callable[[], Learner], folder: Path) -> None:
        self.generators = _global_generators()
        self.factory = factory
        self.folder = folder
        self.name = type(factory()).__name__

    def run(self) -> None:
        self.declaration()
        usable = [case for case in _cases() if self.takes(case)]
        self.require(bool(usable), "begin refuses every stream of the suite; use a dense model")
        for case in usable:
            self.lifetime(case)
        self.guarantee(usable[0])
        self.sizes(usable[0])
        self.refusals(usable[0])
        self.continuation(usable[0], cut=0)
        for case in usable:
            self.continuation(case, cut=len(case.stream) // 2)

    # --- tools ----------------------------------------------------------------------------------------

    def require(self, condition: bool, failure: str) -> None:
        if not condition:
            raise AssertionError(f"{self.name}: {failure}")

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Anything that is raised here is the learner's fault, and is named."""
        try:
            yield
        except AssertionError as error:
            if str(error).startswith(self.name):
                raise
            raise AssertionError(f"{self.name}: {what} raises {error!r}") from error
        except Exception as error:
            raise AssertionError(f"{self.name}: {what} raises {error!r}") from error

    def begin(self, case: _Case, noise: Noise) -> Learner:
        learner = self.factory()
        masked = case.stream.protocol == "task"
        learner.begin(Setting(case.stream.space, max(case.batch_sizes), seed=3, masked=masked, noise=noise))
        return learner

    def advance(self, learner: Learner, case: _Case, index: int, tape: _Tape | None = None) -> None:
        """Learns one task the way a run does."""
        if tape is not None:
            tape.rewind(index + 1)
        learner.learn(case.stream[index], Plan(STEPS, case.batch_sizes[index]))
        if self.scorable(learner, case, index):
            learner.settle()

    def scorable(self, learner: Learner, case: _Case, index: int) -> bool:
        return type(learner).EVERY_TASK or index + 1 == len(case.stream)

    def observe(self, learner: Learner, case: _Case, index: int) -> dict[str, dict[str, object]]:
        """All that can be seen of a learner after a task, to be compared with another one's."""
        state = learner.state()
        seen = {
            "state": _snapshot(state.tensors, state.meta),
            "release": _snapshot(learner.release()),
            "episode": _snapshot(learner.episode(index)),
        }
        if self.scorable(learner, case, index):
            x, _ = case.stream[index].test.batch(slice(0, SCORED))
            seen["scores"] = _snapshot({"": learner.scores(x)})
            seen["released scores"] = _snapshot({"": learner.released_scores(x)})
        return seen

    def same(self, one: dict[str, Any], other: dict[str, Any], failure: str) -> None:
        for what in one:
            self.require(one[what] == other[what], failure.format(what))

    # --- checks ---------------------------------------------------------------------------------------

    def declaration(self) -> None:
        learner = self.factory()
        self.require(isinstance(learner, Learner), "is not an l2dp.learners.Learner")
        self.require(learner is not self.factory(), "the factory gives the same learner twice; it must make new ones")
        name = getattr(type(learner), "NAME", None)
        self.require(isinstance(name, str) and bool(name), "has no NAME")
        with self.doing("config as JSON"):
            json.dumps(learner.config())

    def takes(self, case: _Case) -> bool:
        """A model may not fit a shape, and `begin` says so; any other trouble is a failure."""
        try:
            with self.doing(f"begin for {case.title}"):
                self.begin(case, _Tape(0))
        except AssertionError as error:
            if isinstance(error.__cause__, BadInput):
                return False
            raise
        return True

    def lifetime(self, case: _Case) -> None:
        """One learner, all tasks, no interruption: what it returns, and what it must leave alone."""
        before = [_bytes(source) for source in case.sources]
        tape = _Tape(0)
        with self.doing(f"learning {case.title}"):
            learner = self.begin(case, tape)
            released: list[tuple[dict[str, Tensor], dict[str, object]]] = []
            for index in range(len(case.stream)):
                self.advance(learner, case, index, tape)
                self.stated(learner.guarantee, secure=False)
                if self.scorable(learner, case, index):
                    self.scoring(learner, case, index)
                release = learner.release()
                self.clean(release, case, tape)
                released.append((release, _snapshot(release)))
            json.dumps(learner.facts())
        for release, as_released in released:
            self.require(_snapshot(release) == as_released, "a release changes when learning goes on; copy its tensors")
        for now, then, name in zip(_global_generators(), self.generators, ("torch", "numpy", "random"), strict=True):
            self.require(now == then, f"disturbs the global generator of {name}; use a generator of its own")
        self.require([_bytes(source) for source in case.sources] == before, "modifies the records of a task")

    def scoring(self, learner: Learner, case: _Case, index: int) -> None:
        x, _ = case.stream[index].test.batch(slice(0, SCORED))
        kept, state = x.clone(), learner.state()
        held = _snapshot(state.tensors, state.meta)
        for score in (learner.scores, learner.released_scores):
            scores = score(x)
            place = f"{score.__name__} on {case.title}"
            wanted = (len(x), case.stream.space.classes)
            self.require(tuple(scores.shape) == wanted, f"{place} have shape {tuple(scores.shape)}, not {wanted}")
            self.require(bool(scores.isfinite().all()), f"{place} are not finite")
            alone = score(x[:1])
            close = torch.allclose(alone, scores[:1], rtol=1e-3, atol=1e-3)
            self.require(close, f"{place} depend on what else is in the batch")
        self.require(torch.equal(x, kept), "scoring modifies its input")
        state = learner.state()
        self.require(_snapshot(state.tensors, state.meta) == held, "scoring changes the state")

    def clean(self, release: dict[str, Tensor], case: _Case, tape: _Tape) -> None:
        """Looks for records and whole draws of noise in the bytes that are published, in any precision."""
        write_tensors(self.folder / "release", release, {})
        for name, tensor in release.items():
            turned = tensor.flatten(1).T if tensor.dim() > 1 else tensor
            published = _bytes(tensor) + b"|" + _bytes(turned)
            if case.records is not None:
                for row in case.records.to(tensor.dtype):
                    leaked = tensor.is_floating_point() and _bytes(row) in published
                    self.require(not leaked, f"the release has a training record in {name!r}")
            for draw in map(torch.from_numpy, tape.draws):
                forms = (draw.to(tensor.dtype), draw.float().to(tensor.dtype))
                found = tensor.is_floating_point() and any(_bytes(form) in published for form in forms)
                # A single number is no evidence: a noisy count of nothing is its noise.
                self.require(not (found and draw.numel() > 1), f"the release has a draw of noise in {name!r}")

    def continuation(self, case: _Case, cut: int) -> None:
        """A learner restored from bytes after `cut` tasks must be the one that was never interrupted."""
        tape, later_tape = _Tape(0), _Tape(99)
        episodes = []
        with self.doing(f"learning {case.title}"):
            learner = self.begin(case, tape)
            for index in range(cut):
                self.advance(learner, case, index, tape)
                write_tensors(self.folder / f"episode-{index}", learner.episode(index), {})
                episodes.append(read_tensors(self.folder / f"episode-{index}")[0])
        with self.doing("writing the state as safetensors and JSON"):
            state = learner.state()
            write_tensors(self.folder / "state", state.tensors, state.meta)
        given = State(*read_tensors(self.folder / "state"))
        handed = [_snapshot(given.tensors, given.meta), *map(_snapshot, episodes)]
        with self.doing(f"restore after {cut} tasks of {case.title}"):
            # Begun with other noise: what was drawn before the cut must come out of the state.
            restored = self.begin(case, later_tape)
            restored.restore(given, episodes, case.stream[:cut])
        with self.doing(f"going on with {case.title} after restore"):
            for index in range(cut, len(case.stream)):
                self.advance(learner, case, index, tape)
                self.advance(restored, case, index, later_tape)
                failure = f"restored after {cut} tasks of {case.title}, it goes on with another {{}}"
                self.same(self.observe(learner, case, index), self.observe(restored, case, index), failure)
            for index in range(cut):
                kept = _snapshot(restored.episode(index))
                self.require(kept == handed[1 + index], "restore loses or changes an episode")
        now = [_snapshot(given.tensors, given.meta), *map(_snapshot, episodes)]
        self.require(now == handed, "a restored learner changes the state or episodes it was given; copy their tensors")

    def refusals(self, case: _Case) -> None:
        """Bad tasks before the first task and after it, and then on as if nothing had happened."""
        tape, other_tape = _Tape(0), _Tape(0)
        ticks = []
        with self.doing(f"learning {case.title}"):
            tried, untouched = self.begin(case, tape), self.begin(case, other_tape)
        for index in range(2):
            state = untouched.state()
            before = _snapshot(state.tensors, state.meta)
            for flaw, task in _bad_tasks(case.stream.space).items():
                tape.rewind(index + 1)
                try:
                    tried.learn(task, Plan(STEPS, BATCH), lambda: ticks.append(1))
                except BadInput:
                    pass
                except Exception as error:
                    raise AssertionError(f"{self.name}: {flaw} raises {error!r}, not BadInput") from error
                else:
                    raise AssertionError(f"{self.name}: accepts {flaw}; it must raise BadInput")
                self.require(not ticks, f"learns from {flaw} before it refuses")
                state = tried.state()
                self.require(_snapshot(state.tensors, state.meta) == before, f"{flaw} is refused but changes the state")
            with self.doing("learning after a refusal"):
                self.advance(tried, case, index, tape)
                self.advance(untouched, case, index, other_tape)
                one, other = (self.observe(it, case, index) for it in (tried, untouched))
                self.same(one, other, "after a refusal it goes on with another {}")

    def sizes(self, case: _Case) -> None:
        """On tasks of equal size: the state stays as large as it is, and episodes are equal and final."""
        tape = _Tape(0)
        states: list[int] = []
        episodes: list[tuple[int, dict[str, object]]] = []
        with self.doing(f"learning {case.title}"):
            learner = self.begin(case, tape)
            for index in range(len(case.stream)):
                self.advance(learner, case, index, tape)
                state, kept = learner.state(), learner.episode(index)
                states.append(_size(state.tensors, state.meta))
                episodes.append((_size(kept), _snapshot(kept)))
            for index, (_, written) in enumerate(episodes):
                self.require(_snapshot(learner.episode(index)) == written, "an episode changes after it was written")
        self.require(states[-1] <= states[1], f"the state grows with the number of tasks: sizes {states}")
        measured = [size for size, _ in episodes]
        self.require(len(set(measured)) == 1, f"episodes of equally large tasks differ in size: {measured}")

    def guarantee(self, case: _Case) -> None:
        with self.doing(f"learning {case.title} with noise of the system"):
            learner = self.begin(case, SystemNoise())
            self.advance(learner, case, 0)
            self.stated(learner.guarantee, secure=True)

    def stated(self, guarantee: Guarantee, secure: bool) -> None:
        self.require(isinstance(guarantee, Guarantee), f"its guarantee is {guarantee!r}, not a Guarantee")
        self.require(guarantee.status in get_args(Status), f"its guarantee has the unknown status {guarantee.status!r}")
        bare = (guarantee.epsilon is None) != (guarantee.status == "none")
        self.require(not bare, f"status {guarantee.status!r} does not go with epsilon {guarantee.epsilon}")
        if guarantee.epsilon is not None:
            sound = math.isfinite(guarantee.epsilon) and guarantee.epsilon > 0 and 0 <= (guarantee.delta or 0.0) < 1
            self.require(sound, f"its guarantee is impossible: {guarantee}")
        if not secure:
            self.require(guarantee.status == "none", "states a guarantee under insecure noise; see `noise.secure`")
