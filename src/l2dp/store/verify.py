"""Looks at everything in a home and says what is wrong, in plain words.

It changes nothing, but for one thing: a home that is shown a release newer than its ledger remembers that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from l2dp.durable import sha256
from l2dp.errors import BadInput, L2dpError
from l2dp.keys import check_of
from l2dp.store import history, state
from l2dp.store.release import SUMS, Release
from l2dp.store.release import faults as release_faults

if TYPE_CHECKING:
    from l2dp.book import Book
    from l2dp.fingerprints import Fingerprints
    from l2dp.store.home import Home


def faults(home: Home, releases: Sequence[Path | str] = ()) -> list[str]:
    for place in releases:
        if not Path(place).is_dir():
            raise BadInput(f"there is no release {place}; name the folder of one")
    found: list[str] = []
    try:
        with home.book(readonly=True) as book:
            found += [f"ledger: {fault}" for fault in book.verify()]
            for check in (_states, _keys, _index, _histories):
                try:
                    found += check(home, book)
                except L2dpError as error:
                    found.append(str(error))
            found += _shown(home, book, releases)
            newer = home.behind(book)
            if newer is not None and not releases:
                found.append(_older(newer))
    except L2dpError as error:
        found.append(str(error))
    found += _permissions(home)
    return found


def _older(release: Path | str) -> str:
    return f"the home is older than the release {release}: it was restored from a backup and must not learn"


def _states(home: Home, book: Book) -> Iterator[str]:
    """Every committed task has the state whose digest the ledger notes, and says the same about itself."""
    from l2dp.store.home import ABANDONED

    learned = [task for task in home.charges(book).own if task.answer != ABANDONED]
    there = state.count(home.path)
    pending = [task for task in learned if task.state == "reserved"]
    if len(pending) > 1:
        yield f"{len(pending)} tasks are unfinished at once"
    if not len(learned) - len(pending) <= there <= len(learned):
        yield f"the ledger has {len(learned)} tasks, {len(pending)} of them unfinished, and there are {there} states"
    for index, task in enumerate(learned[:there]):
        if task.state == "committed" and task.answer != state.digest(home.path, index):
            yield f"the state of task {task.task!r} ({state.path_of(home.path, index).name}) was changed"
            continue
        try:
            about = state.about(home.path, index)
        except L2dpError as error:
            yield str(error)
            continue
        if (about["task"], about["content"]) != (task.task, task.content):
            yield f"state {index} is not of task {task.task!r}, which the ledger has there"
        if about["declared"] != home.declared.digest():
            yield f"home.json was changed after task {task.task!r} was learned"


def _keys(home: Home, book: Book) -> Iterator[str]:
    """The fingerprint key can be read; there is a noise key only while a task is unfinished."""
    from l2dp.store.home import FINGERPRINT_KEY, NOISE_KEY

    keys = home.keys()
    yield from keys.faults()
    if not keys.holds(FINGERPRINT_KEY):
        yield "the key of the fingerprints is missing; restore it from a backup"
    kept = [name for name in keys.names() if name.startswith(NOISE_KEY)]
    if len(kept) > 1:  # one is that of an unfinished task, or was left by a crash and goes with the next task
        yield f"{len(kept)} noise keys are kept, one at most is needed"


def _index(home: Home, book: Book) -> Iterator[str]:
    """The index is whole, and records and users of the past are known again."""
    from l2dp.store.home import FINGERPRINT_KEY

    index = home.index()
    yield from index.verify()
    keys = home.keys()
    if keys.holds(FINGERPRINT_KEY):
        yield from forgotten(home, book, keys.read(FINGERPRINT_KEY), index)


def forgotten(home: Home, book: Book, secret: bytes, index: Fingerprints) -> Iterator[str]:
    """Why records or users of earlier tasks would not be known again; nothing: they would be."""
    if book.check_of_home(home.declared.identity) != check_of(secret):
        yield "the key of the fingerprints is not the one that the home was made with; restore it from a backup"
    if home.declared.unit == "record":
        known = index.tasks
        for task in home.learned(book):
            if task.task not in known:
                yield f"the fingerprints of task {task.task!r} are missing; restore the whole home from a backup"


def _histories(home: Home, book: Book) -> Iterator[str]:
    history.read(home.path / history.EVALUATIONS)
    for line in history.read(home.path / history.RELEASES):
        head = line["ledger_head"]
        if not book.knows((head["sequence"], head["hash"])):
            yield f"the release of task {line['task']!r} was made when the ledger had an entry that it lacks now"
        out = Path(line["out"])
        if (out / SUMS).is_file():
            if sha256(out / SUMS) != line["sha256"]:
                yield f"the release {out} was changed: its {SUMS} is another"
            yield from release_faults(out)


def _shown(home: Home, book: Book, releases: Sequence[Path | str]) -> Iterator[str]:
    for place in releases:
        try:
            release = Release(place)
        except L2dpError as error:
            yield str(error)
            continue
        if release.home != home.declared.identity:
            yield f"the release {place} is of another home"
        elif home.note_behind(book, release):
            yield _older(place)


def _permissions(home: Home) -> Iterator[str]:
    """What is secret is for its owner only."""
    for part in ("secrets", state.FOLDER):
        folder = home.path / part
        for path in (folder, *folder.rglob("*")) if folder.is_dir() else ():
            try:
                if path.stat().st_mode & 0o077:
                    yield f"{path} can be read by others; run chmod -R go= on it"
            except OSError:
                continue  # removed in the meantime
