"""Makes a release of a home: parameters, already-private statistics, statement, card. Whole or not at all.

Guarantee
---------
A function of what has left the boundary (post-processing): it reads no record and no key and costs nothing. What goes
in is listed here, file by file.
"""

from __future__ import annotations

import shlex
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from l2dp.book import Book
from l2dp.durable import sha256, whole_folder, write_bytes, write_json, write_tensors
from l2dp.errors import BadInput
from l2dp.store import history, state
from l2dp.store.card import card
from l2dp.store.exchange import onnx_bytes
from l2dp.store.release import (
    ABOUT,
    CARD,
    FILES,
    FORMAT,
    LABELS,
    LOADER,
    MODEL,
    ONNX,
    PRIVACY,
    SUMS,
    Release,
    is_release,
)

if TYPE_CHECKING:
    from l2dp.store.declared import Declared
    from l2dp.store.home import Home

READABLE = 0o644

NOT_COVERED = (
    "the names and order of tasks, the labels and sizes that they declare, and the schema: they are public",
    "the fact that a task, or a release of one, was refused, and why",
    "hyper-parameters that were chosen by looking at private data",
    "time, memory and other side channels of the machine that learned",
    "accuracies on private test records that are published beside the model",
    "floating-point sampling: the noise is exact up to about one part in 2^52 (ideal real-valued sampling)",
)
RECORD_ONLY = (
    "a person with several different records: each record is protected by itself. k of them in k tasks cost k times ε "
    "and δ; in one task they cost more, δ above all",
    "a record that comes back in another form: only exact copies of its inputs are recognised",
)
USER_ONLY = ("a person who goes by two user ids: each id is protected by itself",)
ENCODER = "the people in the training data of the public encoder, which its own makers answer for"


class _ThereAlready(Exception):
    """The very same release was made before."""


def privacy_statement(home: Home, head: tuple[int, str], tasks: list[dict[str, Any]]) -> dict[str, Any]:
    """What is promised, machine-readable: the guarantee as in a run's result, and what it rests on."""
    declared = home.declared
    not_covered = [*NOT_COVERED, *(RECORD_ONLY if declared.unit == "record" else USER_ONLY)]
    if str(declared.options.get("features", "")).startswith("efficientnet"):
        not_covered.append(ENCODER)
    one = tasks[-1]["privacy"]
    dropped = any(task["dropped_overlap"] for task in tasks)
    return {
        **declared.guarantee.to_json(),
        "meaning": (
            "a neighbour lacks one record: an input, with all its exact copies in any task, whatever their labels"
            if declared.unit == "record"
            else "a neighbour lacks one user, with all their records in all tasks"
        ),
        "records_of_other_tasks_were_left_out": dropped,
        "per_task": {
            "status": declared.guarantee.status,
            "epsilon": one.get("epsilon_of_one_task"),
            "delta": one.get("delta_of_one_task"),
        },
        "mechanism": one.get("mechanism"),
        "noise": "INSECURE: from a seed"
        if declared.insecure_noise_seed is not None
        else "AES-256 under a 256-bit key of the operating system for each task, deleted when the task was learned",
        "tasks": len(tasks),
        "ledger_head": {"sequence": head[0], "hash": head[1]},
        "not_covered": not_covered,
        "audit": {"status": "not run on this release", "command": _audit_command(declared)},
        "proof": "docs/proofs.md of l2dp",
        "version": version("l2dp"),
    }


def _audit_command(declared: Declared) -> str:
    """An audit of the learner in the very settings of this home; with no guarantee there is none to audit."""
    if declared.guarantee.epsilon is None:
        return f"l2dp audit {shlex.quote(declared.learner)}"
    options = "".join(f" -o {shlex.quote(f'{name}={value}')}" for name, value in sorted(declared.settings.items()))
    budget = f"--epsilon {declared.epsilon!r} --delta {declared.delta!r}"
    return f"l2dp audit {shlex.quote(declared.learner)} {budget}{options}"


def write_release(home: Home, book: Book, out: Path, task: str | None, onnx: bool = False) -> Release:
    """The model after a task (None: the newest) in a folder of its own; with `onnx`, as an ONNX graph too."""
    declared = home.declared
    done = home.learned(book)
    if not done:
        raise BadInput(f"{home.path} has learned no task yet; there is nothing to release")
    names = [found.task for found in done]
    if task is not None and task not in names:
        raise BadInput(f"{home.path} has not learned a task {task!r}; it has {', '.join(names[-5:])}")
    number = len(done) if task is None else names.index(task) + 1
    learner = home.looked_at(done[:number])
    about = [state.about(home.path, index) for index in range(number)]
    learner.settle()
    schema = dict(declared.schema) | {"columns": about[0]["columns"]}
    privacy = privacy_statement(home, book.head(), about)
    public = [
        line for line in history.read(home.path / history.EVALUATIONS) if line["public"] and line["index"] == number - 1
    ]
    described = {
        "format": FORMAT,
        "home": declared.identity,
        "task": about[-1]["task"],
        "tasks": [found["task"] for found in about],
        "learner": declared.learner,
        "options": dict(declared.options),
        "settings": declared.settings,
        "features": getattr(getattr(learner, "encoder", None), "width", None),
        "budget": {"status": declared.guarantee.status, "epsilon": declared.epsilon, "delta": declared.delta},
        "seed": declared.seed,
        "schema": schema,
        "version": version("l2dp"),
    }
    released = learner.release()
    graph = onnx_bytes(released, described) if onnx else None
    files = (*FILES, ONNX) if onnx else FILES
    if out.exists() and not out.is_dir():
        raise BadInput(f"--out {out} is a file; choose a folder that does not exist yet")
    with suppress(_ThereAlready), whole_folder(out) as draft:
        write_tensors(draft / MODEL, released, {"learner": declared.learner}, READABLE)
        write_json(draft / ABOUT, described)
        write_json(draft / PRIVACY, privacy)
        write_bytes(draft / LABELS, ("\n".join(declared.labels) + "\n").encode(), READABLE)
        write_bytes(draft / CARD, card(described, privacy, public).encode(), READABLE)
        write_bytes(draft / LOADER, (Path(__file__).parent / "loader.py").read_bytes(), READABLE)
        if graph is not None:
            write_bytes(draft / ONNX, graph, READABLE)
        sums = {name: sha256(draft / name) for name in files}
        text = "".join(f"{digest}  {name}\n" for name, digest in sums.items())
        write_bytes(draft / SUMS, text.encode(), READABLE)
        draft.chmod(0o755)
        if out.is_dir() and any(out.iterdir()):
            if not (is_release(out) and (out / SUMS).read_text("utf-8") == text):
                raise BadInput(f"{out} is not empty; choose another --out, a release is never overwritten")
            raise _ThereAlready
    line = {
        "task": described["task"],
        "index": number - 1,
        "out": str(out.absolute()),
        "ledger_head": privacy["ledger_head"],
        "sha256": sha256(out / SUMS),
        "bytes": sum((out / name).stat().st_size for name in files),
    }
    if line not in history.read(home.path / history.RELEASES):
        history.append(home.path / history.RELEASES, line)
    return Release(out)
