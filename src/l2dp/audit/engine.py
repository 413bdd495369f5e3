"""Runs the attacks that apply, in parallel processes, and says what they show.

Bounds are shown at 95 %. The verdict *refuted* needs more: over all attacks of an audit together, an honest guarantee
is called refuted with probability below 10⁻⁶.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from multiprocessing import get_context
from typing import Any, Literal

import numpy as np

from l2dp.audit.attack import Attack, Inapplicable, Level
from l2dp.audit.attacks import ATTACKS
from l2dp.audit.decisions import Trials, bound, curve, estimate, highest, scored
from l2dp.audit.target import Stated, Target
from l2dp.errors import BadInput

SHOWN_ERROR = 0.05
FAMILY_ERROR = 1e-6

Verdict = Literal["refuted", "holds so far", "not applicable"]


@dataclass(frozen=True)
class Finding:
    """What one attack shows about one setting of a learner."""

    attack: str
    threat_model: str
    variant: str
    stated: Stated | None
    verdict: Verdict
    why: str = ""
    """Why the attack does not apply."""
    trials: int = 0
    bounded_on: int = 0
    decided: int = 0
    right: int = 0
    lower_bound: float | None = None
    ceiling: float | None = None
    verdict_bound: float | None = None
    """The bound at the error that a verdict needs."""
    verdict_ceiling: float | None = None
    """What that bound could be at most: below the stated ε, so few trials cannot refute it, whatever they show."""
    p_value: float | None = None
    """Of an attack that is a test."""
    gaussian_estimate: float | None = None
    curve: dict[str, Any] = field(default_factory=dict)

    @property
    def could_refute(self) -> bool:
        """Whether an attacker who is always right would have refuted the guarantee with so many trials."""
        if self.stated is None or self.verdict_ceiling is None:
            return self.verdict != "not applicable"
        return self.verdict_ceiling > self.stated.epsilon

    def to_json(self) -> dict[str, Any]:
        stated = None if self.stated is None else self.stated.guarantee.to_json()
        return {
            "attack": self.attack,
            "threat_model": self.threat_model,
            "variant": self.variant,
            "stated": stated,
            "verdict": self.verdict,
            "why": self.why or None,
            "trials": self.trials,
            "bounded_on": self.bounded_on,
            "decided": self.decided,
            "right": self.right,
            "lower_bound": self.lower_bound,
            "lower_bound_confidence": 1 - SHOWN_ERROR,
            "ceiling": self.ceiling,
            "verdict_bound": self.verdict_bound,
            "verdict_ceiling": self.verdict_ceiling,
            "p_value": self.p_value,
            "gaussian_dp_estimate": self.gaussian_estimate,
            "curve": self.curve or None,
        }


@dataclass(frozen=True)
class Audit:
    """Everything that was tried on a learner."""

    learner: str
    level: Level
    runs: int | None
    """Trials that were asked for; None: those of the level."""
    targets: Sequence[Target]
    attacks: tuple[str, ...]
    findings: list[Finding]
    seconds: float
    error_of_each: float

    @property
    def verdict(self) -> Verdict:
        found = {finding.verdict for finding in self.findings}
        return "refuted" if "refuted" in found else "holds so far" if "holds so far" in found else "not applicable"

    @property
    def beaten(self) -> list[Finding]:
        """Findings that refute a guarantee whose status is `proved`."""
        return [
            finding
            for finding in self.findings
            if finding.verdict == "refuted" and finding.stated and finding.stated.guarantee.status == "proved"
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "learner": self.learner,
            "level": self.level,
            "runs": self.runs,
            "attacks": list(self.attacks),
            "targets": [target.to_json() for target in self.targets],
            "verdict": self.verdict,
            "family_error": FAMILY_ERROR,
            "error_of_each": self.error_of_each,
            "findings": [finding.to_json() for finding in self.findings],
            "seconds": self.seconds,
            "version": version("l2dp"),
        }


@dataclass(frozen=True)
class Job:
    """A piece of work for one process."""

    attack: int
    target: int
    runs: int
    seed: int


Part = dict[str, Trials] | str
"""What one piece of work saw, under each name of the attack; or why there was nothing to attack."""


def work(attack: Attack, target: Target, runs: int, seed: int) -> Part:
    """One piece of work. Coins and data come from the seed; privacy noise never does."""
    try:
        return attack.trials(target, runs, np.random.default_rng(seed))
    except Inapplicable as reason:
        return str(reason)


def _alone() -> None:
    import torch

    torch.set_num_threads(1)


def audit(
    targets: Sequence[Target],
    level: Level = "quick",
    runs: int | None = None,
    workers: int = 1,
    attacks: Sequence[Attack] = ATTACKS,
    tell: Callable[[str], None] = lambda _: None,
) -> Audit:
    """Tries all attacks on all targets, which are settings of one learner.

    Guarantee
    ---------
    If every stated (ε, δ) holds, and where δ > 0 the noise of different canaries of one call is independent (as that of
    the shipped boundaries is), a finding says *refuted* with probability below FAMILY_ERROR: the error is divided
    evenly over all findings that the audit can make. A bound at 95 % exceeds its ε in at most one finding in twenty.
    """
    started = time.perf_counter()
    if runs is not None and runs < 40:
        raise BadInput(f"--runs must be at least 40, not {runs}: fewer show nothing")
    stated = [promised(target) for target in targets]
    pairs = [(a, t) for t, _ in enumerate(targets) for a, _ in enumerate(attacks)]
    refusals = {(a, t): _refusal(attacks[a], targets[t], stated[t]) for a, t in pairs}
    jobs = [
        Job(a, t, share, secrets.randbits(64))
        for a, t in pairs
        if refusals[a, t] is None
        for share in _shares(attacks[a], attacks[a].RUNS[level] if runs is None else runs)
    ]
    parts = _collect(jobs, attacks, targets, workers, tell)
    hypotheses = sum(len(attacks[a].names()) for a, t in pairs if refusals[a, t] is None)
    error = FAMILY_ERROR / max(1, hypotheses)
    findings = []
    for a, t in pairs:
        attack, target = attacks[a], targets[t]
        found = parts.get((a, t), [])
        why = next((part for part in found if isinstance(part, str)), refusals[a, t])
        if why is not None:
            findings.append(Finding(attack.NAME, attack.THREAT, target.variant, stated[t], "not applicable", why))
            continue
        promise = stated[t]
        assert promise is not None
        for name in attack.names():
            trials = Trials.joined(part[name] for part in found if not isinstance(part, str))
            findings.append(_finding(name, attack, target, promise, trials, error))
    names = tuple(attack.NAME for attack in attacks)
    return Audit(targets[0].learner, level, runs, targets, names, findings, time.perf_counter() - started, error)


def promised(target: Target) -> Stated | None:
    """The guarantee that a target states once it has begun."""
    from l2dp.audit.attacks.membership import begun

    return Stated.of(begun(target).guarantee)


def _refusal(attack: Attack, target: Target, stated: Stated | None) -> str | None:
    return "no guarantee is stated" if stated is None else attack.refusal(target)


def _shares(attack: Attack, runs: int) -> list[int]:
    jobs = attack.JOBS
    return [runs // jobs + (index < runs % jobs) for index in range(jobs)]


def _collect(
    jobs: Sequence[Job], attacks: Sequence[Attack], targets: Sequence[Target], workers: int, tell: Callable[[str], None]
) -> dict[tuple[int, int], list[Part]]:
    found: dict[tuple[int, int], list[Part]] = {}

    def take(job: Job, part: Part) -> None:
        found.setdefault((job.attack, job.target), []).append(part)
        tell(f"{attacks[job.attack].NAME} {targets[job.target].variant}".strip())

    if workers <= 1:
        for job in jobs:
            take(job, work(attacks[job.attack], targets[job.target], job.runs, job.seed))
        return found
    # Spawned, not forked: a fork of a process with threads may wait for ever.
    with ProcessPoolExecutor(workers, get_context("spawn"), _alone) as pool:
        running: list[tuple[Job, Future[Part]]] = [
            (job, pool.submit(work, attacks[job.attack], targets[job.target], job.runs, job.seed)) for job in jobs
        ]
        try:
            for job, future in running:
                take(job, future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return found


def _finding(name: str, attack: Attack, target: Target, stated: Stated, trials: Trials, error: float) -> Finding:
    about = (name, attack.THREAT, target.variant, stated)
    p_value = attack.p_value(trials)
    if p_value is not None:
        verdict: Verdict = "refuted" if p_value < error else "holds so far"
        return Finding(*about, verdict, trials=len(trials), bounded_on=len(trials), p_value=p_value)
    scores, delta = scored(trials), stated.delta
    shown = bound(trials, delta, SHOWN_ERROR, scores, attack.ONE_RUN)
    strict = bound(trials, delta, error, scores, attack.ONE_RUN)
    return Finding(
        *about,
        "refuted" if strict.epsilon > stated.epsilon else "holds so far",
        trials=len(trials),
        bounded_on=shown.trials,
        decided=shown.decided,
        right=shown.right,
        lower_bound=shown.epsilon,
        ceiling=highest(trials, delta, SHOWN_ERROR, attack.ONE_RUN),
        verdict_bound=strict.epsilon,
        verdict_ceiling=highest(trials, delta, error, attack.ONE_RUN),
        gaussian_estimate=estimate(trials, delta, scores),
        curve=curve(trials, scores),
    )
