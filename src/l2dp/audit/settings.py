"""From words to targets: a learner by name with all settings that it states guarantees for, a run, or a home."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from l2dp.audit.target import Options, Target, word
from l2dp.durable import read_json
from l2dp.errors import BadInput
from l2dp.learners import PrivateReplay, find
from l2dp.store import declared

PER_USER = 3


def targets(name: str, epsilon: float | None, delta: float | None, options: dict[str, str]) -> list[Target]:
    """The settings of a learner that an audit looks at.

    private-replay without options is audited in all eight: both heads, both units, approximate and pure ε.
    """
    cls = find(name)
    one = Target(name, epsilon, delta, tuple(sorted(options.items())))
    one.make()  # refuses what cannot be configured, before any process starts
    if not issubclass(cls, PrivateReplay) or options:
        return [one]
    if epsilon is None:
        one = replace(one, epsilon=1.0)
    deltas = [delta] if delta is not None else [PrivateReplay.DELTA, 0.0]
    found = []
    for head in ("experts", "fixed"):
        for unit in ("record", "user"):
            for part in deltas:
                more: dict[str, object] = {"protects": unit} | ({"per_user": PER_USER} if unit == "user" else {})
                variant = f"{head}, {unit}, {'pure' if part == 0 else 'approximate'}"
                target = one.having(variant, part, head=head, **more)
                found.append(replace(target, same_boundary=head == "fixed"))
    return found


def from_folder(folder: Path) -> list[Target]:
    """The learner of a home or of a run, in the configuration for which the folder states a guarantee."""
    return from_home(folder) if (folder / "home.json").exists() else from_run(folder)


def from_home(folder: Path) -> list[Target]:
    """The learner of a home, with the budget, unit and options that were declared when it was made."""
    found = declared.load(folder)
    if found.insecure_noise_seed is not None:
        raise BadInput(f"{folder} draws insecure noise: it states no guarantee, so there is none to audit")
    return [Target(found.learner, found.epsilon, found.delta, tuple(sorted(found.settings.items())), "as declared")]


def from_run(folder: Path) -> list[Target]:
    """The learner of a run folder, in the configuration that the run states its guarantee for."""
    path = next((folder / name for name in ("result.json", "run.json") if (folder / name).exists()), None)
    if path is None:
        raise BadInput(
            f"{folder} holds neither a run (result.json) nor a home (home.json); name a learner, a run or a home"
        )
    found = read_json(path)
    try:
        name, config = found["learner"], dict(found["config"]["learner"])
        insecure = found["config"].get("insecure_noise_seed") is not None
    except (AttributeError, KeyError, TypeError) as error:
        raise BadInput(f"{path} is not in the format of a run ({error!r})") from error
    if insecure:
        raise BadInput(
            f"{folder} was run with --insecure-noise-seed: it states no guarantee, so there is none to audit"
        )
    budget = _budget(found, config)
    return [replace(_configured(name, config), epsilon=budget[0], delta=budget[1])]


def _budget(found: dict[str, Any], config: dict[str, Any]) -> tuple[float | None, float | None]:
    # The learner's own budget first: what the preparation of a stream has spent is in the run's guarantee as well.
    for stated in (config.get("budget"), found.get("guarantee")):
        if isinstance(stated, dict) and stated.get("epsilon") is not None:
            return float(stated["epsilon"]), float(stated.get("delta") or 0.0)
    return None, None


def _configured(name: str, config: dict[str, Any]) -> Target:
    """Only what differs from the defaults: the rest needs no words."""
    cls = find(name)
    usual: dict[str, Any] = cls().config()
    known = {field.name for field in fields(cls)} - {"budget"}
    changed: Options = tuple(
        sorted((key, word(value)) for key, value in config.items() if key in known and usual.get(key) != value)
    )
    return Target(name, options=changed, variant="as run")
