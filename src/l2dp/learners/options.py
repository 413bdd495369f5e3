"""Learners from words: turns `name=value` options into a configured learner, checked against its fields."""

from __future__ import annotations

import difflib
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin

from l2dp.budget import Budget
from l2dp.errors import BadInput
from l2dp.learners.learner import Learner


def option_types(cls: type[Learner]) -> dict[str, Any]:
    """The options of a learner and their types; its budget is set by --epsilon and --delta."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in fields(cls) if f.init and f.name != "budget"}


def has_budget(cls: type[Learner]) -> bool:
    return any(f.name == "budget" for f in fields(cls))


def _convert(name: str, word: str, kind: Any) -> Any:
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        if word not in choices:
            raise BadInput(f"option {name}={word}: choose from {', '.join(choices)}")
        return word
    if get_origin(kind) in (typing.Union, types.UnionType):
        parts = [part for part in get_args(kind) if part is type(None) or isinstance(part, type)]
        if word.lower() == "none" and type(None) in parts:
            return None
        return _convert(name, word, next(part for part in parts if part is not type(None)))
    if kind is bool:
        if word.lower() in ("true", "false"):
            return word.lower() == "true"
        raise BadInput(f"option {name}={word}: say true or false")
    try:
        value = kind(word)
    except (TypeError, ValueError):
        raise BadInput(f"option {name}={word}: not {kind.__name__}") from None
    if isinstance(value, float) and not 0 <= value < math.inf:
        raise BadInput(f"option {name}={word}: must be a finite number of at least 0")
    if isinstance(value, int) and value < 1:
        raise BadInput(f"option {name}={word}: must be at least 1")
    return value


def configure(
    cls: type[Learner],
    defaults: Mapping[str, Any],
    words: Mapping[str, str],
    epsilon: float | None = None,
    delta: float | None = None,
) -> Learner:
    """A learner with a benchmark's defaults, overridden by options; defaults for other learners are ignored."""
    known = option_types(cls)
    for name in words:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
            raise BadInput(f"{cls.NAME} has no option {name!r}; {hint}")
    chosen = {name: value for name, value in defaults.items() if name in known}
    chosen |= {name: _convert(name, word, known[name]) for name, word in words.items()}
    if has_budget(cls):
        if epsilon is not None:
            chosen["budget"] = Budget(epsilon, getattr(cls, "DELTA", 0.0) if delta is None else delta)
        elif delta is not None:
            raise BadInput("--delta goes with --epsilon; give both")
    elif epsilon is not None or delta is not None:
        raise BadInput(f"{cls.NAME} has no privacy budget; leave out --epsilon and --delta")
    return cls(**chosen)
