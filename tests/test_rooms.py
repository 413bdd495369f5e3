"""The rooms of the design are checked, not hoped for: who opens records, unpickles, draws noise or seeds globally."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "l2dp"
PICKLERS = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
UNPICKLING = {"torch.load", "torch.serialization.load", "torch.jit.load"}
GLOBAL_SEEDS = {
    *("torch.manual_seed", "torch.random.manual_seed", "torch.seed", "torch.random.seed", "torch.set_rng_state"),
    *("torch.cuda.manual_seed", "torch.cuda.manual_seed_all", "torch.mps.manual_seed"),
    *("numpy.random.seed", "numpy.random.set_state", "random.seed", "random.setstate"),
}
FORKS = {"torch.random.fork_rng"}
ENTROPY = {"os.urandom", "os.getrandom", "random.SystemRandom"}
NOISE_TYPES = {"l2dp.noise.Noise", "l2dp.noise.SystemNoise"}


class Reader(ast.NodeVisitor):
    """Collects what one module does that its room forbids. `place` is its path below src/l2dp."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.room = place.split("/")[0]
        self.names: dict[str, str] = {}
        self.forks = 0
        self.found: list[tuple[int, str]] = []

    def flag(self, node: ast.expr | ast.stmt, what: str) -> None:
        self.found.append((node.lineno, what))

    def full_name(self, node: ast.expr) -> str | None:
        """`np.random.seed` as `numpy.random.seed`, whatever it was imported as."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            before = self.full_name(node.value)
            return None if before is None else f"{before}.{node.attr}"
        return None

    def imported(self, node: ast.stmt, name: str) -> None:
        if name.split(".")[0] in PICKLERS:
            self.flag(node, f"imports {name}")
        if self.room == "learners" and (name.startswith("l2dp.noise") or name in ENTROPY or name.startswith("secrets")):
            allowed = self.place == "learners/learner.py" and name in NOISE_TYPES
            if not allowed:
                self.flag(node, f"imports {name}")
        if name in GLOBAL_SEEDS | UNPICKLING:
            self.flag(node, f"imports {name}")

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.names[alias.asname or alias.name.split(".")[0]] = (
                alias.name if alias.asname else alias.name.split(".")[0]
            )
            self.imported(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self.names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            self.imported(node, f"{node.module}.{alias.name}")

    def visit_With(self, node: ast.With) -> None:
        calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
        forked = any(self.full_name(call.func) in FORKS for call in calls)
        self.forks += forked
        self.generic_visit(node)
        self.forks -= forked

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr == "unseal" and self.room != "boundary":
            self.flag(node, "unseals records")
        if node.attr == "_records" and self.place != "streams/records.py":
            self.flag(node, "goes around the seal")
        if node.attr == "laplace" and self.room == "learners":
            self.flag(node, "draws noise")
        name = self.full_name(node)
        if name in UNPICKLING:
            self.flag(node, f"uses {name}")
        if name in GLOBAL_SEEDS and not self.forks:
            self.flag(node, f"uses {name} outside a fork of the generator")
        if name in ENTROPY and self.room == "learners":
            self.flag(node, f"uses {name}")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if node.value in ("unseal", "_records"):
            self.flag(node, f"names {node.value}")

    def visit_keyword(self, node: ast.keyword) -> None:
        refused = isinstance(node.value, ast.Constant) and node.value.value is False
        if node.arg == "allow_pickle" and not refused:
            self.flag(node.value, "allows pickles")
        self.generic_visit(node)


def violations(place: str, text: str) -> list[str]:
    reader = Reader(place)
    reader.visit(ast.parse(text))
    return [f"{place}:{line} {what}" for line, what in reader.found]


def modules() -> Iterator[tuple[str, str]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE).as_posix(), path.read_text("utf-8")


def test_every_room_keeps_its_rules() -> None:
    read = dict(modules())
    assert {"boundary/admission.py", "learners/learner.py", "streams/records.py", "models.py"} <= read.keys()
    assert [found for place, text in read.items() for found in violations(place, text)] == []


def test_the_boundary_does_unseal() -> None:
    """Or else the check above would pass because the method was renamed."""
    places = [place for place, text in modules() if ".unseal()" in text]
    assert places
    assert all(place.startswith("boundary/") for place in places)


@pytest.mark.parametrize(
    ("place", "text", "what"),
    [
        ("learners/new.py", "x, y = task.train.unseal().batch(rows)", "unseals records"),
        ("learners/new.py", "open_it = task.train.unseal", "unseals records"),
        ("runs.py", "records = task.train._records", "goes around the seal"),
        ("conformance.py", "getattr(task.train, 'unseal')()", "names unseal"),
        ("store.py", "import pickle", "imports pickle"),
        ("store.py", "def f():\n    from pickle import loads", "imports pickle.loads"),
        ("durable.py", "import torch\ntorch.load('x', weights_only=True)", "uses torch.load"),
        ("durable.py", "import torch as t\nt.load('x')", "uses torch.load"),
        ("durable.py", "from torch import load", "imports torch.load"),
        ("streams/dataset.py", "np.load(file, allow_pickle=True)", "allows pickles"),
        ("streams/dataset.py", "np.load(file, allow_pickle=trust)", "allows pickles"),
        ("learners/new.py", "from l2dp.noise import SystemNoise", "imports l2dp.noise.SystemNoise"),
        ("learners/new.py", "import l2dp.noise", "imports l2dp.noise"),
        ("learners/new.py", "from l2dp import noise", "imports l2dp.noise"),
        ("learners/learner.py", "from l2dp.noise import InsecureNoise", "imports l2dp.noise.InsecureNoise"),
        ("learners/new.py", "self.setting.noise.laplace(1.0, (3,))", "draws noise"),
        ("learners/new.py", "import os\nos.urandom(8)", "uses os.urandom"),
        ("models.py", "import torch\ntorch.manual_seed(0)", "uses torch.manual_seed outside"),
        (
            "models.py",
            "import torch\nwith torch.no_grad():\n    torch.manual_seed(0)",
            "uses torch.manual_seed outside",
        ),
        (
            "models.py",
            "import torch\nwith torch.random.fork_rng():\n    pass\ntorch.manual_seed(0)",
            "uses torch.manual_seed outside",
        ),
        ("runs.py", "import numpy as np\nnp.random.seed(0)", "uses numpy.random.seed outside"),
        ("runs.py", "import random\nrandom.seed(0)", "uses random.seed outside"),
        ("runs.py", "from random import seed", "imports random.seed"),
    ],
)
def test_a_violation_is_found(place: str, text: str, what: str) -> None:
    found = violations(place, text)
    assert len(found) == 1
    assert what in found[0]


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("boundary/new.py", "records = task.train.unseal()"),
        ("models.py", "import torch\nwith torch.random.fork_rng(devices=[]):\n    torch.manual_seed(0)"),
        ("runs.py", "import torch\ngenerator = torch.Generator().manual_seed(0)"),
        ("streams/dataset.py", "import numpy as np\nnp.load(file, allow_pickle=False)"),
        ("streams/dataset.py", "import numpy as np\nnp.random.RandomState(0).permutation(3)"),
        ("learners/learner.py", "from l2dp.noise import Noise, SystemNoise"),
        ("boundary/new.py", "draw = noise.laplace(1.0, (3,))"),
    ],
)
def test_what_is_allowed_is_not_flagged(place: str, text: str) -> None:
    assert violations(place, text) == []
