"""A release as others get it: one version of the model with its privacy statement. It needs no home.

`Release(folder)` checks every file against SHA256SUMS before anything is believed; nothing is unpickled, and no code
that a release names is run.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from l2dp.durable import read_json, read_tensors, sha256
from l2dp.errors import BadInput

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from l2dp.learners.learner import Learner
    from l2dp.streams.schema import Schema
    from l2dp.streams.tables import Table

FORMAT = 1
ABOUT, PRIVACY, MODEL, LABELS, CARD = "release.json", "privacy.json", "model.safetensors", "labels.txt", "MODEL_CARD.md"
LOADER, SUMS = "loader.py", "SHA256SUMS"
ONNX = "model.onnx"
"""Beside the others where it was asked for."""
FILES = (ABOUT, PRIVACY, MODEL, LABELS, CARD, LOADER)
AT_ONCE = 1000


def is_release(path: Path) -> bool:
    return (path / SUMS).is_file() and (path / PRIVACY).is_file()


def faults(folder: Path) -> list[str]:
    """What is wrong with the files of a release."""
    try:
        lines = (folder / SUMS).read_text("utf-8").splitlines()
        said = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    except (OSError, UnicodeDecodeError, ValueError) as error:
        return [f"{folder / SUMS} cannot be read ({error})"]
    found = [f"{folder} lacks {name}" for name in FILES if name not in said]
    for name, digest in said.items():
        if name != Path(name).name:
            found.append(f"{folder / SUMS} names {name[:60]!r}, which is not a file beside it")
            continue
        try:
            if sha256(folder / name) != digest:
                found.append(f"{folder / name} was changed: its SHA-256 is not the one in {SUMS}")
        except OSError as error:
            found.append(f"{folder / name} cannot be read: {error.strerror}")
    return found


class Release:
    """One version of a model, read from its folder.

    A learner that is not ours has to be given (`module:Class` or `file.py:Class`): whoever made the release does not
    decide what runs here.
    """

    def __init__(self, path: Path | str, learner: str | None = None) -> None:
        self.path = Path(path)
        self._given = learner
        if not is_release(self.path):
            raise BadInput(f"{self.path} is not a release; make one with `l2dp release HOME --out {self.path}`")
        wrong = faults(self.path)
        if wrong:
            raise BadInput(f"{wrong[0]}; get the release again")
        self.about: dict[str, Any] = read_json(self.path / ABOUT)
        self.privacy: dict[str, Any] = read_json(self.path / PRIVACY)
        if self.about.get("format") != FORMAT:
            raise BadInput(f"{self.path} has format {self.about.get('format')}, this l2dp knows {FORMAT}")
        self._learner: Learner | None = None

    @property
    def head(self) -> tuple[int, str]:
        """The ledger's head when it was made."""
        head = self.privacy["ledger_head"]
        return int(head["sequence"]), str(head["hash"])

    @property
    def home(self) -> str:
        return str(self.about["home"])

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.about["schema"]["labels"])

    def schema(self, label_column: str | None = None) -> Schema:
        from l2dp.streams.schema import Schema

        found = dict(self.about["schema"])
        return Schema.from_json(found | ({"label_column": label_column} if label_column is not None else {}))

    def learner(self) -> Learner:
        """The model, ready to answer `scores`."""
        if self._learner is None:
            from l2dp.learners.learner import Setting
            from l2dp.learners.options import configure

            about = self.about
            learner = configure(
                self._class(),
                {},
                about["options"],
                about["budget"]["epsilon"],
                about["budget"]["delta"],
            )
            tensors, _ = read_tensors(self.path / MODEL)
            learner.load(Setting(self.schema().space, AT_ONCE, about["seed"], learns=False), tensors)
            self._learner = learner
        return self._learner

    def _class(self) -> type[Learner]:
        from l2dp import learners

        name = str(self.about["learner"])
        if name in learners.LEARNERS:
            return learners.LEARNERS[name]
        if self._given is None:
            raise BadInput(
                f"{self.path} needs a learner that is not l2dp's, {name[:80]!r}, and code that a release names is not "
                "run; if you have it and trust it, give it: --learner file.py:Class, or Release(folder, learner=...)"
            )
        return learners.find(self._given)

    def scores(self, x: torch.Tensor) -> Tensor:
        """Scores of every label for inputs that were scaled to [−1, 1]."""
        return self.learner().scores(x)

    def predict(self, data: Path | str) -> tuple[list[str], list[float]]:
        """The label of every row of a table, and how sure the model is of it."""
        from l2dp.streams.tables import read_table

        return predictions(self.learner(), read_table(Path(data), self.schema(), labelled=False), self.labels)

    def evaluate(self, data: Path | str, label_column: str | None = None) -> dict[str, Any]:
        """Accuracy on a labelled table. Nothing is written."""
        from l2dp.streams.tables import read_table

        return accuracy_on(self.learner(), read_table(Path(data), self._for_testing(label_column), part="test"))

    def _for_testing(self, label_column: str | None) -> Schema:
        from dataclasses import replace

        return replace(self.schema(label_column), unit_column=None)


def usable(table: Table) -> None:
    """Refuses a table with values that no record of the schema can have."""
    import numpy as np

    bad = ~np.isfinite(table.x.reshape(len(table.x), -1))
    if bad.any():
        row, value = (int(place) for place in np.argwhere(bad)[0])
        low, high = table.schema.bounds(value)
        raise BadInput(
            f"{table.path}, row {row + 1}, {table.schema.place(value)}: the value is missing, not a number, or outside "
            f"the declared range {low:g} to {high:g}"
        )


def predictions(learner: Learner, table: Table, labels: tuple[str, ...]) -> tuple[list[str], list[float]]:
    import torch

    usable(table)
    names: list[str] = []
    sure: list[float] = []
    with torch.no_grad():
        for x, _ in table.records().chunks(AT_ONCE):
            best = torch.softmax(learner.scores(x).double(), 1).max(1)
            names += [labels[place] for place in best.indices.tolist()]
            sure += [round(value, 6) for value in best.values.tolist()]
    return names, sure


def accuracy_on(learner: Learner, table: Table) -> dict[str, Any]:
    """Accuracy over all records and for each label that occurs."""
    import torch

    usable(table)
    right = torch.zeros(len(table.schema.labels), dtype=torch.int64)
    total = torch.zeros_like(right)
    with torch.no_grad():
        for x, y in table.records().chunks(AT_ONCE):
            hit = learner.scores(x).argmax(1) == y
            total += torch.bincount(y, minlength=len(total))
            right += torch.bincount(y[hit], minlength=len(total))
    return {
        "accuracy": int(right.sum()) / int(total.sum()),
        "records": int(total.sum()),
        "labels": {
            label: int(right[place]) / int(total[place])
            for place, label in enumerate(table.schema.labels)
            if int(total[place])
        },
    }
