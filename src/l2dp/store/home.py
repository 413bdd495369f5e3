"""The home itself: init, learn, evaluate, release, exclude, and what happens after a crash.

Heavy parts (torch, learners, tables) are imported where they are used: what a home has spent is told in a moment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from l2dp.book import Book, Head, Reservation, Voucher, open_book, without_password
from l2dp.budget import Budget, Unit
from l2dp.durable import read_json, whole_folder, write_json
from l2dp.errors import BadInput, L2dpError, Refused
from l2dp.fingerprints import Fingerprints
from l2dp.keys import Cipher, Keys, check_of
from l2dp.store import history, state
from l2dp.store.declared import Declared, is_old, load
from l2dp.store.lock import held

if TYPE_CHECKING:
    from l2dp.har.folder import Part
    from l2dp.learners.learner import Learner
    from l2dp.store.charging import TaskNoise, Till
    from l2dp.store.release import Release
    from l2dp.streams.records import Task
    from l2dp.streams.schema import Schema
    from l2dp.streams.tables import Table

LEDGER = "ledger.db"
INDEX = "fingerprints"
SECRETS = "secrets"
BEHIND = "behind.json"
ABANDONED = "abandoned"
FINGERPRINT_KEY = "fingerprints"
NOISE_KEY = "noise-"
TASK_SIZE = 1000
FAR_OFF = 1000
"""A declared size that is wrong by this factor is taken for a mistake."""

Overlap = Literal["refuse", "drop"]
Tick = Callable[[], None]


@dataclass(frozen=True)
class Learned:
    """What `learn` did, for the one who called it. Counts of records are private: they are no part of a release."""

    task: str
    index: int
    records: int
    copies: int
    """Rows left out because the task holds the same record twice."""
    overlapping: int
    """Rows left out because another task has learned them."""
    excluded: int
    declared_size: int
    before: bool
    """Whether the task had been learned before, and nothing was done."""


@dataclass(frozen=True)
class _Charges:
    """The charges of a home that count, in order, as of one head of the ledger; a shared one has other homes' too."""

    head: Head
    own: list[Reservation]
    learned: list[Reservation]
    """The tasks that are learned; the state of each has the digest that is noted as its answer."""
    waiting: list[Reservation]
    """Tasks that were begun and not finished."""

    @classmethod
    def read(cls, book: Book, home: str) -> _Charges:
        head = book.head()
        own = [one for one in book.reservations() if one.spends and one.body["noise"].get("home") == home]
        learned = [one for one in own if one.state == "committed" and one.answer != ABANDONED]
        return cls(head, own, learned, [one for one in own if one.state == "reserved"])

    def with_learned(self, head: Head, task: Reservation) -> _Charges:
        """One more: nobody has to read all again."""
        return _Charges(head, [*self.own, task], [*self.learned, task], self.waiting)


class Home:
    """A lifelong home. Open one with `l2dp.open(path)`, make one with `l2dp.init(path, …)`.

    Guarantee
    ---------
    Every unit is charged in the durable ledger before a record of theirs is read for learning, and never above the
    lifetime budget; a record is learned in one task only; a task that was interrupted is continued with the same
    noise and charged no second time. What is released is (ε, δ)-private as `Declared.guarantee` states.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.declared = load(self.path)
        self._learner: Learner | None = None
        self._till: Till | None = None
        self._noise: TaskNoise | None = None
        self._loaded = 0
        """Tasks that the learner in memory has."""
        self._book: Book | None = None
        self._index: Fingerprints | None = None
        self._seen: _Charges | None = None

    # --- parts ------------------------------------------------------------------------------------------

    def book(self, readonly: bool = False) -> Book:
        place = self.declared.ledger
        where = place if "://" in place else self.path / place
        book = open_book(where, readonly=readonly)
        if book.lifetime != self.declared.budget:
            book.close()
            raise Refused(
                f"{self.path} declares epsilon {self.declared.epsilon:g}, delta {self.declared.delta:g}, its ledger "
                f"was made for epsilon {book.lifetime.epsilon:g}, delta {book.lifetime.delta:g}; restore home.json"
            )
        return book

    def keys(self) -> Keys:
        """The secret keys; encrypted ones are read with the key that the environment names."""
        return Keys(self.path / SECRETS, _cipher(self.declared.encrypted))

    def index(self) -> Fingerprints:
        """The records that were learned, and who is excluded; kept open as long as nobody else touches the files."""
        if self._index is None or not self._index.current():
            self._index = Fingerprints(self.path / INDEX)
        return self._index

    def charges(self, book: Book) -> _Charges:
        """What this home has been charged, read again only when the ledger has moved."""
        if self._seen is None or self._seen.head != book.head():
            self._seen = _Charges.read(book, self.declared.identity)
        return self._seen

    @contextmanager
    def _held(self, wait: float = 0.0) -> Iterator[Book]:
        with held(self.path, wait):
            if is_old(self.path):
                self.declared.save(self.path)
            now = load(self.path)
            if now != self.declared:  # labels were added by another process
                self.declared, self._learner = now, None
            if self._book is None:  # kept from task to task: what it has checked of its chain it need not check again
                state.prepare(self.path)
                self._book = self.book()
            try:
                yield self._book
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Lets go of the ledger; the next task opens it again."""
        if self._book is not None:
            self._book.close()
            self._book = None

    def __del__(self) -> None:
        with suppress(Exception):  # a thread that did not open it may be the last to let go of it
            self.close()

    # --- learning ---------------------------------------------------------------------------------------

    def learn(
        self,
        data: Path | str | Task,
        task: str | None = None,
        *,
        label_column: str | None = None,
        classes: Sequence[str] | None = None,
        size: int | None = None,
        on_overlap: Overlap = "refuse",
        releases: Sequence[Path | str] = (),
        wait: float = 0.0,
        tick: Tick = lambda: None,
    ) -> Learned:
        """Learns one more task from a file, a folder or a `streams.Task`; continues one that was interrupted.

        `classes` are the labels that the task declares (default: all), `size` about how many records it has. A home
        that is shown a release (`releases`) newer than its own ledger refuses: it was restored from an old backup.
        """
        if on_overlap not in ("refuse", "drop"):
            raise BadInput(f"--on-overlap {on_overlap}: choose refuse or drop")
        with self._held(wait) as book:
            self._check_not_behind(book, releases)
            pending = self._recover(book)
            prepared, users, schema = self._task(data, task, label_column, classes, size)
            return self._learn(book, pending, prepared, users, schema, on_overlap, tick)

    def _task(
        self,
        data: Path | str | Task,
        name: str | None,
        label_column: str | None,
        classes: Sequence[str] | None,
        size: int | None,
    ) -> tuple[Task, tuple[str, ...] | None, Schema]:
        """The task as it is asked for, its users by name, and the schema with the columns of its file."""
        from l2dp.boundary import identity
        from l2dp.streams.records import Task
        from l2dp.streams.schema import check_task_name

        schema = self._schema(label_column)
        size = self.declared.task_size if size is None else size
        wanted = self._positions(classes)
        if isinstance(data, Task):
            check_task_name(data.name if name is None else name)
            if data.train.prepared:
                raise BadInput(
                    f"task {data.name!r}: {data.train.prepared}, so no statement could be signed; prepare it otherwise"
                )
            made = Task(data.name if name is None else name, data.train.sized(size), data.test, wanted)
            return *identity.by_name(made), schema
        if name is None:
            raise BadInput("give the task a name with --task, 2026-11 say")
        check_task_name(name)
        table = self.table(data, schema)
        return table.task(name, wanted, size), table.users, table.schema

    def _schema(self, label_column: str | None = None) -> Schema:
        """What was declared, with the columns of the first task where only their number was."""
        schema = self.declared.columns()
        if label_column is not None:
            schema = replace(schema, label_column=label_column)
        if schema.columns is None and state.path_of(self.path, 0).exists():
            columns = state.about(self.path, 0)["columns"]
            schema = replace(schema, columns=None if columns is None else tuple(columns))
        return schema

    def table(
        self, data: Path | str, schema: Schema | None = None, labelled: bool = True, part: Part = "train"
    ) -> Table:
        from l2dp.streams.tables import read_table

        return read_table(Path(data), self._schema() if schema is None else schema, labelled, part)

    def _positions(self, classes: Sequence[str] | None) -> tuple[int, ...]:
        labels = self.declared.labels
        if classes is None:
            return tuple(range(len(labels)))
        for label in classes:
            if label not in labels:
                raise BadInput(f"--classes names {label!r}, which is not declared; add it with `l2dp labels add`")
        if not classes or len(set(classes)) != len(classes):
            raise BadInput("--classes must name at least one label, and none twice")
        return tuple(sorted(labels.index(label) for label in classes))

    def _learn(
        self,
        book: Book,
        pending: Reservation | None,
        task: Task,
        users: tuple[str, ...] | None,
        schema: Schema,
        on_overlap: Overlap,
        tick: Tick,
    ) -> Learned:
        import torch

        from l2dp.boundary import identity
        from l2dp.learners.learner import Plan

        declared = self.declared
        if pending is not None and pending.task != task.name:
            raise Refused(
                f"task {pending.task!r} was begun and not finished; learn it again from the same data, or give it up "
                f"with `l2dp abandon {self.path} --task {pending.task}`; nothing was read or charged"
            )
        identity.examine(task, schema)
        total = identity.count(task)
        size = task.train.declared_size
        if not size / FAR_OFF <= total <= size * FAR_OFF:
            raise BadInput(
                f"task {task.name!r} has {total} records and declares about {size}; say --size, nearer to it"
            )
        keys, index = self.keys(), self.index()
        secret = keys.read(FINGERPRINT_KEY)
        self._check_memory(book, secret, index)
        found = identity.record_fingerprints(task, secret)
        # Copies, excluded units, records of other tasks: what is left out depends on the record itself, or on the past.
        keep = identity.first_of_each(found) if declared.unit == "record" else torch.ones(total, dtype=torch.bool)
        copies = total - int(keep.sum())
        blocked = self._excluded(task, users, found, secret, index)
        excluded = int((keep & blocked).sum())
        keep &= ~blocked
        overlapping = 0
        if declared.unit == "record":
            known = torch.from_numpy(index.known(found, task.name)) & keep
            overlapping = int(known.sum())
            if overlapping and on_overlap == "refuse":
                raise Refused(
                    f"task {task.name!r}: {overlapping} of {total} records were learned in another task and have spent "
                    "their budget; nothing was read or charged; use --on-overlap drop to leave them out"
                )
            keep &= ~known
        if not bool(keep.any()):
            raise Refused(f"task {task.name!r}: no record is left that may be learned; nothing was read or charged")
        task = identity.without(task, keep)
        found = found[keep.numpy()]
        done = self.learned(book)
        number = len(done)
        facts = {"declared": declared.digest(), "labels": len(declared.labels)}
        content = identity.content(task, schema.space, users, secret, facts)
        earlier = book.reservation(task.name)
        if earlier is not None and earlier.state == "committed":
            if earlier.content != content or earlier.answer == ABANDONED:
                raise Refused(
                    f"task {task.name!r} was learned before, and these records are not what it was learned from "
                    "(labels added, units excluded or another --size since count too), or it was given up; nothing was "
                    "read or charged; only new records need a new task name"
                )
            return Learned(task.name, -1, total, copies, overlapping, excluded, size, True)
        learner = self._ready(done)
        assert self._till is not None
        key_name = f"{NOISE_KEY}{number:06d}"

        def before() -> None:
            """The noise key is durable before the charge; one that was charged before is found again."""
            if self._noise is None:
                return
            if pending is None:
                keys.create(key_name)
            elif not keys.holds(key_name):
                raise Refused(
                    f"the noise key of task {task.name!r} is lost, and a second answer about the same data is never "
                    f"given; give the task up with `l2dp abandon {self.path} --task {task.name}`"
                )
            self._noise.use(keys.read(key_name))

        def voucher() -> Voucher:
            privacy = learner.facts().get("privacy", {})
            return Voucher(
                task.name,
                content,
                str(privacy.get("mechanism", learner.NAME)),
                float(privacy.get("rows_per_unit", 1)),
                {"home": declared.identity, "index": number, "declared_size": size, **privacy},
                "add-remove",
                declared.unit,
                "operating system, 256-bit key of the task"
                if declared.insecure_noise_seed is None
                else "INSECURE: a seed",
            )

        blocks = None
        if declared.unit == "user":
            if users is None:
                raise BadInput(f"task {task.name!r} names no users, and the unit of {self.path} is the user")
            blocks = [identity.user_fingerprint(user, secret) for user in users]

        def after() -> None:
            index.add(task.name, found)

        self._till.expect(book, voucher, blocks, before, after)
        began, known_before = book.head(), self.charges(book)
        self._loaded = -1  # until the task is durable, the learner in memory is neither the old one nor the new
        try:
            learner.learn(task, Plan(1, min(64, size)), tick)
        except Refused:
            if pending is None:  # nothing was charged, so nothing was drawn
                keys.remove(key_name)
            raise
        finally:
            if self._noise is not None:
                self._noise.use(None)
        reservation = self._till.reservation
        state.write(
            self.path,
            number,
            learner,
            {
                "task": task.name,
                "classes": list(task.classes),
                "declared_size": size,
                "content": content,
                "reservation": reservation,
                "declared": declared.digest(),
                "columns": None if schema.columns is None else list(schema.columns),
                "privacy": learner.facts().get("privacy", {}),
                "dropped_overlap": on_overlap == "drop",
            },
        )
        book.commit(reservation, state.digest(self.path, number))
        settled = book.reservation(task.name)
        if pending is None and settled is not None and book.head().sequence == began.sequence + 2:
            self._seen = known_before.with_learned(book.head(), settled)
        keys.remove(key_name)
        self._loaded = number + 1
        return Learned(task.name, number, total, copies, overlapping, excluded, size, False)

    def _check_memory(self, book: Book, secret: bytes, index: Fingerprints) -> None:
        """Refuses where records or users of the past would not be known again: they would pay a second time.

        Guarantee
        ---------
        Past this call, a record that a committed task has brought is in the index, and a user has the fingerprint
        under which earlier tasks charged them.
        """
        from l2dp.store.verify import forgotten

        for fault in forgotten(self, book, secret, index):
            raise Refused(f"{self.path}: {fault}, so that somebody would pay twice; nothing was read or charged")

    def _excluded(
        self, task: Task, users: tuple[str, ...] | None, found: Any, secret: bytes, index: Fingerprints
    ) -> Any:
        import torch

        from l2dp.boundary import identity

        if self.declared.unit == "record":
            return torch.from_numpy(index.excluded(found))
        if users is None:
            raise BadInput(f"task {task.name!r} names no users, and the unit of {self.path} is the user")
        import numpy as np

        whose = np.frombuffer(b"".join(identity.user_fingerprint(user, secret) for user in users), dtype="V32")
        out = index.excluded(whose)
        return identity.rows_of(task, torch.from_numpy(out))

    def learned(self, book: Book) -> list[Reservation]:
        """The tasks that are learned, in order."""
        return self.charges(book).learned

    def _ready(self, done: Sequence[Reservation]) -> Learner:
        """The learner with these tasks, from memory or from the disk, ready to be paid and fed."""
        if self._learner is None or self._loaded != len(done):
            from l2dp.noise import InsecureNoise, Noise
            from l2dp.store.charging import TaskNoise, Till

            seed = self.declared.insecure_noise_seed
            self._till = Till()
            self._noise = TaskNoise() if seed is None else None
            noise: Noise = InsecureNoise(seed or 0) if self._noise is None else self._noise
            self._learner = self._restored(done, noise=noise, ledger=self._till)
            self._loaded = len(done)
        return self._learner

    def looked_at(self, done: Sequence[Reservation]) -> Learner:
        """The learner as it was after these tasks, for scores and releases."""
        if self._learner is not None and self._loaded == len(done):
            return self._learner
        return self._restored(done, learns=False)

    def _restored(self, done: Sequence[Reservation], **more: Any) -> Learner:
        from l2dp.learners.learner import Setting

        declared = self.declared
        learner = make_learner(declared)
        learner.begin(Setting(declared.columns().space, declared.task_size, declared.seed, **more))
        for index, task in enumerate(done):
            if state.digest(self.path, index) != task.answer:
                raise Refused(f"the state of task {task.task!r} was changed; run `l2dp verify {self.path}`")
        if done:
            read = [state.read(self.path, index) for index in range(len(done))]
            for _, _, about in read:
                if about["declared"] != declared.digest():
                    raise Refused(f"{self.path / 'home.json'} was changed after task {about['task']!r}; restore it")
            learner.restore(read[-1][0], [episode for _, episode, _ in read], ())
        return learner

    # --- after a crash ------------------------------------------------------------------------------------

    def _recover(self, book: Book) -> Reservation | None:
        """Brings state and ledger together; gives the task that was begun and is to be learned again, if any."""
        charges = self.charges(book)
        committed = len(charges.learned)
        last = charges.learned[-1] if charges.learned else None
        pending = charges.waiting[0] if charges.waiting else None
        # All of them are read when the learner is loaded; a listing for every task would cost more every time.
        there = committed if state.ends_at(self.path, committed) else state.count(self.path)
        keys = self.keys()
        keys.sweep()
        if pending is not None and there == committed + 1:
            about = state.about(self.path, committed)
            if (about["task"], about["content"]) != (pending.task, pending.content):
                raise Refused(f"the last state in {self.path} is not of task {pending.task!r}; run `l2dp verify`")
            book.commit(pending.id, state.digest(self.path, committed))
            last, pending, committed = pending, None, committed + 1
        if there < committed:
            raise Refused(
                f"the ledger of {self.path} has {committed} tasks, its state {there}: the state is from an older "
                "backup; nothing was read or charged; restore the whole home"
            )
        if there > committed:
            raise Refused(
                f"the state of {self.path} has {there} tasks, its ledger {committed}: the ledger is from an older "
                "backup, and what was spent since is not in it; nothing was read or charged; restore the whole home"
            )
        if last is not None:
            found = book.reservation(last.task)
            if found is None or found.answer != state.digest(self.path, committed - 1):
                raise Refused(f"the state of task {last.task!r} was changed; run `l2dp verify {self.path}`")
        wanted = None if pending is None else f"{NOISE_KEY}{committed:06d}"
        for name in keys.names():
            if name.startswith(NOISE_KEY) and name != wanted:
                keys.remove(name)
        return pending

    def abandon(self, task: str, wait: float = 0.0) -> bool:
        """Gives a task up that was begun and cannot be finished: its noise key is deleted.

        Its units stay charged (the answer), unless it was stopped before the first of its records could be read.
        """
        with self._held(wait) as book:
            pending = self._recover(book)
            if pending is None or pending.task != task:
                raise BadInput(f"no task {task!r} waits to be finished in {self.path}")
            index = self.index()
            charged = task in index.tasks
            if charged:
                book.commit(pending.id, ABANDONED)
            else:  # fingerprints are durable before the first read: nothing was read, if the index is whole
                self._check_memory(book, self.keys().read(FINGERPRINT_KEY), index)
                book.cancel(pending.id)
            self._recover(book)
            return charged

    def _check_not_behind(self, book: Book, releases: Sequence[Path | str]) -> None:
        from l2dp.store.release import Release

        for place in releases:
            shown = Release(place)
            if shown.home != self.declared.identity:
                raise BadInput(f"the release {place} is of another home than {self.path}; show one that it made")
            self.note_behind(book, shown)
        newer = self.behind(book)
        if newer is None:
            (self.path / BEHIND).unlink(missing_ok=True)
        else:
            raise Refused(
                f"{self.path} is older than the release {newer}: it was restored from a backup, and what was spent "
                "since is not in its ledger; nothing was read or charged; restore the newest backup"
            )

    def note_behind(self, book: Book, shown: Release) -> bool:
        """Whether a release of this home is newer than its ledger; then the home remembers, and learns no more."""
        sequence, found = shown.head
        if book.knows((sequence, found)):
            return False
        write_json(
            self.path / BEHIND, {"release": str(shown.path), "ledger_head": {"sequence": sequence, "hash": found}}
        )
        return True

    def behind(self, book: Book) -> str | None:
        """The release that was shown and is newer than the ledger; None: none, or a newer ledger was put in."""
        marker = self.path / BEHIND
        if not marker.exists():
            return None
        known = read_json(marker)
        head = known["ledger_head"]
        return None if book.knows((head["sequence"], head["hash"])) else str(known["release"])

    # --- what was declared later --------------------------------------------------------------------------

    def add_labels(self, labels: Sequence[str], wait: float = 0.0) -> None:
        """Declares more labels; those of the past keep their places."""
        with self._held(wait) as book:
            if self._recover(book) is not None:
                raise BadInput(f"a task is unfinished in {self.path}; finish it with `l2dp learn` first")
            schema = self.declared.columns().with_labels(labels)
            if self._fixed_size() and state.count(self.path):
                raise BadInput(f"the network of {self.path} has a fixed size, and so has its set of labels")
            self.declared = self.declared.with_labels(schema.labels)
            self.declared.save(self.path)
            self._learner = None

    def _fixed_size(self) -> bool:
        return self.declared.options.get("head") == "fixed"

    def exclude(self, users: Sequence[str] = (), records: Path | str | None = None, wait: float = 0.0) -> int:
        """Keeps users, or the records of a table, out of all future tasks. Gives how many were not excluded before."""
        import numpy as np

        from l2dp.boundary import identity
        from l2dp.store.release import usable

        with self._held(wait) as book:
            if self._recover(book) is not None:
                raise BadInput(f"a task is unfinished in {self.path}; finish it with `l2dp learn` first")
            secret = self.keys().read(FINGERPRINT_KEY)
            if self.declared.unit == "user":
                if not users or records is not None:
                    raise BadInput(f"the unit of {self.path} is the user; name users with --user")
                if not all(user.strip() for user in users):
                    raise BadInput("--user must not be empty: it would match nobody")
                data = b"".join(identity.user_fingerprint(user, secret) for user in users)
                return self.index().exclude(np.frombuffer(data, dtype="V32"))
            if records is None or users:
                raise BadInput(f"the unit of {self.path} is the record; give the records as a table with --records")
            table = self.table(records, labelled=False)
            usable(table)
            task = table.task("excluded", (0,), len(table))
            return self.index().exclude(identity.record_fingerprints(task, secret))

    # --- looking ----------------------------------------------------------------------------------------

    def evaluate(self, data: Path | str, public: bool = False, label_column: str | None = None) -> dict[str, Any]:
        """Accuracy of the newest model on a table; it is noted in the home, and in a card only if declared public."""
        from l2dp.store.release import accuracy_on

        with self.book(readonly=True) as book:
            done = self.learned(book)
        if not done:
            raise BadInput(f"{self.path} has learned no task yet; there is nothing to evaluate")
        learner = self.looked_at(done)
        # Whose a test record is does not matter.
        schema = replace(self._schema(label_column), unit_column=None)
        found = accuracy_on(learner, self.table(data, schema, part="test"))
        line = {"task": done[-1].task, "index": len(done) - 1, "data": Path(data).name, "public": public, **found}
        try:
            with held(self.path, 10.0):
                history.append(self.path / history.EVALUATIONS, line)
        except L2dpError:
            pass  # a home that cannot be written can still be looked at
        return line

    def release(self, out: Path | str | None = None, task: str | None = None, *, onnx: bool = False) -> Release:
        """Writes the model after a task (default: the newest) with its privacy statement, whole or not at all.

        `out` is by default a folder beside the home, named after home and task.
        With `onnx` the folder holds the model as an ONNX graph too.
        """
        from l2dp.store.releasing import write_release

        with self._held(10.0) as book:
            self._check_not_behind(book, ())
            self._recover(book)
            if out is None:
                done = self.learned(book)
                named = task if task is not None else done[-1].task if done else "none"
                out = self.path.with_name(f"{self.path.name}-{named}")
            return write_release(self, book, Path(out), task, onnx)

    def status(self) -> dict[str, Any]:
        """Everything that can be told about a home without touching a secret, as JSON."""
        from l2dp.store.status import status

        return status(self)

    def verify(self, releases: Sequence[Path | str] = ()) -> list[str]:
        """Everything that is wrong with the home, in plain words; nothing: it is as it was written."""
        from l2dp.store.verify import faults

        return faults(self, releases)


def make_learner(declared: Declared) -> Learner:
    """The learner as it was declared, its budget and unit set."""
    from l2dp import learners
    from l2dp.learners.options import configure

    cls = learners.find(declared.learner)
    if cls.KEEPS_RECORDS:
        raise BadInput(f"{cls.NAME} reads records of past tasks again, and a home holds none; use private-replay")
    return configure(cls, {}, declared.settings, declared.epsilon, declared.delta)


def init(
    path: Path | str,
    *,
    epsilon: float,
    delta: float | None = None,
    labels: Sequence[str],
    features: int | None = None,
    shape: Sequence[int] | None = None,
    columns: Sequence[str] | None = None,
    low: float | Sequence[float] | None = None,
    high: float | Sequence[float] | None = None,
    label_column: str = "label",
    unit: Unit = "record",
    unit_column: str | None = None,
    per_task_epsilon: float | None = None,
    per_user: int = 1,
    task_size: int = TASK_SIZE,
    learner: str = "private-replay",
    options: Mapping[str, str] | None = None,
    seed: int = 0,
    ledger: str | None = None,
    fingerprint_key: Path | str | None = None,
    encrypt: bool = False,
    insecure_noise_seed: int | None = None,
) -> Home:
    """Makes a home, whole or not at all. What is declared here holds for its lifetime; only labels can be added.

    Homes of users may share a ledger, if they share a fingerprint key: `fingerprint_key` names that of the first.
    """
    from l2dp.learners import believed
    from l2dp.learners.learner import Setting
    from l2dp.streams.schema import Schema

    if features is None and shape is None and columns is not None:
        features = len(columns)
    if (features is None) == (shape is None):
        raise BadInput("declare the inputs with --features or with --shape, one of them")
    size = (features,) if features is not None else tuple(shape or ())
    ends = (-1.0, 1.0) if features is not None else (0.0, 255.0)
    schema = Schema(
        size,
        tuple(labels),
        _numbers(ends[0] if low is None else low),
        _numbers(ends[1] if high is None else high),
        None if columns is None else tuple(columns),
        label_column,
        unit_column,
    )
    if unit not in ("record", "user"):
        raise BadInput(f"--unit {unit}: choose record or user")
    if unit == "user":
        if unit_column is None:
            raise BadInput("--unit user needs --unit-column: the column that says whose a row is")
        if per_task_epsilon is None:
            raise BadInput(
                "--unit user needs --per-task-epsilon: what one task may spend of a user's lifetime budget, "
                "so that the first task does not use it up"
            )
    elif unit_column is not None or per_task_epsilon is not None or per_user != 1:
        raise BadInput("--unit-column, --per-task-epsilon and --per-user go with --unit user")
    if task_size < 1:
        raise BadInput(f"--task-size must be at least 1, not {task_size}")
    folder = Path(path)
    declared = Declared(
        os.urandom(16).hex(),
        float(epsilon),
        _delta(learner, epsilon) if delta is None else float(delta),
        unit,
        per_task_epsilon,
        per_user,
        task_size,
        schema.to_json(),
        learner,
        dict(options or {}),
        seed,
        LEDGER if ledger is None else without_password(ledger),
        encrypt,
        insecure_noise_seed,
        "none",
    )
    # Everything that can be wrong with the declaration is found before anything is made.
    begun = make_learner(declared)
    begun.begin(Setting(schema.space, task_size, seed))
    declared = replace(declared, status=believed(begun, begun.guarantee).status)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder} is not empty; choose another place for the home")
    with whole_folder(folder) as draft:
        keys = Keys(draft / SECRETS, _cipher(encrypt))
        if fingerprint_key is None:
            secret = keys.create(FINGERPRINT_KEY)
        else:
            given = Path(fingerprint_key)
            secret = Keys(given.parent, Cipher.from_environment()).read(given.name)
            keys.write(FINGERPRINT_KEY, secret)
        state.prepare(draft)
        where = draft / LEDGER if ledger is None else ledger
        with open_book(where, Budget(declared.epsilon, declared.delta)) as book:
            book.join(declared.identity, check_of(secret), unit)
        declared.save(draft)
    return Home(folder)


def _cipher(wanted: bool) -> Cipher | None:
    cipher = Cipher.from_environment()
    if wanted and cipher is None:
        raise BadInput("the keys of this home are encrypted; set L2DP_KEY or L2DP_KEY_FILE")
    return cipher if wanted else None


def _numbers(found: float | Sequence[float]) -> tuple[float, ...]:
    return (float(found),) if isinstance(found, int | float) else tuple(float(number) for number in found)


def _delta(learner: str, epsilon: float) -> float:
    from l2dp import learners

    return float(getattr(learners.find(learner), "DELTA", 0.0))


def open_home(path: Path | str) -> Home:
    """The home at a path."""
    return Home(path)
