"""What is declared when a home is made (`home.json`): budget, unit, schema, learner. Labels alone are added later."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from l2dp.budget import Budget, Guarantee, Status, Unit
from l2dp.durable import read_json, write_json
from l2dp.errors import BadInput

if TYPE_CHECKING:
    from l2dp.streams.schema import Schema

FORMAT = 2
"""The version of a home's files. An older home is migrated when it is opened for writing, a newer one refused."""


def _with_status(found: dict[str, Any]) -> dict[str, Any]:
    """The first format did not say what a learner's ε is worth; only that of our own was proved."""
    return {"status": "proved" if found.get("learner") == "private-replay" else "claimed"} | found


MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _with_status}
"""What turns `home.json` of one version into the next."""
FILE = "home.json"


@dataclass(frozen=True)
class Declared:
    """Public configuration, fixed for the lifetime of a home; only labels are ever added."""

    identity: str
    epsilon: float
    delta: float
    unit: Unit
    per_task_epsilon: float | None
    per_user: int
    task_size: int
    """About how many records a task has, unless it declares its own: the true number is private."""
    schema: Mapping[str, Any]
    learner: str
    options: Mapping[str, str]
    seed: int
    ledger: str
    """A file within the home, or the address of a server."""
    encrypted: bool
    insecure_noise_seed: int | None
    status: Status
    """What the learner's ε is worth: of a learner of one's own it is claimed at best."""

    @property
    def budget(self) -> Budget:
        return Budget(self.epsilon, self.delta)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.schema["labels"])

    @property
    def guarantee(self) -> Guarantee:
        """What the releases of the home promise a unit over its lifetime."""
        if self.insecure_noise_seed is not None or self.status == "none":
            return Guarantee("none", unit=self.unit)
        return Guarantee(self.status, self.epsilon, self.delta, self.unit)

    @property
    def settings(self) -> dict[str, str]:
        """All options of the learner in words, as `l2dp audit LEARNER -o …` takes them."""
        words = {**self.options, "protects": self.unit, "per_user": str(self.per_user)}
        if self.per_task_epsilon is not None:
            words["per_task_epsilon"] = repr(float(self.per_task_epsilon))
        return words

    def columns(self) -> Schema:
        from l2dp.streams.schema import Schema

        return Schema.from_json(dict(self.schema))

    def with_labels(self, labels: tuple[str, ...]) -> Declared:
        return replace(self, schema={**self.schema, "labels": list(labels)})

    def digest(self) -> str:
        """Of all that never changes: what every task notes, so that a changed declaration is found."""
        fixed = asdict(self) | {"schema": {k: v for k, v in self.schema.items() if k != "labels"}}
        if self.status == "proved":  # tasks of the first format noted a digest without it
            del fixed["status"]
        return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()

    def save(self, folder: Path) -> None:
        write_json(folder / FILE, {"format": FORMAT} | asdict(self))


def load(folder: Path) -> Declared:
    """The declaration of a home, whatever version wrote it."""
    path = folder / FILE
    if not path.is_file():
        raise BadInput(f"{folder} is not a home; make one with `l2dp init {folder} …`")
    found = read_json(path)
    version = found.get("format") if isinstance(found, dict) else None
    if not isinstance(version, int) or isinstance(version, bool):
        raise BadInput(f"{path} does not say which format it has; restore it from a backup")
    if version > FORMAT:
        raise BadInput(f"{folder} has format {version}, this l2dp knows up to {FORMAT}; use a newer l2dp")
    while version < FORMAT:
        if version not in MIGRATIONS:
            raise BadInput(f"{folder} has format {version}, which this l2dp cannot bring up to date")
        found = MIGRATIONS[version](found)
        version += 1
    try:
        declared = Declared(**{name: value for name, value in found.items() if name != "format"})
        Budget(declared.epsilon, declared.delta)
        if declared.unit not in ("record", "user") or not isinstance(declared.schema["labels"], list):
            raise ValueError("unit or labels")
        if not all(isinstance(word, str) for word in (*declared.options, *dict(declared.options).values())):
            raise ValueError("options")
        if not isinstance(declared.learner, str) or not isinstance(declared.per_task_epsilon, int | float | None):
            raise ValueError("learner or per_task_epsilon")
        if declared.status not in get_args(Status):
            raise ValueError("status")
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{path} is not in the format of a home ({error!r}); restore it from a backup") from error
    return declared


def is_old(folder: Path) -> bool:
    return int(read_json(folder / FILE)["format"]) < FORMAT
