"""What an audit (`audit.json`) says about one release: which findings attacked the very settings that made it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from l2dp.audit.target import Target
from l2dp.errors import BadInput
from l2dp.report.words import short

ONLY_THE_LEARNER = "it speaks for the learner, not for this release."


def speaks_for(
    audit: dict[str, Any], about: dict[str, Any], privacy: dict[str, Any]
) -> tuple[dict[str, Any], str | None]:
    """The part of an audit that attacked what made a release, and what must be said beside it (None: nothing).

    Where no part did, the whole audit and why. An audit of another learner is refused, and one that refutes what the
    release states: there is nothing to sign then.
    """
    with _readable("the release"):
        learner, unit, states = str(about["learner"]), privacy["unit"], privacy["epsilon"] is not None
        command = str(privacy["audit"]["command"])
        words = about.get("settings") or {**about["options"], "protects": unit}
        made_by = Target(learner, *_budget(about["budget"]), tuple(sorted(words.items()))) if states else None
    if audit["learner"] != learner:
        raise BadInput(
            f"the audit is of {short(str(audit['learner']), 60)}, the release was made by {short(learner, 60)}; "
            f"make one with `{short(command, 300)} --out DIR`"
        )
    if made_by is None:
        return audit, f"The release states no guarantee: {ONLY_THE_LEARNER}"
    if "settings" not in about and unit == "user":
        return audit, f"The release is of an older version and does not hold all its settings: {ONLY_THE_LEARNER}"
    if "targets" not in audit:
        return audit, f"It does not say which settings were attacked: {ONLY_THE_LEARNER}"
    try:
        ours = {"ε": made_by.epsilon, "δ": made_by.delta} | _config(made_by)
    except BadInput:
        return audit, f"The learner's settings cannot be compared here: {ONLY_THE_LEARNER}"
    with _readable("the audit"):
        return _part(audit, made_by, ours, privacy["status"])


def _part(
    audit: dict[str, Any], made_by: Target, ours: dict[str, Any], status: str
) -> tuple[dict[str, Any], str | None]:
    compared = [(target["variant"], _differing(target, made_by, ours)) for target in audit["targets"]]
    if not compared:
        return audit, f"It attacked nothing: {ONLY_THE_LEARNER}"
    same = {variant for variant, differing in compared if not differing}
    if not same:
        nearest = min((differing for _, differing in compared), key=len)
        said = short(", ".join(nearest), 300)
        return audit, f"It attacked other settings than those of this release ({said}): {ONLY_THE_LEARNER}"
    budget = made_by.epsilon, made_by.delta
    mine = [one for one in audit["findings"] if one["variant"] in same and _budget(one["stated"]) == budget]
    if all(one["verdict"] == "not applicable" for one in mine):
        return audit, f"It tried no attack on the settings of this release: {ONLY_THE_LEARNER}"
    refuted = [one for one in mine if one["verdict"] == "refuted"]
    if refuted and status in ("proved", "claimed"):
        raise BadInput(
            f"the audit refutes what this release states ({short(str(refuted[0]['attack']), 60)}): "
            "there is nothing to sign; report it"
        )
    others = any(one["verdict"] == "refuted" for one in audit["findings"] if one not in mine)
    part = audit | {"findings": mine, "verdict": "refuted" if refuted else "holds so far"}
    return part, "Other settings of this learner were refuted in the same audit." if others else None


def _differing(target: dict[str, Any], made_by: Target, ours: dict[str, Any]) -> list[str]:
    """The settings in which what was attacked differs from what made the release."""
    if target["learner"] != made_by.learner:
        return [f"learner {target['learner']}"]  # never looked up: a name may stand for a file with code
    words = {str(name): str(word) for name, word in target["options"].items()}
    attacked = Target(made_by.learner, *_budget(target), tuple(sorted(words.items())))
    theirs = {"ε": attacked.epsilon, "δ": attacked.delta} | _config(attacked)
    pairs = ((name, theirs.get(name), mine) for name, mine in ours.items())
    return [f"{name} {value} instead of {mine}" for name, value, mine in pairs if value != mine]


def _config(target: Target) -> dict[str, Any]:
    return {name: value for name, value in target.make().config().items() if name != "budget"}


def _budget(stated: dict[str, Any]) -> tuple[float, float]:
    return float(stated["epsilon"]), float(stated["delta"] or 0.0)


@contextmanager
def _readable(what: str) -> Iterator[None]:
    try:
        yield
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as flaw:
        raise BadInput(
            f"{what} cannot be compared: {short(repr(flaw), 80)}; leave the audit out or make it again"
        ) from None
