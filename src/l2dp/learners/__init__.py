"""One short file per method. `LEARNERS` maps the names of the command line to their classes."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from pathlib import Path

from l2dp.budget import Guarantee
from l2dp.errors import BadInput
from l2dp.learners.agem import Agem
from l2dp.learners.finetune import Finetune
from l2dp.learners.joint import Joint
from l2dp.learners.l2dp_ml import L2dpMl
from l2dp.learners.learner import Learner, Plan, Setting, State, Tick
from l2dp.learners.naive_gaussian import NaiveGaussian
from l2dp.learners.private_replay import PrivateReplay

__all__ = [
    "LEARNERS",
    "Agem",
    "Finetune",
    "Joint",
    "L2dpMl",
    "Learner",
    "NaiveGaussian",
    "Plan",
    "PrivateReplay",
    "Setting",
    "State",
    "Tick",
    "find",
]

LEARNERS: dict[str, type[Learner]] = {
    cls.NAME: cls for cls in (Finetune, Agem, Joint, NaiveGaussian, L2dpMl, PrivateReplay)
}


def believed(learner: Learner, promised: Guarantee) -> Guarantee:
    """What a guarantee of a learner is worth here: of a learner that is not ours, `claimed` at best."""
    return promised if type(learner) in LEARNERS.values() else promised.unproved()


def find(name: str) -> type[Learner]:
    """The class behind a name, or behind `module:Class` or `file.py:Class` for a learner of one's own."""
    if name in LEARNERS:
        return LEARNERS[name]
    place, colon, attribute = name.rpartition(":")
    if not colon:
        near = difflib.get_close_matches(name, LEARNERS, 1, 0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(LEARNERS)} or module:Class"
        raise BadInput(f"unknown learner {name!r}; {hint}")
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(place).stem, place)
            if spec is None or spec.loader is None:
                raise ImportError(place)
            module = importlib.util.module_from_spec(spec)
            # Dataclasses look their module up by name while they are being made.
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
        found = getattr(module, attribute)
    except (ImportError, OSError, AttributeError, SyntaxError, TypeError, ValueError) as error:
        raise BadInput(f"no learner at {name!r}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Learner)):
        raise BadInput(f"{name!r} is not a subclass of l2dp.learners.Learner")
    missing = sorted(found.__abstractmethods__) + ([] if hasattr(found, "NAME") else ["NAME"])
    if missing:
        raise BadInput(f"the learner {name!r} lacks {', '.join(missing)}")
    return found
