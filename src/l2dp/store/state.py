"""The state of a home after each task: one safetensors file a task, written in one step and never changed.

A file holds what the learner needs to go on (already private) and what is remembered of its own task, so that any
earlier version of the model can be released again. The ledger notes the file's SHA-256 when the task is committed.
"""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from l2dp.durable import make_folder, read_tensors, sha256, write_tensors
from l2dp.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor

    from l2dp.learners.learner import Learner, State

FOLDER = "state"
LARGEST_HEAD = 1 << 26
_NAME = re.compile(r"task-(\d{6})\.safetensors")


def path_of(home: Path, index: int) -> Path:
    return home / FOLDER / f"task-{index:06d}.safetensors"


def count(home: Path) -> int:
    """How many tasks have a state; they must be the first ones, without a gap."""
    folder = home / FOLDER
    found = sorted(int(match[1]) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name)))
    if found != list(range(len(found))):
        raise BadInput(f"{folder} lacks the state of a task; restore it from a backup")
    return len(found)


def ends_at(home: Path, tasks: int) -> bool:
    """Whether the last state is that of the task before this number; what lies further back is not looked at."""
    return (tasks == 0 or path_of(home, tasks - 1).exists()) and not path_of(home, tasks).exists()


def digest(home: Path, index: int) -> str:
    """SHA-256 of a task's file, as the ledger notes it."""
    path = path_of(home, index)
    try:
        return sha256(path)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}; restore it from a backup") from error


def prepare(home: Path) -> None:
    """The folder, private to the user; what a killed process was writing is removed."""
    folder = home / FOLDER
    make_folder(folder)
    folder.chmod(0o700)
    for stale in folder.glob(".task-*"):
        stale.unlink()


def write(home: Path, index: int, learner: Learner, about: dict[str, Any]) -> None:
    state = learner.state()
    tensors = {f"learner/{name}": tensor for name, tensor in state.tensors.items()}
    tensors |= {f"episode/{name}": tensor for name, tensor in learner.episode(index).items()}
    write_tensors(path_of(home, index), tensors, {**about, "index": index, "learner": state.meta})


def about(home: Path, index: int) -> dict[str, Any]:
    """What is said about a task, from the head of its file: without torch, and without checking the tensors."""
    path = path_of(home, index)
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            head = json.loads(file.read(min(length, LARGEST_HEAD)))
        found = json.loads(head["__metadata__"]["l2dp"].partition(" ")[2])
    except (OSError, struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{path} is damaged ({type(error).__name__}); restore it from a backup") from error
    if not isinstance(found, dict) or found.get("index") != index:
        raise BadInput(f"{path} is the state of another task; restore it from a backup")
    return found


def read(home: Path, index: int) -> tuple[State, dict[str, Tensor], dict[str, Any]]:
    """The learner's state after a task, what is remembered of the task, and what is said about it."""
    from l2dp.learners.learner import State

    path = path_of(home, index)
    tensors, about = read_tensors(path)
    if not isinstance(about, dict) or about.get("index") != index:
        raise BadInput(f"{path} is the state of another task; restore it from a backup")
    parts: dict[str, dict[str, Tensor]] = {"learner": {}, "episode": {}}
    for name, tensor in tensors.items():
        room, _, rest = name.partition("/")
        if room not in parts:
            raise BadInput(f"{path} holds {name!r}, which is not part of a state; restore it from a backup")
        parts[room][rest] = tensor
    return State(parts["learner"], about["learner"]), parts["episode"], about
